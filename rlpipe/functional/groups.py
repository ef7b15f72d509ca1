"""Groups of episodes that began alike: how each compares with the rest of its group.

For group-relative algorithms, such as GRPO."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

EQUAL = 1e-6
"""Scores whose range is at most this share of their size (or of 1) count as equal."""


class _Groups(NamedTuple):
    """Of E scores in G groups: ``of`` [E] and the rest [G]."""

    of: Tensor
    counts: Tensor
    means: Tensor
    deviations: Tensor
    equal: Tensor


def _grouped(scores: Tensor, groups: Tensor) -> _Groups:
    if scores.ndim != 1 or scores.shape != groups.shape:
        raise ValueError(
            f"every score needs the number of its group, but got scores {tuple(scores.shape)} and groups "
            f"{tuple(groups.shape)}."
        )
    _, of, counts = torch.unique(groups, return_inverse=True, return_counts=True)
    exact = scores.double()  # in float32, the mean of equal numbers need not be that number
    zeros = torch.zeros(len(counts), dtype=torch.float64, device=scores.device)
    means = zeros.index_add(0, of, exact) / counts
    squares = zeros.index_add(0, of, (exact - means[of]).square())
    low, high = (zeros.scatter_reduce(0, of, exact, reduce, include_self=False) for reduce in ("amin", "amax"))
    size = torch.maximum(low.abs(), high.abs()).clamp(min=1.0)
    return _Groups(of, counts, means, (squares / (counts - 1).clamp(min=1)).sqrt(), high - low <= EQUAL * size)


def group_advantages(scores: Tensor, groups: Tensor, *, eps: float = 1e-6) -> Tensor:
    """How much better each episode did than its group, ``(G_e - mean_g) / (std_g + eps)``, where the standard
    deviation divides by n - 1.  Shao et al. 2024, arXiv:2402.03300, section 4.1.2.

    Where all of a group scored alike, and in a group of one, the advantage is exactly 0. The range decides that and not
    the deviation, which for equal floats need not be 0: divided by it, rounding would become an advantage of order 1.

    Args:
        scores: [E] score of each episode.  groups: [E] integer, number of its group.
    Returns:
        [E], in standard deviations of the group.
    """
    g = _grouped(scores, groups)
    advantages = (scores.double() - g.means[g.of]) / (g.deviations[g.of] + eps)
    return torch.where(g.equal[g.of], 0.0, advantages).to(scores.dtype)


def group_deviations(scores: Tensor, groups: Tensor) -> Tensor:
    """Standard deviation of the scores in each group, by n - 1; groups of one have none and are left out.

    Args:
        scores: [E].  groups: [E] integer.
    Returns:
        [G'], in the unit of the score, by number of the group.
    """
    g = _grouped(scores, groups)
    return torch.where(g.equal, 0.0, g.deviations)[g.counts > 1]


def equal_groups(scores: Tensor, groups: Tensor) -> Tensor:
    """[G] bool: whether all of a group scored alike, so that it teaches nothing; by number of the group.

    Args:
        scores: [E].  groups: [E] integer.
    """
    return _grouped(scores, groups).equal
