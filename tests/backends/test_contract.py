"""The contract of all backends, tested with each real library and without a network (``tests/helpers/stores``)."""

from __future__ import annotations

import time

import pytest

import rlpipe
from rlpipe.config.loading import load_config
from rlpipe.config.tree import to_yaml
from rlpipe.run.directory import RunDirectory, read_jsonl
from rlpipe.run.follower import Follower, mark_file
from tests.helpers.backends import STORES, assert_shows_everything, sync, trained
from tests.helpers.runs import rlpipe_command, scripted, wait_for_rows


@pytest.fixture(scope="module", params=STORES)
def name(request):
    """Name of the backend."""
    return request.param


@pytest.fixture(scope="module")
def shown(name, tmp_path_factory) -> RunDirectory:
    """A finished run that fed the backend while it ran, one for each backend."""
    return trained(tmp_path_factory.mktemp(name), name, "runner.logger.per_worker=true")


def test_it_holds_every_number_of_a_run_and_how_the_run_ended(shown, name):
    assert_shows_everything(shown, name)
    store = STORES[name]
    if hasattr(store, "status"):
        assert store.status(shown) == store.STATUS_COMPLETED


@pytest.mark.soak
def test_a_sync_with_or_without_its_mark_and_a_longer_run_repeat_nothing(shown, name):
    assert Follower(shown, name).catch_up()  # by its mark it has everything
    assert_shows_everything(shown, name)
    mark_file(shown.path, name).unlink()
    time.sleep(1.1)  # TensorBoard reads event files in the order of their seconds
    answer = sync(shown, name)
    assert answer.returncode == 0, answer.stderr
    assert_shows_everything(shown, name)
    time.sleep(1.1)
    longer = load_config(shown.path / "config.yaml", ["runner.total_timesteps=384"])
    rlpipe.train(longer, local=True, resume=shown.path)
    assert len(list(read_jsonl(shown.path / "metrics.jsonl"))) == 6
    assert_shows_everything(shown, name)


@pytest.mark.soak
def test_a_run_that_is_killed_and_resumed_stands_there_once(tmp_path, name):
    """The run and all its processes die at some moment; the backend may only hold what the resumed run says too."""
    overrides = (
        f"runner.logger.logger_backends=[{name}]", "runner.total_timesteps=1280", "runner.save_interval=3",
        "env.train.step_seconds=0.01", "runner.logger.finish_timeout=200", *STORES[name].OPTIONS,
    )  # fmt: skip
    (tmp_path / "c.yaml").write_text(to_yaml(scripted(tmp_path, *overrides)), encoding="utf-8")
    process = rlpipe_command("train", str(tmp_path / "c.yaml"), "--local")
    try:
        run = RunDirectory(wait_for_rows(tmp_path, 8))
    finally:
        process.kill()
        process.communicate()
    rlpipe.train(load_config(run.path / "config.yaml"), local=True, resume=run.path)
    assert len(list(read_jsonl(run.path / "metrics.jsonl"))) == 20
    assert_shows_everything(run, name)
