"""The replay buffer: remembered transitions, bounded, the oldest forgotten first."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rlpipe.algorithms.base_off_policy import Transitions
from rlpipe.demonstrations import Demonstrations
from rlpipe.trajectory import SpaceSpec, TrajectoryBatch


class ReplayBuffer:
    """Transitions in one array, so that a sample is one gather. Time limits and terminations stand apart."""

    def __init__(self, capacity: int, spec: SpaceSpec, device: torch.device) -> None:
        """Empty; the operating system gives memory only as it fills."""
        self._widths = (spec.observation_dim, spec.observation_dim, spec.action_dim, 1, 1, 1, 1)
        self._rows = torch.empty(capacity, sum(self._widths), device=device)
        self.capacity = capacity
        self.added = 0
        """Transitions that were ever added."""

    def __len__(self) -> int:
        return min(self.added, self.capacity)

    def _add(self, columns: Sequence[NDArray[Any]]) -> None:
        rows = np.concatenate([column.reshape(len(column), -1) for column in columns], axis=1, dtype=np.float32)
        rows = rows[-self.capacity :]
        places = (self.added + np.arange(len(rows))) % self.capacity
        self._rows[torch.from_numpy(places).to(self._rows.device)] = torch.from_numpy(rows).to(self._rows.device)
        self.added += len(rows)

    def add(self, batch: TrajectoryBatch) -> None:
        """Remembers the decisions of a fragment, in the order of time."""
        valid = batch.valid
        version = np.full(np.count_nonzero(valid), batch.policy_version)
        self._add([
            batch.observations[:-1][valid], batch.successors()[valid], batch.actions[valid], batch.rewards[valid],
            batch.terminated[valid], batch.truncated[valid], version,
        ])  # fmt: skip

    def add_demonstrations(self, shown: Demonstrations) -> None:
        """Remembers demonstrated transitions."""
        self._add([
            shown.observations, shown.next_observations, shown.actions, shown.rewards, shown.terminated,
            shown.truncated, np.zeros(len(shown)),
        ])  # fmt: skip

    def draw(self, count: int, generator: torch.Generator) -> Tensor:
        """[count, ...] transitions, each with equal probability, with replacement; see ``transitions``."""
        places = torch.randint(len(self), (count,), generator=generator)
        return self._rows.index_select(0, places.to(self._rows.device))

    def transitions(self, rows: Tensor, demonstrations: int = 0) -> Transitions:
        """What rows mean, of which the last so many are demonstrated."""
        observations, following, actions, rewards, terminated, truncated, _ = torch.split(rows, list(self._widths), 1)
        return Transitions(
            observations, following, actions, rewards[:, 0], terminated[:, 0], truncated[:, 0], demonstrations
        )

    def versions(self, rows: Tensor) -> Tensor:
        """[B] version of the policy that acted in each row."""
        return rows[:, -1]

    def state(self) -> dict[str, Tensor]:
        """What it holds."""
        return {"rows": self._rows[: len(self)], "added": torch.tensor(self.added)}

    def load_state(self, rows: Tensor, added: int) -> None:
        """Takes over what ``state`` gave, also with another capacity; then the newest are kept."""
        in_order = torch.cat([rows[added % len(rows) :], rows[: added % len(rows)]]) if added > len(rows) else rows
        kept = in_order[-self.capacity :]
        places = (added - len(kept) + torch.arange(len(kept))) % self.capacity
        self._rows[places.to(self._rows.device)] = kept.to(self._rows.device)
        self.added = added
