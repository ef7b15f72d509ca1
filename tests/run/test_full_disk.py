"""A run directory whose disk is full: training goes on, nothing written is damaged, and writing resumes."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Callable
from typing import ClassVar

import pytest

import rlpipe
from rlpipe.config.tree import to_yaml
from rlpipe.envs.scripted import Scripted
from rlpipe.errors import ConfigError
from rlpipe.run.directory import RunDirectory, read_jsonl
from rlpipe.run.follower import mark_file, read_mark
from tests.helpers.commands import command
from tests.helpers.outages import fill, lines
from tests.helpers.runs import scripted

SIZE = 4 * 2**20


@pytest.fixture
def small_disk(tmp_path):
    """A file system of 4 MiB."""
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={SIZE}", "tmpfs", str(tmp_path)], capture_output=True, text=True
    )
    if mounted.returncode:
        pytest.skip(f"needs the right to mount a tmpfs: {mounted.stderr.strip()}")
    yield tmp_path
    subprocess.run(["umount", "--lazy", str(tmp_path)], check=True)


def test_a_line_that_finds_no_room_leaves_the_file_whole_and_comes_later(small_disk):
    directory = RunDirectory(small_disk)
    directory.append("metrics.jsonl", [{"iteration": 1}])
    ballast = fill(small_disk)
    directory.append("episodes.jsonl", [{"iteration": 2, "note": "y" * 10_000}])
    directory.append("metrics.jsonl", [{"iteration": 2, "note": "x" * 10_000}])
    assert directory.write_error is not None
    assert directory.write_pending() == 1
    assert (small_disk / "metrics.jsonl").read_text() == '{"iteration": 1}\n'
    ballast.unlink()
    assert directory.write_pending() == 0
    assert directory.write_error is None
    for name, iterations in (("metrics.jsonl", [1, 2]), ("episodes.jsonl", [2])):
        written = (small_disk / name).read_text().splitlines()
        assert [json.loads(line)["iteration"] for line in written] == iterations


def test_a_row_never_comes_before_its_episodes(small_disk):
    """While the ledger's line waits, the row, which would still fit, waits behind it."""
    directory = RunDirectory(small_disk)
    directory.append("episodes.jsonl", [{"iteration": 1}])
    fill(small_disk)
    directory.append("episodes.jsonl", [{"iteration": 2, "note": "y" * 10_000}])
    directory.append("metrics.jsonl", [{"iteration": 2}])
    assert not (small_disk / "metrics.jsonl").exists()


def test_a_run_does_not_begin_on_a_full_disk(small_disk):
    fill(small_disk)
    config = scripted(small_disk / "runs")
    with pytest.raises(ConfigError, match=r"runner.logger.log_path: cannot .*No space left"):
        rlpipe.train(config, local=True)
    assert not list(small_disk.glob("runs/scripted/*"))


class Disturbed(Scripted):
    """The scripted simulator, which is disturbed once before each of these steps: 16 of them are an iteration."""

    disturbances: ClassVar[dict[int, Callable[[], object]]] = {}

    def step(self, actions):
        self.taken = getattr(self, "taken", 0) + 1
        self.disturbances.pop(self.taken, lambda: None)()
        return super().step(actions)


def disturbed(folder, *overrides):
    """A run of 40 iterations whose backends have as long as they need."""
    own = (f"env.train.name={__name__}:Disturbed", "rollout.num_workers=1", "runner.total_timesteps=2560")
    return scripted(folder, *own, "runner.logger.finish_timeout=600", *overrides)


@pytest.mark.soak
def test_training_goes_on_while_the_disk_is_full_and_everything_is_there_in_the_end(small_disk, monkeypatch):
    config = disturbed(small_disk / "runs", "runner.logger.logger_backends=[csv, tensorboard]")
    full = []

    def written() -> int:
        (file,) = small_disk.glob("runs/scripted/*/metrics.jsonl")
        return lines(file)

    def fill_once_backends_are_there() -> None:
        run, ends = next(small_disk.glob("runs/scripted/*")), time.monotonic() + 600
        while not all(read_mark(mark_file(run, name)).iteration for name in ("csv", "tensorboard")):
            assert time.monotonic() < ends
            time.sleep(0.05)
        full.extend([fill(small_disk), written()])

    def free() -> None:
        ballast, before = full
        full.append(written() - before)
        ballast.unlink()

    monkeypatch.setattr(Disturbed, "disturbances", {10 * 16: fill_once_backends_are_there, 30 * 16: free})
    result = rlpipe.train(config, local=True)
    assert result.status == "completed"
    assert full[2] < 10  # of 20: a backend that removes a half-written file leaves room for a row or two
    directory = RunDirectory(result.directory)
    rows = list(read_jsonl(directory.path / "metrics.jsonl"))
    assert [row["iteration"] for row in rows] == list(range(1, 41))
    events = [e for e in read_jsonl(directory.path / "events.jsonl") if e["kind"] == "disk"]  # a view may notice it too
    levels = [e["data"]["level"] for e in events]
    assert levels[:2] == ["critical", "cleared"]
    assert levels == ["critical", "cleared"] * (len(levels) // 2)  # again for such a row, but never twice the same
    from tests.helpers.stores import csv, tensorboard

    for store in (csv, tensorboard):
        assert sorted(store.numbers(directory)) == list(range(1, 41))


@pytest.mark.soak
def test_a_run_that_ends_on_a_full_disk_fails_says_so_and_can_be_resumed(small_disk, tmp_path_factory, monkeypatch):
    config = disturbed(small_disk / "runs", "runner.save_interval=5", "runner.logger.finish_timeout=0.5")
    file = tmp_path_factory.mktemp("config") / "c.yaml"
    file.write_text(to_yaml(config), encoding="utf-8")
    monkeypatch.setattr(Disturbed, "disturbances", {10 * 16: lambda: fill(small_disk)})
    answer = command("train", str(file), "--local")
    assert answer.code == 1
    assert "found no room" in answer.err
    assert "--resume" in answer.err
    (small_disk / "ballast").unlink()
    (run,) = small_disk.glob("runs/scripted/*")
    for line in (run / "metrics.jsonl").read_text().splitlines():
        json.loads(line)
    resumed = command("train", "--resume", str(run), "--local")
    assert resumed.code == 0, resumed.err
    assert [row["iteration"] for row in read_jsonl(run / "metrics.jsonl")] == list(range(1, 41))
