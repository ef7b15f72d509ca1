"""Formulas of curricula over the starts of episodes."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

REACH = 5
"""Number of starts, from the present one on towards easier ones, in which episodes may begin."""
_SHARES = np.array([1 / 2, 1 / 4, 1 / 8, 1 / 16, 1 / 16])
"""Share of the episodes that each of them gets."""
_SHARES.setflags(write=False)


def geometric_starts(start: int, last: int) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Steps in which the episodes of one demonstration begin, and their probabilities: 1/2, 1/4, 1/8, 1/16, 1/16.

    Most begin at the present start, the others a little closer to the end, which is easier (Tao et al. 2024,
    arXiv:2405.03379, section 4.1).

    Args:
        start: present start.
        last: last step in which an episode may begin; steps beyond count as this one.
    """
    return np.minimum(np.arange(start, start + REACH, dtype=np.int64), last), _SHARES


def spread_levels(level: int) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Levels at which episodes begin, and their probabilities: half at the present one, the others at easier ones.

    Args:
        level: present level, from 0.
    """
    return np.maximum(np.arange(level, level - REACH, -1, dtype=np.int64), 0), _SHARES


def pairs(count: int, most: int) -> NDArray[np.int64]:
    """Ordered pairs [P, 2] of different numbers below a count; each number comes first, and second, equally often.

    Args:
        count: how many numbers there are, at least 2.
        most: largest number of pairs; each number gets at least one all the same.
    """
    distances = np.linspace(1, count - 1, min(count - 1, max(1, most // count))).astype(np.int64)
    first = np.repeat(np.arange(count, dtype=np.int64), len(distances))
    return np.stack([first, (first + np.tile(distances, count)) % count], axis=1)


def demonstration_shares(starts: NDArray[np.int64], lengths: NDArray[np.int64]) -> NDArray[np.float64]:
    """Share [D] of the episodes that each demonstration gets: proportional to what its start has yet to move back.

    Args:
        starts: [D] present start of each; 0 is its beginning.
        lengths: [D] steps of each.
    """
    left = np.maximum(starts / lengths, 1e-3)  # one at its beginning goes on, rarely, unless all of them are
    shares: NDArray[np.float64] = left / left.sum()
    return shares


def rank_shares(scores: NDArray[np.float64], temperature: float) -> NDArray[np.float64]:
    """Shares [K] that fall with the rank of a score, (1 / rank)^(1 / temperature); equal scores share a rank.

    Prioritized level replay, Jiang et al. 2021, arXiv:2010.03934, section 3.

    Args:
        scores: [K], the highest of which has rank 1.
        temperature: small values favour the highest scores more.
    """
    ranks = 1 + len(scores) - np.searchsorted(np.sort(scores), scores, side="right")  # 1 + number of higher scores
    weights = (1.0 / ranks) ** (1.0 / temperature)
    shares: NDArray[np.float64] = weights / weights.sum()
    return shares


def progress_shares(progress: NDArray[np.float64], uniform: float) -> NDArray[np.float64]:
    """Shares [K] of tasks: a part that is the same for all, and a part in proportion to their progress.

    Args:
        progress: [K], at least 0; where all are 0, the shares are the same.
        uniform: part that is the same for all, in 0 to 1.
    """
    total, even = progress.sum(), np.full(len(progress), 1.0 / len(progress))
    shares: NDArray[np.float64] = even if total == 0 else uniform * even + (1.0 - uniform) * progress / total
    return shares


def edge_levels(start: float, widest: float, steps: int, *, logarithmic: bool = False) -> NDArray[np.float64]:
    """Levels [K + 1] of the edge of a range on its way outwards, in equal steps, or by equal factors.

    Args:
        start: level at which the way begins.
        widest: level at which it ends.
        steps: K.
        logarithmic: by equal factors; both levels are above 0.
    """
    levels: NDArray[np.float64] = (np.geomspace if logarithmic else np.linspace)(start, widest, steps + 1)
    return np.clip(levels, min(start, widest), max(start, widest))


def moved_edge(place: int, last: int, success: float, widen_at: float, narrow_at: float) -> int:
    """Place of an edge after its episodes were judged: a step outwards, a step inwards, or where it was.

    Automatic domain randomisation, Akkaya et al. 2019, arXiv:1910.07113, section 5.2 and algorithm 1.

    Args:
        place: steps that the edge has come outwards, in [0, last].
        last: steps to the widest level.
        success: share of its last episodes that succeeded.
        widen_at: least share with which it moves outwards.
        narrow_at: share below which it moves inwards.
    """
    return min(max(place + (success >= widen_at) - (success < narrow_at), 0), last)


def range_entropy(steps: NDArray[np.int64]) -> float:
    """Mean logarithm of the ranges, in nats per axis: 0 where none is wider than one level.

    Akkaya et al. 2019, arXiv:1910.07113, section 5.2, have (1/d) sum_i log(high_i - low_i), which has no value for an
    axis that does not vary yet. Here ranges count the levels that they hold, one step apart.

    Args:
        steps: [A] steps from the low to the high edge of each axis.
    """
    return float(np.log1p(steps).mean())
