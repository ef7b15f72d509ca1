"""The engine on Ray: rollout workers, learner and metric logger are actors, and a reference is Ray's own.

Batches, weights and windows stay in the object store; this process only passes their references on.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from typing import Any

import ray
from ray.exceptions import GetTimeoutError, RayTaskError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from rlpipe.backends.base import RunInfo
from rlpipe.checkpoint import Checkpoint
from rlpipe.config import Config, Stage
from rlpipe.distributed.cluster import Cluster
from rlpipe.local import check_fits, number_of_workers
from rlpipe.plugins import ConfigError
from rlpipe.rollout import Ready
from rlpipe.run_directory import RunDirectory

log = logging.getLogger("rlpipe")


class _RolloutActor:
    """A ``RolloutWorker`` in a process of its own, which no GPU can be seen from."""

    def __init__(self, plan: Sequence[Stage], rank: int, num_workers: int, incarnation: int) -> None:
        os.environ["CUDA_VISIBLE_DEVICES"] = ""
        os.environ["OMP_NUM_THREADS"] = "1"
        from rlpipe.rollout import RolloutWorker

        self._worker = RolloutWorker(plan, rank, num_workers, incarnation)

    def ready(self) -> Any:
        return self._worker.ready()

    def collect(self, snapshot: Any, stage: int) -> Any:
        return self._worker.collect(snapshot, stage)

    def evaluate(self, snapshot: Any) -> Any:
        return self._worker.evaluate(snapshot)


class _LearnerActor:
    """A ``Learner`` in a process of its own."""

    def __init__(self, plan: Sequence[Stage], spec: Any, arrays: Any) -> None:
        from rlpipe.learner import Learner

        self._learner = Learner(plan, spec)
        if arrays is not None:
            self._learner.load_state(arrays)

    def snapshot(self) -> Any:
        return self._learner.snapshot()

    def update(self, stage: int, iteration: int, *batches: Any) -> Any:
        return self._learner.update(batches, stage, iteration)

    def state(self) -> Any:
        return self._learner.state()


class _LoggerActor:
    """A ``MetricLogger`` in a process of its own, on the node where the run directory is."""

    def __init__(self, directory: RunDirectory, info: RunInfo, config: Config, kept: Any) -> None:
        from rlpipe.metric_logger import MetricLogger

        self._logger = MetricLogger(directory, info, config, kept)

    def write(self, iteration: int, *windows: Any) -> Any:
        return self._logger.write(iteration, *windows)

    def event(self, kind: str, message: str, iteration: int, data: dict[str, Any]) -> Any:
        return self._logger.event(kind, message, iteration, **data)

    def save(self, iteration: int, arrays: Any) -> Any:
        return self._logger.save(iteration, arrays)

    def close(self, status: str) -> None:
        self._logger.close(status)


class RayEngine:
    """Implements ``rlpipe.training.Engine``."""

    def __init__(self, config: Config, address: str | None = None) -> None:
        """Connects to Ray.

        Raises:
            ConfigError: no Ray answers, or the workers do not fit on it.
        """
        self._config = config
        self._cluster = Cluster(address)
        self._actors: list[Any] = []
        self._learner: Any = None
        self._logger: Any = None
        self._num_workers = number_of_workers(config, self._cluster.cpus())
        self._pending: list[Any] = []
        try:
            check_fits(config, self._num_workers, self._cluster.cpus())
        except ConfigError:
            self._cluster.close()
            raise

    def _actor(self, kind: type[Any], name: str, *args: Any, **options: Any) -> Any:
        actor = ray.remote(kind).options(name=f"{name}-{os.getpid()}", max_restarts=0, **options).remote(*args)
        self._actors.append(actor)
        return actor

    def _here(self) -> NodeAffinitySchedulingStrategy:
        return NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)

    def start_workers(self, plan: Sequence[Stage], incarnation: int) -> Ready:
        config, count = self._config, self._num_workers
        log.info(
            "Starting %d rollout worker%s with %d environments each",
            count, "" if count == 1 else "s", config.env.train.total_num_envs // count,
        )  # fmt: skip
        plan_ref = ray.put(plan)
        self._workers = [
            self._actor(
                _RolloutActor, f"rollout-{rank}", plan_ref, rank, count, incarnation,
                num_cpus=config.cluster.cpus_per_worker,
            )
            for rank in range(count)
        ]  # fmt: skip
        answers = [worker.ready.remote() for worker in self._workers]
        try:
            ready: list[Ready] = ray.get(answers, timeout=config.cluster.start_timeout)
        except GetTimeoutError as error:
            raise ConfigError(
                f"not all {count} rollout workers were ready within {config.cluster.start_timeout:g} s "
                "(cluster.start_timeout); is the cluster busy, or the simulator slow to load?"
            ) from error
        except RayTaskError as error:
            raise _cause(error) from None
        return ready[0]

    def start_learner(self, plan: Sequence[Stage], ready: Ready, state: Checkpoint | None) -> Any:
        device = self._config.learner.device
        gpus = 0
        if device != "cpu" and ray.cluster_resources().get("GPU", 0) >= 1:
            gpus = 1
        options: dict[str, Any] = {"num_gpus": gpus} if gpus else {"scheduling_strategy": self._here()}
        self._learner = self._actor(
            _LearnerActor, "learner", plan, ready.spec, state.arrays if state else None, num_cpus=0, **options
        )
        snapshot = self._learner.snapshot.remote()
        self.wait([snapshot])
        return snapshot

    def start_logger(self, directory: RunDirectory, info: RunInfo, config: Config, state: Checkpoint | None) -> None:
        self._logger = self._actor(
            _LoggerActor, "metric-logger", directory, info, config, state.meta["metrics"] if state else {},
            num_cpus=0, scheduling_strategy=self._here(),
        )  # fmt: skip

    def cluster(self) -> dict[str, Any]:
        return {"mode": "ray", "workers": self._num_workers, "nodes": self._cluster.describe()}

    def collect(self, snapshot: Any, stage: int) -> tuple[list[Any], list[Any]]:
        pairs = [worker.collect.options(num_returns=2).remote(snapshot, stage) for worker in self._workers]
        return [batch for batch, _ in pairs], [window for _, window in pairs]

    def update(self, batches: list[Any], stage: int, iteration: int) -> tuple[Any, Any]:
        snapshot, window = self._learner.update.options(num_returns=2).remote(stage, iteration, *batches)
        return snapshot, window

    def evaluate(self, snapshot: Any) -> list[Any]:
        return [worker.evaluate.remote(snapshot) for worker in self._workers]

    def write(self, iteration: int, windows: list[Any]) -> Any:
        return self._logger.write.remote(iteration, *windows)

    def event(self, kind: str, message: str, iteration: int, data: dict[str, Any]) -> Any:
        return self._logger.event.remote(kind, message, iteration, data)

    def save(self, iteration: int) -> Any:
        return self._logger.save.remote(iteration, self._learner.state.remote())

    def wait(self, refs: list[Any]) -> None:
        waiting = list(refs)
        while waiting:
            done, waiting = ray.wait(waiting, num_returns=1, fetch_local=False)
            for ref in done:
                # A failed task is done too; asking for its object raises what it raised. Windows are small.
                self.get(ref)

    def get(self, ref: Any) -> Any:
        try:
            return ray.get(ref)
        except RayTaskError as error:
            raise _cause(error) from None

    def finish(self, status: str) -> None:
        try:
            ray.get(self._logger.close.remote(status))
        except ray.exceptions.RayActorError:
            log.error("The metric logger died; the status in run.json may be out of date")

    def close(self) -> None:
        for actor in self._actors:
            ray.kill(actor)
        self._actors.clear()
        self._cluster.close()


def _cause(error: RayTaskError) -> Exception:
    """What the actor raised: its own exception where the user can act on it, else with the actor's traceback."""
    if isinstance(error.cause, ConfigError):
        return error.cause
    return error  # type: ignore[no-any-return]
