"""The training loop: collect, learn, evaluate, write. It moves references and never looks inside them.

The same loop drives an engine in this process (``local``) and one on Ray (``distributed``), so what is tested in one
holds in the other.
"""

from __future__ import annotations

import logging
import os
import platform
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from rlpipe.backends.base import Backend, Place, RunInfo
from rlpipe.config.schema import Config
from rlpipe.config.stages import stages
from rlpipe.errors import ActorLostError, Fault, RunError
from rlpipe.metrics.row import Event, EventKind, Status
from rlpipe.plugins import resolve
from rlpipe.policies.base import Weights
from rlpipe.run import checkpoint
from rlpipe.run.checkpoint import subtree
from rlpipe.run.directory import Rollback, RunDirectory, find_checkpoint, now
from rlpipe.run.metric_logger import Backlog, run_info
from rlpipe.secrets import redacted
from rlpipe.training.checks import check_engine
from rlpipe.training.engine import Engine, Ref
from rlpipe.training.loop import Interruption, _Loop

log = logging.getLogger("rlpipe")


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

    status: Status
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
        directory, status, lost = self._directory, Status.FAILED, None
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
                except ActorLostError as error:
                    lost = self._insist(error)
        except KeyboardInterrupt:
            status = Status.INTERRUPTED
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

    def _start(self) -> tuple[Ref, Rollback]:
        """Starts what is needed to know whether the run can be, and only then makes its directory or cuts it back."""
        config, engine, state = self._config, self._engine, self._state
        check_engine(config, engine)
        if config.policy.warm_start is not None and state is None:
            self._warm = subtree("policy/", find_checkpoint(Path(config.policy.warm_start))[0].arrays)
        self._ready = engine.start_workers(self._plan, self._incarnation)
        snapshot = engine.start_learner(self._ready, state, self._warm)
        engine.get(snapshot)  # what does not fit is an error before anything is written
        if self._directory is None or state is None:
            self._directory = RunDirectory.create(config, engine.cluster())
            return snapshot, Rollback(0, ())
        return snapshot, self._cut_back()

    @property
    def _done(self) -> int:
        """Iterations that the run, as it is now, goes on after."""
        return 0 if self._state is None else int(self._state.meta["iteration"])

    def _cut_back(self) -> Rollback:
        """Takes the directory back to the checkpoint, or to the beginning."""
        assert self._directory is not None
        with self._directory.held():
            cut = self._directory.cut_back(self._done)
            self._directory.reopen(self._config, self._engine.cluster(), self._incarnation, self._done)
        return cut

    def _info(self) -> RunInfo:
        assert self._directory is not None
        return run_info(self._directory, self._config, self._plan, self._done + 1, self._ready.spec)

    def _attempt(self, snapshot: Ref, cut: Rollback, lost: ActorLostError | None) -> Status:
        """Iterates from the last checkpoint to the end, or until something is lost; returns how the run ended."""
        assert self._directory is not None
        self._engine.start_logger(self._directory, self._info(), self._config, self._state)
        loop = _Loop(self._config, self._plan, self._engine, self._views, self._interruption, self._done)
        self._loop = loop
        loop.report_start(() if lost else self._ready.notes, self._state, cut, lost.fault if lost else None)
        return loop.run(snapshot)

    def _insist(self, error: ActorLostError) -> ActorLostError:
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

    def _go_back(self, fault: Fault) -> tuple[Ref, Rollback]:
        """Makes the parts anew that were lost, at the last checkpoint."""
        assert self._directory is not None
        log.warning("%s. The run goes back to its last checkpoint.", fault.sentence)
        self._engine.finish(Status.FAILED)  # of views that cannot forget, those that are not covered are kept back
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

    def _close(self, status: Status, cause: Fault | None) -> Backlog:
        """Ends what shows and writes the run, and tells of what is left to do."""
        directory, engine = self._directory, self._engine
        assert directory is not None
        failed, told_of = None, False
        if cause is not None:
            last = 0 if self._loop is None else self._loop.done
            failed = Event(EventKind.FAILED, f"{cause.sentence}.", last, now(), cause.as_json())
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


def _terminal_backends(config: Config) -> list[type[Backend]]:
    """Backends of the configuration that live where the terminal is."""
    found = [resolve("backends", name, "logger_backends") for name in config.runner.logger.logger_backends]
    return [backend for backend in found if backend.place is Place.TERMINAL]
