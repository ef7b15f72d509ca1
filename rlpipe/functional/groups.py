"""Compares each episode with a group of episodes that began in the same state, as GRPO does."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

EQUAL = 1e-6
"""Scores count as equal if their range is at most this share of their magnitude (or of 1)."""


class _Groups(NamedTuple):
    """Statistics of E scores in G groups.

    Attributes:
        group: [E] int64, index of each score's group.
        counts: [G] number of scores.
        means: [G].
        deviations: [G] standard deviations, by n - 1.
        equal: [G] bool, all scores of the group are equal.
    """

    group: Tensor
    counts: Tensor
    means: Tensor
    deviations: Tensor
    equal: Tensor


def _grouped(scores: Tensor, groups: Tensor | int) -> _Groups:
    group, counts = _numbered(scores, groups)
    exact = scores.double()  # in float32, the mean of equal numbers need not be that number
    zeros = torch.zeros(len(counts), dtype=torch.float64, device=scores.device)
    means = zeros.index_add(0, group, exact) / counts
    squares = zeros.index_add(0, group, (exact - means[group]).square())
    low, high = (zeros.scatter_reduce(0, group, exact, reduce, include_self=False) for reduce in ("amin", "amax"))
    size = torch.maximum(low.abs(), high.abs()).clamp(min=1.0)
    return _Groups(group, counts, means, (squares / (counts - 1).clamp(min=1)).sqrt(), high - low <= EQUAL * size)


def _numbered(scores: Tensor, groups: Tensor | int) -> tuple[Tensor, Tensor]:
    """[E] index of each score's group, and [G] number of its scores."""
    if isinstance(groups, int):
        group = torch.arange(len(scores), device=scores.device) // groups
        return group, torch.full((len(scores) // groups,), groups, device=scores.device)
    if scores.ndim != 1 or scores.shape != groups.shape:
        raise ValueError(
            f"every score needs the number of its group, but scores have shape {tuple(scores.shape)} and groups "
            f"{tuple(groups.shape)}."
        )
    _, group, counts = torch.unique(groups, return_inverse=True, return_counts=True)
    return group, counts


def group_advantages(scores: Tensor, groups: Tensor | int, *, eps: float = 1e-6) -> Tensor:
    """Advantage of each episode over its group, ``(G_e - mean_g) / (std_g + eps)``, where the standard deviation
    divides by n - 1.  Shao et al. 2024, arXiv:2402.03300, section 4.1.2.

    The advantage is exactly 0 where all scores of a group are equal, and in a group of one. Equality is decided by the
    range, because the deviation of equal floats need not be 0: dividing by it would turn rounding into an advantage of
    order 1.

    Args:
        scores: [E] score of each episode.
        groups: [E] integer, number of each episode's group; or the size of every group, if they follow each other.
        eps: added to the standard deviation.
    Returns:
        [E], in standard deviations of the group.
    """
    g = _grouped(scores, groups)
    advantages = (scores.double() - g.means[g.group]) / (g.deviations[g.group] + eps)
    return torch.where(g.equal[g.group], 0.0, advantages).to(scores.dtype)


def group_deviations(scores: Tensor, groups: Tensor | int) -> Tensor:
    """Standard deviation of the scores in each group, by n - 1; groups of one have none and are left out.

    Args:
        scores: [E] score of each episode.
        groups: [E] integer, number of each episode's group; or the size of every group, if they follow each other.
    Returns:
        [G'], in the unit of the score, ordered by number of the group.
    """
    g = _grouped(scores, groups)
    deviations = torch.where(g.equal, 0.0, g.deviations)
    return deviations if isinstance(groups, int) and groups > 1 else deviations[g.counts > 1]


def equal_groups(scores: Tensor, groups: Tensor | int) -> Tensor:
    """[G] bool, True where all scores of a group are equal, so that it teaches nothing; ordered by group number.

    Args:
        scores: [E] score of each episode.
        groups: [E] integer, number of each episode's group; or the size of every group, if they follow each other.
    """
    return _grouped(scores, groups).equal
