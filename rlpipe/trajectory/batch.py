"""A fragment of experience: shapes, dtypes and units of all arrays that travel from collection to learning.

Letters used throughout the package: T steps (time first), N environments, D observation width, A action width,
K ended episodes in the batch, B decisions after flattening, H numbers that a policy remembers.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rlpipe.trajectory.episode import Episode
from rlpipe.trajectory.spaces import Bool, Float32, Observations
from rlpipe.trajectory.tree import mapped


@dataclass(frozen=True)
class TrajectoryBatch:
    """Fragment of experience: N environments over T steps.

    Attributes:
        observations: [T + 1, N, D] float32, or a tree; the policy saw row t at step t, and sees the last row next.
        actions: [T, N, A] float32, as sampled, before clipping to the bounds; or [T, N] int64 of one discrete action,
            or [T, N, M] of several.
        log_probs: [T, N] float32, log-probability of the action under the policy that took it, in nats.
        rewards: [T, N] float32, raw.
        terminated: [T, N] bool, the task ended. Can hold together with ``truncated``.
        truncated: [T, N] bool, a time limit cut the episode off.
        valid: [T, N] bool; False where no decision was made (the step only reset the environment, or a slot is idle).
        final_observations: [K, D] float32, or a tree; true successor of each step that ended an episode, before any
            reset.
        final_index: [K] int64, t * N + n of that step.
        policy_version: number of updates behind the weights that acted.
        seconds: time that collection took.
        num_steps: [T, N] int64, environment steps that each decision took; None where each is one. Rewards of several
            steps are summed, with the discount of the algorithm.
        step_rewards: [T, N, k] float32, raw reward of each environment step of a decision, 0 after the last one; None
            unless the algorithm learns from them.
        memories: [N, H] float32, memory of each environment before the first step; zeros where an episode begins. None
            for a policy without a memory.
        chosen_episodes: episodes that ended in the fragment and that a curriculum may follow, because it chose their
            start, or because their task is one of several.
        first_slot: number of the first environment among those of all workers; the others follow.
        steps_before: [N] int64, environment steps of each running episode before the first step; 0 where an episode
            begins. None where nobody collected the fragment.
    """

    observations: Observations
    actions: NDArray[Any]
    log_probs: Float32
    rewards: Float32
    terminated: Bool
    truncated: Bool
    valid: Bool
    final_observations: Observations
    final_index: NDArray[np.int64]
    policy_version: int
    seconds: float = 0.0
    num_steps: NDArray[np.int64] | None = None
    step_rewards: Float32 | None = None
    memories: Float32 | None = None
    chosen_episodes: tuple[Episode, ...] = ()
    first_slot: int = 0
    steps_before: NDArray[np.int64] | None = None

    def trajectories(self) -> NDArray[np.int64]:
        """[N] number of trajectories in each environment: those that ended here, and the one that continues."""
        ended = self.terminated | self.truncated
        unfinished = self.valid[-1] & ~ended[-1]
        return np.asarray(ended.sum(0) + unfinished, dtype=np.int64)

    def successors(self) -> Observations:
        """[T, N, ...] true successors of all steps: before any reset, unlike ``observations[1:]``."""

        def of_leaf(observations: NDArray[Any], finals: NDArray[Any]) -> NDArray[Any]:
            successors = observations[1:].copy()
            successors.reshape(-1, *successors.shape[2:])[self.final_index] = finals
            return successors

        successors: Observations = mapped(of_leaf, self.observations, self.final_observations)
        return successors
