"""Sums over the decisions of a trajectory, and weights of decisions in the loss."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

Total = Callable[[Tensor], Tensor]
"""Maps a tensor of this learner to its sum over all learners."""
AGGREGATIONS = ("decision", "trajectory")


def alone(values: Tensor) -> Tensor:
    """Sum over all learners, where there is only one."""
    return values


def trajectory_sums(values: Tensor, trajectory: Tensor, count: int | None = None) -> Tensor:
    """[J] sums over the decisions of each trajectory, ordered by its number, in float64.

    Args:
        values: [B].
        trajectory: [B] integer, number of each decision's trajectory.
        count: J, if the numbers are 0 to J - 1; None if they may have gaps, so that the host waits for the device.
    """
    if count is None:
        present, trajectory = torch.unique(trajectory, return_inverse=True)
        count = len(present)
    return torch.zeros(count, dtype=torch.float64, device=values.device).index_add_(0, trajectory, values.double())


def loss_weights(
    trajectory: Tensor, aggregation: str, *, total: Total = alone, num_trajectories: int | None = None
) -> Tensor:
    """[B] weight ``w_i`` of each decision in the loss ``mean_i w_i l_i``; their mean is 1.

    ``decision`` weighs all decisions alike (Yu et al. 2025, arXiv:2503.14476, equation 12). ``trajectory`` weighs all J
    trajectories alike, ``w_i = B / (J n_j)``, which is the mean over trajectories of the mean over their n_j decisions
    (Shao et al. 2024, arXiv:2402.03300, equation 3).

    The weights are those of the whole batch. However the batch is divided, the means of ``w_i l_i`` over its
    minibatches, each times its share of the decisions, therefore sum to the formula of the whole batch.

    Args:
        trajectory: [B] integer, number of each decision's trajectory.
        aggregation: one of ``AGGREGATIONS``.
        total: sums over all learners; every trajectory is whole on one of them.
        num_trajectories: J of this learner, if the numbers are 0 to J - 1; None if they may have gaps.
    Returns:
        [B] float64.
    """
    if aggregation not in AGGREGATIONS:
        raise ValueError(f"aggregation is {aggregation!r}; it must be one of {', '.join(AGGREGATIONS)}.")
    if aggregation == "decision":
        return torch.ones(len(trajectory), dtype=torch.float64, device=trajectory.device)
    if num_trajectories is None:
        present, trajectory = torch.unique(trajectory, return_inverse=True)
        num_trajectories = len(present)
    counts = trajectory.new_zeros(num_trajectories).index_add_(0, trajectory, torch.ones_like(trajectory))
    sizes = [counts.new_full((), size) for size in (len(trajectory), num_trajectories)]
    decisions, trajectories = total(torch.stack(sizes))
    weights: Tensor = decisions / (trajectories * counts[trajectory].double())
    return weights
