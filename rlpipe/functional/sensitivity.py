"""Sensitivity of an outcome to quantities that are drawn independently of each other, as shares of its variance.

The first-order share of a quantity is what it explains by itself, ``Var(E[Y | X_i]) / Var(Y)``; its total share is what
would be left if all others were known, ``E[Var(Y | X_~i)] / Var(Y)``. They are equal where it does not interact.
Sobol 2001, Mathematics and Computers in Simulation 55:271-280.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike

from rlpipe.functional.intervals import wilson_interval
from rlpipe.functional.paired import Z_95


def first_order_share(groups: ArrayLike, outcomes: ArrayLike) -> tuple[float, float, float]:
    """First-order share of a quantity in the variance of an outcome of 0 or 1, and its 95 % bounds.

    Of n outcomes in g groups of like levels, it is ``(SSB - (g - 1) MSW) / SST`` with the sum of squares SSB between
    groups, SST in all, and the mean square ``MSW = (SST - SSB) / (n - g)`` within, which chance alone adds to each
    group: Kelley 1935, PNAS 21:554-559. The bounds are ``+- 1.96 s`` with s of a jackknife, and at least
    ``sqrt(2 (g - 1)) / n``, that of a share of 0. In simulations of 200 and 1,000 outcomes they hold in 0.91 to 1 of
    all tables, and the lower one exceeds 0 in fewer than 0.01 of those without an effect.

    Args:
        groups: [n] number of the group of each outcome, from 0.
        outcomes: [n] 0 or 1.
    Raises:
        ValueError: all outcomes are the same, or there is but one group, or no group has two.
    """
    group, outcome = np.asarray(groups, dtype=np.int64), np.asarray(outcomes, dtype=np.int64)
    counts = np.zeros((int(group.max()) + 1, 2))  # by group and outcome
    np.add.at(counts, (group, outcome), 1.0)
    estimate, n = _explained(counts), len(outcome)
    left_out, times = list[float](), list[float]()
    for cell in np.argwhere(counts):  # leaving out any outcome of a cell gives the same
        fewer = counts.copy()
        fewer[tuple(cell)] -= 1
        times.append(float(counts[tuple(cell)]))
        left_out.append(_explained(fewer) if np.all(fewer.sum(0)) else estimate)
    mean = np.average(left_out, weights=times)
    deviation = math.sqrt((n - 1) / n * float(np.dot(times, (np.array(left_out) - mean) ** 2)))
    by_chance = math.sqrt(2 * (np.count_nonzero(counts.sum(1)) - 1)) / n
    reach = Z_95 * max(deviation, by_chance)
    return estimate, max(0.0, estimate - reach), min(1.0, estimate + reach)


def _explained(counts: np.ndarray) -> float:
    """Share of the variance between groups, less what chance adds; ``counts`` [groups, 2] of outcomes 0 and 1."""
    sizes = counts.sum(1)
    ones, sizes = counts[sizes > 0, 1], sizes[sizes > 0]
    n, g = sizes.sum(), len(sizes)
    if g < 2 or n <= g or not 0 < ones.sum() < n:
        raise ValueError(f"needs two groups, one of several outcomes, and both kinds of them; got {counts.tolist()}.")
    mean = ones.sum() / n
    total = n * mean * (1 - mean)
    between = float((ones**2 / sizes).sum()) - n * mean * mean
    within = (total - between) / (n - g)
    return float((between - (g - 1) * within) / total)


def total_share(outcomes: ArrayLike, redrawn: ArrayLike) -> tuple[float, float, float]:
    """Total share of a quantity in the variance of an outcome of 0 or 1, and its 95 % bounds.

    Where all else is the same and only this quantity is drawn again, it is half the mean squared change over the
    variance: Jansen 1999, Computer Physics Communications 117:35-43. So it is the share of outcomes that change, F, as
    ``F / (2 p (1 - p))`` with the share of ones p of both, and its bounds are those of F (Wilson 1927). In simulations
    of 200 and 1,000 outcomes they hold in 0.94 to 1 of all tables.

    Args:
        outcomes: [n] 0 or 1.
        redrawn: [n] outcomes after the quantity was drawn again.
    Raises:
        ValueError: all outcomes are the same.
    """
    before, after = np.asarray(outcomes, dtype=bool), np.asarray(redrawn, dtype=bool)
    changed, mean = int((before != after).sum()), float((before.mean() + after.mean()) / 2)
    if not 0 < mean < 1:
        raise ValueError("needs both kinds of outcomes: without variance there is nothing to share.")
    scale = 2 * mean * (1 - mean)
    low, high = wilson_interval(changed, len(before))
    return changed / len(before) / scale, low / scale, min(1.0, high / scale)
