"""What every backend promises, tried against the real library and without a network (``tests/helpers/stores``)."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import rlpipe
from rlpipe.config.loading import load_config
from rlpipe.config.tree import to_yaml
from rlpipe.run.directory import RunDirectory, read_jsonl
from rlpipe.run.follower import mark_file
from tests.helpers.backends import STORES, assert_shows_everything, sync, trained
from tests.helpers.runs import scripted

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module", params=STORES)
def name(request):
    """Name of the backend."""
    return request.param


@pytest.fixture(scope="module")
def shown(name, tmp_path_factory) -> RunDirectory:
    """The run that most tests look at, one a backend."""
    return trained(tmp_path_factory.mktemp(name), name, "runner.logger.per_worker=true")


def test_a_run_shows_in_it_and_syncing_again_changes_nothing(shown, name):
    assert_shows_everything(shown, name)
    answer = sync(shown, name)
    assert answer.returncode == 0, answer.stderr
    assert_shows_everything(shown, name)


def test_it_says_how_the_run_ended(shown, name):
    store = STORES[name]
    if not hasattr(store, "status"):
        pytest.skip(f"{name} has no word for it")
    assert store.status(shown) == store.STATUS_COMPLETED


def test_a_lost_mark_doubles_nothing(shown, name):
    mark_file(shown.path, name).unlink()
    time.sleep(1.1)  # TensorBoard reads event files in the order of their seconds
    answer = sync(shown, name)
    assert answer.returncode == 0, answer.stderr
    assert_shows_everything(shown, name)


def test_a_run_that_is_made_longer_goes_on_on_the_same_curve(shown, name):
    time.sleep(1.1)
    longer = load_config(shown.path / "config.yaml", ["runner.total_timesteps=384"])
    rlpipe.train(longer, local=True, resume=shown.path)
    assert len(list(read_jsonl(shown.path / "metrics.jsonl"))) == 6
    assert_shows_everything(shown, name)


def test_a_run_that_is_killed_and_resumed_stands_there_once(tmp_path, name):
    """The run and all its processes die at some moment; the view may only hold what the resumed run says too."""
    overrides = (
        f"runner.logger.logger_backends=[{name}]", "runner.total_timesteps=1280", "runner.save_interval=3",
        "env.train.step_seconds=0.01", *STORES[name].OPTIONS,
    )  # fmt: skip
    (tmp_path / "c.yaml").write_text(to_yaml(scripted(tmp_path, *overrides)), encoding="utf-8")
    command = [sys.executable, "-m", "rlpipe", "train", str(tmp_path / "c.yaml"), "--local"]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        run = _wait_for_iteration(tmp_path, 8)
    finally:
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
    resumed = [sys.executable, "-m", "rlpipe", "train", "--resume", str(run.path), "--local"]
    answer = subprocess.run(resumed, capture_output=True, text=True, timeout=200, check=False)
    assert answer.returncode == 0, answer.stderr
    assert len(list(read_jsonl(run.path / "metrics.jsonl"))) == 20
    assert_shows_everything(run, name)


def _wait_for_iteration(folder: Path, iteration: int) -> RunDirectory:
    """Waits until a run in the folder has written an iteration."""
    ends = time.monotonic() + 60
    while time.monotonic() < ends:
        for file in folder.glob("scripted/*/metrics.jsonl"):
            rows = [line for line in file.read_bytes().splitlines(keepends=True) if line.endswith(b"\n")]
            if len(rows) >= iteration:
                return RunDirectory(file.parent)
        time.sleep(0.02)
    raise AssertionError("the run wrote nothing in a minute")
