"""Distance from demonstrated actions."""

from __future__ import annotations

import torch
from torch import Tensor

DISTANCES = ("squared", "absolute")
"""``squared`` is that of a Gaussian of fixed deviation. ``absolute`` follows the median of what demonstrators do, and
clones chunks of actions far better (Zhao et al. 2023, arXiv:2304.13705, section V)."""


def cloning_loss(
    actions: Tensor, demonstrated: Tensor, num_steps: Tensor | None = None, *, kind: str = "squared"
) -> Tensor:
    """Distance between actions and demonstrated ones, averaged over the numbers of an action and over a chunk.

    Args:
        actions: [B, A], or [B, k, A] for chunks.
        demonstrated: of the same shape.
        num_steps: [B] number of demonstrated actions in each chunk; the others do not count. None without chunks.
        kind: ``squared`` or ``absolute``.
    Returns:
        [B].
    """
    difference = actions - demonstrated
    distance = (difference.square() if kind == "squared" else difference.abs()).mean(-1)
    if num_steps is None:
        return distance
    counts = torch.arange(distance.shape[1], device=distance.device) < num_steps.unsqueeze(-1)
    return (distance * counts).sum(-1) / num_steps
