"""A run that loses actors: what it continues from, what it reports, when it gives up. No Ray: the actors live in this
process."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from rlpipe.errors import ActorLostError, Fault, RunError
from rlpipe.metrics.row import Event, Status
from rlpipe.run.metric_logger import Backlog
from rlpipe.training.local import LocalEngine
from rlpipe.training.recovery import train
from tests.helpers.faulty import assert_whole, events
from tests.helpers.runs import scripted, without_timings


class FragileEngine(LocalEngine):
    """Engine in this process that loses actors.

    As on Ray, an event is written some time after it was sent, and what a lost logger has not written is gone.
    """

    def __init__(self, config: Any, *losses: tuple[str, int, str]) -> None:
        """Takes the losses: method, number of the call that fails, from 1, and the actors that it shows to be lost."""
        super().__init__(config)
        self._losses = {(method, call): actor for method, call, actor in losses}
        self._calls: Counter[str] = Counter()
        self._sent: list[Event] = []

    def _lose(self, method: str) -> None:
        self._calls[method] += 1
        actors = self._losses.get((method, self._calls[method]), "").split()
        if "metric-logger" in actors:
            self._logger._lock.release()  # as the kernel does
            self._opened, self._sent = False, []
        if actors:
            raise ActorLostError(*(Fault(actor, "died", pid=self._calls[method]) for actor in actors))

    def start_learner(self, *args: Any) -> Any:
        self._lose("start_learner")
        return super().start_learner(*args)

    def rebuild(self, ready: Any, state: Any, warm: Any, incarnation: int) -> Any:
        self._lose("rebuild")
        self._steps = [0] * self.num_workers
        for worker in self._workers:
            worker.restart_episodes(incarnation)
        return super().start_learner(ready, state, warm if state is None else None)

    def write(self, iteration: int, windows: list[Any]) -> Any:
        self._lose("write")
        self._flush()
        return super().write(iteration, windows)

    def event(self, event: Event) -> Any:
        self._sent.append(event)
        return event

    def wait(self, refs: list[Any]) -> None:
        if self._opened and any(ref is event for ref in refs for event in self._sent):
            self._flush()

    def _flush(self) -> None:
        for event in self._sent:
            super().event(event)
        self._sent = []

    def finish(self, status: Status) -> Backlog:
        if self._opened:
            self._flush()
        backlog, self._opened = super().finish(status), False
        return backlog


def run(tmp_path: Path, *losses: tuple[str, int, str], **options: int) -> Path:
    """Trains for 4 iterations with a checkpoint after each second one; returns the run directory."""
    config = scripted(tmp_path, *(f"runner.{name}={value}" for name, value in options.items()))
    return train(config, FragileEngine(config, *losses)).directory


def directory(tmp_path: Path) -> Path:
    (file,) = tmp_path.glob("*/*/run.json")
    return file.parent


def losses_of(run: Path) -> list[tuple[str, int, int]]:
    """Actor, iteration that the run continued after, and iterations discarded, of each recovery."""
    return [
        (event["data"]["part"], event["iteration"], event["data"]["discarded"]) for event in events(run, "recovered")
    ]


def test_a_learner_that_dies_before_it_is_ready_is_replaced_and_changes_no_number(tmp_path):
    undisturbed = run(tmp_path / "undisturbed")
    disturbed = run(tmp_path / "disturbed", ("start_learner", 1, "learner"), ("rebuild", 1, "inference-0"))
    assert without_timings(disturbed) == without_timings(undisturbed)
    assert losses_of(disturbed) == [("learner", 0, 0), ("inference-0", 0, 0)]
    assert json.loads((disturbed / "run.json").read_text())["incarnation"] == 0


def test_a_resumed_run_reports_that_it_was_resumed_and_what_it_lost_in_its_start(tmp_path):
    first = run(tmp_path)
    config = scripted(tmp_path, "runner.total_timesteps=384")
    train(config, FragileEngine(config, ("start_learner", 1, "learner")), resume=first)
    assert [event["message"] for event in events(first, "resumed")] == [
        "Resumed after iteration 4 from iteration-000004.npz."
    ]
    assert losses_of(first) == [("learner", 4, 0)]
    assert_whole(first, 6)


def test_a_learner_that_never_starts_ends_the_run_with_one_message_that_counts_its_losses(tmp_path):
    losses = [("start_learner", 1, "learner"), ("rebuild", 1, "learner"), ("rebuild", 2, "learner")]
    with pytest.raises(RunError, match=r"learner died\.\nThe run has recovered 2 times \(runner\.max_recoveries\)"):
        run(tmp_path, *losses, max_recoveries=2)
    assert [event["message"] for event in events(directory(tmp_path), "note")] == [
        "learner died. The run failed before it had recovered."
    ] * 2
    assert [event["message"] for event in events(directory(tmp_path), "failed")] == ["learner died."]
    assert json.loads((directory(tmp_path) / "run.json").read_text())["status"] == "failed"


def test_a_loss_in_a_recovery_is_an_event_of_its_own(tmp_path):
    lossy = run(tmp_path, ("write", 2, "learner"), ("rebuild", 1, "metric-logger"))
    assert losses_of(lossy) == [("learner", 0, 1), ("metric-logger", 0, 0)]
    assert_whole(lossy, 4)


def test_actors_that_are_lost_together_are_an_event_each_and_cost_one_recovery(tmp_path):
    lossy = run(tmp_path, ("write", 2, "learner metric-logger"), max_recoveries=1)
    assert losses_of(lossy) == [("learner", 0, 1), ("metric-logger", 0, 0)]
    assert_whole(lossy, 4)


def test_what_the_lost_logger_had_not_written_its_successor_writes_once(tmp_path):
    lossy = run(tmp_path, ("write", 2, "learner"), ("write", 3, "metric-logger"))
    assert losses_of(lossy) == [("learner", 0, 1), ("metric-logger", 0, 0)]
    assert_whole(lossy, 4)
    assert len(events(lossy, "completed")) == 1


def test_a_recovery_that_fails_for_good_still_reports_what_began_it(tmp_path):
    with pytest.raises(RunError, match="metric-logger died"):
        run(tmp_path, ("write", 2, "learner"), ("rebuild", 1, "metric-logger"), max_recoveries=1)
    (note,) = events(directory(tmp_path), "note")
    assert note["message"] == "learner died. The run failed before it had recovered."
    assert [event["data"]["part"] for event in events(directory(tmp_path), "failed")] == ["metric-logger"]
