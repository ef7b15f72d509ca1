"""Data that travels from collection to learning: shapes, dtypes and units of all arrays.

Letters used throughout the package: T steps (time first), N environments, D observation width, A action width,
K ended episodes in the batch, B decisions after flattening.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

Float32 = NDArray[np.float32]
Bool = NDArray[np.bool_]


@dataclass(frozen=True)
class SpaceSpec:
    """Observation and action spaces of a simulator.

    Attributes:
        observation_dim: D.
        action_dim: A for a continuous action, 1 for a discrete one.
        num_actions: number of discrete actions; None for a continuous action.
        action_low: [A] lower bounds of a continuous action, in the simulator's unit; None when discrete.
        action_high: [A] upper bounds, likewise.
    """

    observation_dim: int
    action_dim: int
    num_actions: int | None = None
    action_low: Float32 | None = None
    action_high: Float32 | None = None

    def clip(self, actions: Float32) -> Float32:
        """Clips [..., A] continuous actions to their bounds.

        Raises:
            ValueError: the actions are discrete.
        """
        if self.action_low is None or self.action_high is None:
            raise ValueError("discrete actions have no bounds.")
        return np.minimum(np.maximum(actions, self.action_low), self.action_high)  # np.clip is slower on small arrays

    def same_as(self, other: SpaceSpec) -> bool:
        """True if a policy made for one also fits the other."""
        return (self.observation_dim, self.action_dim, self.num_actions) == (
            other.observation_dim,
            other.action_dim,
            other.num_actions,
        )


@dataclass(frozen=True)
class TrajectoryBatch:
    """Fragment of experience: N environments over T steps.

    Attributes:
        observations: [T + 1, N, D] float32; the policy saw row t at step t, and sees the last row next.
        actions: [T, N, A] float32, or [T, N] int64 when discrete; as sampled, before clipping to the bounds.
        log_probs: [T, N] float32, log-probability of the action under the policy that took it, in nats.
        rewards: [T, N] float32, raw.
        terminated: [T, N] bool, the task ended. Can hold together with ``truncated``.
        truncated: [T, N] bool, a time limit cut the episode off.
        valid: [T, N] bool; False where no decision was made (the step only reset the environment, or a slot is idle).
        final_observations: [K, D] float32, true successor of each step that ended an episode, before any reset.
        final_index: [K] int64, t * N + n of that step.
        policy_version: number of updates behind the weights that acted.
        seconds: time that collection took.
    """

    observations: Float32
    actions: NDArray[Any]
    log_probs: Float32
    rewards: Float32
    terminated: Bool
    truncated: Bool
    valid: Bool
    final_observations: Float32
    final_index: NDArray[np.int64]
    policy_version: int
    seconds: float = 0.0

    def trajectories(self) -> NDArray[np.int64]:
        """[N] number of trajectories in each environment: those that ended here, and the one that continues."""
        ended = self.terminated | self.truncated
        unfinished = self.valid[-1] & ~ended[-1]
        return np.asarray(ended.sum(0) + unfinished, dtype=np.int64)

    def successors(self) -> Float32:
        """[T, N, D] true successors of all steps: before any reset, unlike ``observations[1:]``."""
        successors = self.observations[1:].copy()
        successors.reshape(-1, successors.shape[-1])[self.final_index] = self.final_observations
        return successors


@dataclass(frozen=True)
class Episode:
    """One finished episode: a line of ``episodes.jsonl`` or ``eval_episodes.jsonl``, without the iteration.

    Return, length and success include the step that ended the episode; later steps belong to the next episode.

    Attributes:
        worker: rank of the rollout worker.
        slot: number of the environment, counted over all workers.
        seed: of the reset that began the episode; None where a vectorised simulator draws its own.
        policy_version: of the weights that took the last step.
        episode_return: undiscounted sum of rewards.
        length: environment steps.
        success_once: True if success held after some step; None for a simulator without a notion of success.
        success_at_end: True if success held after the last step; None likewise.
        success_at_reset: True if success held before the first step; None likewise.
        terminated: True if the task ended. Can hold together with ``truncated``.
        truncated: True if a time limit cut the episode off.
        step: step of its environment that ended the episode, counted since the run began or was resumed.
        log_prob: of all its actions together, in nats; None where actions were not sampled.
        first_success: step of the episode after which success first held, from 1; None if it never did.
        fail_once: True if the task had failed after some step; None for a simulator without a notion of failure.
        fail_at_end: True if the task had failed after the last step; None likewise.
        reward_terms: by name, sums of the reward terms that the simulator reports.
    """

    worker: int
    slot: int
    seed: int | None
    policy_version: int
    episode_return: float
    length: int
    success_once: bool | None
    success_at_end: bool | None
    success_at_reset: bool | None
    terminated: bool
    truncated: bool
    step: int = 0
    log_prob: float | None = None
    first_success: int | None = None
    fail_once: bool | None = None
    fail_at_end: bool | None = None
    reward_terms: dict[str, float] = field(default_factory=dict)

    def as_row(self, iteration: int) -> dict[str, Any]:
        """JSON object for the episode files, where the return has its public name and null is a number not finite."""
        fields = asdict(self)
        fields["return"] = fields.pop("episode_return")
        for name in ("return", "log_prob"):
            fields[name] = _finite_or_none(fields[name])
        fields["reward_terms"] = {name: _finite_or_none(value) for name, value in self.reward_terms.items()}
        return {"iteration": iteration, **fields}

    @classmethod
    def from_row(cls, row: dict[str, Any]) -> Episode:
        """Restores an episode from what ``as_row`` returned."""
        fields = {key: value for key, value in row.items() if key != "iteration"}
        total = fields.pop("return")
        fields["episode_return"] = math.nan if total is None else total
        fields["reward_terms"] = {
            name: math.nan if value is None else value for name, value in fields.get("reward_terms", {}).items()
        }
        return cls(**fields)


def _finite_or_none(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None
