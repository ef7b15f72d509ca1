"""Starts the actors of a run, each at its place on the cluster."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import ray

from rlpipe.collection.host import WorkerHost, host_name
from rlpipe.collection.inference import InferenceServer
from rlpipe.config.schema import Config, Stage
from rlpipe.distributed import worker_entry
from rlpipe.distributed.actors import Actor
from rlpipe.distributed.hosting import runs
from rlpipe.distributed.nodes import alive_nodes, is_alive, own_node_id, pinned_to
from rlpipe.distributed.placement import Bundle
from rlpipe.distributed.placement_group import RunPlacement
from rlpipe.distributed.process_template import WORKER_ENVIRONMENT
from rlpipe.distributed.roles import Role
from rlpipe.learning.threads import passive_waiting
from rlpipe.trajectory import Float32, Observations

_NO_GPU = {"CUDA_VISIBLE_DEVICES": ""}
_LEAST_WAVE = 16
"""Processes that may start at the same time on the smallest cluster. Each loads libraries for seconds on a CPU, and Ray
starts as many at once on a node as that has CPUs."""


class ServerHandle:
    """Implements ``rlpipe.collection.served_policy.PolicyServer`` in a worker's process."""

    def __init__(self, handle: Any) -> None:
        self._handle = handle

    def act(
        self,
        rank: int,
        version: int,
        observations: Observations,
        noise: Float32 | None,
        each: bool,
        memories: Float32 | None = None,
    ) -> Any:
        method = InferenceServer.act.__name__
        return ray.get(self._handle.call.remote(method, rank, version, observations, noise, each, memories))

    def release(self, rank: int) -> None:
        ray.get(self._handle.call.remote(InferenceServer.release.__name__, rank))


class Launcher:
    """Starts actors; implements ``rlpipe.distributed.worker_pool.WorkerFactory``.

    Bundles are numbered as in ``rlpipe.distributed.placement.run_bundles``: workers, learners, servers.

    Attributes:
        num_workers: number of rollout workers.
        num_places: number of places for their processes, of which a run may use fewer.
        num_hosts: number of processes with which it starts.
        wave: number of processes that may be starting at the same time.
        num_learners: number of learners.
        num_servers: number of inference servers.
        servers: present inference servers.
        incarnation: number of times the run was resumed.
        plan_ref: reference of the stages of the run, from ``begin`` on.
    """

    _placement: RunPlacement
    plan_ref: Any

    def __init__(
        self, config: Config, bundles: Sequence[Bundle], num_workers: int, *, has_template: bool = False
    ) -> None:
        """Counts the actors; starts none.

        Args:
            has_template: True if Ray's processes are forked from a template.
        """
        self._config = config
        self._has_template = has_template
        self.num_workers = num_workers
        self.num_places, self.num_learners, self.num_servers = (
            sum(bundle.role == role for bundle in bundles)
            for role in (Role.ROLLOUT_WORKER, Role.LEARNER, Role.INFERENCE_SERVER)
        )
        self.num_hosts = config.rollout.min_processes or self.num_places
        self.wave = _LEAST_WAVE
        self.servers: list[Actor] = []
        self.incarnation = 0

    def begin(self, placement: RunPlacement, plan: Sequence[Stage], incarnation: int) -> None:
        """Takes the reserved places and the stages of the run."""
        self._placement, self.plan_ref, self.incarnation = placement, ray.put(plan), incarnation
        cpus = sum(node.resources.get("CPU", 0.0) for node in alive_nodes())
        self.wave = max(_LEAST_WAVE, 2 * int(cpus))

    def start_host(self, place: int, lives: Mapping[int, int]) -> Actor:
        """Starts a process of rollout workers at a place; ``lives`` as for ``WorkerHost``."""
        return self._host(host_name([*lives]), lives, **self._placement.place(place))

    def start_spare(self, node: str) -> Actor:
        """Starts a process whose workers have no ranks yet; it will use the CPUs reserved for the one it replaces."""
        name = Role.ROLLOUT_WORKER.actor_name("spare")
        lives = dict.fromkeys(runs(self.num_workers, self.num_hosts)[0], 0)
        return self._host(name, lives, num_cpus=0, scheduling_strategy=pinned_to(node))

    def _host(self, name: str, lives: Mapping[int, int], **options: Any) -> Actor:
        path = f"{WorkerHost.__module__}:{WorkerHost.__name__}"
        host = Actor(Role.ROLLOUT_WORKER, name, path, WORKER_ENVIRONMENT, **options)
        host.make(self.plan_ref, dict(lives), self.num_workers, self.incarnation, self.server_of(min(lives)))
        return host

    def assign(self, spare: Actor, lives: Mapping[int, int]) -> None:
        """Gives the workers of a spare ranks and lives."""
        spare.call(WorkerHost.take_over, dict(lives), self.incarnation, self.server_of(min(lives)))

    def begin_workers(self, host: Actor, lives: Mapping[int, int]) -> None:
        """Has a process begin workers anew."""
        host.call(WorkerHost.begin, dict(lives), self.incarnation)

    @staticmethod
    def is_lost(node: str) -> bool:
        """True if a node is gone."""
        return not is_alive(node)

    def server_of(self, rank: int) -> ServerHandle | None:
        """Returns the inference server of a worker, or None if workers hold the policy themselves."""
        return ServerHandle(self.servers[rank % self.num_servers].handle) if self.servers else None

    def start_servers(self) -> None:
        """Starts the processes of the inference servers."""
        self.servers = [self._start_server(index) for index in range(self.num_servers)]

    def _start_server(self, index: int) -> Actor:
        options = self._placement.place(self.num_places + self.num_learners + index)
        threads = {"OMP_NUM_THREADS": str(max(1, int(options["num_cpus"])))}
        return Actor(
            Role.INFERENCE_SERVER,
            Role.INFERENCE_SERVER.actor_name(index),
            "rlpipe.collection.inference:InferenceServer",
            threads if options["num_gpus"] else {**threads, **_NO_GPU},
            max_concurrency=self.num_workers + 2,  # a request of each worker, and two calls of the driver
            **options,
            **self._loading(options),
        )

    def start_learner(self, rank: int) -> Actor:
        """Starts the process of a learner."""
        options = self._placement.place(self.num_places + rank)
        name = Role.LEARNER.actor_name(None if self.num_learners == 1 else rank)
        hidden = {} if options["num_gpus"] else _NO_GPU
        environment = {**passive_waiting(), **hidden}
        path = self._config.algorithm_class.learner
        return Actor(Role.LEARNER, name, path, environment, **options, **self._loading(options))

    def _loading(self, options: Mapping[str, Any]) -> dict[str, Any]:
        """Returns the option of an actor that must load its libraries itself: those of the template see no GPU."""
        fresh = self._has_template and options["num_gpus"]
        return {"runtime_env": {"env_vars": {worker_entry.FRESH: "1"}}} if fresh else {}

    @staticmethod
    def start_logger() -> Actor:
        """Starts the process of the metric logger on the driver's node, where the run directory is."""
        name, path = Role.METRIC_LOGGER.actor_name(), "rlpipe.run.metric_logger:MetricLogger"
        return Actor(Role.METRIC_LOGGER, name, path, _NO_GPU, num_cpus=0, scheduling_strategy=pinned_to(own_node_id()))
