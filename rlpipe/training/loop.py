"""The training loop: collect, learn, evaluate, write. It passes references on and never looks at what they hold.

The same loop drives the engine in this process (``training.local``) and the one on Ray (``distributed.engine``), so
whatever is tested with one holds for the other.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence
from typing import Any

from rlpipe.backends.base import Backend
from rlpipe.config.schema import Config, Stage
from rlpipe.config.selection import algorithm_class
from rlpipe.errors import Fault
from rlpipe.metrics import catalogue as m
from rlpipe.metrics.row import Event, EventKind, Row, Status
from rlpipe.run.checkpoint import Checkpoint
from rlpipe.run.metric_logger import backend_closed_event
from rlpipe.run.rollback import Rollback
from rlpipe.training.clock import PhaseClock
from rlpipe.training.engine import Engine, Ref
from rlpipe.training.interruption import Interruption
from rlpipe.training.pipeline import make_pipeline, stage_at

_UNWAITED_WRITES = 100
"""Checkpoints and events that may be on their way before the loop waits for all of them."""


class TrainingLoop:
    """The loop, and what it remembers between iterations."""

    def __init__(
        self,
        config: Config,
        plan: Sequence[Stage],
        engine: Engine,
        terminal: Sequence[Backend],
        interruption: Interruption,
        done: int,
    ) -> None:
        """Prepares a loop that continues after an iteration.

        Args:
            config: configuration of the run
            plan: stages of the run
            engine: place where the actors live
            terminal: backends that show rows and events on the terminal
            interruption: request to end, checked after every iteration
            done: iterations that are complete
        """
        self._config = config
        self._algorithm = algorithm_class(config)
        self._plan = plan
        self._engine = engine
        self._pipeline = make_pipeline(config, engine, plan)
        self._terminal = list(terminal)
        self._interruption = interruption
        self._done = done
        self._total = plan[-1].until
        self._stage = -1
        self._clock = PhaseClock()
        self._unread: deque[Ref] = deque()
        self._written: list[Ref] = []
        self._saved_at = done
        self._last: Row | None = None
        self._alarm: str | None = None

    @property
    def done(self) -> int:
        """Number of complete iterations."""
        return self._done

    @property
    def metrics(self) -> dict[str, float]:
        """Metrics of the last row that was written."""
        return self._last.metrics if self._last else {}

    def run(self, snapshot: Ref) -> Status:
        """Iterates until the run is complete, interrupted or stopped.

        Args:
            snapshot: weights to begin with
        """
        self._interruption.heeded = True
        while self._done < self._total and self._interruption.reason is None and self._alarm is None:
            snapshot = self._iterate(snapshot, self._done + 1)
        self._save()
        self._show_rows(behind=0)
        return self._end()

    def _iterate(self, snapshot: Ref, iteration: int) -> Ref:
        """Runs one iteration; returns the weights that act in the next one."""
        engine, clock, pipeline = self._engine, self._clock, self._pipeline
        stage = self._enter_stage(iteration)
        self._evacuate_draining_nodes()
        with clock(m.GENERATE_ROLLOUTS):
            batches, windows = pipeline.next(snapshot, iteration)
        with clock(m.UPDATE):
            snapshot, learnt = engine.update(batches, stage, iteration)
            pipeline.wait(learnt)
        if not self._algorithm.collects and engine.learner_is_finished():
            self._total = iteration
        interval = self._config.runner.val_check_interval
        due = bool(interval) and iteration % interval == 0
        if due or iteration == self._total:
            if pipeline.collecting:
                with clock(m.GENERATE_ROLLOUTS):
                    pipeline.settle()
            with clock(m.EVAL_TIME):
                windows = [*windows, *engine.evaluate(snapshot)]
        self._report_restarts()
        timed = clock.lap()
        with clock(m.LOG_TIME):
            self._unread.append(engine.write(iteration, [timed, *learnt, *windows]))
        self._done = iteration
        self._save_if_due(evaluated=due)
        with clock(m.LOG_TIME):
            shown = self._show_rows(behind=1)
        self._act_on_alerts(shown)
        return snapshot

    def _end(self) -> Status:
        """Reports how the run ended, after everything has been written."""
        status, why = Status.COMPLETED, ""
        if self._done < self._total:
            status, why = Status.INTERRUPTED, f" by {self._interruption.reason}"
            if self._alarm is not None:
                status, why = Status.STOPPED, f" by a critical alert on {self._alarm}"
        self.report(EventKind(status.value), f"{status.capitalize()}{why} after iteration {self._done}.")
        self._engine.wait(self._written)
        return status

    def report(self, kind: EventKind, message: str, **data: Any) -> None:
        """Writes an event and shows it."""
        self._report(Event(kind, message, self._done, time.time(), data))

    def _report(self, event: Event) -> None:
        self._written.append(self._engine.event(event))
        self._show(event)

    def report_start(
        self, notes: Sequence[str], state: Checkpoint | None, rollback: Rollback, fault: Fault | None = None
    ) -> None:
        """Reports how the run starts, resumes or recovers.

        Args:
            notes: sentences for the user
            state: checkpoint that the run continues from; None for a new run
            rollback: what was taken back to reach it
            fault: cause of a recovery; None if there is none
        """
        for note in notes:
            self.report(EventKind.NOTE, note)
        if fault is not None:
            count = "1 iteration is" if rollback.iterations == 1 else f"{rollback.iterations} iterations are"
            replayed = f" {count} replayed." if rollback.iterations else ""
            message = f"{fault.sentence}. The run continues after iteration {self._done}.{replayed}"
            self.report(EventKind.RECOVERED, message, **fault.as_json(), discarded=rollback.iterations)
        elif state is not None:
            message = f"Resumed after iteration {self._done} from {state.path.name}."
            self.report(EventKind.RESUMED, message, discarded=rollback.iterations)
        for name in rollback.damaged:
            self.report(EventKind.DAMAGED, f"{name} was damaged; it is kept as {name}.damaged.", file=name)
        for name in rollback.torn:
            message = f"The last line of {name} was incomplete; it is kept in discarded-*-{name}."
            self.report(EventKind.REPAIRED, message)

    def _report_restarts(self) -> None:
        for fault in self._engine.repaired_faults():
            after = "" if fault.taken is None else f" after {fault.taken:.1f} s"
            self.report(EventKind.RESTARTED, f"{fault.sentence}. It was replaced{after}.", **fault.as_json())

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
        """Saves a checkpoint after the last iteration, unless there is one.

        Args:
            if_best: leave it to the logger, which writes one only if the evaluation is the best so far
        """
        if self._saved_at < self._done:
            with self._clock(m.CHECKPOINT_TIME):
                self._written.append(self._engine.save(self._done, if_best))
            self._saved_at = self._saved_at if if_best else self._done

    def _show_rows(self, behind: int) -> list[Row]:
        """Waits for all rows but the newest ``behind`` and shows them. Errors of the logger surface here."""
        if not behind or len(self._written) > _UNWAITED_WRITES:
            self._engine.wait(self._written)
            self._written.clear()
        shown = []
        while len(self._unread) > behind:
            self._last = row = self._engine.get(self._unread.popleft())
            self._show(row)
            for event in row.events:
                self._show(event)
            shown.append(row)
        return shown

    def _show(self, shown: Row | Event) -> None:
        """Shows a row or an event on the terminal. A closed terminal must not stop the run."""
        for backend in list(self._terminal):
            try:
                backend.write(shown) if isinstance(shown, Row) else backend.event(shown)
            except BaseException as error:
                self._terminal.remove(backend)
                self._report(backend_closed_event(backend, error, self._done))

    def _act_on_alerts(self, rows: Sequence[Row]) -> None:
        """Saves or stops on a critical alert, as ``runner.health.on_critical`` demands."""
        wanted = self._config.runner.health.on_critical
        critical = [
            event for row in rows for event in row.events
            if event.kind == EventKind.ALERT and event.data["level"] == "critical" and not event.data["cleared"]
        ]  # fmt: skip
        if critical and wanted == "stop":
            self._alarm = critical[0].data["metric"]
        if critical and wanted != "continue":
            self._save()
