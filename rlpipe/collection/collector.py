"""Advances a simulator and a policy together, one fragment at a time (stop 2 of the data path)."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from rlpipe.collection.decisions import SINGLE_ACTIONS, Chunks, Outcome, in_float32, reset, single_action, take
from rlpipe.collection.episodes import EpisodeTracker, name_component
from rlpipe.collection.memories import Memories
from rlpipe.collection.moving import RunningActions, repeat
from rlpipe.envs.base import Beginning, Simulator, Step
from rlpipe.metrics import MetricWindow
from rlpipe.metrics import catalogue as m
from rlpipe.metrics.declaration import Metric
from rlpipe.policies.base import Acting
from rlpipe.trajectory import Bool, Episode, Float32, Observations, SpaceSpec
from rlpipe.trajectory.batch import TrajectoryBatch
from rlpipe.trajectory.fingerprint import FIRST_ITERATIONS, FragmentFingerprint, digest_of, digests_of_steps
from rlpipe.trajectory.tree import joined, named_leaves, tensors


class _Fragment:
    """Arrays of a ``TrajectoryBatch`` while it is being collected."""

    def __init__(self, steps: int, envs: int, spec: SpaceSpec, chunks: Chunks, memories: Float32 | None = None) -> None:
        self._memories = memories
        self._observations = spec.observations(steps + 1, envs)
        self._actions = spec.chunked(chunks.size).actions(steps, envs)
        self._num_steps = np.zeros((steps, envs), dtype=np.int64) if chunks.size > 1 else None
        self._step_rewards = np.zeros((steps, envs, chunks.size), dtype=np.float32) if chunks.keep_rewards else None
        self._log_probs, self._rewards = (np.zeros((steps, envs), dtype=np.float32) for _ in range(2))
        self._terminated, self._truncated, self._valid = (np.zeros((steps, envs), dtype=bool) for _ in range(3))
        self._finals = [spec.observations(0)]
        self._final_index = [np.empty(0, dtype=np.int64)]

    def decide(self, t: int, observations: Observations, actions: NDArray[Any]) -> None:
        """Stores observations and decisions of step t, before the simulator can overwrite them."""
        self._observations[t], self._actions[t] = observations, actions

    def add(self, t: int, outcome: Outcome, log_probs: Float32) -> NDArray[np.int64]:
        """Stores the outcome of step t; returns the environments whose episode it ended."""
        self._log_probs[t] = log_probs
        if self._num_steps is not None and outcome.num_steps is not None:
            self._num_steps[t] = outcome.num_steps
        if self._step_rewards is not None and outcome.step_rewards is not None:
            self._step_rewards[t] = outcome.step_rewards
        self._rewards[t], self._valid[t] = outcome.rewards, outcome.valid
        self._terminated[t], self._truncated[t] = outcome.terminated, outcome.truncated
        ended = np.flatnonzero(outcome.terminated | outcome.truncated)
        if ended.size:
            self._finals.append(outcome.successors[ended])
            self._final_index.append(t * len(outcome.terminated) + ended)
        return ended

    def batch(
        self,
        observations: Observations,
        policy_version: int,
        episodes: Sequence[Episode],
        first_slot: int,
        steps_before: NDArray[np.int64],
    ) -> TrajectoryBatch:
        """Returns the finished batch; its last observations are those after the last step."""
        self._observations[-1] = observations
        return TrajectoryBatch(
            self._observations, self._actions, self._log_probs, self._rewards, self._terminated, self._truncated,
            self._valid, joined(self._finals), np.concatenate(self._final_index), policy_version,
            num_steps=self._num_steps, step_rewards=self._step_rewards, memories=self._memories,
            chosen_episodes=tuple(episode for episode in episodes if episode.chosen or episode.task is not None),
            first_slot=first_slot, steps_before=steps_before,
        )  # fmt: skip


class Collector:
    """Advances one simulator and one policy together, a fragment at a time."""

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
        whole_episodes: bool = False,
        memory_width: int = 0,
        acting_time: Metric = m.PREDICT_TIME,
        movable: bool = False,
    ) -> None:
        """Resets the simulator, unless every collection begins with a reset.

        Args:
            simulator: environments to step
            policy: policy with the simulator's spaces
            horizon: decisions per collection, T
            worker: rank of the rollout worker
            first_slot: number of this worker's first environment among those of all workers
            noise_seed: origin of the action noise, which each slot draws for itself
            incarnation: number of times the run was resumed
            whole_episodes: begin new episodes in each collection; an environment is idle after its episode
            memory_width: numbers that the policy remembers, H; 0 for a policy without a memory
            acting_time: metric that the time spent choosing actions counts as
            movable: keep the actions of running episodes, so that ``go_on_with`` can repeat them
        """
        self._simulator = simulator
        self._policy = policy
        self._horizon = horizon
        self._first_slot = first_slot
        self._generators = [np.random.default_rng([*noise_seed, first_slot + n]) for n in range(simulator.num_envs)]
        self._seed = [*noise_seed, first_slot]
        self._incarnation = incarnation
        self._tracker = EpisodeTracker(worker, first_slot, simulator.num_envs)
        self._reset_seconds = simulator.reset_seconds or 0.0  # reported so far
        self._whole_episodes = whole_episodes
        self._memories = Memories(simulator.num_envs, memory_width)
        self._acting_time = acting_time
        self._running_actions = RunningActions(simulator.num_envs) if movable and not whole_episodes else None
        self._start: str | None = None  # fingerprint of a reset, until a fragment tells it
        self._fingerprints = 0  # that were left so far
        self._broken: set[str] = set()  # leaves of observations that were not finite
        self._ended: list[Episode] = []  # in the fragment that is being collected
        self._observed: list[tuple[Metric, NDArray[Any]]] = []  # by the simulator, likewise
        if not whole_episodes:
            self._reset()

    def _reset(self) -> None:
        self._observations, beginnings = reset(self._simulator, self._seed)
        self._tracker.begin(beginnings)
        seeds = [(n, beginning.seed) for n, beginning in sorted(beginnings.items())]
        self._start = digest_of(seeds, *named_leaves(self._observations).values())
        self._memories.clear()
        if self._running_actions is not None:
            self._running_actions.clear()
        self._fresh = True  # no fragment has ended with these observations

    def __getstate__(self) -> dict[str, Any]:
        """Returns everything but simulator and policy, for another process."""
        return {name: value for name, value in vars(self).items() if name not in ("_simulator", "_policy")}

    @property
    def repeated_beginnings(self) -> Mapping[int, Beginning]:
        """How the episodes that ``go_on_with`` repeats began, by slot."""
        return self._tracker.beginnings if self._running_actions is not None else {}

    def go_on_with(self, simulator: Simulator, policy: Acting) -> None:
        """Goes on in another process, with a simulator whose resets begin the running episodes again.

        Raises:
            NotRepeatableError: the simulator does not arrive where the episodes are.
        """
        self._simulator, self._policy = simulator, policy
        if self._running_actions is not None:
            repeat(simulator, self._running_actions, self._observations)
        self._reset_seconds = simulator.reset_seconds or 0.0

    @property
    def unfinished(self) -> int:
        """Number of episodes that would be lost if the simulator were closed now."""
        return self._tracker.unfinished + len(self._ended)

    @torch.inference_mode()
    def collect(
        self, policy_version: int, first_step: int | None = None, chunks: Chunks = SINGLE_ACTIONS
    ) -> tuple[TrajectoryBatch, MetricWindow]:
        """Advances every environment by T decisions.

        With whole episodes it stops once all of them have ended; the remaining steps of the batch are not valid.

        Args:
            policy_version: version of the weights that the policy holds
            first_step: steps each environment has taken before; None continues the count
            chunks: how decisions become environment steps
        Returns:
            The fragment, and a window with its timings and the episodes that ended in it.
        Raises:
            SimulatorError: the simulator raised; its episodes are lost.
        """
        entered = time.perf_counter()
        if first_step is not None:
            self._tracker.steps = first_step
        simulator, policy = self._simulator, self._policy
        if self._whole_episodes:
            self._reset()
        first_step, running = self._tracker.steps, np.ones(simulator.num_envs, dtype=bool)
        drawn = np.stack([policy.noise(g, self._horizon) for g in self._generators], axis=1)
        noise = torch.from_numpy(drawn)
        fragment = _Fragment(self._horizon, simulator.num_envs, simulator.spec, chunks, self._memories.copy())
        steps_before = self._tracker.lengths
        self._observed = []
        env_seconds = acting_seconds = 0.0
        for t in range(self._horizon):
            began = time.perf_counter()
            decided = in_float32(policy.decide, tensors(self._observations), noise[t], self._memories.current)
            actions, log_probs = decided.actions.numpy(), decided.log_probs.numpy()
            self._memories.keep(decided.memories)
            fragment.decide(t, self._observations, actions)
            acted = time.perf_counter()
            outcome, log_probs = self._take(t, chunks, actions, log_probs, policy_version)
            ended = fragment.add(t, outcome, log_probs)
            self._memories.begin_episodes(outcome)
            env_seconds += time.perf_counter() - acted
            acting_seconds += acted - began
            self._observations = outcome.observations
            running[ended] = False
            if self._whole_episodes and not running.any():
                break
        self._tracker.steps = first_step + self._horizon * chunks.execute  # idle or not, so that all count alike
        episodes, self._ended = self._ended, []
        batch = fragment.batch(self._observations, policy_version, episodes, self._first_slot, steps_before)
        window = self._describe(episodes, batch, chunks)
        self._leave_fingerprint(window, batch, drawn)
        window.observe(m.ENV_STEP_TIME, env_seconds)
        window.observe(self._acting_time, acting_seconds)
        for metric, values in self._observed:
            window.observe(metric, values)
        window.observe(m.INTERACT_TIME, time.perf_counter() - entered)
        return batch, window

    def _leave_fingerprint(self, window: MetricWindow, batch: TrajectoryBatch, noise: Float32) -> None:
        """Adds the fingerprint of a fragment to its window, if it is one of the first.

        Args:
            window: window of the fragment
            batch: the fragment
            noise: [T, N, W] that its actions were sampled with
        """
        start, self._start = self._start, None
        if self._fingerprints == FIRST_ITERATIONS:
            return
        self._fingerprints += 1
        outcomes = [batch.rewards, batch.terminated, batch.truncated, batch.valid]
        window.fingerprints.append(
            FragmentFingerprint(
                first_slot=self._first_slot,
                slots=self._simulator.num_envs,
                start=start,
                noise=digest_of(noise),
                observations=digests_of_steps([*named_leaves(batch.observations).values()]),
                actions=digests_of_steps([batch.actions]),
                outcomes=digests_of_steps(outcomes),
            )
        )

    def _take(
        self, t: int, chunks: Chunks, actions: NDArray[Any], log_probs: Float32, policy_version: int
    ) -> tuple[Outcome, Float32]:
        """Takes the actions of decision t; returns its outcome and the [N] log-probabilities of what was taken."""
        by_action, before = log_probs.ndim == 2, self._tracker.steps
        steps: list[Step] = []
        for step in take(self._simulator, actions, chunks, f"taking step {t + 1} of {self._horizon}"):
            number = len(steps)
            if self._running_actions is not None:
                self._running_actions.add(single_action(self._simulator.spec, actions, chunks, number), step)
            step_log_probs = log_probs[:, number] if by_action else log_probs * np.float32(number == 0)
            self._ended += self._tracker.step(step, policy_version, step_log_probs)
            for metric, values in step.observed.items():
                applies = step.valid & ~np.isnan(values)
                if not isinstance(metric, str) and applies.any():  # what has only a name belongs to the episode
                    self._observed.append((metric, values[applies]))
            steps.append(step)
        outcome = Outcome.of(steps, chunks)
        self._tracker.steps = before + chunks.execute  # as in workers whose episodes go on
        if by_action and outcome.num_steps is not None:
            executed = np.arange(chunks.size) < outcome.num_steps[:, None]
            log_probs = np.where(executed, log_probs, np.float32(0)).sum(1)
        return outcome, log_probs

    def _describe(self, episodes: list[Episode], batch: TrajectoryBatch, chunks: Chunks) -> MetricWindow:
        """Returns the window of a fragment, without timings and without metrics of the simulator."""
        tokens = chunks.size * self._simulator.spec.action_dim  # of a decision
        notes, self._tracker.notes = self._tracker.notes, []
        window = MetricWindow(episodes=episodes, notes=notes, tells_success=self._tracker.tells_success)
        m.ENV.observe(window, episodes, self._incarnation)
        if any(episode.chosen for episode in episodes):
            m.CURRICULUM.observe(window, episodes, self._incarnation)
        if episodes:
            window.observe(m.ENTROPY_EPISODE, [-e.log_prob for e in episodes if e.log_prob is not None])
        decided = int(np.count_nonzero(batch.valid))
        steps = decided if batch.num_steps is None else int(batch.num_steps.sum())
        window.observe(m.NUM_DECISIONS, decided)
        window.observe(m.ACTION_TOKENS_TOTAL, decided * tokens if chunks.in_tokens else decided)
        window.observe(m.TIMESTEPS, steps)
        window.observe(m.TOTAL_TIMESTEPS, steps)
        if chunks.in_tokens and episodes:
            decisions = [-(-episode.length // chunks.execute) for episode in episodes]
            window.observe(m.ACTION_TOKENS_PER_EPISODE, [tokens * count for count in decisions])
        if batch.num_steps is not None:
            window.observe(m.CHUNK_LEN, batch.num_steps[batch.valid])
        window.observe(m.VALID_FRACTION, batch.valid)
        self._count_not_finite(window, batch)
        window.observe(m.TOTAL_EPISODES, len(episodes))
        window.observe(m.WORKERS_REPORTING, 1)
        resetting = self._simulator.reset_seconds
        if resetting is not None:
            window.observe(m.BOOTSTRAP_STEP_TIME, resetting - self._reset_seconds)
            self._reset_seconds = resetting
        return window

    def _count_not_finite(self, window: MetricWindow, batch: TrajectoryBatch) -> None:
        """Counts by leaf the observations with which the simulator ceased to be finite.

        Only the first of an episode tells the cause: a policy that sees NaN acts with NaN, and all leaves may follow.
        """
        fresh, self._fresh = self._fresh, False
        broken = dict.fromkeys(self._broken, 0)  # 0 clears an alert
        leaves, finals = named_leaves(batch.observations), named_leaves(batch.final_observations)
        if not all(map(_is_finite, (*leaves.values(), *finals.values()))):
            steps, envs = batch.valid.shape
            not_finite = {
                name: _not_finite(leaf, (steps + 1) * envs).reshape(-1, envs) for name, leaf in leaves.items()
            }
            before = np.any(list(not_finite.values()), axis=0)[:-1]
            first = ~before | batch.terminated | batch.truncated  # which an observation after a reset is in any case
            for name, of_leaf in not_finite.items():
                last = _not_finite(finals[name], len(batch.final_index)) & ~before.ravel()[batch.final_index]
                begun = (of_leaf[1:] & first, last, of_leaf[0] & fresh)
                if count := sum(int(np.count_nonzero(places)) for places in begun):
                    broken[name] = count
        self._broken.update(broken)
        for name, count in broken.items():
            window.observe(m.NONFINITE_OBSERVATIONS.member(name_component(name) or "_"), count)


def _is_finite(leaf: NDArray[Any]) -> bool:
    """True if a leaf is surely finite, by one pass without a copy: squares of large numbers may overflow."""
    flat = leaf.reshape(-1)
    with np.errstate(all="ignore"):
        return leaf.dtype.kind != "f" or bool(np.isfinite(np.dot(flat, flat)))


def _not_finite(leaf: NDArray[Any], count: int) -> Bool:
    """Returns which of so many observations are not finite in a leaf."""
    finite: Bool = np.isfinite(leaf).reshape(count, leaf.size // max(count, 1)).all(1)
    return ~finite
