"""The engine in this process: everything runs in turn, for debugging and as the reference for the engine on Ray."""

from __future__ import annotations

import os
import platform
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from rlpipe.backends.base import Place, RunInfo
from rlpipe.collection.evaluator import AS_CONFIGURED, Request, Watch
from rlpipe.collection.worker import Ready, RolloutWorker
from rlpipe.config.plan import Plan
from rlpipe.config.schema import Stage
from rlpipe.config.selection import number_of_workers
from rlpipe.errors import ConfigError, Fault, RunError, advice_on, how_it_failed
from rlpipe.learning.base import LearnerBase, learner_class
from rlpipe.metrics import MetricWindow
from rlpipe.metrics.row import Event, Status
from rlpipe.policies.base import Weights
from rlpipe.run.checkpoint import Checkpoint
from rlpipe.run.directory import RunDirectory
from rlpipe.run.metric_logger import Backlog, MetricLogger
from rlpipe.secrets import redacted

_LOG_LINES = 12
"""Lines of a traceback that are shown of what a call raised."""


@contextmanager
def _actor(name: str, doing: str) -> Iterator[None]:
    """Runs a call of what would be an actor on Ray. What it raises ends the run in the same words."""
    try:
        yield
    except (ConfigError, RunError):
        raise
    except BaseException as error:
        what, raised = how_it_failed(error), error.__cause__ or error
        lines = "".join(traceback.format_exception(None, raised, raised.__traceback__)).splitlines()[-_LOG_LINES:-1]
        what, *log = (redacted(text, os.environ) for text in (what, *lines))
        fault = Fault(name, what, doing, platform.node(), "", os.getpid(), tuple(log), advice_on(raised))
        raise RunError(fault) from error


class LocalEngine:
    """Engine in this process; a reference is the object itself."""

    places = frozenset(Place) - {Place.RAY}
    side_by_side = False
    _learner: LearnerBase
    _logger: MetricLogger
    _opened = False

    def __init__(self, config: Plan) -> None:
        self._config = config
        self.num_workers = number_of_workers(config, 1)
        self._workers: list[RolloutWorker] = []
        self._steps = [0] * self.num_workers  # of each environment, by rank

    def repaired_faults(self, *, unfinished: bool = False) -> list[Fault]:  # noqa: ARG002 - of every engine
        return []  # whatever fails here ends the run

    @property
    def num_collectors(self) -> int:
        return self.num_workers

    def moves(self) -> list[str]:
        return []

    def draining_nodes(self) -> list[str]:
        return []

    def evacuate(self) -> None:
        """Does nothing: there is no other node."""

    def rebuild(self, ready: Ready, state: Checkpoint | None, warm: Weights | None, incarnation: int) -> Any:
        raise NotImplementedError  # everything runs in this process, so no actor can be lost on its own

    def start_workers(self, plan: Sequence[Stage], incarnation: int) -> Ready:
        count, self._plan = self.num_workers, plan
        for rank in range(count):
            with _actor(f"rollout-{rank}", "make its simulator"):
                self._workers.append(RolloutWorker(plan, rank, count, incarnation))
        return self._workers[0].ready()

    def start_learner(self, ready: Ready, state: Checkpoint | None, warm: Weights | None = None) -> Any:
        with _actor("learner", "start"):
            self._learner = learner_class(self._config)(self._plan, ready.spec)
            self._learner.rehearse()
            if state is not None:
                self._learner.resume(state.arrays, state.path)
            return self._learner.snapshot() if warm is None else self._learner.begin_with(warm)

    def start_logger(self, directory: RunDirectory, info: RunInfo, config: Plan, state: Checkpoint | None) -> None:
        with _actor("metric-logger", "start"):
            self._logger = MetricLogger(directory, info, config, state.meta["metrics"] if state else {})
        self._opened = True

    def cluster(self) -> dict[str, Any]:
        return {
            "mode": "local",
            "workers": self.num_workers,
            "nodes": [{"host": platform.node(), "cpus": len(os.sched_getaffinity(0))}],
        }

    def collect(self, snapshot: Any, stage: int, collector: int | None = None) -> Any:
        pairs = []
        for worker_rank in range(self.num_workers) if collector is None else [collector]:
            with _actor(f"rollout-{worker_rank}", "collect"):
                pairs.append(self._workers[worker_rank].collect(snapshot, stage, self._steps[worker_rank]))
            self._steps[worker_rank] += self._config.steps_per_collection
        return [batch for batch, _ in pairs], [window for _, window in pairs]

    def gather(self, collection: Any) -> tuple[list[Any], list[Any]]:
        batches, windows = collection
        return batches, windows

    def wait_for_any(self, collections: Sequence[Any], refs: list[Any]) -> list[Any]:  # noqa: ARG002 - of every engine
        return []

    def is_complete(self, collection: Any) -> bool:  # noqa: ARG002 - of every engine
        return True

    def update(self, batches: list[Any], stage: int, iteration: int) -> tuple[Any, list[Any]]:
        with _actor("learner", "learn"):
            snapshot, window = self._learner.update(stage, iteration, *batches)
        return snapshot, [window]

    def learner_is_finished(self) -> bool:
        return self._learner.is_finished()

    def evaluate(self, snapshot: Any, watch: Watch, request: Request = AS_CONFIGURED) -> list[MetricWindow]:
        windows: list[MetricWindow] = []

        def watch_all(ended: int) -> bool:
            return watch(ended + sum(len(window.eval_episodes) for window in windows))

        for rank, worker in enumerate(self._workers):
            with _actor(f"rollout-{rank}", "evaluate"):
                windows.append(worker.evaluate(snapshot, watch_all, request))
            if windows[-1].cut_short:
                break
        return windows

    def prepare(self, windows: list[Any], *, counted: bool = False) -> Any:
        with _actor("metric-logger", "write"):
            return self._logger.prepare(*windows, counted=counted)

    def write(self, iteration: int, windows: list[Any]) -> Any:
        with _actor("metric-logger", "write"):
            return self._logger.write(iteration, *windows)

    def event(self, event: Event) -> Any:
        return self._logger.event(event)

    def save(self, iteration: int, if_best: bool = False) -> Any:
        return self._logger.save(iteration, self._learner.state(), if_best)

    def wait(self, refs: list[Any]) -> None:
        """Does nothing: every reference is an object already."""

    def put(self, value: Any) -> Any:
        return value

    def get(self, ref: Any) -> Any:
        return ref

    def finish(self, status: Status) -> Backlog:
        return self._logger.close(status) if self._opened else Backlog()

    def close(self) -> None:
        for worker in self._workers:
            worker.close()
        self._workers.clear()
