"""The replay buffer: remembered transitions, bounded, the oldest forgotten first."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rlpipe.algorithms.base_off_policy import Transitions
from rlpipe.demonstrations.dataset import Demonstrations
from rlpipe.functional.n_step import n_step
from rlpipe.trajectory import Bool, Float32, SpaceSpec, TrajectoryBatch


class ReplayBuffer:
    """Transitions in one array, so that a sample is one gather. Time limits and terminations stand apart."""

    def __init__(self, capacity: int, spec: SpaceSpec, device: torch.device, discount: float, steps: int = 1) -> None:
        """Empty; the operating system gives memory only as it fills.

        Args:
            capacity: in transitions.  discount: weight of a reward one step later.
            steps: over which each transition goes, where its fragment and its episode last that long.
        """
        self._discount, self._steps = discount, steps
        self._widths = (spec.observation_dim, spec.observation_dim, spec.action_dim, 1, 1, 1, 1, 1)
        self._rows = torch.empty(capacity, sum(self._widths), device=device)
        self.capacity = capacity
        self._end = 0
        self.added = 0
        """Transitions that were ever added."""

    def __len__(self) -> int:
        return min(self._end, self.capacity)

    def _places(self, numbers: Tensor) -> Tensor:
        """Rows of the array that hold the transitions of these numbers, from 0 for the oldest."""
        return ((max(0, self._end - self.capacity) + numbers) % self.capacity).to(self._rows.device)

    def _add(self, columns: Sequence[NDArray[Any]]) -> None:
        rows = np.concatenate([column.reshape(len(column), -1) for column in columns], axis=1, dtype=np.float32)
        self.added += len(rows)
        self._take(torch.from_numpy(rows[-self.capacity :]))

    def _take(self, rows: Tensor) -> None:
        places = (self._end + torch.arange(len(rows))) % self.capacity
        self._rows[places.to(self._rows.device)] = rows.to(self._rows.device)
        self._end += len(rows)

    def add(self, batch: TrajectoryBatch) -> None:
        """Remembers the decisions of a fragment, in the order of time."""
        self._add_steps(
            batch.observations[:-1], batch.successors(), batch.actions, batch.rewards, batch.terminated,
            batch.truncated, batch.valid, batch.policy_version,
        )  # fmt: skip

    def add_demonstrations(self, shown: Demonstrations) -> None:
        """Remembers demonstrated transitions: as a fragment of one environment, whose episodes they are."""
        self._add_steps(
            shown.observations[:, None], shown.next_observations[:, None], shown.actions[:, None],
            shown.rewards[:, None], shown.terminated[:, None], shown.truncated[:, None],
            np.ones((len(shown), 1), dtype=bool), 0,
        )  # fmt: skip

    def _add_steps(
        self,
        observations: Float32,
        successors: Float32,
        actions: NDArray[Any],
        rewards: Float32,
        terminated: Bool,
        truncated: Bool,
        valid: Bool,
        version: int,
    ) -> None:
        """[T, N, ...] steps; those that are not valid are left out."""
        ahead = n_step(rewards, terminated | truncated, valid, discount=self._discount, steps=self._steps)
        slots = np.arange(rewards.shape[1])
        self._add([
            observations[valid], successors[ahead.last, slots][valid], actions[valid], ahead.returns[valid],
            ahead.discounts[valid], terminated[ahead.last, slots][valid], truncated[ahead.last, slots][valid],
            np.full(np.count_nonzero(valid), version),
        ])  # fmt: skip

    def draw(self, count: int, generator: torch.Generator) -> Tensor:
        """[count, ...] transitions, each with equal probability, with replacement; see ``transitions``."""
        return self._rows.index_select(0, self._places(torch.randint(len(self), (count,), generator=generator)))

    def transitions(self, rows: Tensor, demonstrations: int = 0) -> Transitions:
        """What rows mean, of which the last so many are demonstrated."""
        observations, following, actions, *numbers, _ = torch.split(rows, list(self._widths), 1)
        rewards, discounts, terminated, truncated = (column[:, 0] for column in numbers)
        return Transitions(observations, following, actions, rewards, discounts, terminated, truncated, demonstrations)

    def versions(self, rows: Tensor) -> Tensor:
        """[B] version of the policy that acted in each row."""
        return rows[:, -1]

    def state(self) -> dict[str, Tensor]:
        """What it holds, the oldest first."""
        return {"rows": self._rows[self._places(torch.arange(len(self)))], "added": torch.tensor(self.added)}

    def load_state(self, rows: Tensor, added: int) -> None:
        """Takes over what ``state`` gave, also with another capacity; then the newest are kept."""
        self._end = 0
        self._take(rows[-self.capacity :])
        self.added = added
