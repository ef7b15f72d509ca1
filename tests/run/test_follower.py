"""Views that live apart: always rebuilt from the run directory, whatever happens to them."""

from __future__ import annotations

import csv
import json
import os
import shutil
import subprocess
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

import rlpipe
from rlpipe.backends.base import Backend
from rlpipe.config.loading import load_config
from rlpipe.errors import ConfigError
from rlpipe.metrics import MetricWindow
from rlpipe.metrics import catalogue as m
from rlpipe.run.backend_processes import BackendProcesses, _BackendProcess
from rlpipe.run.directory import RunDirectory, read_jsonl
from rlpipe.run.follower import BackendMark, Follower, Tail, mark_file, read_mark
from rlpipe.training.interruption import Interruption
from tests.helpers.commands import command
from tests.helpers.runs import beside, scripted

HERE = "tests.run.test_follower"
SHORT_NAMES = "tests.helpers.short_names:ShortNames"


def run(tmp_path: Path, *backends: str, overrides: tuple[str, ...] = ()) -> RunDirectory:
    """A finished local run with backends."""
    config = scripted(tmp_path, f"runner.logger.logger_backends=[{','.join(backends)}]", *overrides)
    return RunDirectory(rlpipe.train(config, local=True).directory)


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    return run(tmp_path_factory.mktemp("runs"), overrides=("runner.save_interval=3",))


@pytest.fixture
def directory(finished, tmp_path):
    """A copy of a finished run without backends."""
    return RunDirectory(Path(shutil.copytree(finished.path, tmp_path / "scripted" / finished.path.name)))


def truth(directory: RunDirectory) -> dict[int, dict[str, float]]:
    return {row["iteration"]: row["metrics"] for row in read_jsonl(directory.path / "metrics.jsonl")}


def in_csv(directory: RunDirectory) -> dict[int, dict[str, float]]:
    with (directory.path / "metrics.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert len({row["iteration"] for row in rows}) == len(rows)
    return {
        int(row["iteration"]): {
            name: float(value)
            for name, value in row.items()
            if value and name not in ("iteration", "total_timesteps", "time")
        }
        for row in rows
    }


def in_tensorboard(directory: RunDirectory, name: str) -> list[tuple[int, float]]:
    reader = EventAccumulator(str(directory.path / "tensorboard"), size_guidance={"scalars": 0})
    reader.Reload()
    return [(point.step, point.value) for point in reader.Scalars(name)]


def follow(directory: RunDirectory, name: str) -> bool:
    """One look of a follower, as ``rlpipe sync`` makes it."""
    return Follower(directory, name).catch_up()


def events(directory: RunDirectory, kind: str) -> list[dict]:
    return [event for event in read_jsonl(directory.path / "events.jsonl") if event["kind"] == kind]


def test_a_run_feeds_its_backends_while_it_goes_on_and_tells_once_what_they_do_not_show(tmp_path, caplog):
    directory = run(tmp_path, "csv", f"'{SHORT_NAMES}'", overrides=("runner.logger.finish_timeout=600",))
    assert in_csv(directory) == truth(directory)
    told = [*caplog.messages, *(event["message"] for event in events(directory, "note"))]
    assert told.count(f"{SHORT_NAMES}: env/odd is not shown: it is odd.") == 1


def test_sync_shows_a_finished_run_and_a_second_one_changes_nothing(directory):
    assert follow(directory, "csv")
    once = (directory.path / "metrics.csv").read_bytes()
    assert in_csv(directory) == truth(directory)
    assert follow(directory, "csv")
    assert (directory.path / "metrics.csv").read_bytes() == once


def test_a_resume_takes_back_what_no_longer_holds(directory):
    follow(directory, "csv")
    follow(directory, "tensorboard")
    for file in (directory.path / "tensorboard").iterdir():  # TensorBoard reads them in the order of their seconds
        file.rename(file.with_name(file.name.replace("tfevents.", "tfevents.0")))
    (directory.path / "checkpoints" / "iteration-000004.npz").unlink()  # as if the run had died in iteration 4
    before = truth(directory)
    rlpipe.train(load_config(directory.path / "config.yaml"), local=True, resume=directory.path)
    assert follow(directory, "csv")
    assert follow(directory, "tensorboard")
    assert in_csv(directory) == truth(directory) != before  # of the same numbers, but for times
    expected = [(iteration, pytest.approx(row["train/loss"])) for iteration, row in truth(directory).items()]
    assert in_tensorboard(directory, "train/loss") == expected


class CannotForget(Backend):
    """Like a service that keeps every step it was ever given."""

    forgets = False
    given: list[int]
    kept: list[int] = []  # noqa: RUF012 - shared by all openings, as a service would

    def __init__(self, run):
        self.given = []

    def write(self, row):
        CannotForget.kept.append(row.iteration)

    def close(self, status):
        """Holds nothing."""


def test_a_view_that_cannot_forget_only_gets_what_a_checkpoint_covers(directory):
    (directory.path / "checkpoints" / "iteration-000004.npz").unlink()
    directory.write_json({**directory.read_json(), "status": "running"})
    CannotForget.kept.clear()
    follower = Follower(directory, f"{HERE}:CannotForget")
    assert not follower.catch_up()
    assert CannotForget.kept == [1, 2, 3]
    directory.write_json({**directory.read_json(), "status": "completed"})
    assert follower.catch_up()
    assert CannotForget.kept == [1, 2, 3, 4]


def test_of_a_run_that_failed_it_gets_no_more_because_a_resume_may_make_the_rest_again(directory):
    (directory.path / "checkpoints" / "iteration-000004.npz").unlink()
    directory.write_json({**directory.read_json(), "status": "failed"})
    CannotForget.kept.clear()
    follower = Follower(directory, f"{HERE}:CannotForget")
    assert follower.catch_up()
    assert (CannotForget.kept, follower.withheld) == ([1, 2, 3], 1)


@dataclass(frozen=True)
class Where:
    place: str = "here"


class HasPlaces(CannotForget):
    Config = Where


def test_a_view_with_other_options_begins_anew(directory):
    CannotForget.kept.clear()
    assert Follower(directory, f"{HERE}:HasPlaces").catch_up()
    assert Follower(directory, f"{HERE}:HasPlaces").catch_up()
    assert CannotForget.kept == [1, 2, 3, 4]
    assert Follower(directory, f"{HERE}:HasPlaces", {"place": "there"}).catch_up()
    assert CannotForget.kept == [1, 2, 3, 4, 1, 2, 3, 4]


class FailsAtStart(Backend):
    def __init__(self, run):
        raise RuntimeError("no route to the tracker")

    def write(self, row):
        """Never reached."""

    def close(self, status):
        """Never reached."""


class FailsLater(FailsAtStart):
    def __init__(self, run):
        self.first = run.first_iteration

    def write(self, row):
        if row.iteration == 2:
            raise RuntimeError("disk full")


class Dies(FailsLater):
    def write(self, row):
        os._exit(9)


class Sleeps(FailsLater):
    def write(self, row):
        time.sleep(600)


FAULTS = ("FailsAtStart", "FailsLater", "Dies", "Sleeps")


@pytest.mark.soak
def test_backends_that_fail_are_reported_once_each_and_cost_neither_the_run_nor_each_other_anything(
    tmp_path, monkeypatch
):
    """The deadline counts rows that the backend which does not fail has shown, a hundredth of a second each."""
    names = [f"{HERE}:{fault}" for fault in FAULTS]
    interruption = Interruption()

    def clock() -> float:
        found = [read_mark(file) for file in tmp_path.glob("*/*/backends/csv.json")]
        # Once that backend has shown everything, nobody waits for the others.
        return 1e6 if found and found[0].status else 0.01 * sum(mark.iteration for mark in found)

    def interrupt_once_all_are_reported() -> bool:
        files = tmp_path.glob("*/*/events.jsonl")
        reported = sum(file.read_text().count('"kind": "backend"') for file in files) >= len(names)
        if reported:
            interruption.request("the test")
        return reported

    monkeypatch.setitem(BackendProcesses.__init__.__kwdefaults__, "clock", clock)
    options = ("runner.logger.deadline=0.05", "runner.logger.finish_timeout=600", "env.train.step_seconds=0.01")
    with beside(interrupt_once_all_are_reported):
        backends = f"runner.logger.logger_backends=[csv,{','.join(map(repr, names))}]"
        config = scripted(tmp_path, backends, *options, "runner.total_timesteps=1_000_000")
        directory = RunDirectory(rlpipe.train(config, local=True, interruption=interruption).directory)
    assert directory.read_json()["status"] == "interrupted"
    reports = events(directory, "backend")
    assert sorted(event["data"]["backend"] for event in reports) == sorted(names)
    assert all("nothing is lost" in event["message"] for event in reports)
    assert in_csv(directory) == truth(directory)


@pytest.fixture
def sleeping():
    """A process that does nothing."""
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        yield process
        process.kill()


def test_rows_wait_for_a_backend_only_once_it_has_loaded_its_library(tmp_path, sleeping):
    now = [0.0]
    backends = BackendProcesses(RunDirectory(tmp_path), [], deadline=600.0, clock=lambda: now[0])
    backends._backends = [_BackendProcess("csv", sleeping)]

    def lag(iteration: int, seconds: float) -> float:
        now[0] = seconds
        backends.tick(iteration, seconds)
        window = MetricWindow()
        backends.observe_lag(window)
        return window.read([m.LOGGER_LAG])["time/logger_lag"]

    assert lag(1, seconds=10.0) == 0.0
    assert lag(2, seconds=40.0) == 0.0
    mark_file(tmp_path, "csv").parent.mkdir()
    mark_file(tmp_path, "csv").write_text(json.dumps(asdict(BackendMark(iteration=1))))
    assert lag(3, seconds=50.0) == 0.0  # it begins
    assert lag(4, seconds=53.0) == 3.0  # row 2 is 13 seconds old, and could be written for 3


@pytest.mark.soak
def test_a_backend_that_fails_is_reported_with_its_cause(directory):
    processes = BackendProcesses(directory, [f"{HERE}:FailsAtStart"], deadline=1e9)
    while not (reports := processes.tick(4, 0.0)):
        time.sleep(0.05)
    assert "ended with exit code 1 (RuntimeError: no route to the tracker). Training continues" in reports[0].message


class BackAfterAWhile(Backend):
    """Fails until a file exists."""

    def __init__(self, run):
        self.folder = run.directory
        if not (self.folder / "repaired").is_file():
            raise RuntimeError("not yet")

    def write(self, row):
        with (self.folder / "shown").open("a") as file:
            file.write(f"{row.iteration}\n")

    def close(self, status):
        """Holds nothing."""


def test_what_a_backend_missed_is_filled_up_when_it_comes_back(directory):
    with pytest.raises(RuntimeError, match="not yet"):
        follow(directory, f"{HERE}:BackAfterAWhile")
    (directory.path / "repaired").touch()
    assert follow(directory, f"{HERE}:BackAfterAWhile")
    assert (directory.path / "shown").read_text().split() == ["1", "2", "3", "4"]


def test_sync_says_in_a_sentence_why_a_backend_failed(directory):
    answer = command("sync", str(directory.path), "--to", f"{HERE}:BackAfterAWhile")
    assert answer.code == 1
    assert answer.err == (
        f"failed: the backend {HERE}:BackAfterAWhile raised RuntimeError: not yet.\n"
        "It shows the run up to iteration 0; nothing is lost. Remove the cause and repeat the command.\n"
    )


def test_sync_tells_which_metrics_have_another_name_and_which_are_missing(directory):
    answer = command("sync", str(directory.path), "--to", SHORT_NAMES)
    long = {name for metrics in truth(directory).values() for name in metrics if len(name) > 36}
    assert answer.code == 0
    assert len(long) > 0
    for name in long:
        assert (
            answer.out.count(f"  {name}... has {len(name)} characters, more than fit, and is shown as {name[:2]}_") == 1
        )
    assert answer.out.count("  env/odd is not shown: it is odd.\n") == 1


def test_a_run_that_has_not_begun_cannot_be_shown_but_can_be_followed(tmp_path):
    directory = RunDirectory.create(scripted(tmp_path), {})
    answer = command("sync", str(directory.path), "--to", "csv")
    assert answer.code == 2
    assert "has not begun to write yet" in answer.err
    assert not follow(directory, "csv")


def test_a_view_has_one_follower(directory):
    first = Follower(directory, "csv")
    with pytest.raises(ConfigError, match="another process already keeps csv up to date"):
        Follower(directory, "csv")
    first.close()
    Follower(directory, "csv").close()


def test_options_of_a_backend_are_checked(tmp_path):
    with pytest.raises(ConfigError, match=r"unknown key runner.logger.options.csv.colour"):
        scripted(tmp_path, "runner.logger.logger_backends=[csv]", "runner.logger.options.csv.colour=red")
    with pytest.raises(ConfigError, match=r"csv is not among runner.logger.logger_backends"):
        scripted(tmp_path, "runner.logger.options.csv.path=x")


def test_a_tail_waits_for_the_end_of_a_line_and_begins_anew_with_a_new_file(tmp_path):
    file = tmp_path / "lines.jsonl"
    tail = Tail(file)
    assert list(tail.read()) == []
    file.write_text('{"a": 1}\n{"a": 2')
    assert list(tail.read()) == [{"a": 1}]
    with file.open("a") as out:
        out.write("0}\n")
    assert list(tail.read()) == [{"a": 20}]
    new = tmp_path / "new"
    new.write_text(json.dumps({"a": 1}) + "\n")
    new.replace(file)
    assert list(tail.read()) == [{"a": 1}]
