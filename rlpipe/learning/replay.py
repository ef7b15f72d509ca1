"""The replay buffer: a bounded store of transitions that overwrites the oldest."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rlpipe.algorithms.shared.off_policy import Transitions
from rlpipe.demonstrations.dataset import Demonstrations
from rlpipe.functional.n_step import NStep, n_step
from rlpipe.learning.frames import Frames
from rlpipe.metrics.declaration import Metric
from rlpipe.trajectory import SpaceSpec, Tree
from rlpipe.trajectory.batch import TrajectoryBatch
from rlpipe.trajectory.tree import joined, mapped, tensors

REWARD, TERMINATED = -5, -3
"""Columns of stored numbers, which end with reward, discount, terminated, truncated and version."""


class StoredRows(NamedTuple):
    """Transitions as they are stored.

    Attributes:
        numbers: [B, width] float32.
        observations: trees of the observations before and after; None where ``numbers`` holds them.
    """

    numbers: Tensor
    observations: tuple[Tree, Tree] | None = None

    def __add__(self, other: object) -> StoredRows:
        """Appends other rows."""
        assert isinstance(other, StoredRows)
        numbers = torch.cat([self.numbers, other.numbers])
        if self.observations is None or other.observations is None:
            return StoredRows(numbers)
        before, after = zip(self.observations, other.observations, strict=True)
        return StoredRows(numbers, (joined(before), joined(after)))


class Places(NamedTuple):
    """Places of transitions in a buffer, drawn on the host.

    Attributes:
        rows: [B] int64, of their numbers.
        before: [B] int64, of the observations before; None where the numbers hold them.
        after: [B] int64, of those after.
    """

    rows: Tensor
    before: Tensor | None = None
    after: Tensor | None = None


Drawn = Places | StoredRows
"""Transitions that were drawn: their places, or copies of them, if they are not learnt from as they are stored."""


class ReplayBuffer:
    """Stores transitions in one array, so that drawing a batch is one gather.

    Time limits and terminations are stored separately. Observation trees are in ``Frames``.
    """

    def __init__(self, capacity: int, spec: SpaceSpec, device: torch.device, discount: float, steps: int = 1) -> None:
        """Allocates the array for a number of transitions; the operating system provides memory only as it fills.

        A transition spans ``steps`` steps, where its fragment and its episode last that long.
        """
        self._discount, self._steps = discount, steps
        width = spec.observation_dim if spec.leaves is None else 0
        self._widths = (width, width, spec.action_dim, 1, 1, 1, 1, 1)
        self._rows = torch.empty(capacity, sum(self._widths), device=device)
        self._frames = None if spec.leaves is None else Frames(capacity, spec, device)
        # of the frames before and after each transition
        self._numbers = torch.zeros(0 if spec.leaves is None else capacity, 2, dtype=torch.int64)
        self.capacity = capacity
        self._end = 0
        self.added = 0
        """Number of transitions ever added."""

    def __len__(self) -> int:
        return min(self._end, self.capacity) if self._frames is None else self._frames.transitions

    @property
    def _oldest(self) -> int:
        """Number of the oldest transition, where all that were taken are counted."""
        return self._end - len(self)

    def _places(self, numbers: Tensor) -> Places:
        """Returns where transitions lie, given their numbers, 0 for the oldest; all on the host."""
        rows = (self._oldest + numbers) % self.capacity
        return Places(rows) if self._frames is None else Places(rows, *self._numbers[rows].unbind(-1))

    def _add(self, columns: Sequence[NDArray[Any]], numbers: NDArray[np.int64] | None = None) -> None:
        rows = np.concatenate([column.reshape(len(column), -1) for column in columns], axis=1, dtype=np.float32)
        self.added += len(rows)
        newest = slice(-self.capacity, None)
        self._take(torch.from_numpy(rows[newest]), None if numbers is None else torch.from_numpy(numbers[newest]))

    def _take(self, rows: Tensor, numbers: Tensor | None) -> None:
        places = (self._end + torch.arange(len(rows))) % self.capacity
        self._rows[places.to(self._rows.device)] = rows.to(self._rows.device)
        if numbers is not None:
            self._numbers[places] = numbers
        self._end += len(rows)

    def add(self, batch: TrajectoryBatch) -> None:
        """Stores the decisions of a fragment, in the order of time."""
        discount = self._discount if batch.num_steps is None else self._discount**batch.num_steps
        ended = batch.terminated | batch.truncated
        ahead = n_step(batch.rewards, ended, batch.valid, discount=discount, steps=self._steps)
        valid, slots = batch.valid, np.arange(batch.rewards.shape[1])
        columns = [
            batch.actions[valid], ahead.returns[valid], ahead.discounts[valid],
            batch.terminated[ahead.last, slots][valid], batch.truncated[ahead.last, slots][valid],
            np.full(np.count_nonzero(valid), batch.policy_version),
        ]  # fmt: skip
        if self._frames is None:
            successors = batch.successors()[ahead.last, slots]
            self._add([batch.observations[:-1][valid], successors[valid], *columns])
        else:
            numbers = self._store_frames(batch, ahead)[valid]
            empty = np.empty((len(numbers), 0), dtype=np.float32)
            self._add([empty, empty, *columns], numbers)

    def _store_frames(self, batch: TrajectoryBatch, ahead: NStep) -> NDArray[np.int64]:
        """Stores the observations of a fragment; returns [T, N, 2] numbers of those before and after each step."""
        assert self._frames is not None
        steps, envs = batch.rewards.shape
        frames = joined([mapped(lambda leaf: leaf.reshape(-1, *leaf.shape[2:]), batch.observations),
                         batch.final_observations])  # fmt: skip
        first = self._frames.add(tensors(frames), int(np.count_nonzero(batch.valid)))
        rows = np.arange((steps + 1) * envs).reshape(steps + 1, envs)
        successors = rows[1:].copy()
        successors.reshape(-1)[batch.final_index] = rows.size + np.arange(len(batch.final_index))
        return first + np.stack([rows[:-1], successors[ahead.last, np.arange(envs)]], axis=-1)

    def add_demonstrations(self, demonstrations: Demonstrations, chunk_size: int = 1) -> None:
        """Stores demonstrations: each step with the chunk of actions that begins there, filled up with zeros."""
        d = demonstrations
        if chunk_size == 1:
            actions, steps = d.actions, self._steps
        else:
            steps = chunk_size  # the return of a chunk is that of its steps
            places = np.arange(len(d))[:, None] + np.arange(chunk_size)
            present = np.arange(chunk_size) < d.steps_left()[:, None]
            padded = d.actions[np.where(present, places, 0)] * present[..., None]
            actions = padded.reshape(len(d), -1)
        ended, valid = (d.terminated | d.truncated)[:, None], np.ones((len(d), 1), dtype=bool)
        ahead = n_step(d.rewards[:, None], ended, valid, discount=self._discount, steps=steps)
        last = ahead.last[:, 0]
        columns = [
            actions, ahead.returns[:, 0], ahead.discounts[:, 0],
            d.terminated[last], d.truncated[last], np.zeros(len(d)),
        ]  # fmt: skip
        if self._frames is None:
            self._add([d.observations, d.next_observations[last], *columns])
        else:
            finals = ended[:, 0].nonzero()[0]
            frames = joined([tensors(d.observations), tensors(d.next_observations[finals])])
            after = np.arange(1, len(d) + 1)
            after[finals] = len(d) + np.arange(len(finals))
            first = self._frames.add(frames, len(d))
            empty = np.empty((len(d), 0), dtype=np.float32)
            self._add([empty, empty, *columns], first + np.stack([np.arange(len(d)), after[last]], axis=-1))

    def draw(self, count: int, generator: torch.Generator) -> tuple[Drawn, Mapping[Metric, Tensor]]:
        """Draws transitions uniformly, with replacement.

        Returns:
            Argument of ``read``, and metrics of how they were drawn.
        """
        return self._places(torch.randint(len(self), (count,), generator=generator)), {}

    def read(self, drawn: Drawn) -> StoredRows:
        """Copies transitions from where they lie; their places are on the buffer's device."""
        if isinstance(drawn, StoredRows):
            return drawn
        rows = self._rows.index_select(0, drawn.rows)
        if self._frames is None or drawn.before is None or drawn.after is None:
            return StoredRows(rows)
        return StoredRows(rows, (self._frames.at(drawn.before), self._frames.at(drawn.after)))

    def transitions(self, rows: StoredRows, demonstrations: int = 0) -> Transitions:
        """Unpacks rows from ``read``, of which so many at the end are demonstrated."""
        before, after, actions, *numbers, _ = torch.split(rows.numbers, list(self._widths), 1)
        rewards, discounts, terminated, truncated = (column[:, 0] for column in numbers)
        observations, following = (before, after) if rows.observations is None else rows.observations
        return Transitions(observations, following, actions, rewards, discounts, terminated, truncated, demonstrations)

    def versions(self, rows: StoredRows) -> Tensor:
        """Returns the [B] version of the policy that acted in each row."""
        return rows.numbers[:, -1]

    def state(self) -> dict[str, Tensor]:
        """Returns all transitions, the oldest first."""
        places = self._places(torch.arange(len(self))).rows
        state = {"rows": self._rows[places.to(self._rows.device)], "added": torch.tensor(self.added)}
        if self._frames is not None:
            state |= {"numbers": self._numbers[places] - self._frames.first, **self._frames.state()}
        return state

    def load_state(self, state: Mapping[str, Tensor]) -> None:
        """Restores what ``state`` returned; with a smaller capacity, only the newest transitions."""
        rows, numbers, count = state["rows"], None, self.capacity
        if self._frames is not None:
            self._frames.load_state(state)  # which numbers the frames from 0
            count = self._frames.transitions
            numbers = state["numbers"][max(0, len(rows) - count) :]
        self._end = 0
        self._take(rows[max(0, len(rows) - count) :], numbers)
        self.added = int(state["added"])
