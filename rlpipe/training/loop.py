"""The training loop: collect, learn, evaluate, write."""

from __future__ import annotations

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
from rlpipe.run.directory import Rollback, now
from rlpipe.run.metric_logger import backend_closed_event
from rlpipe.training.clock import PhaseClock
from rlpipe.training.engine import Engine, Ref


class Interruption:
    """Whether the user wants the run to end. ``request`` is safe to call from a signal handler.

    Attributes:
        reason: why, once somebody asked.
        heeded: whether the loop runs, and so would end at its next iteration.
    """

    def __init__(self) -> None:
        """Nobody asked yet, and nobody would listen."""
        self.reason: str | None = None
        self.heeded = False

    def request(self, reason: str) -> None:
        """Asks the loop to end after the current iteration."""
        self.reason = reason


class _Loop:
    """The loop and what it must remember between iterations."""

    def __init__(
        self,
        config: Config,
        plan: Sequence[Stage],
        engine: Engine,
        views: Sequence[Backend],
        interruption: Interruption,
        done: int,
    ) -> None:
        self._config = config
        self._plan = plan
        self._engine = engine
        self._views = list(views)
        self._interruption = interruption
        self._done = done
        self._stage = -1
        self._clock = PhaseClock()
        self._unread: deque[Ref] = deque()
        self._written: list[Ref] = []
        self._saved_at = done
        self._last: Row | None = None
        self._alarm: str | None = None

    @property
    def done(self) -> int:
        """Iterations that are over."""
        return self._done

    @property
    def metrics(self) -> dict[str, float]:
        """Of the last iteration that was written."""
        return self._last.metrics if self._last else {}

    def event(self, kind: str, message: str, **data: Any) -> None:
        self._report(Event(kind, message, self._done, now(), data))

    def _report(self, event: Event) -> None:
        """Writes and shows an event."""
        self._written.append(self._engine.event(event))
        self._show(event)

    def report_start(
        self, notes: Sequence[str], state: Checkpoint | None, cut: Rollback, fault: Fault | None = None
    ) -> None:
        """Says what a user should know of how the run begins or goes on, perhaps after a fault."""
        for note in notes:
            self.event(EventKind.NOTE, note)
        if fault is not None:
            count = "1 iteration is" if cut.iterations == 1 else f"{cut.iterations} iterations are"
            before = f" {count} played again." if cut.iterations else ""
            message = f"{fault.sentence}. Gone on after iteration {self._done}.{before}"
            self.event(EventKind.RECOVERED, message, **fault.as_json(), discarded=cut.iterations)
        elif state is not None:
            message = f"Resumed after iteration {self._done} from {state.path.name}."
            self.event(EventKind.RESUMED, message, discarded=cut.iterations)
        for name in cut.damaged:
            self.event(EventKind.DAMAGED, f"{name} was not whole; it is kept as {name}.damaged.", file=name)
        for name in cut.torn:
            self.event(EventKind.REPAIRED, f"The last line of {name} was incomplete; it is kept in discarded-*-{name}.")

    def run(self, snapshot: Ref) -> Status:
        """Iterates to the end; returns how it ended."""
        self._interruption.heeded = True
        engine, clock, runner = self._engine, self._clock, self._config.runner
        total = self._plan[-1].until
        algorithm = algorithm_class(self._config)
        ahead: Ref = None  # a collection that has begun
        gathered: tuple[list[Ref], list[Ref]] | None = None  # one that is over
        while self._done < total and self._interruption.reason is None and self._alarm is None:
            iteration = self._done + 1
            stage = self._enter_stage(iteration)
            self._evacuate_draining_nodes()
            with clock(m.GENERATE_ROLLOUTS):
                if gathered is None and algorithm.collects:
                    gathered = engine.gather(engine.collect(snapshot, stage) if ahead is None else ahead)
                (batches, windows), gathered = gathered or ([], []), None
                following = next((index for index, part in enumerate(self._plan) if iteration < part.until), None)
                ahead = engine.collect(snapshot, following) if algorithm.ahead and following is not None else None
            with clock(m.UPDATE):
                snapshot, learnt = engine.update(batches, stage, iteration)
                engine.wait(learnt)
            if not algorithm.collects and self._is_finished(learnt):
                total = iteration
            due = runner.val_check_interval and iteration % runner.val_check_interval == 0
            if due or iteration == total:
                if ahead is not None:
                    with clock(m.GENERATE_ROLLOUTS):
                        gathered = engine.gather(ahead)
                with clock(m.EVAL_TIME):
                    windows = [*windows, *engine.evaluate(snapshot)]
            self._report_repairs()
            timed = clock.lap()
            with clock(m.LOG_TIME):
                self._unread.append(engine.write(iteration, [timed, *learnt, *windows]))
            self._done = iteration
            if iteration % runner.save_interval == 0:
                self._save()
            elif due and runner.keep_best and iteration < total:
                self._save(if_best=True)
            with clock(m.LOG_TIME):
                shown = self._show_rows(behind=1)
            self._act_on_alerts(shown)
        self._save()
        self._show_rows(behind=0)
        status, why = Status.COMPLETED, ""
        if self._done < total:
            status, why = Status.INTERRUPTED, f" by {self._interruption.reason}"
            if self._alarm is not None:
                status, why = Status.STOPPED, f" by a critical alert on {self._alarm}"
        self.event(status, f"{status.capitalize()}{why} after iteration {self._done}.")
        self._engine.wait(self._written)
        return status

    def _report_repairs(self) -> None:
        for fault in self._engine.repaired_faults():
            after = "" if fault.taken is None else f" after {fault.taken:.1f} s"
            self.event(EventKind.RESTARTED, f"{fault.sentence}. Another took its place{after}.", **fault.as_json())

    def _evacuate_draining_nodes(self) -> None:
        """Saves, and moves what can be moved, before a node goes."""
        if notices := self._engine.draining_nodes():
            for notice in notices:
                self.event(EventKind.LEAVING, f"{notice}: the run is saved, and its parts there move.")
            self._save()
            self._engine.wait(self._written)
            self._engine.evacuate()

    def _is_finished(self, learnt: list[Ref]) -> bool:
        """Whether the learner, which learns from what it has, has learnt all it can."""
        state = self._engine.get(learnt[0]).states.get(m.CLONING_FINISHED.name)
        return state is not None and state.read()["value"] > 0

    def _enter_stage(self, iteration: int) -> int:
        stage = next(index for index, stage in enumerate(self._plan) if iteration <= stage.until)
        if stage != self._stage:
            self._stage = stage
            if len(self._plan) > 1:
                name, until = self._plan[stage].name, self._plan[stage].until
                self.event(
                    EventKind.STAGE,
                    f"Stage {name}: iterations {iteration} to {until}.",
                    stage=stage,
                    name=name,
                    until=until,
                )
            elif iteration == self._done + 1:
                self.event(EventKind.STARTED, f"Collecting from iteration {iteration} on.")
        return stage

    def _save(self, if_best: bool = False) -> None:
        """Checkpoints the state after the last iteration, once; with ``if_best`` perhaps not yet."""
        if self._saved_at < self._done:
            with self._clock(m.CHECKPOINT_TIME):
                self._written.append(self._engine.save(self._done, if_best))
            self._saved_at = self._saved_at if if_best else self._done

    def _show_rows(self, behind: int) -> list[Row]:
        """Waits for all but the newest ``behind`` rows and returns them: here the logger's errors surface."""
        if not behind or len(self._written) > 100:
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

    def _show(self, what: Row | Event) -> None:
        """Shows it on the terminal. One that is gone, such as that of a closed connection, costs the run nothing."""
        for view in list(self._views):
            try:
                view.write(what) if isinstance(what, Row) else view.event(what)
            except Exception as error:
                self._views.remove(view)
                self._report(backend_closed_event(view, error, self._done))

    def _act_on_alerts(self, rows: Sequence[Row]) -> None:
        """Does what the configuration wants done about critical alerts."""
        wanted = self._config.runner.health.on_critical
        critical = [
            event for row in rows for event in row.events
            if event.kind == "alert" and event.data["level"] == "critical" and not event.data["cleared"]
        ]  # fmt: skip
        if critical and wanted == "stop":
            self._alarm = critical[0].data["metric"]
        if critical and wanted != "continue":
            self._save()
