"""The training loop: collect, learn, evaluate, write. It passes references on and never looks at what they hold.

The same loop drives the engine in this process (``training.local``) and the one on Ray (``distributed.engine``), so
whatever is tested with one holds for the other.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

from rlpipe.backends.base import Backend
from rlpipe.collection.host import worker_names
from rlpipe.config.plan import Plan
from rlpipe.errors import ActorLostError, Fault, RunError
from rlpipe.metrics import MetricWindow
from rlpipe.metrics import catalogue as m
from rlpipe.metrics.row import Event, EventKind, Row, Status
from rlpipe.run.backend_group import BackendGroup
from rlpipe.run.checkpoint import Checkpoint
from rlpipe.run.rollback import Rollback
from rlpipe.training.clock import PhaseClock
from rlpipe.training.engine import Engine, Ref
from rlpipe.training.evaluation import watch_of
from rlpipe.training.interruption import Interruption
from rlpipe.training.pipeline import make_pipeline, stage_at
from rlpipe.training.setbacks import Setbacks

_UNWAITED_WRITES = 100
"""Checkpoints and events that may be on their way before the loop waits for all of them."""


@dataclass(frozen=True)
class _UnreadRow:
    """Row that the logger was sent.

    Attributes:
        ref: its reference
        restarted: names of the workers that were replaced before it
        events: events that were sent before it, and so are written when it is
    """

    ref: Ref
    restarted: set[str]
    events: list[Event]


class TrainingLoop:
    """The loop, and what it remembers between iterations."""

    def __init__(
        self,
        config: Plan,
        engine: Engine,
        terminal: Sequence[Backend],
        interruption: Interruption,
        done: int,
        learnt: MetricWindow | None = None,
    ) -> None:
        """Prepares a loop that continues after an iteration.

        Args:
            terminal: backends that show rows and events on the terminal
            done: iterations that are complete
            learnt: window of the next one if the weights have learnt from it already, so that it is only evaluated
        """
        self._config = config
        self._algorithm = config.algorithm_class
        self._plan = config.schedule
        self._engine = engine
        self._pipeline = make_pipeline(config, engine)
        self._terminal = BackendGroup(terminal)
        self._interruption = interruption
        self._done = done
        self._total = self._plan[-1].until
        self._stage = -1
        self._clock = PhaseClock()
        self._unread: deque[_UnreadRow] = deque()
        self._events: list[Event] = []  # since the newest row was sent
        self._written: list[Ref] = []
        self._saved_at = done
        self._last: Row | None = None
        self._alarm: str | None = None
        self._setbacks = Setbacks(engine.num_workers)
        self._learnt = learnt
        self._last_save: Ref = None
        self._evaluated = True

    @property
    def done(self) -> int:
        """Number of complete iterations."""
        return self._done

    @property
    def unconfirmed(self) -> list[Event]:
        """Events that a logger which is lost now may not have written."""
        return [*chain.from_iterable(row.events for row in self._unread), *self._events]

    @property
    def is_trained(self) -> bool:
        """True if all iterations are complete."""
        return self._done >= self._total

    @property
    def metrics(self) -> dict[str, float]:
        """Metrics of the last row that was written."""
        return self._last.metrics if self._last else {}

    def run(self, snapshot: Ref) -> Status:
        """Iterates, with these weights first, until the run is complete, interrupted or stopped."""
        self._interruption.polled = True
        while self._done < self._total and self._interruption.reason is None and self._alarm is None:
            snapshot = self._iterate(snapshot, self._done + 1)
        self._save()
        self._show_rows(behind=0)
        if self._done == self._total:
            self._check_outcome()
        return self._end()

    def _check_outcome(self) -> None:
        """Reports a run that has learnt nothing, at all or at its end, or ends it as failed."""
        self._check_progress()
        if (fault := self._setbacks.fault_at_end) is not None:
            raise RunError(fault)
        if self._setbacks.skipped:
            count = self._setbacks.skipped
            message = (
                f"Nothing was learnt in the last {count} of {self._total} iterations: all their steps were skipped."
            )
            self.report(EventKind.NOTE, message, level="warn")
        elif not self._setbacks.learnt and self._last is not None:
            message = "Nothing was learnt: no optimiser step was taken in the whole run."
            self.report(EventKind.NOTE, message, level="warn")

    def _check_progress(self) -> None:
        """Ends the run if it has made no progress for several iterations, unless the user wants it to train on."""
        if self._config.runner.health.on_critical != "continue" and (fault := self._setbacks.fault) is not None:
            if not self._setbacks.skipped:
                self._save()
                self._engine.wait(self._written)
            raise RunError(fault)

    def _iterate(self, snapshot: Ref, iteration: int) -> Ref:
        """Runs one iteration; returns the weights that act in the next one."""
        engine, clock, pipeline = self._engine, self._clock, self._pipeline
        stage = self._enter_stage(iteration)
        self._evacuate_draining_nodes()
        windows: list[Ref] = []
        if self._learnt is not None:
            self._written.append(engine.prepare([self._learnt], counted=True))
            self._learnt = None
        else:
            with clock(m.GENERATE_ROLLOUTS):
                batches, collected = pipeline.next(snapshot, iteration)
            for sentence in engine.moves():
                self.report(EventKind.MOVED, sentence)
            with clock(m.UPDATE):
                snapshot, learnt = engine.update(batches, stage, iteration)
                pipeline.wait(learnt)
            windows = [*learnt, *collected]
        if not self._algorithm.collects and engine.learner_is_finished():
            self._total = iteration
        interval = self._config.runner.val_check_interval
        due = bool(interval) and iteration % interval == 0
        if due or iteration == self._total:
            if pipeline.collecting:
                with clock(m.GENERATE_ROLLOUTS):
                    pipeline.settle()
            if iteration == self._total:
                self._save_before_evaluation(iteration, windows)
                windows = []
            try:
                windows += self._evaluate(snapshot, iteration)
            except ActorLostError:
                raise
            except BaseException:
                self._write(iteration, windows)
                self._save()
                raise
        self._write(iteration, windows)
        self._save_if_due(evaluated=due)
        with clock(m.LOG_TIME):
            rows = self._show_rows(behind=1)
        self._act_on_alerts(rows)
        self._check_progress()
        return snapshot

    def _write(self, iteration: int, windows: list[Ref]) -> None:
        """Writes an iteration, with the time since the last one."""
        restarted = self._report_restarts()
        timed = self._clock.lap()
        with self._clock(m.LOG_TIME):
            self._unread.append(_UnreadRow(self._engine.write(iteration, [timed, *windows]), restarted, self._events))
            self._events = []
        self._done = iteration

    def _save_before_evaluation(self, iteration: int, windows: list[Ref]) -> None:
        """Saves what was learnt before the last evaluation, whose simulators may fail or never end an episode."""
        with self._clock(m.CHECKPOINT_TIME):
            self._written += [self._engine.prepare(windows), self._engine.save(iteration)]
        with self._clock(m.LOG_TIME):
            self._show_rows(behind=0)

    def _evaluate(self, snapshot: Ref, iteration: int) -> list[Ref]:
        """Evaluates; returns no window of an evaluation that was cut short, because it would favour short episodes."""

        def show(*progress: Any) -> None:
            self._on_terminals(lambda backend: backend.evaluating(*progress))

        with self._clock(m.EVAL_TIME):
            windows = self._engine.evaluate(snapshot, watch_of(self._config, show, self._interruption))
        cut_short = next((window.cut_short for window in windows if window.cut_short), "")
        if not cut_short:
            return list(windows)
        self._evaluated = iteration < self._total or self._interruption.reason is None
        remedy = "" if iteration < self._total else " Training is complete, and rlpipe evaluate can make up for it."
        message = f"The evaluation of iteration {iteration} does not count: {cut_short}.{remedy}"
        self.report(EventKind.NOTE, message, level="warn")
        return [window for window in windows if window.worker is None]  # of replaced workers

    def _end(self) -> Status:
        """Reports how the run ended, after everything has been written."""
        self._report_restarts(unfinished=True)
        status, why = Status.COMPLETED, ""
        if self._done < self._total or not self._evaluated:
            status, why = Status.INTERRUPTED, f" by {self._interruption.reason}"
            if self._alarm is not None:
                status, why = Status.STOPPED, f" by a critical alert on {self._alarm}"
        elif self._last_save is not None and not self._engine.get(self._last_save):
            status, why = Status.FAILED, ": the last checkpoint found no room on the disk"
        self.report(EventKind(status.value), f"{status.capitalize()}{why} after iteration {self._done}.")
        self._engine.wait(self._written)
        return status

    def report(self, kind: EventKind, message: str, **data: Any) -> None:
        """Writes an event and shows it."""
        self._report(Event(kind, message, self._done, time.time(), data))

    def _report(self, event: Event) -> None:
        self._send(event)
        self._show(event)

    def _send(self, event: Event) -> None:
        self._events.append(event)
        self._written.append(self._engine.event(event))

    def report_start(
        self,
        notes: Sequence[str],
        resumed: Checkpoint | None,
        rollback: Rollback,
        losses: Sequence[Fault] = (),
        unwritten: Sequence[Event] = (),
    ) -> None:
        """Reports how the run starts, resumes or recovers.

        Args:
            notes: sentences for the user
            resumed: checkpoint from which a run that had ended continues
            rollback: what was taken back to reach the checkpoint
            losses: causes of a recovery: a second actor may be lost while the first is replaced
            unwritten: events that were shown, but that the last logger took with it
        """
        for event in unwritten:
            self._send(event)
        for note in notes:
            self.report(EventKind.NOTE, note)
        discarded = rollback.iterations
        if resumed is not None:
            message = f"Resumed after iteration {self._done} from {resumed.path.name}."
            self.report(EventKind.RESUMED, message, discarded=discarded)
            discarded = 0
        for fault in losses:
            count = "1 iteration is" if discarded == 1 else f"{discarded} iterations are"
            replayed = f" {count} replayed." if discarded else ""
            message = f"{fault.sentence}. The run continues after iteration {self._done}.{replayed}"
            self.report(EventKind.RECOVERED, message, **fault.as_json(), discarded=discarded)
            discarded = 0  # by the first
        for name in rollback.damaged:
            self.report(EventKind.DAMAGED, f"{name} was damaged; it is kept as {name}.damaged.", file=name)
        for name in rollback.torn:
            message = f"The last line of {name} was incomplete; it is kept in discarded-*-{name}."
            self.report(EventKind.REPAIRED, message)

    def _report_restarts(self, *, unfinished: bool = False) -> set[str]:
        """Reports the workers that were replaced; returns the names of those that failed."""
        faults = self._engine.repaired_faults(unfinished=unfinished)
        for fault in faults:
            self._report(restart_event(fault, self._done))
        return {name for fault in faults if not fault.planned for name in worker_names(fault.actor)}

    def _evacuate_draining_nodes(self) -> None:
        """Saves the run and moves actors before their node goes away."""
        if notices := self._engine.draining_nodes():
            for notice in notices:
                self.report(EventKind.LEAVING, f"{notice}: the run is saved, and its actors there move.")
            self._save()
            self._engine.wait(self._written)
            self._engine.evacuate()

    def _enter_stage(self, iteration: int) -> int:
        """Returns the stage of an iteration, and reports it if it is a new one."""
        index = stage_at(self._plan, iteration)
        if index != self._stage:
            self._stage, stage = index, self._plan[index]
            if len(self._plan) > 1:
                message = f"Stage {stage.name}: iterations {iteration} to {stage.until}."
                self.report(EventKind.STAGE, message, stage=index, name=stage.name, until=stage.until)
            else:
                self.report(EventKind.STARTED, f"Collection starts with iteration {iteration}.")
        return index

    def _save_if_due(self, *, evaluated: bool) -> None:
        runner = self._config.runner
        if self._done % runner.save_interval == 0:
            self._save()
        elif evaluated and runner.keep_best and self._done < self._total:
            self._save(if_best=True)

    def _save(self, if_best: bool = False) -> None:
        """Saves a checkpoint after the last iteration, unless there is one; ``if_best`` as for ``Engine.save``."""
        if self._saved_at < self._done:
            with self._clock(m.CHECKPOINT_TIME):
                self._last_save = self._engine.save(self._done, if_best)
                self._written.append(self._last_save)
            self._saved_at = self._saved_at if if_best else self._done

    def _show_rows(self, behind: int) -> list[Row]:
        """Waits for all rows but the newest ``behind`` and shows them. Errors of the logger surface here."""
        if not behind or len(self._written) > _UNWAITED_WRITES:
            self._engine.wait(self._written)
            self._written.clear()
        rows = []
        while len(self._unread) > behind:
            self._last = row = self._engine.get(self._unread[0].ref)
            self._setbacks.add(row, self._unread.popleft().restarted)
            self._show(row)
            for event in row.events:
                self._show(event)
            rows.append(row)
        return rows

    def _show(self, entry: Row | Event) -> None:
        self._on_terminals(lambda backend: backend.write(entry) if isinstance(entry, Row) else backend.event(entry))

    def _on_terminals(self, show: Callable[[Backend], None]) -> None:
        """Calls every backend on the terminal. A closed terminal must not stop the run."""
        for failure in self._terminal.show(show, self._done):
            self._report(failure)

    def _act_on_alerts(self, rows: Sequence[Row]) -> None:
        """Saves or stops on a critical alert, as ``runner.health.on_critical`` demands."""
        reaction = self._config.runner.health.on_critical
        critical = [
            event for row in rows for event in row.events
            if event.kind == EventKind.ALERT and event.data["level"] == "critical" and not event.data["cleared"]
        ]  # fmt: skip
        if critical and reaction == "stop":
            self._alarm = critical[0].data["metric"]
        if critical and reaction in ("checkpoint", "stop"):
            self._save()


def restart_event(fault: Fault, iteration: int) -> Event:
    """Returns the event for a rollout worker that was replaced in or after an iteration."""
    after = "" if fault.seconds is None else f" after {fault.seconds:.1f} s"
    message = f"{fault.sentence}. It was replaced{after}."
    return Event(EventKind.RESTARTED, message, iteration, time.time(), fault.as_json())
