"""The training loop: collect, learn, evaluate, write. It moves references and never looks inside them.

The same loop drives an engine in this process (``local``) and one on Ray (``distributed``), so what is tested in one
holds in the other.
"""

from __future__ import annotations

import logging
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

    def start_learner(
        self, plan: Sequence[Stage], ready: Ready, state: Checkpoint | None, warm: Weights | None = None
    ) -> Ref:
        """Starts the learner, from a checkpoint or else from the weights of another policy; returns its snapshot."""

    def start_logger(self, directory: RunDirectory, info: RunInfo, config: Config, state: Checkpoint | None) -> None:
        """Starts the metric logger."""

    def cluster(self) -> dict[str, Any]:
        """What ``run.json`` says about the machines."""

    def collect(self, snapshot: Ref, stage: int) -> tuple[list[Ref], list[Ref]]:
        """Batches and windows of all workers, in the order of their ranks."""

    def update(self, batches: list[Ref], stage: int, iteration: int) -> tuple[Ref, list[Ref]]:
        """New snapshot, and windows of all learners."""

    def evaluate(self, snapshot: Ref) -> list[Ref]:
        """Windows of all workers."""

    def write(self, iteration: int, windows: list[Ref]) -> Ref:
        """Row."""

    def event(self, event: Event) -> Ref:
        """Writes an event; the reference is only good for waiting."""

    def save(self, iteration: int, if_best: bool = False) -> Ref:
        """Path of a checkpoint of the state after the last update; with ``if_best`` only if its evaluation is the best
        so far, else nothing."""

    def wait(self, refs: list[Ref]) -> None:
        """Waits for all; raises what the first to fail raised."""

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
    plan = stages(config)
    interruption = interruption or Interruption()
    directory = None if resume is None else RunDirectory.existing(resume)
    state = None if directory is None else checkpoint.newest(directory.path)
    incarnation = 0 if directory is None else directory.read_json()["incarnation"] + 1
    try:
        _check_engine(config, engine)
        warm = None
        if config.policy.warm_start is not None and state is None:
            warm = under("policy/", find_checkpoint(Path(config.policy.warm_start))[0].arrays)
        ready = engine.start_workers(plan, incarnation)
        snapshot = engine.start_learner(plan, ready, state, warm)
        engine.get(snapshot)  # what does not fit is an error before anything is written
        if directory is None or state is None:
            directory, done, cut = RunDirectory.create(config, engine.cluster()), 0, Cut(0, ())
        else:
            done = int(state.meta["iteration"])
            with directory.held():
                cut = directory.cut_back(done)
                directory.reopen(config, engine.cluster(), incarnation, done)
        info = run_info(directory, config, plan, done + 1, ready.spec)
        status = "failed"
        views: list[Backend] = []
        try:
            engine.start_logger(directory, info, config, state)
            views += [view(info) for view in _terminal_backends(config)]
            loop = _Loop(config, plan, engine, views, interruption, done)
            loop.tell_of_start(ready, state, cut)
            status = loop.run(snapshot)
        except KeyboardInterrupt:
            status = "interrupted"
            raise
        finally:
            closing = _close(engine, views, directory, status)
        if closing.unwritten:
            raise OSError(
                f"The last {closing.unwritten} iterations found no room in {directory.path} and are lost. Make room, "
                f"then go on with: rlpipe train --resume {directory.path}"
            )
        return loop.result(status, directory)
    finally:
        engine.close()


def _close(engine: Engine, views: Sequence[Backend], directory: RunDirectory, status: str) -> Closing:
    """Ends what shows and writes the run, and tells of what is left to do."""
    for view in views:
        with suppress(Exception):  # a terminal that is gone
            view.close(status)
    closing = engine.finish(status)
    for name in closing.behind:
        log.warning(
            "%s does not show everything yet; bring it up to date with: rlpipe sync %s --to %s",
            name, directory.path, name,
        )  # fmt: skip
    if directory.read_json()["status"] != status:  # the logger could not say it
        directory.write_json({**directory.read_json(), "status": status})
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
        self._began = time.perf_counter()

    def event(self, kind: str, message: str, **data: Any) -> None:
        self._tell(Event(kind, message, self._done, now(), data))

    def _tell(self, event: Event) -> None:
        """Writes and shows an event."""
        self._written.append(self._engine.event(event))
        self._show(event)

    def tell_of_start(self, ready: Ready, state: Checkpoint | None, cut: Cut) -> None:
        """Says what a user should know of how the run begins or goes on."""
        for note in ready.notes:
            self.event("note", note)
        if state is not None:
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
        collected = None
        while self._done < total and self._interruption.reason is None and self._alarm is None:
            iteration = self._done + 1
            stage = self._enter_stage(iteration)
            with clock(m.GENERATE_ROLLOUTS):
                batches, windows = collected or (engine.collect(snapshot, stage) if algorithm.collects else ([], []))
                engine.wait(windows)
                following = next((index for index, part in enumerate(self._plan) if iteration < part.until), None)
                collected = engine.collect(snapshot, following) if algorithm.ahead and following is not None else None
            with clock(m.UPDATE):
                snapshot, learnt = engine.update(batches, stage, iteration)
                engine.wait(learnt)
            if not algorithm.collects and self._is_finished(learnt):
                total = iteration
            due = runner.val_check_interval and iteration % runner.val_check_interval == 0
            if due or iteration == total:
                if collected is not None:
                    with clock(m.GENERATE_ROLLOUTS):
                        engine.wait(collected[1])
                with clock(m.EVAL_TIME):
                    evaluated = engine.evaluate(snapshot)
                    engine.wait(evaluated)
                windows = [*windows, *evaluated]
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

    def result(self, status: str, directory: RunDirectory) -> TrainResult:
        found = checkpoint.files(directory.path)
        return TrainResult(
            status,
            directory.path,
            found[max(found)] if found else None,
            self._last.metrics if self._last else {},
            time.perf_counter() - self._began,
        )


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
        engine.wait(windows)
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
