"""The engine on Ray: rollout workers, learner and metric logger are actors, and a reference is Ray's own.

Batches, weights and windows stay in the object store; this process only passes their references on.
"""

from __future__ import annotations

import importlib
import logging
import os
import platform
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import ray
from ray.exceptions import GetTimeoutError, RayTaskError

from rlpipe.backends.base import Event, Place, RunInfo
from rlpipe.checkpoint import Checkpoint
from rlpipe.config import Config, Stage, algorithm_class
from rlpipe.distributed.cluster import Cluster
from rlpipe.distributed.doctor import preflight
from rlpipe.distributed.placement import LEARNER, SERVER, WORKER, Gang, here, nodes, parts
from rlpipe.metric_logger import Closing
from rlpipe.plugins import ConfigError
from rlpipe.policies.base import Weights
from rlpipe.ranks import open_meeting, portion
from rlpipe.rollout import Ready, Snapshot
from rlpipe.run_directory import RunDirectory
from rlpipe.trajectory import Float32

log = logging.getLogger("rlpipe")


class _Part:
    """One part of a run in a process of its own: a rollout worker, an inference server, the learner or the metric
    logger."""

    def __init__(self, path: str, environment: dict[str, str]) -> None:
        os.environ.update(environment)
        self._path = path

    def where(self) -> tuple[str, str, float]:
        """Host, node, and what its clock shows."""
        return platform.node(), ray.get_runtime_context().get_node_id(), time.time()

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


class _Server:
    """Implements ``rlpipe.rollout.PolicyServer`` in a worker's process."""

    def __init__(self, part: Any) -> None:
        self._part = part

    def act(self, rank: int, version: int, observations: Float32, noise: Float32 | None, each: bool) -> Any:
        return ray.get(self._part.call.remote("act", rank, version, observations, noise, each))

    def leave(self, rank: int) -> None:
        ray.get(self._part.call.remote("leave", rank))


class RayEngine:
    """Implements ``rlpipe.training.Engine``."""

    places = frozenset(Place)
    side_by_side = True

    def __init__(self, config: Config, address: str | None = None) -> None:
        """Connects to Ray.

        Raises:
            ConfigError: no Ray answers.
        """
        self._config = config
        self._cluster = Cluster(address)
        self._parts: list[Any] = []
        self._places: dict[str, Any] = {}
        self._gang: Gang | None = None
        self._store: Any = None
        self._bundles = parts(config, nodes())
        self._num_workers, self._num_learners, self._num_servers = (
            sum(bundle.part == part for bundle in self._bundles) for part in (WORKER, LEARNER, SERVER)
        )

    def _start(self, name: str, path: str, environment: dict[str, str], **options: Any) -> Any:
        unique = f"{name}-{ray.get_runtime_context().get_job_id()}-{os.getpid()}"
        part = ray.remote(_Part).options(name=unique, **options).remote(path, environment)
        self._parts.append(part)
        self._places[name] = part.where.remote()  # answered before the part is made, which may take long
        return part

    def start_workers(self, plan: Sequence[Stage], incarnation: int) -> Ready:
        config, count, self._plan = self._config, self._num_workers, plan
        if self._num_servers > count:
            raise ConfigError(
                f"rollout.num_inference_servers is {self._num_servers}, but there are {count} rollout workers "
                "(rollout.num_workers): some servers would have none to answer."
            )
        each = config.env.train.total_num_envs // count
        wishes = config.cluster
        self._gang = Gang(self._bundles, wishes.strategy, wishes.placement_timeout, grows=not self._cluster.started)
        weak = preflight(config, self._gang.landed(WORKER))
        log.info("Starting %d rollout worker%s with %d environments each", count, "" if count == 1 else "s", each)
        self._workers = [
            self._start(
                f"rollout-{rank}",
                "rlpipe.rollout:RolloutWorker",
                {"CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"},  # simulators on CPU must not see a GPU
                **self._gang.place(rank),
            )
            for rank in range(count)
        ]
        self._servers = [self._start_server(index) for index in range(self._num_servers)]
        plan_ref = ray.put(plan)
        for rank, worker in enumerate(self._workers):
            server = _Server(self._servers[rank % len(self._servers)]) if self._servers else None
            worker.make.remote(plan_ref, rank, count, incarnation, server)
        answers = [worker.call.remote("ready") for worker in self._workers]
        try:
            ready: list[Ready] = ray.get(answers, timeout=wishes.start_timeout)
        except GetTimeoutError as error:
            raise ConfigError(
                f"not all {count} rollout workers were ready within {wishes.start_timeout:g} s "
                "(cluster.start_timeout); is the cluster busy, or the simulator slow to load?"
            ) from error
        except RayTaskError as error:
            raise _cause(error) from None
        # Waits until they are made: calls of a server run side by side, not one after the other.
        ranks = [range(index, count, self._num_servers) for index in range(self._num_servers)]
        self.wait(
            [
                server.make.remote(config, ready[0].spec, index, own)
                for index, (server, own) in enumerate(zip(self._servers, ranks, strict=True))
            ]
        )
        return replace(ready[0], notes=(*ready[0].notes, *(found.sentence for found in weak)))

    def _start_server(self, index: int) -> Any:
        assert self._gang is not None
        where = self._gang.place(self._num_workers + self._num_learners + index)
        environment = {"OMP_NUM_THREADS": str(max(1, int(where["num_cpus"])))}
        if not where["num_gpus"]:
            environment["CUDA_VISIBLE_DEVICES"] = ""
        return self._start(
            f"inference-{index}",
            "rlpipe.inference:InferenceServer",
            environment,
            max_concurrency=self._num_workers + 2,  # a request of each worker, and two calls from here
            **where,
        )

    def start_learner(
        self, plan: Sequence[Stage], ready: Ready, state: Checkpoint | None, warm: Weights | None = None
    ) -> Any:
        count, plan_ref = self._num_learners, ray.put(plan)
        self._learners = [self._start_learner(rank) for rank in range(count)]
        if count == 1:
            self._learners[0].make.remote(plan_ref, ready.spec)
        else:
            self._store, meeting = open_meeting(ray.util.get_node_ip_address(), count)
            for rank, learner in enumerate(self._learners):
                learner.make.remote(plan_ref, ready.spec, rank, meeting)
        if state is not None:
            arrays = ray.put(state.arrays)
            self.wait([learner.call.remote("resume", arrays, state.path) for learner in self._learners])
        elif count == 1 and not (warm or self._config.demos or self._config.learner.device.startswith("cuda")):
            return ray.put(Snapshot(0, {}))  # the first weights follow from the seed: nobody need wait for the learner
        question = ["snapshot"] if warm is None else ["begin_with", ray.put(warm)]
        answers = [learner.call.remote(*question) for learner in self._learners]
        self.wait(answers)  # whatever a learner cannot do is heard before anything is written
        return answers[0]

    def _start_learner(self, rank: int) -> Any:
        assert self._gang is not None
        where = self._gang.place(self._num_workers + rank)
        hidden = {} if where["num_gpus"] else {"CUDA_VISIBLE_DEVICES": ""}
        name = "learner" if self._num_learners == 1 else f"learner-{rank}"
        return self._start(name, algorithm_class(self._config).learner, hidden, **where)

    def start_logger(self, directory: RunDirectory, info: RunInfo, config: Config, state: Checkpoint | None) -> None:
        self._logger = self._start(  # it keeps the run directory, so it must live where that is
            "metric-logger", "rlpipe.metric_logger:MetricLogger", {"CUDA_VISIBLE_DEVICES": ""}, num_cpus=0,
            scheduling_strategy=here(),
        )  # fmt: skip
        self._logger.make.remote(directory, info, config, state.meta["metrics"] if state else {})

    def cluster(self) -> dict[str, Any]:
        return {
            "mode": "ray",
            "workers": self._num_workers,
            "nodes": self._cluster.describe(),
            "parts": self._where(),
            "job": self._cluster.job(),
        }

    def _where(self) -> dict[str, dict[str, Any]]:
        """Host, node and clock of each part; the metric logger will be where the driver is."""
        here = ray.get_runtime_context().get_node_id()
        own = {"host": platform.node(), "node": here, "clock": 0.0}
        try:
            places = ray.get(list(self._places.values()), timeout=self._config.cluster.start_timeout)
        except GetTimeoutError as error:
            raise ConfigError(
                f"not all parts of the run have a process after {self._config.cluster.start_timeout:g} s "
                "(cluster.start_timeout); is the cluster busy, or does no node suit cluster.learner_nodes?"
            ) from error
        clocks, found = {here: 0.0}, {"driver": own}
        for name, part, (host, node, _) in zip(self._places, self._parts, places, strict=True):
            if node not in clocks:
                clocks[node] = _ahead(part)
            found[name] = {"host": host, "node": node, "clock": clocks[node]}
        return {**found, "metric-logger": own}

    def _acting(self, snapshot: Any) -> list[Any]:
        """Snapshots for the workers in turn; where servers act, without weights, and ready when the server is."""
        return [server.call.remote("load", snapshot) for server in self._servers] or [snapshot]

    def collect(self, snapshot: Any, stage: int) -> tuple[list[Any], list[Any]]:
        acting = self._acting(snapshot)
        pairs = [
            worker.call.options(num_returns=2).remote("collect", acting[rank % len(acting)], stage)
            for rank, worker in enumerate(self._workers)
        ]
        windows = [server.call.remote("window", loaded) for server, loaded in zip(self._servers, acting, strict=False)]
        return [batch for batch, _ in pairs], [*(window for _, window in pairs), *windows]

    def update(self, batches: list[Any], stage: int, iteration: int) -> tuple[Any, list[Any]]:
        config, size = self._plan[stage].config, self._num_learners
        environments, group_size = config.env.train.total_num_envs, getattr(config.algorithm, "group_size", 1)
        pairs = []
        for rank, learner in enumerate(self._learners):
            own = batches
            if size > 1:
                taken = portion(rank, size, len(batches), environments, group_size).workers
                own = batches[taken.start : taken.stop]
            pairs.append(learner.call.options(num_returns=2).remote("update", stage, iteration, *own))
        return pairs[0][0], [window for _, window in pairs]

    def evaluate(self, snapshot: Any) -> list[Any]:
        acting = self._acting(snapshot)
        return [worker.call.remote("evaluate", acting[rank % len(acting)]) for rank, worker in enumerate(self._workers)]

    def write(self, iteration: int, windows: list[Any]) -> Any:
        return self._logger.call.remote("write", iteration, *windows)

    def event(self, event: Event) -> Any:
        return self._logger.call.remote("event", event)

    def save(self, iteration: int, if_best: bool = False) -> Any:
        return self._logger.call.remote("save", iteration, self._learners[0].call.remote("state"), if_best)

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
        self._store = None
        if self._gang is not None:
            self._gang.close()
        self._cluster.close()


def _ahead(part: Any) -> float:
    """Seconds by which the clock of a part is ahead of ours: from the quickest of three answers, given half way
    between question and answer (Cristian 1989, "Probabilistic clock synchronization")."""
    answers: list[tuple[float, float]] = []
    for _ in range(3):
        asked = time.time()
        _, _, clock = ray.get(part.where.remote())
        answered = time.time()
        answers.append((answered - asked, clock - (asked + answered) / 2))
    return round(min(answers)[1], 6)


def _cause(error: RayTaskError) -> Exception:
    """What the actor raised: its own exception where the user can act on it, else with the actor's traceback."""
    if isinstance(error.cause, ConfigError):
        return error.cause
    return error  # type: ignore[no-any-return]
