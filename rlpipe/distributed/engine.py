"""Engine on Ray: rollout workers, learners, inference servers and the metric logger are actors.

Batches, weights and windows stay in the object store; the driver only passes references on.
"""

from __future__ import annotations

import logging
import platform
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import ray
from ray.exceptions import RayError, RayTaskError

from rlpipe.backends.base import Place, RunInfo
from rlpipe.collection.evaluator import AS_CONFIGURED, Request, Watch
from rlpipe.collection.host import WorkerHost, worker_names
from rlpipe.collection.inference import InferenceServer
from rlpipe.collection.worker import Ready
from rlpipe.config.plan import Plan
from rlpipe.config.schema import Stage
from rlpipe.distributed.actors import Actor
from rlpipe.distributed.answers import CallError
from rlpipe.distributed.cluster import Cluster
from rlpipe.distributed.hosting import runs
from rlpipe.distributed.launcher import Launcher
from rlpipe.distributed.node_checks import preflight
from rlpipe.distributed.nodes import ANSWER_SECONDS, alive_nodes, draining_nodes, own_node_id
from rlpipe.distributed.placement import needed_at_start, run_bundles, worker_counts
from rlpipe.distributed.placement_group import RunPlacement
from rlpipe.distributed.post_mortem import means_loss, raised_in, user_error
from rlpipe.distributed.process_template import template_for
from rlpipe.distributed.ray_answers import RayAnswers
from rlpipe.distributed.roles import Role
from rlpipe.distributed.worker_pool import WorkerPool, WorkerTask
from rlpipe.errors import ActorLostError, ConfigError, Fault, RunError, how_it_failed
from rlpipe.learning.base import LearnerBase
from rlpipe.learning.process_group import open_rendezvous
from rlpipe.learning.shares import share_of_learner
from rlpipe.metrics import MetricWindow
from rlpipe.metrics.row import Event, Status
from rlpipe.policies.base import NoWeights, Snapshot, Weights
from rlpipe.run.checkpoint import Checkpoint
from rlpipe.run.directory import RunDirectory
from rlpipe.run.metric_logger import Backlog, MetricLogger

log = logging.getLogger("rlpipe")

_DRAIN_CHECK_SECONDS = 2.0
"""Interval between two looks for draining nodes, and for room for more processes of workers."""
_NEXT_DEATH_SECONDS = 0.3
"""Time after the news of one death in which those of others, such as of the same node, become known."""
_EVALUATION_SLACK = 10.0
"""Seconds beyond ``evaluation.timeout`` after which a worker, which keeps that limit by itself, must have answered."""


@dataclass
class _Collection:
    """Collection that is under way, with references of the inference servers' windows."""

    task: WorkerTask
    server_windows: list[Any]


class RayEngine:
    """Implements ``rlpipe.training.engine.Engine``."""

    places = frozenset(Place)
    side_by_side = True
    _worker_pool: WorkerPool
    _opened = False

    def __init__(self, config: Plan, address: str | None = None) -> None:
        """Connects to Ray.

        Raises:
            ConfigError: no Ray answers.
        """
        self._config = config
        template = template_for(config, address)
        self._cluster = Cluster(address, template)
        self._bundles = run_bundles(config, alive_nodes())
        workers = self._number_of_workers()
        self._launcher = Launcher(config, self._bundles, workers, has_template=template is not None)
        self._learners: list[Actor] = []
        self._logger: Actor | None = None
        self._next_logger: Actor | None = None  # starting, after its predecessor was lost
        self._placement: RunPlacement | None = None
        self._waiting_servers: Ready | None = None  # what servers are made from that have started, until they are made
        self._rendezvous_store: Any = None  # must live as long as the learners
        self._steps = [0] * self.num_workers  # of each environment in this incarnation, by rank
        self._draining: set[str] = set()
        self._last_drain_check = 0.0
        self._last_growth_check = 0.0
        self._moves: list[str] = []  # of workers between processes, as sentences, since they were last reported
        self._directory: RunDirectory | None = None

    def _number_of_workers(self) -> int:
        """Returns the number of workers, which together fill the places of their processes."""
        places = sum(bundle.role == Role.ROLLOUT_WORKER for bundle in self._bundles)
        return worker_counts(self._config, places)[0]

    @property
    def num_workers(self) -> int:
        return self._launcher.num_workers

    @property
    def num_collectors(self) -> int:
        return self._launcher.num_hosts

    @property
    def _servers(self) -> list[Actor]:
        return self._launcher.servers

    @property
    def actors(self) -> list[Actor]:
        """All present actors: processes of workers, then the others."""
        return [*self._worker_pool.actors, *self._other_actors]

    @property
    def _other_actors(self) -> list[Actor]:
        return [*self._servers, *self._learners, *([self._logger] if self._logger else [])]

    # --- starting

    def start_workers(self, plan: Sequence[Stage], incarnation: int) -> Ready:
        config, count, self._plan = self._config, self.num_workers, plan
        self._check_numbers()
        self._placement = RunPlacement(
            self._bundles,
            config.cluster.strategy,
            config.cluster.placement_timeout,
            grows=not self._cluster.started,
            needed=needed_at_start(config, self._bundles),
        )
        warnings = preflight(config, self._placement.bundles_by_node(Role.ROLLOUT_WORKER))
        each = config.env.train.total_num_envs // count
        log.info("Starting %d rollout worker%s with %d environments each", count, "" if count == 1 else "s", each)
        self._launcher.begin(self._placement, plan, incarnation)
        self._launcher.start_servers()
        hosting = runs(count, self._launcher.num_hosts)
        self._worker_pool = WorkerPool(config, hosting, self._launcher, RayAnswers(), self._failure_elsewhere)
        self._opened = True
        self._start_learner_processes()  # beside the simulators: run.json will say where they are
        ready = self._worker_pool.wait_until_ready()
        self._waiting_servers = ready  # a loss of theirs costs the start no workers: ``rebuild`` repairs it
        return replace(ready, notes=(*ready.notes, *(warning.sentence for warning in warnings)))

    def _check_numbers(self) -> None:
        """Raises a ConfigError if there are too few workers for what is configured."""
        count, servers = self.num_workers, self._launcher.num_servers
        if servers > count:
            raise ConfigError(
                f"rollout.num_inference_servers is {servers}, but there are {count} rollout workers "
                "(rollout.num_workers): some servers would have no worker. Lower the one or raise the other."
            )
        least = self._config.rollout.min_workers
        if isinstance(least, int) and least > count:
            raise ConfigError(
                f"rollout.min_workers is {least}, but there are {count} rollout workers. Lower it, or raise "
                "rollout.num_workers."
            )

    def _make_servers(self) -> None:
        """Makes the servers, unless they are made, and waits for them: a server runs calls side by side, so later ones
        could overtake.
        """
        ready, count = self._waiting_servers, len(self._servers)
        if ready is None:
            return
        ranks = [range(index, self.num_workers, count) for index in range(count)]
        self.wait(
            [server.make(self._config, ready.spec, index, ranks[index]) for index, server in enumerate(self._servers)]
        )
        self._waiting_servers = None

    def start_learner(self, ready: Ready, state: Checkpoint | None, warm: Weights | None = None) -> Any:
        config = self._config
        first = state is None and self._launcher.num_learners == 1 and self._launcher.incarnation == 0
        seeded = first and not config.policy_class.from_files
        self._make_servers()
        self._make_learners(ready, state)
        on_gpu = config.learner.device.startswith("cuda")
        if seeded and not (warm or config.demos or config.curriculum_class.chooses or on_gpu):
            return ray.put(Snapshot(0, NoWeights.FROM_SEED))  # the workers need not wait for the learner
        return self._first_snapshot(warm)

    def _start_learner_processes(self) -> None:
        self._learners = [self._launcher.start_learner(rank) for rank in range(self._launcher.num_learners)]

    def _make_learners(self, ready: Ready, state: Checkpoint | None) -> None:
        count, plan = self._launcher.num_learners, self._launcher.plan_ref
        if count == 1:
            self._learners[0].make(plan, ready.spec)
            if self._config.learner.graphs is True:
                self.wait([self._learners[0].call(LearnerBase.rehearse)])
        else:
            self._rendezvous_store, rendezvous = open_rendezvous(ray.util.get_node_ip_address(), count)
            for rank, learner in enumerate(self._learners):
                learner.make(plan, ready.spec, rank, rendezvous)
        if state is not None:
            arrays = ray.put(state.arrays)
            self.wait([learner.call(LearnerBase.resume, arrays, state.path) for learner in self._learners])

    def _first_snapshot(self, warm: Weights | None) -> Any:
        """Waits until the learners have their first weights, so that an error comes before anything is written."""
        if warm is None:
            snapshots = [learner.call(LearnerBase.snapshot) for learner in self._learners]
        else:
            weights = ray.put(warm)
            snapshots = [learner.call(LearnerBase.begin_with, weights) for learner in self._learners]
        self.wait(snapshots)
        return snapshots[0]

    def start_logger(self, directory: RunDirectory, info: RunInfo, config: Plan, state: Checkpoint | None) -> None:
        self._logger, self._next_logger = self._next_logger or self._launcher.start_logger(), None
        self._logger.make(directory, info, config, state.meta["metrics"] if state else {})
        self._directory = directory

    def rebuild(self, ready: Ready, state: Checkpoint | None, warm: Weights | None, incarnation: int) -> Any:
        self._end_stateful()
        self._launcher.incarnation, self._steps = incarnation, [0] * self.num_workers
        self._next_logger = self._launcher.start_logger()  # beside the learner, because it takes seconds
        self._next_logger.load(MetricLogger.__module__, self._config.algorithm_class.__module__)
        self._launcher.start_servers()
        self._waiting_servers = ready
        self._make_servers()
        self._start_learner_processes()
        self._make_learners(ready, state)
        self._worker_pool.start_over(
            lambda host, ranks: host.call(WorkerHost.restart_episodes, incarnation, self._launcher.server_of(ranks[0]))
        )
        return self._first_snapshot(warm if state is None else None)

    def _end_stateful(self) -> None:
        """Ends all actors but the rollout workers, which hold nothing that a replacement could not have."""
        for actor in [*self._learners, *self._servers, self._logger, self._next_logger]:
            if actor is not None:
                actor.end()
        self._learners, self._launcher.servers, self._logger, self._next_logger = [], [], None, None
        self._rendezvous_store = None

    # --- the machines

    def cluster(self) -> dict[str, Any]:
        return {
            "mode": "ray",
            "workers": self.num_workers,
            "nodes": self._cluster.describe(),
            "parts": self._locations(),
            "job": self._cluster.job(),
        }

    def _locations(self) -> dict[str, dict[str, Any]]:
        """Returns host, node and clock of each actor; the metric logger will be on the driver's node.

        An actor that cannot be asked because it has died is left out: whoever needs it next finds its loss.
        """
        hosts = self._worker_pool.actors
        started = [*hosts, *self._servers, *self._learners]
        self._check_started(started)
        node = own_node_id()
        driver = {"host": platform.node(), "node": node, "clock": 0.0}
        clocks: dict[str, float | None] = {node: 0.0}
        places: dict[str, dict[str, Any]] = {"driver": driver}
        for actor in started:
            if (at := actor.location()) is None:
                continue
            if clocks.get(at.node) is None:
                clocks[at.node] = actor.clock_offset()
            if (clock := clocks[at.node]) is not None:
                for name in worker_names(actor.name) if actor in hosts else [actor.name]:
                    places[name] = {"host": at.host, "node": at.node, "pid": at.pid, "clock": clock}
        return {**places, Role.METRIC_LOGGER.actor_name(): driver}

    def _check_started(self, actors: Sequence[Actor]) -> None:
        """Raises a ConfigError if some actors have found no place; one that has died had found one."""
        refs, seconds = [actor.location_ref for actor in actors], self._config.cluster.start_timeout
        _, pending = ray.wait(refs, num_returns=len(refs), timeout=seconds, fetch_local=False)
        if pending:
            raise ConfigError(
                f"some actors of the run had not started after {seconds:g} s (cluster.start_timeout). Check whether "
                "the cluster is busy, and whether any node matches cluster.learner_nodes."
            )

    def draining_nodes(self) -> list[str]:
        if time.monotonic() - self._last_drain_check < _DRAIN_CHECK_SECONDS:
            return []
        self._last_drain_check = time.monotonic()
        new = {node: deadline for node, deadline in draining_nodes().items() if node not in self._draining}
        self._draining |= set(new)
        hosts = {at.node: at.host for actor in self.actors if (at := actor.location(0.0)) is not None}
        return [
            f"{hosts[node]} is draining{f' and will go in {left:.0f} s' if (left := at - time.time()) > 0 else ''}"
            for node, at in new.items()
            if node in hosts
        ]

    def evacuate(self) -> None:
        assert self._placement is not None
        if not self._config.rollout.is_elastic or not self._worker_pool.can_leave(self._draining):
            self._worker_pool.evacuate(self._draining, self._placement.move)  # else workers move before they collect
        movable = [*self._learners, *self._servers]  # in the order of their bundles, which follow those of the workers
        leaving = [
            index for index, actor in enumerate(movable)
            if (at := actor.location(0.0)) is not None and at.node in self._draining
        ]  # fmt: skip
        if leaving:
            self._placement.move([self._launcher.num_places + index for index in leaving])
            raise ActorLostError(
                *(movable[index].planned_fault("has to leave its node, which is draining") for index in leaving)
            )

    # --- iterating

    def _act_with(self, snapshot: Any) -> list[Any]:
        """Returns the snapshots for the workers in turn.

        With inference servers these hold no weights, and are answered once the server has loaded its own.
        """
        self._make_servers()  # for an evaluation, which has no learner
        return [server.call(InferenceServer.load, snapshot) for server in self._servers] or [snapshot]

    def collect(self, snapshot: Any, stage: int, collector: int | None = None) -> Any:
        snapshots, seconds = self._act_with(snapshot), self._config.rollout.timeout
        if self._config.rollout.is_elastic:
            self._deal_again()
        first_steps = list(self._steps)
        for rank in range(self.num_workers) if collector is None else self._worker_pool.ranks_of(collector):
            self._steps[rank] += self._config.steps_per_collection

        def send(host: Actor, ranks: Sequence[int]) -> Any:
            arguments = ranks, snapshots[ranks[0] % len(snapshots)], stage, [first_steps[rank] for rank in ranks]
            return host.deliver_within(seconds, WorkerHost.collect, *arguments, num_objects=len(ranks) + 1)

        hosts = None if collector is None else [collector]
        task = self._worker_pool.send(
            WorkerTask(send, Role.ROLLOUT_WORKER.task, seconds, "rollout.timeout", hosts=hosts)
        )
        windows = [
            server.call(InferenceServer.window, loaded)
            for server, loaded in zip(self._servers, snapshots, strict=False)  # without servers there is one snapshot
        ]
        return _Collection(task, windows)

    def gather(self, collection: _Collection) -> tuple[list[Any], list[Any]]:
        requests, _ = self._worker_pool.gather(collection.task)
        windows: list[Any] = [request.refs[-2] for request in requests]  # the driver reads none of them
        if self._servers:
            for rank in set(range(self.num_workers)) - set(collection.task.requests):
                server = self._servers[rank % len(self._servers)]
                self.wait([server.call(InferenceServer.release, rank)])  # else it would wait for a worker left out
            windows = [*windows, *(self.get(ref) for ref in collection.server_windows)]
        batches = [batch for request in requests for batch in request.refs[:-2]]
        return batches, [*windows, *self._worker_pool.take_losses()]

    def _deal_again(self) -> None:
        """Takes places that have become free, and gives back those that are drained or asked for."""
        pool, placement = self._worker_pool, self._placement
        assert placement is not None
        most = self._launcher.num_places
        if self._directory is not None:
            least, asked_for = self._launcher.num_hosts, self._directory.processes_asked_for()
            most = most if asked_for is None else min(most, max(least, asked_for))
        free, moved = pool.deal_again(most, self._draining)
        for place in free:
            placement.give_back(place)
        now = time.monotonic()
        if moved or now - self._last_growth_check >= _DRAIN_CHECK_SECONDS:
            self._last_growth_check = now
            in_use = pool.places
            unused = [place for place in range(self._launcher.num_places) if place not in in_use]
            for place in unused[: max(0, most - len(in_use))]:
                if placement.has_place(place):
                    pool.join(place)
            for place in unused[max(0, most - len(in_use)) :]:
                placement.give_back(place)
        if moved:
            self._moves.append(self._hosting_in_words())

    def _hosting_in_words(self) -> str:
        """Says which process is the host of which workers, and where."""
        at = [(actor.name, actor.location(0.0)) for actor in self._worker_pool.actors]
        where = ", ".join(f"{name} on {place.host} (pid {place.pid})" if place else name for name, place in at)
        return f"The {self.num_workers} rollout workers go on in {len(at)} process{'es' * (len(at) > 1)}: {where}."

    def moves(self) -> list[str]:
        moves, self._moves = self._moves, []
        return moves

    def wait_for_any(self, collections: Sequence[_Collection], refs: list[Any]) -> list[Any]:
        done = self._worker_pool.poll([collection.task for collection in collections], refs)
        return [ref for ref in refs if ref not in done]

    def is_complete(self, collection: _Collection) -> bool:
        return collection.task.is_complete

    def update(self, batches: list[Any], stage: int, iteration: int) -> tuple[Any, list[Any]]:
        config, size = self._plan[stage].config, self._launcher.num_learners
        if size == 1:
            snapshot, window = self._learners[0].call(LearnerBase.update, stage, iteration, *batches, num_returns=2)
            return snapshot, [window]
        count = len(batches)
        environments = config.env.train.total_num_envs // self.num_workers * count
        group_size = config.algorithm.group_size or 1
        pairs = []
        for rank, learner in enumerate(self._learners):
            workers = share_of_learner(rank, size, count, environments, group_size).workers
            arguments = stage, iteration, *batches[workers.start : workers.stop]
            pairs.append(learner.call(LearnerBase.update, *arguments, num_returns=2, fragments=count))
        return pairs[0][0], [window for _, window in pairs]

    def learner_is_finished(self) -> bool:
        return bool(self.get(self._learners[0].call(LearnerBase.is_finished)))

    def evaluate(self, snapshot: Any, watch: Watch, request: Request = AS_CONFIGURED) -> list[MetricWindow]:
        snapshots, seconds = self._act_with(snapshot), self._config.evaluation.timeout
        in_turn = max(len(ranks) for ranks in self._worker_pool.hosting)

        def send(host: Actor, ranks: Sequence[int]) -> Any:
            acting = snapshots[ranks[0] % len(snapshots)]
            return [host.call_within(seconds * in_turn, WorkerHost.evaluate, ranks, acting, None, request)]

        slack = seconds * (in_turn - 1) + _EVALUATION_SLACK
        task = self._worker_pool.send(
            WorkerTask(send, "evaluate", seconds, "evaluation.timeout", waits_for_all=True, slack=slack)
        )
        ended, counted = 0, 0
        while not task.is_complete:
            if watch(ended):
                return [MetricWindow(cut_short="it was interrupted")]
            self._worker_pool.poll([task])
            ended += sum(len(window.eval_episodes) for window in list(task.answers.values())[counted:])
            counted = len(task.answers)
        _, windows = self._worker_pool.gather(task)
        return [*windows, *self._worker_pool.take_losses()]

    def prepare(self, windows: list[Any], *, counted: bool = False) -> Any:
        assert self._logger is not None
        return self._logger.call(MetricLogger.prepare, *windows, counted=counted)

    def write(self, iteration: int, windows: list[Any]) -> Any:
        assert self._logger is not None
        return self._logger.call(MetricLogger.write, iteration, *windows)

    def event(self, event: Event) -> Any:
        assert self._logger is not None
        return self._logger.call(MetricLogger.event, event)

    def save(self, iteration: int, if_best: bool = False) -> Any:
        assert self._logger is not None
        state = self._learners[0].call(LearnerBase.state)
        return self._logger.call(MetricLogger.save, iteration, state, if_best)

    # --- waiting, and what went wrong

    def wait(self, refs: list[Any]) -> None:
        pending = [ref for ref in refs if isinstance(ref, ray.ObjectRef)]
        while pending:
            done, pending = ray.wait(pending, num_returns=1, fetch_local=False)
            for ref in done:
                # A failed call is done too; getting its object raises what it raised. Windows are small.
                self.get(ref)

    def put(self, value: Any) -> Any:
        return ray.put(value)

    def get(self, ref: Any) -> Any:
        if not isinstance(ref, ray.ObjectRef):
            return ref
        try:
            return ray.get(ref)
        except RayError as error:
            raise self._explained(error) from None

    def _explained(self, error: RayError) -> Exception:
        """Returns the exception for the user in the place of Ray's."""
        if (refusal := user_error(error)) is not None:
            return refusal
        if means_loss(error):
            return ActorLostError(*(self._lost_actors() or [Fault("an object of the run", "was lost with its node")]))
        assert isinstance(error, RayTaskError)
        return self._raised(error, self.actors) or RunError(Fault("an actor", how_it_failed(error.cause)))

    @staticmethod
    def _raised(error: BaseException, actors: Sequence[Actor]) -> RunError | None:
        """Returns the end of the run if code in one of these actors raised."""
        raising = raised_in(error)
        for actor in actors:
            if raising is not None and (at := actor.location(0.0)) is not None and at.actor == raising:
                return RunError(actor.fault(error, actor.role.task))
        return None

    def _failure_elsewhere(self, error: CallError) -> RunError | None:
        """Returns why a worker could not finish its task if another actor died or raised; None if none did."""
        if not error.is_loss:
            return self._raised(error.error, self._other_actors)
        faults = self._lost_actors()
        return ActorLostError(*faults) if faults else None

    def _lost_actors(self) -> list[Fault]:
        """Returns the faults of all dead actors other than the workers."""
        probes = {actor.probe(): actor for actor in self._other_actors}
        ends = time.monotonic() + ANSWER_SECONDS
        deaths: list[tuple[Actor, RayError]] = []
        while probes and (left := ends - time.monotonic()) > 0:
            done, _ = ray.wait([*probes], timeout=left, fetch_local=False)
            for probe in done:
                actor = probes.pop(probe)
                if (death := actor.death(probe)) is not None:
                    deaths.append((actor, death))
                    ends = min(ends, time.monotonic() + _NEXT_DEATH_SECONDS)
        return [actor.fault(death, actor.role.task) for actor, death in deaths]

    def repaired_faults(self, *, unfinished: bool = False) -> list[Fault]:
        return self._worker_pool.repaired_faults(unfinished=unfinished) if self._opened else []

    # --- ending

    def finish(self, status: Status) -> Backlog:
        if self._logger is None:
            return Backlog()
        try:
            backlog: Backlog = ray.get(self._logger.call(MetricLogger.close, status))
        except RayError as error:
            if not means_loss(error) and status != Status.FAILED:  # why it failed has been reported
                log.error("The metric logger could not close its backends: %s", self._explained(error))
            return Backlog()
        return backlog

    def close(self) -> None:
        if self._opened:
            self._worker_pool.end()
            self._opened = False
        self._end_stateful()
        if self._placement is not None:
            self._placement.close()
        self._cluster.close()
