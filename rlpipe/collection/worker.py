"""Rollout workers: each advances its share of the environments with a policy (stop 2 of the data path).

A worker knows nothing of Ray, of learning or of backends.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np
import torch

from rlpipe.collection.actions import ActionSource, CheckpointPolicy, PolicyActions
from rlpipe.collection.baselines import NO_INFERENCE
from rlpipe.collection.collector import Collector
from rlpipe.collection.corrections import Behaviour, Corrected, CorrectedActions
from rlpipe.collection.decisions import Chunks
from rlpipe.collection.evaluator import AS_CONFIGURED, Evaluator, Request, Watch, check_same_spaces
from rlpipe.collection.machine import machine_facts
from rlpipe.collection.moving import Belongings, NotRepeatableError
from rlpipe.collection.seeds import CURRICULUM, training_seed
from rlpipe.collection.served_policy import PolicyServer, ServedPolicy
from rlpipe.config.schema import Config, Stage
from rlpipe.config.simulators import simulator_name
from rlpipe.envs.base import Allotment, Beginning, Simulator
from rlpipe.envs.shared.make import make_simulator
from rlpipe.envs.shared.seeding import global_states, set_global_states
from rlpipe.envs.shared.tasks import training_allotment
from rlpipe.errors import ConfigError, SimulatorError, ignored
from rlpipe.foreign import foreign_code, take_notes
from rlpipe.metrics import MetricWindow
from rlpipe.metrics import catalogue as m
from rlpipe.metrics.spans import spans
from rlpipe.policies.base import Policy, Snapshot, build_policy
from rlpipe.secrets import redacted
from rlpipe.trajectory import ChosenStart, SpaceSpec, Starts
from rlpipe.trajectory.batch import TrajectoryBatch

ResultT = TypeVar("ResultT")


def _needs_success(config: Config) -> str | None:
    """Names the setting that follows the success of episodes; None without one."""
    if config.rollout.steps_after_success is not None:
        return f"rollout.steps_after_success is {config.rollout.steps_after_success}"
    if config.curriculum_class.chooses:
        return f"curriculum.name is {config.curriculum.name}, which follows the success of episodes"
    return None


@dataclass(frozen=True)
class Ready:
    """Report of a rollout worker whose simulator is ready, with sentences for the user."""

    spec: SpaceSpec
    has_success: bool
    notes: tuple[str, ...]


class RolloutWorker:
    """Collects and evaluates with one worker's share of the environments.

    The policy is a copy in this worker, or lives on an inference server; workers of a baseline have none.
    """

    def __init__(
        self,
        stages: Sequence[Stage],
        rank: int,
        num_workers: int,
        incarnation: int = 0,
        server: PolicyServer | None = None,
        life: int = 0,
    ) -> None:
        """Makes the simulator of the first stage.

        Args:
            stages: stages of the run
            rank: rank of this worker
            num_workers: number of all workers
            incarnation: number of times the run was resumed
            server: server that acts; None for a copy of the policy in this worker
            life: number of workers that had this rank before
        Raises:
            ConfigError: the simulator cannot be made as configured.
        """
        torch.set_num_threads(1)
        self._stages = stages
        self._rank = rank
        self._num_workers = num_workers
        self._incarnation = incarnation
        self._stage = 0
        self._life = life
        self._simulators = 0  # simulators that were replaced: they failed, or their slots got other tasks
        self._discarded = 0  # episodes dropped since the last window
        self._reports: list[str] = []  # for the next window
        self._evaluator: Evaluator | None = None
        self._starts: Starts | None = None
        self._repeated: Mapping[int, Beginning] | None = None  # beginnings of the episodes that are being repeated
        self._task_weights: Mapping[str, float] = {}  # factors of the tasks' shares, as a curriculum last set them
        self._simulator = self._make_simulator()
        self._broken = False
        self._server = server
        self._policy: Policy | ServedPolicy | None = None
        self._visiting: dict[str, Policy] = {}  # policies of checkpoints, by their names
        if server is not None:
            with torch.device("meta"):  # shapes without numbers
                shapes = build_policy(self._config, self._simulator.spec)
            self._policy = ServedPolicy(shapes, server, rank)
        elif self._config.rollout.inference != NO_INFERENCE:  # else the evaluation brings a baseline
            self._policy = build_policy(self._config, self._simulator.spec)
        self._collector: Collector | None = None

    @property
    def _config(self) -> Config:
        return self._stages[self._stage].config

    @property
    def _group_size(self) -> int | None:
        """Environments that share an initial state and run whole episodes; None if each is independent."""
        group_size: int | None = self._config.algorithm.group_size
        return group_size

    def _make_simulator(self) -> Simulator:
        config, stage, group_size = self._config, self._stage, self._group_size
        share = config.env.train.total_num_envs // self._num_workers
        counts = self._counts = [0] * share  # episodes that each slot has begun

        def episode_of(n: int, request: int) -> tuple[int, int]:
            """(slot or group of slots, episode) that the seed is derived from."""
            slot = self._rank * share + n
            return (slot, request) if group_size is None else (slot // group_size, request // 2)

        def next_seed(n: int) -> int | None:
            request, counts[n] = counts[n], counts[n] + 1
            if group_size is not None and request % 2:  # a slot of a group runs one episode for each collection
                return None
            return training_seed(config.runner.seed, self._incarnation, stage, *episode_of(n, request), self._lives)

        def next_start(n: int) -> ChosenStart | None:
            if self._repeated is not None:
                return self._repeated[n].chosen
            slot, episode = episode_of(n, counts[n] - 1)
            drawn = [config.runner.seed, self._incarnation, stage, slot, episode, *self._lives, CURRICULUM]
            return None if self._starts is None else self._starts.draw(np.random.default_rng(drawn))

        self._tasks = self._tasks_of_slots()
        self._tasks_follow = (self._rank, self._task_weights)
        simulator = make_simulator(config.env.train, share, next_seed, next_start, allotment=self._tasks[0])
        simulator.steps_after_success = config.rollout.steps_after_success
        if not simulator.has_success and (setting := _needs_success(config)):
            simulator.close()
            raise ConfigError(
                f"{setting}, but the simulator (env.train.name={config.env.train.name}) does not tell success: leave "
                "it out."
            )
        return simulator

    def _tasks_of_slots(self) -> tuple[Allotment | None, Allotment | None]:
        """Tasks of this worker's slots, and of those of all workers; None where there is only one task."""
        train, together = self._config.env.train, self._group_size or 1
        share = train.total_num_envs // self._num_workers
        of_worker, everyone = (
            training_allotment(train, first, count, together, self._task_weights)
            for first, count in ((self._rank * share, share), (0, train.total_num_envs))
        )
        return of_worker, everyone

    @property
    def _lives(self) -> list[int]:
        """Part of the seed that sets this worker and simulator apart from those they replaced; empty at first."""
        return [self._life, self._simulators] if self._life or self._simulators else []

    def restart_episodes(self, incarnation: int, server: PolicyServer | None = None) -> None:
        """Drops the running episodes and begins others, as a worker of a resumed run would; keeps its simulator.

        Args:
            incarnation: number of times the run was resumed
            server: server that acts from now on, if one does
        """
        self._incarnation = incarnation
        self._drop_episodes()
        if server is not None:
            assert isinstance(self._policy, ServedPolicy)
            self._server = self._policy.server = server

    def take_over(self, rank: int, life: int, incarnation: int, server: PolicyServer | None = None) -> None:
        """Takes the place of another worker; only for a worker that has not collected anything."""
        self._rank, self._life = rank, life
        if isinstance(self._policy, ServedPolicy):
            self._policy.rank = rank
        self.restart_episodes(incarnation, server)

    def give_belongings(self) -> Belongings:
        """Returns what another process needs to go on in this worker's place, which is then only to be closed."""
        return Belongings(
            self._rank, self._life, self._incarnation, self._stage, self._simulators, self._discarded,
            list(self._counts), self._starts, self._task_weights, self._collector, self._broken, global_states(),
        )  # fmt: skip

    def take_belongings(self, belongings: Belongings) -> None:
        """Goes on as the worker of the same rank in another process would have.

        Its running episodes are repeated from their seeds and actions, with the same numbers. Where the simulator
        cannot repeat them, they are dropped and counted, and the next window says so.
        """
        assert self._rank == belongings.rank
        is_unused = self._collector is None and not self._broken and not any(self._counts)
        is_unused &= self._stage == belongings.stage
        self._life, self._incarnation, self._stage = belongings.life, belongings.incarnation, belongings.stage
        self._simulators, self._discarded = belongings.simulators, belongings.discarded
        self._starts, self._task_weights = belongings.starts, belongings.task_weights
        with foreign_code(simulator_name(self._config.env.train)):
            if not is_unused or self._tasks_of_slots() != self._tasks:
                self._replace_simulator()
            self._counts[:] = belongings.counts
            self._broken, self._collector = belongings.broken, belongings.collector
            if self._collector is not None:
                self._repeat_episodes(self._collector)
        set_global_states(belongings.generators)

    def _repeat_episodes(self, collector: Collector) -> None:
        assert self._policy is not None
        self._repeated = collector.repeated_beginnings
        for n in self._repeated:
            self._counts[n] -= 1  # the reset begins the same episode
        try:
            collector.go_on_with(self._simulator, self._policy)
        except NotRepeatableError as error:
            self._drop_episodes()
            self._simulators += 1  # new seeds
            self._broken = True
            self._reports.append(
                f"rollout-{self._rank}: its episodes could not go on in another process, because {error}. They are "
                "dropped."
            )
        finally:
            self._repeated = None

    def _drop_episodes(self) -> None:
        self._discarded += self._collector.unfinished if self._collector else 0
        self._collector = None

    def ready(self) -> Ready:
        """Reports the simulator's spaces and notes to the driver."""
        return Ready(self._simulator.spec, self._simulator.has_success, (*self._simulator.notes, *take_notes()))

    def collect(
        self, snapshot: Snapshot, stage: int, first_step: int | None = None
    ) -> tuple[TrajectoryBatch, MetricWindow]:
        """Collects one fragment.

        A simulator that raises is replaced, up to ``rollout.simulator_retries`` times, and the fragment starts again;
        its episodes are dropped and counted. ``first_step`` is the number of steps that each environment has taken
        before, with this worker and those it replaced.

        Raises:
            SimulatorError: the simulator keeps raising.
        """

        def attempt() -> tuple[TrajectoryBatch, MetricWindow]:
            with foreign_code(simulator_name(self._config.env.train)):
                return self._collect(snapshot, stage, first_step)

        def drop() -> None:
            self._drop_episodes()
            self._broken = True

        try:
            (batch, window), reports = self._retried(attempt, drop, "collecting")
        finally:
            if self._server is not None:
                self._server.release(self._rank)  # in any case: the others must not wait for this worker
        window.faults += [*self._reports, *reports, *take_notes()]
        window.simulator_failed = bool(reports)
        self._reports = []
        return batch, window

    def _retried(
        self, attempt: Callable[[], ResultT], drop: Callable[[], None], doing: str
    ) -> tuple[ResultT, list[str]]:
        """Makes an attempt, and another one with a new simulator whenever the present one raises.

        Args:
            attempt: uses the simulator.
            drop: gives up a simulator that raised; the next attempt makes another.
            doing: word for the reports.
        Returns:
            The result, and a sentence on each simulator that was replaced.
        """
        reports: list[str] = []
        first: SimulatorError | None = None
        torch.set_num_threads(1)
        while True:
            try:
                return attempt(), reports
            except SimulatorError as error:
                limit = self._config.rollout.simulator_retries  # of the stage that the attempt may have entered
                if len(reports) >= limit:
                    if first is None:
                        raise
                    # perhaps the others failed only because of what the first one left behind
                    message = f"{first} ({len(reports)} that replaced it failed too)"
                    raise SimulatorError(message) from first.__cause__
                first = first or error
                self._simulators += 1
                message = redacted(str(error), os.environ)
                reports.append(
                    f"rollout-{self._rank}: {message}, {doing}. It is replaced ({len(reports) + 1} of {limit})."
                )
                drop()

    def _load(self, snapshot: Snapshot) -> Policy | ServedPolicy:
        """Returns the policy, which acts with these weights from now on."""
        assert self._policy is not None
        if isinstance(self._policy, ServedPolicy):
            self._policy.version = snapshot.version
        else:
            snapshot.load_into(self._policy)
        return self._policy

    def _collect(self, snapshot: Snapshot, stage: int, first_step: int | None) -> tuple[TrajectoryBatch, MetricWindow]:
        began = time.perf_counter()
        self._enter(stage)
        if self._broken:
            self._replace_simulator()
        entered = time.perf_counter()
        policy = self._load(snapshot)
        self._starts = snapshot.starts
        self._rebuild_if_tasks_changed()
        loaded = time.perf_counter()
        if self._collector is None:
            share = self._simulator.num_envs
            self._collector = Collector(
                self._simulator, policy, self._config.rollout.horizon, self._rank, self._rank * share,
                [self._config.runner.seed, self._incarnation, self._stage, *self._lives],
                incarnation=self._incarnation, whole_episodes=self._group_size is not None,
                memory_width=self._config.policy.memory_width,
                acting_time=m.PREDICT_TIME if self._server is None else m.ENV_RECV_WAIT,
                movable=self._config.rollout.is_elastic,
            )  # fmt: skip
        collecting = time.perf_counter()
        batch, window = self._collector.collect(snapshot.version, first_step, Chunks.of(self._config))
        window.observe(m.WORKERS_EXPECTED, self._num_workers)
        window.observe(m.LOAD_WEIGHTS_TIME, loaded - entered)
        window.observe(m.GENERATE_ONE_EPOCH_TIME, time.perf_counter() - collecting)
        window.observe(m.GENERATE_TIME, time.perf_counter() - began)
        if self._discarded:
            window.observe(m.DISCARDED_TRAJECTORIES, self._discarded)
            self._discarded = 0
        self._stamp(
            window,
            [began, entered, loaded, collecting, time.perf_counter()],
            ["enter stage", "load weights", "first reset", "collect"],
        )
        return replace(batch, seconds=time.perf_counter() - began), window

    def _enter(self, stage: int) -> None:
        """Switches to a stage; makes a new simulator if the stage needs another one."""
        if stage == self._stage:
            return
        before = (self._config.env.train, self._group_size)
        self._stage = stage
        if (self._config.env.train, self._group_size) == before:
            return
        self._drop_episodes()
        spec = self._simulator.spec
        self._simulator.close()
        self._simulator = self._make_simulator()
        check_same_spaces(f"stages[{stage}]: env.train", self._simulator.spec, spec)

    def _rebuild_if_tasks_changed(self) -> None:
        """Makes a new simulator if a curriculum, or the rank of a replaced worker, has given slots other tasks.

        All workers do so if the tasks of any of them changed, so that episodes do not depend on the number of workers.
        """
        if self._starts is not None:
            self._task_weights = self._starts.task_weights
        if self._tasks_follow == (self._rank, self._task_weights):
            return
        self._tasks_follow = (self._rank, self._task_weights)
        if self._tasks_of_slots() != self._tasks:
            self._drop_episodes()
            self._simulators += 1  # new seeds
            self._replace_simulator()

    def _replace_simulator(self) -> None:
        with ignored():  # it may be broken
            self._simulator.close()
        try:
            self._simulator = self._make_simulator()
        except ConfigError as error:
            raise SimulatorError.of(error, "being replaced") from error
        self._broken = False

    def evaluate(
        self,
        acting: Behaviour,
        watch: Watch | None = None,
        request: Request = AS_CONFIGURED,
    ) -> MetricWindow:
        """Runs this worker's share of an evaluation, for ``evaluation.timeout`` at the longest.

        A simulator that raises is replaced, and the share starts again without the episodes so far.

        Args:
            acting: weights to act with, or what acts in place of this worker's policy
            watch: is told of the progress, and can end the evaluation
            request: what to run, where that is not all that the configuration asks for
        """
        deadline = time.monotonic() + self._config.evaluation.timeout

        def attempt() -> MetricWindow:
            with foreign_code(simulator_name(self._stages[0].config.env.eval)):
                return self._evaluate(acting, watch, deadline, request)

        def drop() -> None:
            if self._evaluator is not None:
                self._evaluator.close()
            self._evaluator = None

        window, reports = self._retried(attempt, drop, "evaluating")
        window.faults += [*reports, *take_notes()]
        return window

    def _evaluate(
        self,
        acting: Behaviour,
        watch: Watch | None,
        deadline: float,
        request: Request,
    ) -> MetricWindow:
        began = time.perf_counter()
        if self._evaluator is None:
            spec = self._simulator.spec
            self._evaluator = Evaluator(self._stages[0].config, self._rank, self._num_workers, spec)
        simulators_ready = time.perf_counter()
        source, version = self._source(acting)
        loaded = time.perf_counter()
        config = acting.config if isinstance(acting, CheckpointPolicy) else None
        try:
            window = self._evaluator.evaluate(source, version, watch, deadline, config=config, request=request)
        finally:
            source.close()
        if window.eval_episodes:
            brings_policy = isinstance(acting, CheckpointPolicy)  # which acts in this process
            window.machines.append(machine_facts("local" if brings_policy else self._config.rollout.inference))
        self._stamp(
            window,
            [began, simulators_ready, loaded, time.perf_counter()],
            ["make simulators", "load weights", "evaluate"],
        )
        return window

    def _source(self, acting: Behaviour) -> tuple[ActionSource, int]:
        """Returns the source of the actions of an evaluation, and the version of its weights."""
        if isinstance(acting, ActionSource):
            return acting, 0
        if isinstance(acting, Corrected):
            (by_policy, version), (by_expert, _) = self._source(acting.policy), self._source(acting.expert)
            return CorrectedActions(by_policy, by_expert, acting), version
        policy: Policy | ServedPolicy
        if isinstance(acting, CheckpointPolicy):
            if acting.name not in self._visiting:
                self._visiting[acting.name] = acting.build()
            policy, config, version = self._visiting[acting.name], acting.config, acting.snapshot.version
        else:
            policy, config, version = self._load(acting), self._stages[0].config, acting.version
        deterministic, width = config.evaluation.deterministic, config.policy.memory_width
        return PolicyActions(policy, deterministic=deterministic, memory_width=width), version

    def close(self) -> None:
        """Closes the simulators, which may be broken."""
        with foreign_code("closing simulators"):
            with ignored():
                self._simulator.close()
            if self._evaluator is not None:
                self._evaluator.close()

    def _stamp(self, window: MetricWindow, moments: Sequence[float], names: Sequence[str]) -> None:
        """Adds the worker's rank to a window, and the spans between some moments."""
        window.worker = self._rank
        window.spans = spans(f"rollout-{self._rank}", moments, names)
