"""A run from its start to its end, through the loss of actors: start, recover from the last checkpoint, close."""

from __future__ import annotations

import json
import logging
import os
import platform
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rlpipe.backends.base import Backend, Place, RunInfo
from rlpipe.config.plan import Plan
from rlpipe.demonstrations.checks import demonstration_notes
from rlpipe.errors import ActorLostError, Fault, LostRowsError, RunError, UserInterrupt, command_line, how_it_failed
from rlpipe.foreign import take_notes
from rlpipe.metrics import MetricWindow
from rlpipe.metrics.row import Event, EventKind, Status
from rlpipe.policies.base import Weights
from rlpipe.run import checkpoint
from rlpipe.run.checkpoint import Checkpoint
from rlpipe.run.directory import EVENTS, RunDirectory, read_jsonl
from rlpipe.run.metric_logger import Backlog, run_info
from rlpipe.run.rollback import Rollback, roll_back
from rlpipe.secrets import redacted
from rlpipe.training.checks import check_engine
from rlpipe.training.engine import Engine, Ref
from rlpipe.training.first_weights import first_weights
from rlpipe.training.interruption import Interruption
from rlpipe.training.loop import TrainingLoop, restart_event

log = logging.getLogger("rlpipe")

_VANISHED = "Before, the run ended without a word: its process was killed, or ended by a simulator's compiled code."
_RECOVERIES_IN_A_ROW = 5
"""Recoveries to the same iteration after which a run gives up."""


@dataclass(frozen=True)
class TrainResult:
    """Result of a run.

    Attributes:
        status: completed, interrupted, or stopped by a critical alert
        directory: run directory
        checkpoint: last checkpoint; None if the run was interrupted before its first iteration
        metrics: metrics of the last iteration, with those of the final evaluation if the run completed
        seconds: wall clock time of the run, start-up included
        is_trained: True if all steps have been taken, also if a last evaluation was interrupted
    """

    status: Status
    directory: Path
    checkpoint: Path | None
    metrics: dict[str, float] = field(default_factory=dict)
    seconds: float = 0.0
    is_trained: bool = False


def train(
    config: Plan,
    engine: Engine,
    *,
    interruption: Interruption | None = None,
    resume: Path | None = None,
    write_report: Callable[[Sequence[Path]], object] | None = None,
) -> TrainResult:
    """Trains until the steps of the configuration have been taken.

    Args:
        config: configuration of the run; to resume, the one in its run directory
        engine: closed before this function returns
        interruption: request to end, checked after every iteration
        write_report: called with the run directory when the run has ended
    Raises:
        ConfigError: the simulator or the cluster cannot do what is configured; nothing has been written.
        RunError: an actor was lost and cannot be replaced.
    """
    try:
        return _Run(config, engine, interruption or Interruption(), resume).complete(write_report)
    finally:
        engine.close()


class _Run:
    """One run, with the state that outlives the loss of an actor."""

    _directory: RunDirectory  # of a new run, once workers and learner have started

    def __init__(self, config: Plan, engine: Engine, interruption: Interruption, resume: Path | None) -> None:
        """Reads the checkpoint of a run that is resumed."""
        self._config = config
        self._engine = engine
        self._interruption = interruption
        self._state: Checkpoint | None = None
        before: dict[str, Any] = {}
        if resume is not None:
            self._directory = RunDirectory.existing(resume)
            self._state = checkpoint.newest(self._directory.path)
            before = self._directory.read_json()
        self._incarnation = before.get("incarnation", -1) + 1
        self._vanished = before.get("status") == Status.RUNNING
        self._terminal: list[Backend] = []
        self._first_weights: Weights | None = None
        self._recoveries: list[int] = []
        self._losses: list[Fault] = []  # since the last report
        self._loop: TrainingLoop | None = None

    def complete(self, write_report: Callable[[Sequence[Path]], object] | None) -> TrainResult:
        """Trains to the end, and has the report written; a run never fails for it.

        Raises:
            ConfigError: the simulator or the cluster cannot do what is configured; nothing has been written.
            RunError: an actor was lost for good; the run can be resumed from its last checkpoint.
        """
        began = time.perf_counter()
        try:
            snapshot, rollback = self._start()
        except RunError as error:
            if self._state is None:
                self._directory = RunDirectory.create(self._config, {})
            self._close(Status.FAILED, error.fault)
            raise RunError(error.fault, *error.after, self._advice()) from error.__cause__
        directory, status, cause = self._directory, Status.FAILED, None
        try:
            info = self._info()
            classes = self._config.backend_classes.values()
            self._terminal += [backend(info) for backend in classes if backend.place is Place.TERMINAL]
            status = self._train(snapshot, rollback)
        except KeyboardInterrupt:
            status, write_report = Status.INTERRUPTED, None  # the run ends at once
            raise
        except RunError as error:
            cause = error.fault
            raise RunError(cause, *error.after, self._advice()) from error.__cause__
        except BaseException as error:
            cause = Fault("the driver", redacted(how_it_failed(error), os.environ), host=platform.node())
            if isinstance(error, Exception):
                raise
            raise RunError(cause, self._advice()) from error
        finally:
            backlog = self._close(status, cause)
            if write_report is not None:
                try:
                    write_report([directory.path])
                except Exception as error:
                    hint = f"Try: rlpipe report {directory.path}"
                    log.warning("The report of the run could not be written: %s. %s", error, hint)
        if backlog.unwritten:
            raise LostRowsError(
                f"The last {backlog.unwritten} iterations found no room in {directory.path} and are lost. Make room, "
                f"then resume with: {command_line('train', '--resume', directory.path)}"
            )
        assert self._loop is not None
        if status == Status.FAILED:
            raise LostRowsError(
                f"The checkpoint of iteration {self._loop.done} found no room in {directory.path}. Make room, then "
                f"resume with: {command_line('train', '--resume', directory.path)}"
            )
        checkpoints, seconds = checkpoint.files(directory.path), time.perf_counter() - began
        last = checkpoints[max(checkpoints)] if checkpoints else None
        metrics = self._loop.metrics or self._last_metrics()
        return TrainResult(status, directory.path, last, metrics, seconds, self._loop.is_trained)

    def _start(self) -> tuple[Ref, Rollback]:
        """Starts workers and learner; creates or rolls back the run directory only once both have succeeded."""
        config, engine, state = self._config, self._engine, self._state
        if self._interruption.reason is not None:  # Python loses what a signal handler raises while Ray forks
            raise UserInterrupt
        check_engine(config, engine)
        if state is None:
            self._first_weights = first_weights(config)
        self._ready = engine.start_workers(config.schedule, self._incarnation)
        snapshot = self._start_learner()
        if state is None:
            self._directory = RunDirectory.create(config, engine.cluster())
            return snapshot, Rollback(0, ())
        return snapshot, self._roll_back()

    def _start_learner(self) -> Ref:
        """Starts the learner and returns its snapshot; an actor with state that dies meanwhile is replaced."""
        engine, state, warm = self._engine, self._state, self._first_weights
        while True:
            try:
                if self._losses:
                    snapshot = engine.rebuild(self._ready, state, warm, self._incarnation)
                else:
                    snapshot = engine.start_learner(self._ready, state, warm)
                engine.get(snapshot)  # whatever does not fit is an error before anything is written
                return snapshot
            except ActorLostError as error:
                self._take_loss(error, "It is replaced.")

    def _train(self, snapshot: Ref, rollback: Rollback) -> Status:
        """Trains to the end, recovering from the last checkpoint whenever an actor with state is lost."""
        recovers = False
        while True:
            try:
                if recovers:
                    snapshot, rollback = self._recover()
                return self._attempt(snapshot, rollback)
            except ActorLostError as error:
                self._take_loss(error, "The run returns to its last checkpoint.")
                recovers = True

    @property
    def _learnt(self) -> int:
        """Iterations that the newest checkpoint has learnt from."""
        return 0 if self._state is None else int(self._state.meta["iteration"])

    @property
    def _done(self) -> int:
        """Iterations that the newest checkpoint covers: without the last one, if it still has to be evaluated."""
        if self._state is None or self._state.meta.get("row", True):
            return self._learnt
        return self._learnt - (self._directory.last_iteration() < self._learnt)

    def _learnt_window(self) -> MetricWindow | None:
        """Returns the window of the iteration that still has to be evaluated; None if there is none."""
        if self._state is None or self._done == self._learnt:
            return None
        window = self._state.meta.get("window")  # which older versions did not save
        return MetricWindow() if window is None else MetricWindow.from_json(window)

    def _roll_back(self) -> Rollback:
        """Takes the run directory back to the checkpoint, or to the beginning."""
        with self._directory.lock_for_writing():
            rollback = roll_back(self._directory.path, self._done, self._learnt)
            self._directory.reopen(self._config, self._engine.cluster(), self._incarnation, self._done)
        return rollback

    def _info(self) -> RunInfo:
        return run_info(self._directory, self._config, self._done + 1, self._ready.spec)

    def _attempt(self, snapshot: Ref, rollback: Rollback) -> Status:
        """Iterates from the last checkpoint until the run ends or an actor is lost."""
        first = self._loop is None
        unwritten = self._unwritten([] if self._loop is None else self._loop.unconfirmed)
        self._engine.start_logger(self._directory, self._info(), self._config, self._state)
        self._loop = TrainingLoop(
            self._config, self._engine, self._terminal, self._interruption, self._done,
            learnt=self._learnt_window(),
        )  # fmt: skip
        vanished = [_VANISHED] if self._vanished else []
        notes = [*vanished, *take_notes(), *self._ready.notes, *demonstration_notes(self._config)] if first else []
        if self._loop.is_trained:
            notes.append(self._nothing_left())
        resumed = self._state if first else None
        self._loop.report_start(list(dict.fromkeys(notes)), resumed, rollback, self._losses, unwritten)
        self._losses = []
        return self._loop.run(snapshot)

    def _unwritten(self, events: Sequence[Event]) -> list[Event]:
        """Returns those of some events that the last logger has not written, because it was lost before."""
        file = self._directory.path / EVENTS
        written = {json.dumps(line) for line in read_jsonl(file)} if events and file.is_file() else set()
        return [event for event in events if json.dumps(event.as_json()) not in written]

    def _last_metrics(self) -> dict[str, float]:
        """Metrics of the newest row of the run directory."""
        rows = deque(read_jsonl(self._directory.path / "metrics.jsonl"), maxlen=1)
        return dict(rows[0]["metrics"]) if rows else {}

    def _nothing_left(self) -> str:
        """Says that a resumed run is complete, and what makes up for a last evaluation that was interrupted."""
        evaluate = command_line("evaluate", self._directory.path)
        missing = "" if "eval/num_trajectories" in self._last_metrics() else f" Its evaluation is missing: {evaluate}"
        return f"All steps have been taken, so nothing is left to train.{missing}"

    def _take_loss(self, error: ActorLostError, remedy: str) -> None:
        """Notes the loss of actors, which costs the budget one recovery; raises as ``_count_recovery``."""
        before = len(self._losses)
        self._losses += error.others
        self._count_recovery(error.fault)  # a run that this ends has the fault as its cause
        self._losses.insert(before, error.fault)
        for fault in self._losses[before:]:
            log.warning("%s. %s", fault.sentence, remedy)

    def _count_recovery(self, fault: Fault) -> None:
        """Charges a recovery to the budget; planned ones are free. Ends a run that keeps returning to one iteration."""
        if fault.planned:
            return
        limit, before = self._config.runner.max_recoveries, self._recoveries
        if len(before) >= limit:
            raise RunError(fault, f"The run has recovered {limit} times (runner.max_recoveries).")
        if before[-_RECOVERIES_IN_A_ROW:].count(self._done) == _RECOVERIES_IN_A_ROW:
            times = f"{_RECOVERIES_IN_A_ROW} times in a row"
            raise RunError(fault, f"The run has returned to iteration {self._done} {times}.")
        before.append(self._done)

    def _recover(self) -> tuple[Ref, Rollback]:
        """Replaces the lost actors and restores the last checkpoint."""
        self._engine.finish(Status.FAILED)  # backends that cannot forget must not be given rows that are rolled back
        try:
            self._state = checkpoint.newest(self._directory.path)
        except checkpoint.NoCheckpointError:
            self._state = None
        self._incarnation += 1
        snapshot = self._engine.rebuild(self._ready, self._state, self._first_weights, self._incarnation)
        self._engine.get(snapshot)
        return snapshot, self._roll_back()

    def _advice(self) -> str:
        """Says how to continue after a failure."""
        iteration = checkpoint.newest_iteration(self._directory.path)
        if not iteration:
            return f"There is no checkpoint. The files of the run are in {self._directory.path}."
        return (
            f"The checkpoint of iteration {iteration} is intact; resume with: "
            f"{command_line('train', '--resume', self._directory.path)}"
        )

    def _last_events(self, cause: Fault) -> list[Event]:
        """Returns the events with which a run fails: losses that no event has said yet, then the cause."""
        now, last = time.time(), 0 if self._loop is None else self._loop.done
        restarts = [restart_event(fault, last) for fault in self._engine.repaired_faults(unfinished=True)]
        losses = [
            Event(
                EventKind.NOTE, f"{fault.sentence}. The run failed before it had recovered.", last, now, fault.as_json()
            )
            for fault in self._losses
        ]
        return [*restarts, *losses, Event(EventKind.FAILED, f"{cause.sentence}.", last, now, cause.as_json())]

    def _close(self, status: Status, cause: Fault | None) -> Backlog:
        """Closes logger and backends, and records status and cause; returns what is left to do."""
        directory, engine = self._directory, self._engine
        events = [] if cause is None else self._last_events(cause)
        with suppress(Exception):  # the logger may be what was lost; the events are then written below
            engine.wait([engine.event(event) for event in events])
        for backend in self._terminal:
            with suppress(Exception):  # the terminal may be closed
                backend.close(status)
        backlog = engine.finish(status)
        for remark in backlog.remarks:
            log.warning("%s", remark)
        for name in backlog.behind:
            log.warning(
                "%s does not show everything yet; bring it up to date with: rlpipe sync %s --to %s",
                name, directory.path, name,
            )  # fmt: skip
        for event in self._unwritten([*([] if self._loop is None else self._loop.unconfirmed), *events]):
            directory.write_event(event)
        contents = directory.read_json()
        final = {"status": status, **({} if cause is None else {"cause": cause.as_json()})}
        if any(contents.get(key) != value for key, value in final.items()):
            directory.write_json({**contents, **final})
        return backlog
