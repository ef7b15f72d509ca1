"""The engine on Ray: rollout workers, learner and metric logger are actors, and a reference is Ray's own.

Batches, weights and windows stay in the object store; this process only passes their references on.
"""

from __future__ import annotations

import logging
import platform
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import ray
from ray.exceptions import GetTimeoutError, RayError, RayTaskError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from rlpipe.backends.base import Place, RunInfo
from rlpipe.collection.worker import Ready
from rlpipe.config.schema import Config, Stage
from rlpipe.config.selection import algorithm_class
from rlpipe.distributed.actors import Part, draining, lost, user_error
from rlpipe.distributed.cluster import Cluster
from rlpipe.distributed.node_checks import preflight
from rlpipe.distributed.placement import LEARNER, SERVER, WORKER, RunPlacement, here, nodes, parts
from rlpipe.distributed.worker_pool import Task, WorkerPool
from rlpipe.errors import ActorLostError, ConfigError, Fault, RunError
from rlpipe.learning.process_group import open_rendezvous
from rlpipe.learning.shares import portion
from rlpipe.metrics.row import Event, Status
from rlpipe.policies.base import Snapshot, Weights
from rlpipe.run.checkpoint import Checkpoint
from rlpipe.run.directory import RunDirectory
from rlpipe.run.metric_logger import Backlog
from rlpipe.trajectory import Float32

log = logging.getLogger("rlpipe")


_LOOK_FOR_NOTICES = 2.0
"""Seconds between two looks for nodes that are about to go."""


class _Server:
    """Implements ``rlpipe.collection.served_policy.PolicyServer`` in a worker's process."""

    def __init__(self, actor: Any) -> None:
        self._actor = actor

    def act(self, rank: int, version: int, observations: Float32, noise: Float32 | None, each: bool) -> Any:
        return ray.get(self._actor.call.remote("act", rank, version, observations, noise, each))

    def release(self, rank: int) -> None:
        ray.get(self._actor.call.remote("leave", rank))


@dataclass
class _Collection:
    """What workers were asked to collect, and what the servers will say of it."""

    task: Task
    served: list[Any]


class RayEngine:
    """Implements ``rlpipe.training.engine.Engine``."""

    places = frozenset(Place)
    side_by_side = True

    def __init__(self, config: Config, address: str | None = None) -> None:
        """Connects to Ray.

        Raises:
            ConfigError: no Ray answers.
        """
        self._config = config
        self._cluster = Cluster(address)
        self._crew: WorkerPool | None = None
        self._learners: list[Part] = []
        self._servers: list[Part] = []
        self._logger: Part | None = None
        self._next_logger: Part | None = None  # on its way, while its predecessor is gone
        self._gang: RunPlacement | None = None
        self._store: Any = None
        self._steps = 0  # that each environment was given in this incarnation
        self._leaving: set[str] = set()
        self._looked = 0.0
        self._bundles = parts(config, nodes())
        self._num_workers, self._num_learners, self._num_servers = (
            sum(bundle.part == part for bundle in self._bundles) for part in (WORKER, LEARNER, SERVER)
        )

    @property
    def parts(self) -> list[Part]:
        """All parts as they are now."""
        workers = self._crew.parts if self._crew else []
        return [*workers, *self._servers, *self._learners, *([self._logger] if self._logger else [])]

    def start_workers(self, plan: Sequence[Stage], incarnation: int) -> Ready:
        config, count, self._plan = self._config, self._num_workers, plan
        if self._num_servers > count:
            raise ConfigError(
                f"rollout.num_inference_servers is {self._num_servers}, but there are {count} rollout workers "
                "(rollout.num_workers): some servers would have none to answer."
            )
        least = config.rollout.min_workers
        if isinstance(least, int) and least > count:
            raise ConfigError(f"rollout.min_workers is {least}, but there are {count} rollout workers.")
        each = config.env.train.total_num_envs // count
        wishes = config.cluster
        self._gang = RunPlacement(
            self._bundles, wishes.strategy, wishes.placement_timeout, grows=not self._cluster.started
        )
        weak = preflight(config, self._gang.landed(WORKER))
        log.info("Starting %d rollout worker%s with %d environments each", count, "" if count == 1 else "s", each)
        self._incarnation, self._plan_ref = incarnation, ray.put(plan)
        self._servers = [self._start_server(index) for index in range(self._num_servers)]
        self._crew = WorkerPool(config, count, self._start_worker, self._start_spare, self._take_over, self._lost_part)
        ready = self._crew.ready()
        self._make_servers(ready)
        return replace(ready, notes=(*ready.notes, *(found.sentence for found in weak)))

    def _start_worker(self, rank: int, life: int) -> Part:
        assert self._gang is not None
        return self._worker(f"rollout-{rank}", rank, life, **self._gang.place(rank))

    def _start_spare(self, node: str) -> Part:
        """It will work on the CPUs that are reserved for the worker whose place it takes."""
        there = NodeAffinitySchedulingStrategy(node, soft=False)
        return self._worker("rollout-spare", 0, 0, num_cpus=0, scheduling_strategy=there)

    def _worker(self, name: str, rank: int, life: int, **where: Any) -> Part:
        environment = {"CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"}  # simulators on CPU must not see a GPU
        worker = Part(name, "rlpipe.collection.worker:RolloutWorker", environment, **where)
        worker.make(self._plan_ref, rank, self._num_workers, self._incarnation, self._server_of(rank), life)
        return worker

    def _take_over(self, spare: Part, rank: int, life: int) -> Any:
        return spare.call("take_over", rank, life, self._incarnation, self._server_of(rank))

    def _server_of(self, rank: int) -> _Server | None:
        return _Server(self._servers[rank % self._num_servers].actor) if self._servers else None

    def _start_server(self, index: int) -> Part:
        assert self._gang is not None
        where = self._gang.place(self._num_workers + self._num_learners + index)
        environment = {"OMP_NUM_THREADS": str(max(1, int(where["num_cpus"])))}
        if not where["num_gpus"]:
            environment["CUDA_VISIBLE_DEVICES"] = ""
        return Part(
            f"inference-{index}",
            "rlpipe.collection.inference:InferenceServer",
            environment,
            max_concurrency=self._num_workers + 2,  # a request of each worker, and two calls from here
            **where,
        )

    def _make_servers(self, ready: Ready) -> None:
        """Waits until they are made: calls of a server run side by side, not one after the other."""
        ranks = [range(index, self._num_workers, self._num_servers) for index in range(self._num_servers)]
        self.wait(
            [
                server.make(self._config, ready.spec, index, own)
                for index, (server, own) in enumerate(zip(self._servers, ranks, strict=True))
            ]
        )

    def start_learner(self, ready: Ready, state: Checkpoint | None, warm: Weights | None = None) -> Any:
        seeded = state is None and self._num_learners == 1 and self._incarnation == 0
        self._begin_learners(ready, state)
        if seeded and not (warm or self._config.demos or self._config.learner.device.startswith("cuda")):
            return ray.put(Snapshot(0, {}))  # the first weights follow from the seed: nobody need wait for the learner
        return self._first_snapshot(warm)

    def _begin_learners(self, ready: Ready, state: Checkpoint | None) -> None:
        count = self._num_learners
        self._learners = [self._start_learner(rank) for rank in range(count)]
        if count == 1:
            self._learners[0].make(self._plan_ref, ready.spec)
        else:
            self._store, meeting = open_rendezvous(ray.util.get_node_ip_address(), count)
            for rank, learner in enumerate(self._learners):
                learner.make(self._plan_ref, ready.spec, rank, meeting)
        if state is not None:
            arrays = ray.put(state.arrays)
            self.wait([learner.call("resume", arrays, state.path) for learner in self._learners])

    def _first_snapshot(self, warm: Weights | None) -> Any:
        question = ["snapshot"] if warm is None else ["begin_with", ray.put(warm)]
        answers = [learner.call(*question) for learner in self._learners]
        self.wait(answers)  # whatever a learner cannot do is heard before anything is written
        return answers[0]

    def _start_learner(self, rank: int) -> Part:
        assert self._gang is not None
        where = self._gang.place(self._num_workers + rank)
        hidden = {} if where["num_gpus"] else {"CUDA_VISIBLE_DEVICES": ""}
        name = "learner" if self._num_learners == 1 else f"learner-{rank}"
        return Part(name, algorithm_class(self._config).learner, hidden, **where)

    def start_logger(self, directory: RunDirectory, info: RunInfo, config: Config, state: Checkpoint | None) -> None:
        self._logger, self._next_logger = self._next_logger or self._start_logger(), None
        self._logger.make(directory, info, config, state.meta["metrics"] if state else {})

    def _start_logger(self) -> Part:
        return Part(  # it keeps the run directory, so it must live where that is
            "metric-logger", "rlpipe.run.metric_logger:MetricLogger", {"CUDA_VISIBLE_DEVICES": ""}, num_cpus=0,
            scheduling_strategy=here(),
        )  # fmt: skip

    def rebuild(self, ready: Ready, state: Checkpoint | None, warm: Weights | None, incarnation: int) -> Any:
        assert self._crew is not None
        self._end_stateful()
        self._incarnation, self._steps = incarnation, 0
        self._next_logger = self._start_logger()  # it comes up beside the learner, not after it
        self._next_logger.load("rlpipe.run.metric_logger", algorithm_class(self._config).__module__)
        self._servers = [self._start_server(index) for index in range(self._num_servers)]
        self._make_servers(ready)
        self._begin_learners(ready, state)
        self._crew.begin_anew(lambda part, rank: part.call("begin_anew", incarnation, self._server_of(rank)))
        return self._first_snapshot(warm if state is None else None)

    def _end_stateful(self) -> None:
        """Ends everything but the rollout workers, which hold nothing that another could not."""
        for part in [*self._learners, *self._servers, self._logger, self._next_logger]:
            if part is not None:
                part.end()
        self._learners, self._servers, self._logger, self._next_logger = [], [], None, None
        self._store = None

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
        node = ray.get_runtime_context().get_node_id()
        own = {"host": platform.node(), "node": node, "clock": 0.0}
        started = [part for part in self.parts if part is not self._logger]
        try:
            places = ray.get([part.place for part in started], timeout=self._config.cluster.start_timeout)
        except GetTimeoutError as error:
            raise ConfigError(
                f"not all parts of the run have a process after {self._config.cluster.start_timeout:g} s "
                "(cluster.start_timeout); is the cluster busy, or does no node suit cluster.learner_nodes?"
            ) from error
        except RayError as error:
            raise self._explained(error) from None
        clocks, found = {node: 0.0}, {"driver": own}
        for part, place in zip(started, places, strict=True):
            if place.node not in clocks:
                clocks[place.node] = self._ahead(part)
            found[part.name] = {"host": place.host, "node": place.node, "pid": place.pid, "clock": clocks[place.node]}
        return {**found, "metric-logger": own}

    def _ahead(self, part: Part) -> float:
        """Seconds by which the clock of a part is ahead of ours: from the quickest of three answers, given half way
        between question and answer (Cristian 1989, "Probabilistic clock synchronization")."""
        answers: list[tuple[float, float]] = []
        for _ in range(3):
            asked = time.time()
            clock = self.get(part.actor.where.remote()).clock
            answered = time.time()
            answers.append((answered - asked, clock - (asked + answered) / 2))
        return round(min(answers)[1], 6)

    def _acting(self, snapshot: Any) -> list[Any]:
        """Snapshots for the workers in turn; where servers act, without weights, and ready when the server is."""
        return [server.call("load", snapshot) for server in self._servers] or [snapshot]

    def collect(self, snapshot: Any, stage: int) -> Any:
        assert self._crew is not None
        acting, seconds = self._acting(snapshot), self._config.rollout.timeout
        first_step, self._steps = self._steps, self._steps + self._config.rollout.horizon

        def ask(worker: Part, rank: int) -> Any:
            arguments = ("collect", acting[rank % len(acting)], stage, first_step)
            return worker.call_within(seconds, *arguments, num_returns=2)

        task = self._crew.ask(Task(ask, "collect", seconds, "rollout.timeout"))
        windows = [server.call("window", loaded) for server, loaded in zip(self._servers, acting, strict=False)]
        return _Collection(task, windows)

    def gather(self, collection: _Collection) -> tuple[list[Any], list[Any]]:
        assert self._crew is not None
        pairs, windows = self._crew.gather(collection.task)
        if self._servers:
            for rank in set(range(self._num_workers)) - set(collection.task.asked):
                self.wait([self._servers[rank % self._num_servers].call("leave", rank)])
            windows = [*windows, *(self.get(ref) for ref in collection.served)]
        return [batch for batch, _ in pairs], [*windows, *self._crew.losses()]

    def update(self, batches: list[Any], stage: int, iteration: int) -> tuple[Any, list[Any]]:
        config, size = self._plan[stage].config, self._num_learners
        if size == 1:
            snapshot, window = self._learners[0].call("update", stage, iteration, *batches, num_returns=2)
            return snapshot, [window]
        count = len(batches)
        environments = config.env.train.total_num_envs // self._num_workers * count
        group_size = config.algorithm.group_size or 1
        pairs = []
        for rank, learner in enumerate(self._learners):
            taken = portion(rank, size, count, environments, group_size).workers
            own = batches[taken.start : taken.stop]
            pairs.append(learner.call("update", stage, iteration, *own, num_returns=2, fragments=count))
        return pairs[0][0], [window for _, window in pairs]

    def evaluate(self, snapshot: Any) -> list[Any]:
        assert self._crew is not None
        acting, seconds = self._acting(snapshot), self._config.evaluation.timeout

        def ask(worker: Part, rank: int) -> Any:
            return [worker.call_within(seconds, "evaluate", acting[rank % len(acting)])]

        task = Task(ask, "evaluate", seconds, "evaluation.timeout", waits=True)
        _, windows = self._crew.gather(self._crew.ask(task))
        return [*windows, *self._crew.losses()]

    def repaired_faults(self) -> list[Fault]:
        return self._crew.repaired_faults() if self._crew else []

    def draining_nodes(self) -> list[str]:
        if time.monotonic() - self._looked < _LOOK_FOR_NOTICES:
            return []
        self._looked = time.monotonic()
        new = {node: when for node, when in draining().items() if node not in self._leaving}
        self._leaving |= set(new)
        hosts = {place.node: place.host for part in self.parts if (place := part.location(0.0)) is not None}
        return [
            f"{hosts[node]} is about to go{f', in {left:.0f} s' if (left := when - time.time()) > 0 else ''}"
            for node, when in new.items()
            if node in hosts
        ]

    def evacuate(self) -> None:
        assert self._gang is not None
        assert self._crew is not None
        self._crew.leave(self._leaving, self._gang.move)
        indexed = [*self._learners, *self._servers]
        there = [
            index for index, part in enumerate(indexed)
            if (place := part.location(0.0)) is not None and place.node in self._leaving
        ]  # fmt: skip
        if there:
            self._gang.move([self._num_workers + index for index in there])
            raise ActorLostError(indexed[there[0]].moved("has to leave its node, which is about to go"))

    def write(self, iteration: int, windows: list[Any]) -> Any:
        assert self._logger is not None
        return self._logger.call("write", iteration, *windows)

    def event(self, event: Event) -> Any:
        assert self._logger is not None
        return self._logger.call("event", event)

    def save(self, iteration: int, if_best: bool = False) -> Any:
        assert self._logger is not None
        return self._logger.call("save", iteration, self._learners[0].call("state"), if_best)

    def wait(self, refs: list[Any]) -> None:
        own = [ref for ref in refs if isinstance(ref, ray.ObjectRef)]
        while own:
            done, own = ray.wait(own, num_returns=1, fetch_local=False)
            for ref in done:
                # A failed task is done too; asking for its object raises what it raised. Windows are small.
                self.get(ref)

    def get(self, ref: Any) -> Any:
        if not isinstance(ref, ray.ObjectRef):
            return ref
        try:
            return ray.get(ref)
        except RayError as error:
            raise self._explained(error) from None

    def _explained(self, error: RayError) -> Exception:
        """What the user should hear of it."""
        if isinstance(error, RayTaskError) and (raised := user_error(error)) is not None:
            return raised
        if lost(error):
            return ActorLostError(self._lost_part() or Fault("what a part had made", "was lost with its node"))
        assert isinstance(error, RayTaskError)
        for part in self.parts:
            if (place := part.location(0.0)) is not None and place.pid == error.pid:
                return RunError(part.fault(error, _DOES.get(part.name.partition("-")[0], "work")))
        return RunError(Fault("a part", f"raised {type(error.cause).__name__}: {error.cause}"))

    def _lost_part(self) -> Fault | None:
        """What became of a part other than the workers; None if they all live."""
        for part in self.parts[self._num_workers :]:
            if (death := part.death()) is not None:
                return part.fault(death, _DOES[part.name.partition("-")[0]])
        return None

    def finish(self, status: Status) -> Backlog:
        if self._logger is None:
            return Backlog()
        try:
            closing: Backlog = ray.get(self._logger.call("close", status))
        except RayError as error:
            if not lost(error):  # of one that is gone its end is told already
                log.error("The metric logger could not close its backends: %s", self._explained(error))
            return Backlog()
        return closing

    def close(self) -> None:
        if self._crew is not None:
            self._crew.end()
            self._crew = None
        self._end_stateful()
        if self._gang is not None:
            self._gang.close()
        self._cluster.close()


_DOES = {"rollout": "collect", "inference": "answer", "learner": "learn", "metric": "write"}
"""What each part is for, by the beginning of its name."""
