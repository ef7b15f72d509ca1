"""Lists of positions of a batch, made on the host, where the batch comes from.

A boolean mask selects as many rows as it holds, and to know how many, the host waits for the device. A list is as long
as it is.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Mask = NDArray[np.bool_]


@dataclass(frozen=True)
class Rows:
    """Positions at which a mask holds.

    Attributes:
        mask: bool on the host, of the leading axes of what is selected from.
        index: [B] int64 on the device, number of each position in the flattened axes, ascending; None for all of them.
    """

    mask: Mask
    index: Tensor | None

    @classmethod
    def at(cls, mask: Mask, device: torch.device) -> Rows:
        """Lists the positions at which a mask holds, on a device."""
        return cls(mask, None if mask.all() else torch.from_numpy(np.flatnonzero(mask)).to(device))

    def __len__(self) -> int:
        return int(np.count_nonzero(self.mask))

    def of(self, values: Any) -> Any:
        """[B, ...] these rows of a tensor, tree or ``Sequences`` [*mask, ...]; a view where they are all."""
        rows = values if self.mask.ndim == 1 else values.flatten(0, self.mask.ndim - 1)
        return rows if self.index is None else rows[self.index]

    def onto(self, values: Tensor, others: Tensor) -> Tensor:
        """[*mask] tensor of the values [B] at these positions, and of the others elsewhere."""
        if self.index is None:
            return values.reshape(others.shape)
        return others.flatten().index_copy(0, self.index, values).view_as(others)


@dataclass(frozen=True)
class Trajectories:
    """Trajectories of decisions, numbered without gaps, so that sums over them need no search.

    Attributes:
        index: [B] int64 in [0, J), in the order of ``TrajectoryBatch.numbers``.
        count: J, number of trajectories.
    """

    index: Tensor
    count: int


@dataclass(frozen=True)
class Listed:
    """Lists of the valid decisions of a batch.

    Attributes:
        device: where the lists are.
        valid: rows of [T, N].
        actions: rows of [T, N, k], actions that were taken; None unless each has a reward.
        fresh: rows of the B valid decisions that the learner's present weights took.
        numbers: [T, N] int64 on the host, number of each decision's trajectory.
        trajectories: those of the valid decisions.
    """

    device: torch.device
    valid: Rows
    actions: Rows | None
    fresh: Rows
    numbers: NDArray[np.int64]
    trajectories: Trajectories

    @classmethod
    def of_batch(
        cls, valid: Mask, ended: Mask, lags: NDArray[np.int64] | None, actions: Mask | None, device: torch.device
    ) -> Listed:
        """Lists the decisions of a batch that is still on the host.

        Args:
            valid: [T, N].
            ended: [T, N], True where an episode ended.
            lags: [N] as in ``TrajectoryBatch``.
            actions: [T, N, k], True for actions that were taken; None unless each has a reward.
            device: where the batch goes.
        """
        steps, envs = valid.shape
        numbers = np.zeros((steps, envs), np.int64)
        np.cumsum(ended[:-1], axis=0, out=numbers[1:])
        numbers += np.arange(envs) * (steps + 1)
        fresh = np.broadcast_to(np.zeros(envs) if lags is None else lags, valid.shape)[valid] == 0
        return cls(
            device,
            Rows.at(valid, device),
            None if actions is None else Rows.at(actions, device),
            Rows.at(fresh, device),
            numbers,
            _trajectories(numbers[valid], valid.shape, device),
        )

    def without(self, columns: Mask) -> tuple[Rows, Rows, Trajectories]:
        """Lists the valid decisions outside of some columns [N].

        Returns:
            Rows of [T, N], rows of the B valid decisions, and their trajectories.
        """
        if not columns.any():
            every = Rows.at(np.ones(len(self.valid), bool), self.device)
            return self.valid, every, self.trajectories
        mask = self.valid.mask & ~columns
        rows, among = Rows.at(mask, self.device), Rows.at(mask[self.valid.mask], self.device)
        return rows, among, _trajectories(self.numbers[mask], mask.shape, self.device)


def _trajectories(numbers: NDArray[np.int64], shape: tuple[int, ...], device: torch.device) -> Trajectories:
    """Numbers trajectories without gaps, from [B] numbers with gaps in a batch of shape [T, N]."""
    steps, envs = shape
    present = np.zeros((steps + 1) * envs, bool)
    present[numbers] = True
    places = np.cumsum(present) - 1
    return Trajectories(torch.from_numpy(places[numbers]).to(device), int(np.count_nonzero(present)))
