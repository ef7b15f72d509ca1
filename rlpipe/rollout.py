"""Collection: simulator and policy make a ``TrajectoryBatch`` and the ``MetricWindow`` that describes it (stop 2 on the
data's way). Knows nothing of Ray, of learning or of backends.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rlpipe.config import FIRST_TRAINING_SEED, Config, Stage
from rlpipe.envs.base import Simulator, Step
from rlpipe.episodes import EpisodeTracker
from rlpipe.evaluation import Evaluator, check_same_spaces
from rlpipe.faults import SimulatorError
from rlpipe.metrics import MetricWindow
from rlpipe.metrics import catalogue as m
from rlpipe.metrics.declaration import Metric
from rlpipe.metrics.spans import spans
from rlpipe.plugins import resolve
from rlpipe.policies.base import Acting, Policy, Weights
from rlpipe.secrets import redacted
from rlpipe.trajectory import Episode, Float32, SpaceSpec, TrajectoryBatch


@dataclass(frozen=True)
class Snapshot:
    """Weights that act, and their version: the number of updates behind them."""

    version: int
    weights: Weights


@dataclass(frozen=True)
class Ready:
    """What a rollout worker says once its simulator stands.

    Attributes:
        spec: of the simulator.  has_success: whether it knows success.  notes: sentences for the user.
    """

    spec: SpaceSpec
    has_success: bool
    notes: tuple[str, ...]


def training_seed(seed: int, incarnation: int, stage: int, slot: int, episode: int, life: Sequence[int] = ()) -> int:
    """Reset seed of an episode, in [2^30, 2^31).

    It depends on the slot and not on the worker, so that the number of workers does not change what is trained on; and
    on how often the run was resumed, and the worker or its simulator replaced, so that no episode is played twice.
    """
    drawn = np.random.SeedSequence([seed, incarnation, stage, slot, episode, *life]).generate_state(1)[0]
    return FIRST_TRAINING_SEED + int(drawn) % FIRST_TRAINING_SEED


class _Fragment:
    """The arrays of a ``TrajectoryBatch`` while they fill."""

    def __init__(self, steps: int, envs: int, spec: SpaceSpec) -> None:
        shape = (steps, envs) if spec.num_actions else (steps, envs, spec.action_dim)
        self._observations = np.zeros((steps + 1, envs, spec.observation_dim), dtype=np.float32)
        self._actions = np.zeros(shape, dtype=np.int64 if spec.num_actions else np.float32)
        self._log_probs, self._rewards = (np.zeros((steps, envs), dtype=np.float32) for _ in range(2))
        self._terminated, self._truncated, self._valid = (np.zeros((steps, envs), dtype=bool) for _ in range(3))
        self._finals = [np.empty((0, spec.observation_dim), dtype=np.float32)]
        self._final_index = [np.empty(0, dtype=np.int64)]

    def decide(self, t: int, observations: Float32, actions: NDArray[Any], log_probs: Float32) -> None:
        """Takes in what was seen and done at step t, before the simulator may write over it."""
        self._observations[t], self._actions[t], self._log_probs[t] = observations, actions, log_probs

    def add(self, t: int, step: Step) -> NDArray[np.int64]:
        """Takes in what came of step t; returns the environments whose episode it ended."""
        self._rewards[t], self._terminated[t], self._truncated[t] = step.rewards, step.terminated, step.truncated
        self._valid[t] = step.valid
        ended = np.flatnonzero(step.terminated | step.truncated)
        if ended.size:
            self._finals.append(step.successors[ended])
            self._final_index.append(t * len(step.terminated) + ended)
        return ended

    def batch(self, observations: Float32, policy_version: int) -> TrajectoryBatch:
        """All of it, with what is observed after the last step."""
        self._observations[-1] = observations
        return TrajectoryBatch(
            self._observations, self._actions, self._log_probs, self._rewards, self._terminated, self._truncated,
            self._valid, np.concatenate(self._finals), np.concatenate(self._final_index), policy_version,
        )  # fmt: skip


class Collector:
    """One simulator and one policy, advanced together a fragment at a time."""

    def __init__(
        self,
        simulator: Simulator,
        policy: Acting,
        horizon: int,
        worker: int,
        first_slot: int,
        noise_seed: list[int],
        *,
        incarnation: int = 0,
        first_step: int = 0,
        whole_episodes: bool = False,
        acting_time: Metric = m.PREDICT_TIME,
    ) -> None:
        """Resets the simulator, unless each collection does.

        Args:
            simulator, policy: that fit each other.  horizon: T.  worker: rank.
            first_slot: number of this worker's first environment, over all workers.
            noise_seed: origin of the action noise, which each slot draws for itself.
            incarnation: how often the run was resumed.  first_step: steps each environment has taken since then.
            whole_episodes: begin new episodes in each collection; the simulator leaves an environment idle after it.
            acting_time: what the time until the policy has answered counts as.
        """
        self._simulator = simulator
        self._policy = policy
        self._horizon = horizon
        self._generators = [np.random.default_rng([*noise_seed, first_slot + n]) for n in range(simulator.num_envs)]
        self._incarnation = incarnation
        self._tracker = EpisodeTracker(
            worker, first_slot, simulator.num_envs, simulator.has_success, first_step=first_step
        )
        self._reset_seconds = simulator.reset_seconds or 0.0  # up to which they have been reported
        self._whole_episodes = whole_episodes
        self._acting_time = acting_time
        self._ended: list[Episode] = []  # in the fragment that is being collected
        if not whole_episodes:
            self._reset()

    def _reset(self) -> None:
        try:
            self._observations, beginnings = self._simulator.reset()
        except Exception as error:
            raise SimulatorError.of(error, "resetting") from error
        self._tracker.begin(beginnings)

    @property
    def unfinished(self) -> int:
        """Episodes that would be lost if the simulator were closed now."""
        return self._tracker.unfinished + len(self._ended)

    @property
    def steps(self) -> int:
        """Steps each environment has taken since the run began or was resumed."""
        return self._tracker.steps

    @torch.inference_mode()
    def collect(self, policy_version: int, first_step: int | None = None) -> tuple[TrajectoryBatch, MetricWindow]:
        """Advances every environment by T steps; with whole episodes until all have ended, if that is earlier, and
        the steps that are left are not valid.

        Args:
            policy_version: of the weights the policy holds now.
            first_step: steps each environment has been given before; None goes on counting.
        Returns:
            The fragment, and the window with its timings and with the episodes that ended in it.
        Raises:
            SimulatorError: the simulator raised; its episodes are lost.
        """
        entered = time.perf_counter()
        if first_step is not None:
            self._tracker.steps = first_step
        simulator, policy, spec = self._simulator, self._policy, self._simulator.spec
        if self._whole_episodes:
            self._reset()
        first_step, running = self._tracker.steps, np.ones(simulator.num_envs, dtype=bool)
        noise = torch.from_numpy(np.stack([policy.noise(g, self._horizon) for g in self._generators], axis=1))
        fragment = _Fragment(self._horizon, simulator.num_envs, spec)
        observed: list[tuple[Metric, np.ndarray]] = []
        env_seconds = acting_seconds = 0.0
        for t in range(self._horizon):
            began = time.perf_counter()
            chosen, log_prob = policy.act(torch.from_numpy(self._observations), noise[t])
            actions, log_probs = chosen.numpy(), log_prob.numpy()
            fragment.decide(t, self._observations, actions, log_probs)
            acted = time.perf_counter()
            try:
                step = simulator.step(actions if spec.num_actions else spec.clip(actions))
            except Exception as error:
                raise SimulatorError.of(error, f"taking step {t + 1} of {self._horizon}") from error
            env_seconds += time.perf_counter() - acted
            acting_seconds += acted - began
            ended = fragment.add(t, step)
            self._ended += self._tracker.step(step, policy_version, log_probs)
            observed += [(metric, values[step.valid]) for metric, values in step.observed.items()]
            self._observations = step.observations
            running[ended] = False
            if self._whole_episodes and not running.any():
                break
        self._tracker.steps = first_step + self._horizon  # idle or not, so that workers keep step
        batch = fragment.batch(self._observations, policy_version)
        episodes, self._ended = self._ended, []
        window = self._describe(episodes, batch.valid)
        window.observe(m.ENV_STEP_TIME, env_seconds)
        window.observe(self._acting_time, acting_seconds)
        for metric, values in observed:
            window.observe(metric, values)
        window.observe(m.INTERACT_TIME, time.perf_counter() - entered)
        return batch, window

    def _describe(self, episodes: list[Episode], valid: np.ndarray) -> MetricWindow:
        """The window of a fragment, but for what its steps themselves observed: [T, N] bool ``valid``."""
        window = MetricWindow(episodes=episodes)
        m.ENV.observe(window, episodes, self._incarnation)
        if episodes:
            window.observe(m.ENTROPY_EPISODE, [-e.log_prob for e in episodes if e.log_prob is not None])
        taken = int(np.count_nonzero(valid))
        for metric in (m.NUM_DECISIONS, m.ACTION_TOKENS_TOTAL, m.TIMESTEPS, m.TOTAL_TIMESTEPS):
            window.observe(metric, taken)
        window.observe(m.VALID_FRACTION, valid)
        window.observe(m.TOTAL_EPISODES, len(episodes))
        window.observe(m.WORKERS_REPORTING, 1)
        resetting = self._simulator.reset_seconds
        if resetting is not None:
            window.observe(m.BOOTSTRAP_STEP_TIME, resetting - self._reset_seconds)
            self._reset_seconds = resetting
        return window


def build_policy(config: Config, spec: SpaceSpec) -> Policy:
    """The configured policy with its first weights, which depend on ``runner.seed`` alone."""
    torch.manual_seed(config.runner.seed)
    policy: Policy = resolve("policies", config.policy.name, "policy.name")(config.policy, spec)
    return policy


class PolicyServer(Protocol):
    """Where a policy lives that several workers act with; see ``inference.InferenceServer``."""

    def act(
        self, rank: int, version: int, observations: Float32, noise: Float32 | None, each: bool
    ) -> tuple[NDArray[Any], Float32]:
        """Actions and log-probabilities for the rows of one worker."""

    def leave(self, rank: int) -> None:
        """Says that a worker asks nothing more in this collection."""


class ServedPolicy:
    """Implements ``Acting`` with a policy that lives on a server.

    Attributes:
        version: of the weights that must answer.  server: that answers.  rank: of the worker that asks.
    """

    def __init__(self, policy: Policy, server: PolicyServer, rank: int) -> None:
        """Takes the policy without its weights, for the noise; and who asks whom."""
        self._policy = policy
        self.server = server
        self.rank = rank
        self.version = 0

    def noise(self, generator: np.random.Generator, steps: int) -> Float32:
        """As ``Policy.noise``."""
        return self._policy.noise(generator, steps)

    def act(self, observations: Tensor, noise: Tensor | None) -> tuple[Tensor, Tensor]:
        """As ``Policy.act``."""
        return self._ask(observations, noise, each=False)

    def act_each(self, observations: Tensor, noise: Tensor | None) -> tuple[Tensor, Tensor]:
        """As ``Policy.act_each``."""
        return self._ask(observations, noise, each=True)

    def _ask(self, observations: Tensor, noise: Tensor | None, *, each: bool) -> tuple[Tensor, Tensor]:
        drawn = None if noise is None else noise.numpy()
        actions, log_probs = self.server.act(self.rank, self.version, observations.numpy(), drawn, each)
        return torch.tensor(actions), torch.tensor(log_probs)  # copies: what Ray hands over may not be written to


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
        return getattr(self._config.algorithm, "group_size", None)

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
                self._server.leave(self._rank)  # however it ended: the others need not wait for this one
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
