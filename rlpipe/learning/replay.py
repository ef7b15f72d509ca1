"""The replay buffer: a bounded store of transitions that overwrites the oldest."""

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
    """Stores transitions in one array, so that drawing a batch is one gather.

    Time limits and terminations are stored separately.
    """

    def __init__(self, capacity: int, spec: SpaceSpec, device: torch.device, discount: float, steps: int = 1) -> None:
        """Allocates the array; the operating system provides memory only as it fills.

        Args:
            capacity: largest number of transitions
            spec: spaces of the simulator
            device: device that holds the array
            discount: weight of a reward one step later
            steps: length of a transition, where its fragment and its episode last that long
        """
        self._discount, self._steps = discount, steps
        self._widths = (spec.observation_dim, spec.observation_dim, spec.action_dim, 1, 1, 1, 1, 1)
        self._rows = torch.empty(capacity, sum(self._widths), device=device)
        self.capacity = capacity
        self._end = 0
        self.added = 0
        """Number of transitions ever added."""

    def __len__(self) -> int:
        return min(self._end, self.capacity)

    def _places(self, numbers: Tensor) -> Tensor:
        """Returns the rows that hold transitions, given their numbers, 0 for the oldest."""
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
        """Stores the decisions of a fragment, in the order of time."""
        self._add_steps(
            batch.observations[:-1], batch.successors(), batch.actions, batch.rewards, batch.terminated,
            batch.truncated, batch.valid, batch.policy_version,
        )  # fmt: skip

    def add_demonstrations(self, demonstrations: Demonstrations) -> None:
        """Stores demonstrations as a fragment of one environment."""
        self._add_steps(
            demonstrations.observations[:, None], demonstrations.next_observations[:, None],
            demonstrations.actions[:, None], demonstrations.rewards[:, None], demonstrations.terminated[:, None],
            demonstrations.truncated[:, None], np.ones((len(demonstrations), 1), dtype=bool), 0,
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
        """Stores [T, N, ...] steps, without those that are not valid."""
        ahead = n_step(rewards, terminated | truncated, valid, discount=self._discount, steps=self._steps)
        slots = np.arange(rewards.shape[1])
        self._add([
            observations[valid], successors[ahead.last, slots][valid], actions[valid], ahead.returns[valid],
            ahead.discounts[valid], terminated[ahead.last, slots][valid], truncated[ahead.last, slots][valid],
            np.full(np.count_nonzero(valid), version),
        ])  # fmt: skip

    def draw(self, count: int, generator: torch.Generator) -> Tensor:
        """Draws [count, width] rows uniformly, with replacement; see ``transitions``."""
        return self._rows.index_select(0, self._places(torch.randint(len(self), (count,), generator=generator)))

    def transitions(self, rows: Tensor, demonstrations: int = 0) -> Transitions:
        """Unpacks rows.

        Args:
            rows: [B, width] rows from ``draw``
            demonstrations: number of rows at the end that are demonstrated
        """
        observations, following, actions, *numbers, _ = torch.split(rows, list(self._widths), 1)
        rewards, discounts, terminated, truncated = (column[:, 0] for column in numbers)
        return Transitions(observations, following, actions, rewards, discounts, terminated, truncated, demonstrations)

    def versions(self, rows: Tensor) -> Tensor:
        """Returns the [B] version of the policy that acted in each row."""
        return rows[:, -1]

    def state(self) -> dict[str, Tensor]:
        """Returns all transitions, the oldest first."""
        return {"rows": self._rows[self._places(torch.arange(len(self)))], "added": torch.tensor(self.added)}

    def load_state(self, rows: Tensor, added: int) -> None:
        """Restores what ``state`` returned; with a smaller capacity, only the newest transitions."""
        self._end = 0
        self._take(rows[-self.capacity :])
        self.added = added
