"""The training loop: collect, learn, evaluate, write. It moves references and never looks inside them.

The same loop drives an engine in this process (``local``) and one on Ray (``distributed``), so what is tested in one
holds in the other.
"""

from __future__ import annotations

import logging
import os
import platform
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from rlpipe import checkpoint
from rlpipe.backends.base import Backend, Event, Place, Row, RunInfo
from rlpipe.checkpoint import Checkpoint, under
from rlpipe.config import AUTO, Config, Stage, algorithm_class, check_device, from_yaml, stages
from rlpipe.evaluation import EvaluationReport
from rlpipe.faults import Fault, PartLostError, RunError
from rlpipe.metric_logger import Closing, left_out, run_info
from rlpipe.metrics import MetricWindow
from rlpipe.metrics import catalogue as m
from rlpipe.metrics.declaration import Metric
from rlpipe.metrics.spans import ITERATION, Span, span
from rlpipe.metrics.window import merged
from rlpipe.plugins import ConfigError, resolve
from rlpipe.policies.base import Weights
from rlpipe.rollout import Ready, Snapshot
from rlpipe.run_directory import Cut, RunDirectory, now
from rlpipe.secrets import redacted

log = logging.getLogger("rlpipe")

Ref = Any
"""Something an engine made and can find again: an object here, an object reference on Ray."""


class Engine(Protocol):
    """Where the parts of a run live. Calls return references at once; ``wait`` and ``get`` wait for them."""

    places: frozenset[Place]
    """Where backends can live."""
    side_by_side: bool
    """Whether it collects while it learns."""

    def start_workers(self, plan: Sequence[Stage], incarnation: int) -> Ready:
        """Starts the rollout workers and waits until all have their simulators."""

    def start_learner(self, ready: Ready, state: Checkpoint | None, warm: Weights | None = None) -> Ref:
        """Starts the learner, from a checkpoint or else from the weights of another policy; returns its snapshot."""

    def start_logger(self, directory: RunDirectory, info: RunInfo, config: Config, state: Checkpoint | None) -> None:
        """Starts the metric logger."""

    def cluster(self) -> dict[str, Any]:
        """What ``run.json`` says about the machines."""

    def rebuild(self, ready: Ready, state: Checkpoint | None, warm: Weights | None, incarnation: int) -> Ref:
        """Makes anew what holds state, after a part of it was lost, and has the workers begin anew; there is no logger
        until ``start_logger``. Returns the learner's snapshot."""

    def collect(self, snapshot: Ref, stage: int) -> Ref:
        """Asks all workers for a fragment."""

    def gather(self, collection: Ref) -> tuple[list[Ref], list[Ref]]:
        """Batches and windows of a collection once they are there, in the order of the workers' ranks; what was lost on
        the way is in a window too."""

    def update(self, batches: list[Ref], stage: int, iteration: int) -> tuple[Ref, list[Ref]]:
        """New snapshot, and windows of all learners."""

    def evaluate(self, snapshot: Ref) -> list[Ref]:
        """Windows of all workers, once they are there."""

    def news(self) -> list[Fault]:
        """Faults of workers that were made good since the last time."""

    def leaving(self) -> list[str]:
        """Nodes of ours that are about to go and were not told of before, a sentence each without its end."""

    def leave(self) -> None:
        """Moves the workers from such nodes; raises PartLostError if other parts must move too."""

    def write(self, iteration: int, windows: list[Ref]) -> Ref:
        """Row."""

    def event(self, event: Event) -> Ref:
        """Writes an event; the reference is only good for waiting."""

    def save(self, iteration: int, if_best: bool = False) -> Ref:
        """Path of a checkpoint of the state after the last update; with ``if_best`` only if its evaluation is the best
        so far, else nothing."""

    def wait(self, refs: list[Ref]) -> None:
        """Waits for all.

        Raises:
            PartLostError: a part is gone that is needed for it.
            RunError: a part raised something that the user cannot act on.
            ConfigError: one raised it.
        """

    def get(self, ref: Ref) -> Any:
        """The object itself."""

    def finish(self, status: str) -> Closing:
        """Closes the logger; ``status`` is completed, interrupted, stopped or failed."""

    def close(self) -> None:
        """Ends everything that was started."""


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


_DOES = {
    m.GENERATE_ROLLOUTS: "wait for collection",
    m.UPDATE: "wait for learning",
    m.EVAL_TIME: "wait for evaluation",
    m.CHECKPOINT_TIME: "hand over checkpoint",
    m.LOG_TIME: "wait for logging",
}
"""What the driver does in each phase."""


class PhaseClock:
    """Divides wall clock into phases that add up: every moment between two laps is in exactly one of them."""

    def __init__(self, now: Callable[[], float] = time.perf_counter) -> None:
        """Starts the first lap."""
        self._now = now
        self._began = now()
        self._spent: dict[Metric, float] = {}
        self._spans: list[Span] = []

    @contextmanager
    def __call__(self, phase: Metric) -> Iterator[None]:
        """Time spent inside counts as this phase; phases do not nest."""
        began = self._now()
        try:
            yield
        finally:
            ended = self._now()
            self._spent[phase] = self._spent.get(phase, 0.0) + ended - began
            self._spans.append(span("driver", _DOES[phase], began, ended))

    def lap(self) -> MetricWindow:
        """The ``time/`` metrics since the last lap, of which a new one begins, and its spans."""
        ended = self._now()
        step = ended - self._began
        window = MetricWindow(spans=[span("driver", ITERATION, self._began, ended), *self._spans])
        spent, self._spent, self._began, self._spans = self._spent, {}, ended, []
        for phase, seconds in spent.items():
            window.observe(phase, seconds)
        window.observe(m.OTHER_TIME, step - sum(spent.values()))
        window.observe(m.STEP, step)
        window.observe(m.TIME_ELAPSED, step)
        training = step - spent.get(m.EVAL_TIME, 0.0) - spent.get(m.CHECKPOINT_TIME, 0.0)
        window.observe(m.TRAINING_SECONDS, training)
        window.observe(m.INTERVAL_SECONDS, training)
        window.observe(m.ITERATIONS, 1)
        return window


@dataclass(frozen=True)
class TrainResult:
    """How a run ended.

    Attributes:
        status: completed, interrupted, or stopped by a critical alert.
        directory: of the run.
        checkpoint: the last one, or None when the run was interrupted before its first iteration.
        metrics: of the last iteration; those of the final evaluation are among them when it completed.
        seconds: wall clock of the training loop.
    """

    status: str
    directory: Path
    checkpoint: Path | None
    metrics: dict[str, float] = field(default_factory=dict)
    seconds: float = 0.0


def train(
    config: Config,
    engine: Engine,
    *,
    interruption: Interruption | None = None,
    resume: Path | None = None,
) -> TrainResult:
    """Trains to the end of the configuration's steps.

    Args:
        config: of the run; to resume, the one in the run's directory.
        engine: where the parts live; it is closed before this returns.
        interruption: asked after every iteration.
        resume: directory of a run to go on with.
    Raises:
        ConfigError: the simulator or the cluster cannot do what is configured; nothing has been written.
    """
    try:
        return _Run(config, engine, interruption or Interruption(), resume).to_its_end()
    finally:
        engine.close()


_IN_VAIN = 5
"""Times that a run may go back to the same iteration."""


class _Run:
    """A run from its first part to its last word, through whatever happens to its parts."""

    def __init__(self, config: Config, engine: Engine, interruption: Interruption, resume: Path | None) -> None:
        """Reads what a run that is resumed left."""
        self._config = config
        self._engine = engine
        self._interruption = interruption
        self._plan = stages(config)
        self._directory = None if resume is None else RunDirectory.existing(resume)
        self._state = None if self._directory is None else checkpoint.newest(self._directory.path)
        self._incarnation = 0 if self._directory is None else self._directory.read_json()["incarnation"] + 1
        self._views: list[Backend] = []
        self._warm: Weights | None = None
        self._recoveries: list[int] = []
        self._loop: _Loop | None = None

    def to_its_end(self) -> TrainResult:
        """Trains.

        Raises:
            ConfigError: the simulator or the cluster cannot do what is configured; nothing has been written.
            RunError: a part failed for good; the run can be resumed from its last checkpoint.
        """
        began = time.perf_counter()
        snapshot, cut = self._start()
        assert self._directory is not None
        directory, status, lost = self._directory, "failed", None
        cause: Fault | None = None
        try:
            info = self._info()
            self._views += [view(info) for view in _terminal_backends(self._config)]
            while True:
                try:
                    if lost is not None:
                        snapshot, cut = self._go_back(lost.fault)
                    status = self._attempt(snapshot, cut, lost)
                    break
                except PartLostError as error:
                    lost = self._insist(error)
        except KeyboardInterrupt:
            status = "interrupted"
            raise
        except RunError as error:
            cause = error.fault
            raise RunError(cause, *error.after, self._how_to_go_on()) from error.__cause__
        except Exception as error:
            said = redacted(f"{type(error).__name__}: {error}", os.environ)
            cause = Fault("the driver", f"raised {said}", host=platform.node())
            raise
        finally:
            closing = self._close(status, cause)
        if closing.unwritten:
            raise OSError(
                f"The last {closing.unwritten} iterations found no room in {directory.path} and are lost. Make room, "
                f"then go on with: rlpipe train --resume {directory.path}"
            )
        assert self._loop is not None
        found, seconds = checkpoint.files(directory.path), time.perf_counter() - began
        last = found[max(found)] if found else None
        return TrainResult(status, directory.path, last, self._loop.metrics, seconds)

    def _start(self) -> tuple[Ref, Cut]:
        """Starts what is needed to know whether the run can be, and only then makes its directory or cuts it back."""
        config, engine, state = self._config, self._engine, self._state
        _check_engine(config, engine)
        if config.policy.warm_start is not None and state is None:
            self._warm = under("policy/", find_checkpoint(Path(config.policy.warm_start))[0].arrays)
        self._ready = engine.start_workers(self._plan, self._incarnation)
        snapshot = engine.start_learner(self._ready, state, self._warm)
        engine.get(snapshot)  # what does not fit is an error before anything is written
        if self._directory is None or state is None:
            self._directory = RunDirectory.create(config, engine.cluster())
            return snapshot, Cut(0, ())
        return snapshot, self._cut_back()

    @property
    def _done(self) -> int:
        """Iterations that the run, as it is now, goes on after."""
        return 0 if self._state is None else int(self._state.meta["iteration"])

    def _cut_back(self) -> Cut:
        """Takes the directory back to the checkpoint, or to the beginning."""
        assert self._directory is not None
        with self._directory.held():
            cut = self._directory.cut_back(self._done)
            self._directory.reopen(self._config, self._engine.cluster(), self._incarnation, self._done)
        return cut

    def _info(self) -> RunInfo:
        assert self._directory is not None
        return run_info(self._directory, self._config, self._plan, self._done + 1, self._ready.spec)

    def _attempt(self, snapshot: Ref, cut: Cut, lost: PartLostError | None) -> str:
        """Iterates from the last checkpoint to the end, or until something is lost; returns how the run ended."""
        assert self._directory is not None
        self._engine.start_logger(self._directory, self._info(), self._config, self._state)
        loop = _Loop(self._config, self._plan, self._engine, self._views, self._interruption, self._done)
        self._loop = loop
        loop.tell_of_start(() if lost else self._ready.notes, self._state, cut, lost.fault if lost else None)
        return loop.run(snapshot)

    def _insist(self, error: PartLostError) -> PartLostError:
        """Whether the run may go on once more.

        Raises:
            RunError: it has tried often enough.
        """
        if error.fault.planned:
            return error
        limit, before = self._config.runner.max_recoveries, self._recoveries
        if len(before) >= limit:
            raise RunError(error.fault, f"The run has gone back {limit} times (runner.max_recoveries).")
        if before[-_IN_VAIN:].count(self._done) == _IN_VAIN:
            raise RunError(error.fault, f"The run has gone back to iteration {self._done} {_IN_VAIN} times in a row.")
        before.append(self._done)
        return error

    def _go_back(self, fault: Fault) -> tuple[Ref, Cut]:
        """Makes the parts anew that were lost, at the last checkpoint."""
        assert self._directory is not None
        log.warning("%s. The run goes back to its last checkpoint.", fault.sentence)
        self._engine.finish("failed")  # of views that cannot forget, those that are not covered are kept back
        self._state = checkpoint.newest_or_none(self._directory.path)
        self._incarnation += 1
        snapshot = self._engine.rebuild(self._ready, self._state, self._warm, self._incarnation)
        self._engine.get(snapshot)
        return snapshot, self._cut_back()

    def _how_to_go_on(self) -> str:
        assert self._directory is not None
        found = checkpoint.newest_iteration(self._directory.path)
        if not found:
            return f"It left no checkpoint. What it wrote is in {self._directory.path}."
        return f"Its checkpoint of iteration {found} is whole; go on with: rlpipe train --resume {self._directory.path}"

    def _close(self, status: str, cause: Fault | None) -> Closing:
        """Ends what shows and writes the run, and tells of what is left to do."""
        directory, engine = self._directory, self._engine
        assert directory is not None
        failed, told_of = None, False
        if cause is not None:
            last = 0 if self._loop is None else self._loop.done
            failed = Event("failed", f"{cause.sentence}.", last, now(), cause.as_json())
            with suppress(Exception):  # the logger may be what is gone; then the event is written here
                engine.wait([engine.event(failed)])
                told_of = True
        for view in self._views:
            with suppress(Exception):  # a terminal that is gone
                view.close(status)
        closing = engine.finish(status)
        for name in closing.behind:
            log.warning(
                "%s does not show everything yet; bring it up to date with: rlpipe sync %s --to %s",
                name, directory.path, name,
            )  # fmt: skip
        if failed is not None and not told_of:
            directory.write_event(failed)
        contents = directory.read_json()
        told = {"status": status, **({} if cause is None else {"cause": cause.as_json()})}
        if any(contents.get(key) != value for key, value in told.items()):
            directory.write_json({**contents, **told})
        return closing


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
        self._tell(Event(kind, message, self._done, now(), data))

    def _tell(self, event: Event) -> None:
        """Writes and shows an event."""
        self._written.append(self._engine.event(event))
        self._show(event)

    def tell_of_start(
        self, notes: Sequence[str], state: Checkpoint | None, cut: Cut, fault: Fault | None = None
    ) -> None:
        """Says what a user should know of how the run begins or goes on, perhaps after a fault."""
        for note in notes:
            self.event("note", note)
        if fault is not None:
            count = "1 iteration is" if cut.iterations == 1 else f"{cut.iterations} iterations are"
            before = f" {count} played again." if cut.iterations else ""
            message = f"{fault.sentence}. Gone on after iteration {self._done}.{before}"
            self.event("recovered", message, **fault.as_json(), discarded=cut.iterations)
        elif state is not None:
            message = f"Resumed after iteration {self._done} from {state.path.name}."
            self.event("resumed", message, discarded=cut.iterations)
        for name in cut.damaged:
            self.event("damaged", f"{name} was not whole; it is kept as {name}.damaged.", file=name)
        for name in cut.torn:
            self.event("repaired", f"The last line of {name} was incomplete; it is kept in discarded-*-{name}.")

    def run(self, snapshot: Ref) -> str:
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
            self._heed_notices()
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
            self._tell_news()
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
            self._heed(shown)
        self._save()
        self._show_rows(behind=0)
        status, why = "completed", ""
        if self._done < total:
            status, why = "interrupted", f" by {self._interruption.reason}"
            if self._alarm is not None:
                status, why = "stopped", f" by a critical alert on {self._alarm}"
        self.event(status, f"{status.capitalize()}{why} after iteration {self._done}.")
        self._engine.wait(self._written)
        return status

    def _tell_news(self) -> None:
        for fault in self._engine.news():
            after = "" if fault.taken is None else f" after {fault.taken:.1f} s"
            self.event("restarted", f"{fault.sentence}. Another took its place{after}.", **fault.as_json())

    def _heed_notices(self) -> None:
        """Saves, and moves what can be moved, before a node goes."""
        if notices := self._engine.leaving():
            for notice in notices:
                self.event("leaving", f"{notice}: the run is saved, and its parts there move.")
            self._save()
            self._engine.wait(self._written)
            self._engine.leave()

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
                    "stage", f"Stage {name}: iterations {iteration} to {until}.", stage=stage, name=name, until=until
                )
            elif iteration == self._done + 1:
                self.event("started", f"Collecting from iteration {iteration} on.")
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
                self._tell(left_out(view, error, self._done))

    def _heed(self, rows: Sequence[Row]) -> None:
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


def evaluate(config: Config, state: Checkpoint, engine: Engine) -> EvaluationReport:
    """Evaluates a checkpoint under a configuration's protocol.

    Args:
        config: the checkpoint's, perhaps with another ``evaluation``.  state: the checkpoint.
        engine: where the workers live; it is closed before this returns.
    """
    plan = stages(config)
    try:
        engine.start_workers(plan, 0)
        windows = engine.evaluate(Snapshot(int(state.arrays["version"]), under("policy/", state.arrays)))
        window = merged([engine.get(ref) for ref in windows])
    finally:
        engine.close()
    return EvaluationReport.of(window, config, state)


def find_checkpoint(path: Path, best: bool = False) -> tuple[Checkpoint, str]:
    """The checkpoint that a file or a run directory names, and the configuration (YAML) it was trained with.

    Args:
        path: of the file, or of the run directory, which stands for its newest whole checkpoint.
        best: take the one whose evaluation was best instead of the newest.
    Raises:
        ConfigError: there is none.
    """
    if path.is_dir():
        run = RunDirectory.existing(path).path
        state = checkpoint.best(run) if best else checkpoint.newest(run)
    elif best:
        raise ConfigError(f"{path} is no run directory, of whose checkpoints one could be the best.")
    elif path.is_file():
        state = checkpoint.load(path)
    else:
        raise ConfigError(f"{path} is neither a run directory nor a checkpoint file.")
    try:
        from_yaml(state.meta["config"])
    except Exception as error:  # YAML's own errors have no common base that OmegaConf promises
        raise ConfigError(f"{state.path}: the configuration in it is not readable as YAML: {error}") from error
    return state, state.meta["config"]


def _check_engine(config: Config, engine: Engine) -> None:
    """Checks that what is configured can run here.

    Raises:
        ConfigError: it cannot.
    """
    if not engine.side_by_side:
        _check_alone(config)
    for index, name in enumerate(config.runner.logger.logger_backends):
        key = f"runner.logger.logger_backends[{index}]"
        if resolve("backends", name, key).place not in engine.places:
            raise ConfigError(f"{key} is {name!r}, which works only on Ray: run without --local, or leave it out.")


def _check_alone(config: Config) -> None:
    """What one process cannot do, told before simulators load.

    Raises:
        ConfigError: some of it is configured.
    """
    if getattr(config.algorithm, "update_to_data", 1.0) is None:
        raise ConfigError(
            "algorithm.update_to_data is null: as many gradient steps as fit while workers collect. With --local "
            "nothing runs side by side, so give a number, such as algorithm.update_to_data=0.5."
        )
    if config.learner.num_learners not in (1, AUTO):
        raise ConfigError(
            f"learner.num_learners is {config.learner.num_learners}, but with --local there is one process: leave out "
            "--local, or give learner.num_learners=1."
        )
    if config.rollout.inference == "server":
        raise ConfigError(
            "rollout.inference is server, which answers many workers at once. With --local one acts at a time: give "
            "rollout.inference=local, which acts alike, or run without --local."
        )
    check_device(config.learner.device)


def _terminal_backends(config: Config) -> list[type[Backend]]:
    """Backends of the configuration that live where the terminal is."""
    found = [resolve("backends", name, "logger_backends") for name in config.runner.logger.logger_backends]
    return [backend for backend in found if backend.place is Place.TERMINAL]
