"""From decisions to trajectories, and from decisions to one loss."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

Total = Callable[[Tensor], Tensor]
"""From a tensor of this learner to the sum over all learners."""
AGGREGATIONS = ("decision", "trajectory")


def alone(values: Tensor) -> Tensor:
    """The sum over all learners where there is one."""
    return values


def trajectory_sums(values: Tensor, trajectory: Tensor) -> Tensor:
    """[J] sum over the decisions of each trajectory, by its number, in float64.

    Args:
        values: [B].  trajectory: [B] integer, number of the trajectory that a decision belongs to.
    """
    _, index, counts = torch.unique(trajectory, return_inverse=True, return_counts=True)
    return torch.zeros(len(counts), dtype=torch.float64, device=values.device).index_add_(0, index, values.double())


def loss_weights(trajectory: Tensor, aggregation: str, *, total: Total = alone) -> Tensor:
    """[B] weight ``w_i`` of each decision in the loss ``mean_i w_i l_i``; their mean is 1.

    ``decision`` weighs all decisions alike (Yu et al. 2025, arXiv:2503.14476, equation 12). ``trajectory`` weighs all J
    trajectories alike, ``w_i = B / (J n_j)``, which is the mean over trajectories of the mean over their n_j decisions
    (Shao et al. 2024, arXiv:2402.03300, equation 3).

    They are those of the whole batch. So however it is cut into minibatches, the means of ``w_i l_i`` over these, each
    times its share of the decisions, sum to the formula of the whole batch.

    Args:
        trajectory: [B] integer, number of the trajectory that a decision belongs to.
        aggregation: one of ``AGGREGATIONS``.
        total: sums over all learners; a trajectory is whole on one of them.
    Returns:
        [B] float64.
    """
    if aggregation not in AGGREGATIONS:
        raise ValueError(f"aggregation is {aggregation!r}, which is none of {', '.join(AGGREGATIONS)}.")
    if aggregation == "decision":
        return torch.ones(len(trajectory), dtype=torch.float64, device=trajectory.device)
    _, index, counts = torch.unique(trajectory, return_inverse=True, return_counts=True)
    decisions, trajectories = total(counts.new_tensor([len(trajectory), len(counts)]))
    weights: Tensor = decisions / (trajectories * counts[index].double())
    return weights
