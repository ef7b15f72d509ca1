"""The engine on Ray: rollout workers, learner and metric logger are actors, and a reference is Ray's own.

Batches, weights and windows stay in the object store; this process only passes their references on.
"""

from __future__ import annotations

import importlib
import logging
import os
from collections.abc import Sequence
from typing import Any

import ray
from ray.exceptions import GetTimeoutError, RayTaskError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from rlpipe.backends.base import Event, Place, RunInfo
from rlpipe.checkpoint import Checkpoint
from rlpipe.config import Config, Stage
from rlpipe.distributed.cluster import Cluster
from rlpipe.local import check_fits, number_of_workers
from rlpipe.metric_logger import Closing
from rlpipe.plugins import ConfigError, resolve
from rlpipe.policies.base import Weights
from rlpipe.rollout import Ready, Snapshot
from rlpipe.run_directory import RunDirectory

log = logging.getLogger("rlpipe")


class _Part:
    """One part of a run in a process of its own: a rollout worker, the learner or the metric logger."""

    def __init__(self, path: str, environment: dict[str, str]) -> None:
        os.environ.update(environment)
        self._path = path

    def make(self, *args: Any) -> None:
        module, _, name = self._path.partition(":")
        self._failure: Exception | None = None
        try:
            self._part = getattr(importlib.import_module(module), name)(*args)
        except Exception as error:
            self._failure = error  # nobody waits for `make`; whoever calls the part first must hear of it

    def call(self, method: str, *args: Any) -> Any:
        if self._failure is not None:
            raise self._failure
        return getattr(self._part, method)(*args)


class RayEngine:
    """Implements ``rlpipe.training.Engine``."""

    places = frozenset(Place)
    side_by_side = True

    def __init__(self, config: Config, address: str | None = None) -> None:
        """Connects to Ray.

        Raises:
            ConfigError: no Ray answers, or the workers do not fit on it.
        """
        self._config = config
        self._cluster = Cluster(address)
        self._parts: list[Any] = []
        self._num_workers = number_of_workers(config, self._cluster.cpus())
        try:
            check_fits(config, self._num_workers, self._cluster.cpus())
        except ConfigError:
            self._cluster.close()
            raise

    def _start(self, name: str, path: str, environment: dict[str, str], **options: Any) -> Any:
        part = ray.remote(_Part).options(name=f"{name}-{os.getpid()}", **options).remote(path, environment)
        self._parts.append(part)
        return part

    def start_workers(self, plan: Sequence[Stage], incarnation: int) -> Ready:
        config, count = self._config, self._num_workers
        each = config.env.train.total_num_envs // count
        log.info("Starting %d rollout worker%s with %d environments each", count, "" if count == 1 else "s", each)
        self._workers = [
            self._start(
                f"rollout-{rank}",
                "rlpipe.rollout:RolloutWorker",
                {"CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"},  # simulators on CPU must not see a GPU
                num_cpus=config.cluster.cpus_per_worker,
            )
            for rank in range(count)
        ]
        plan_ref = ray.put(plan)
        for rank, worker in enumerate(self._workers):
            worker.make.remote(plan_ref, rank, count, incarnation)
        answers = [worker.call.remote("ready") for worker in self._workers]
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

    def start_learner(
        self, plan: Sequence[Stage], ready: Ready, state: Checkpoint | None, warm: Weights | None = None
    ) -> Any:
        gpu = self._config.learner.device != "cpu" and ray.cluster_resources().get("GPU", 0) >= 1
        where: dict[str, Any] = {"num_gpus": 1} if gpu else {"scheduling_strategy": self._here()}
        algorithm = resolve("algorithms", self._config.algorithm.name, "algorithm.name")
        self._learner = self._start("learner", algorithm.learner, {}, num_cpus=0, **where)
        self._learner.make.remote(plan, ready.spec)
        if warm is not None:
            return self._learner.call.remote("begin_with", warm)
        if state is not None:
            self._learner.call.remote("load_state", state.arrays)
        elif self._config.demos is None:  # the first weights follow from the seed: nobody need wait for the learner
            return ray.put(Snapshot(0, {}))
        return self._learner.call.remote("snapshot")

    def start_logger(self, directory: RunDirectory, info: RunInfo, config: Config, state: Checkpoint | None) -> None:
        self._logger = self._start(  # it keeps the run directory, so it must live where that is
            "metric-logger", "rlpipe.metric_logger:MetricLogger", {}, num_cpus=0, scheduling_strategy=self._here()
        )
        self._logger.make.remote(directory, info, config, state.meta["metrics"] if state else {})

    def _here(self) -> NodeAffinitySchedulingStrategy:
        return NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)

    def cluster(self) -> dict[str, Any]:
        return {"mode": "ray", "workers": self._num_workers, "nodes": self._cluster.describe()}

    def collect(self, snapshot: Any, stage: int) -> tuple[list[Any], list[Any]]:
        pairs = [worker.call.options(num_returns=2).remote("collect", snapshot, stage) for worker in self._workers]
        return [batch for batch, _ in pairs], [window for _, window in pairs]

    def update(self, batches: list[Any], stage: int, iteration: int) -> tuple[Any, Any]:
        snapshot, window = self._learner.call.options(num_returns=2).remote("update", stage, iteration, *batches)
        return snapshot, window

    def evaluate(self, snapshot: Any) -> list[Any]:
        return [worker.call.remote("evaluate", snapshot) for worker in self._workers]

    def write(self, iteration: int, windows: list[Any]) -> Any:
        return self._logger.call.remote("write", iteration, *windows)

    def event(self, event: Event) -> Any:
        return self._logger.call.remote("event", event)

    def save(self, iteration: int) -> Any:
        return self._logger.call.remote("save", iteration, self._learner.call.remote("state"))

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

    def finish(self, status: str) -> Closing:
        try:
            closing: Closing = ray.get(self._logger.call.remote("close", status))
        except ray.exceptions.RayError as error:
            log.error("The metric logger could not close its backends: %s", error)
            return Closing()
        return closing

    def close(self) -> None:
        for part in self._parts:
            ray.kill(part)
        self._parts.clear()
        self._cluster.close()


def _cause(error: RayTaskError) -> Exception:
    """What the actor raised: its own exception where the user can act on it, else with the actor's traceback."""
    if isinstance(error.cause, ConfigError):
        return error.cause
    return error  # type: ignore[no-any-return]
