"""Collection: simulator and policy make a ``TrajectoryBatch`` and the ``MetricWindow`` that describes it (stop 2 on the
data's way). Knows nothing of Ray, of learning or of backends.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

import torch

from rlpipe.collection.collector import Collector
from rlpipe.collection.evaluator import Evaluator, check_same_spaces
from rlpipe.collection.seeds import training_seed
from rlpipe.collection.served_policy import PolicyServer, ServedPolicy
from rlpipe.config.schema import Config, Stage
from rlpipe.envs.base import Simulator
from rlpipe.errors import SimulatorError
from rlpipe.metrics import MetricWindow
from rlpipe.metrics import catalogue as m
from rlpipe.metrics.spans import spans
from rlpipe.plugins import resolve
from rlpipe.policies.base import Policy, Snapshot, build_policy
from rlpipe.secrets import redacted
from rlpipe.trajectory import SpaceSpec, TrajectoryBatch


@dataclass(frozen=True)
class Ready:
    """What a rollout worker says once its simulator stands.

    Attributes:
        spec: of the simulator.  has_success: whether it knows success.  notes: sentences for the user.
    """

    spec: SpaceSpec
    has_success: bool
    notes: tuple[str, ...]


class RolloutWorker:
    """One rank of collection and evaluation: its share of the environments, and the policy, here or on a server."""

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
            stages: of the run.  rank: of this worker.  num_workers: of all.
            incarnation: how often the run was resumed.
            server: that acts; None for a copy of the policy in this worker.
            life: how many workers of this rank were there before.
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
        self._simulators = 0  # that failed and were made again
        self._discarded = 0  # episodes, since the last window
        self._evaluator: Evaluator | None = None
        self._simulator = self._make_simulator()
        self._broken = False
        self._server = server
        self._policy: Policy | ServedPolicy
        if server is None:
            self._policy = build_policy(self._config, self._simulator.spec)
        else:
            with torch.device("meta"):  # shapes without numbers
                shapes = build_policy(self._config, self._simulator.spec)
            self._policy = ServedPolicy(shapes, server, rank)
        self._collector: Collector | None = None

    @property
    def _config(self) -> Config:
        return self._stages[self._stage].config

    @property
    def _group_size(self) -> int | None:
        """Environments that share their initial states and play whole episodes; None where each is for itself."""
        group_size: int | None = self._config.algorithm.group_size
        return group_size

    def _make_simulator(self) -> Simulator:
        config, stage, group_size = self._config, self._stage, self._group_size
        share = config.env.train.total_num_envs // self._num_workers
        counts = [0] * share

        def next_seed(n: int) -> int | None:
            asked, counts[n] = counts[n], counts[n] + 1
            slot, episode = self._rank * share + n, asked
            if group_size is not None:
                if asked % 2:  # asked when a collection begins and when its one episode ends
                    return None
                slot, episode = slot // group_size, asked // 2
            return training_seed(config.runner.seed, self._incarnation, stage, slot, episode, self._lives)

        made: Simulator = resolve("envs", config.env.train.name, "env.train.name").make(
            config.env.train, share, next_seed
        )
        return made

    @property
    def _lives(self) -> list[int]:
        """What tells the random numbers of this worker and simulator from those before; nothing at first."""
        return [self._life, self._simulators] if self._life or self._simulators else []

    def begin_anew(self, incarnation: int, server: PolicyServer | None = None) -> None:
        """Drops the episodes under way and begins others, as a worker of a resumed run would; keeps its simulator.

        Args:
            incarnation: how often the run was resumed.  server: that acts from now on, where one does.
        """
        self._incarnation = incarnation
        self._drop_episodes()
        if server is not None:
            assert isinstance(self._policy, ServedPolicy)
            self._server = self._policy.server = server

    def take_over(self, rank: int, life: int, incarnation: int, server: PolicyServer | None = None) -> None:
        """Does from now on what the worker of a rank did; for one that has collected nothing so far.

        Args:
            rank: of that worker.  life: how many of that rank there were before.
            incarnation, server: as in ``begin_anew``.
        """
        self._rank, self._life = rank, life
        if isinstance(self._policy, ServedPolicy):
            self._policy.rank = rank
        self.begin_anew(incarnation, server)

    def _drop_episodes(self) -> None:
        self._discarded += self._collector.unfinished if self._collector else 0
        self._collector = None

    def ready(self) -> Ready:
        """What the driver must know before it begins."""
        return Ready(self._simulator.spec, self._simulator.has_success, self._simulator.notes)

    def collect(
        self, snapshot: Snapshot, stage: int, first_step: int | None = None
    ) -> tuple[TrajectoryBatch, MetricWindow]:
        """One fragment with the given weights, under the settings of the given stage.

        A simulator that raises is made again, up to ``rollout.simulator_retries`` times, and the fragment begun anew:
        its episodes are dropped and counted.

        Args:
            snapshot: weights, and their version.  stage: whose settings apply.
            first_step: steps each environment has been given before, by this worker and by those before it.
        Raises:
            SimulatorError: the simulator goes on raising.
        """
        told: list[str] = []
        try:
            while True:
                try:
                    batch, window = self._collect(snapshot, stage, first_step)
                    break
                except SimulatorError as error:
                    if not self._retries(error, told, "collecting"):
                        raise
                    self._drop_episodes()
                    self._broken = True
        finally:
            if self._server is not None:
                self._server.release(self._rank)  # however it ended: the others need not wait for this one
        window.faults += told
        return batch, window

    def _retries(self, error: SimulatorError, told: list[str], doing: str) -> bool:
        """Whether a simulator that raised is tried once more, which is noted."""
        limit = self._config.rollout.simulator_retries
        if len(told) >= limit:
            return False
        self._simulators += 1
        said = redacted(str(error), os.environ)
        told.append(f"rollout-{self._rank}: {said}, {doing}. It is made again ({len(told) + 1} of {limit}).")
        return True

    def _load(self, snapshot: Snapshot) -> None:
        """Acts with these weights from now on."""
        if isinstance(self._policy, ServedPolicy):
            self._policy.version = snapshot.version
        else:
            self._policy.load_weights(snapshot.weights)

    def _collect(self, snapshot: Snapshot, stage: int, first_step: int | None) -> tuple[TrajectoryBatch, MetricWindow]:
        began = time.perf_counter()
        torch.set_num_threads(1)
        self._enter(stage)
        if self._broken:
            self._replace_simulator()
        entered = time.perf_counter()
        self._load(snapshot)
        loaded = time.perf_counter()
        if self._collector is None:
            share = self._simulator.num_envs
            self._collector = Collector(
                self._simulator, self._policy, self._config.rollout.horizon, self._rank, self._rank * share,
                [self._config.runner.seed, self._incarnation, self._stage, *self._lives],
                incarnation=self._incarnation, whole_episodes=self._group_size is not None,
                acting_time=m.PREDICT_TIME if self._server is None else m.ENV_RECV_WAIT,
            )  # fmt: skip
        collecting = time.perf_counter()
        batch, window = self._collector.collect(snapshot.version, first_step)
        window.observe(m.WORKERS_EXPECTED, self._num_workers)
        window.observe(m.LOAD_WEIGHTS_TIME, loaded - entered)
        window.observe(m.GENERATE_ONE_EPOCH_TIME, time.perf_counter() - collecting)
        window.observe(m.GENERATE_TIME, time.perf_counter() - began)
        if self._discarded:
            window.observe(m.DISCARDED_TRAJECTORIES, self._discarded)
            self._discarded = 0
        self._sign(
            window,
            [began, entered, loaded, collecting, time.perf_counter()],
            ["enter stage", "load weights", "first reset", "collect"],
        )
        return replace(batch, seconds=time.perf_counter() - began), window

    def _enter(self, stage: int) -> None:
        """Rebuilds the simulator if a new stage wants another."""
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

    def _replace_simulator(self) -> None:
        with suppress(Exception):  # it is broken
            self._simulator.close()
        try:
            self._simulator = self._make_simulator()
        except Exception as error:
            raise SimulatorError.of(error, "being made again") from error
        self._broken = False

    def evaluate(self, snapshot: Snapshot) -> MetricWindow:
        """This worker's share of an evaluation with the given weights. A simulator that raises is made again, and the
        share begun anew; what it played before says nothing."""
        told: list[str] = []
        while True:
            try:
                window = self._evaluate(snapshot)
                break
            except SimulatorError as error:
                if not self._retries(error, told, "evaluating"):
                    raise
                self._evaluator = None
        window.faults += told
        return window

    def _evaluate(self, snapshot: Snapshot) -> MetricWindow:
        torch.set_num_threads(1)
        began = time.perf_counter()
        if self._evaluator is None:
            spec = self._simulator.spec
            self._evaluator = Evaluator(self._stages[0].config, self._rank, self._num_workers, spec)
        made = time.perf_counter()
        self._load(snapshot)
        loaded = time.perf_counter()
        window = self._evaluator.evaluate(self._policy, snapshot.version)
        self._sign(window, [began, made, loaded, time.perf_counter()], ["make simulators", "load weights", "evaluate"])
        return window

    def _sign(self, window: MetricWindow, moments: Sequence[float], names: Sequence[str]) -> None:
        """Notes whose window it is, and what was done when."""
        window.worker = self._rank
        window.spans = spans(f"rollout-{self._rank}", moments, names)
