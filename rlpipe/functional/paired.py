"""Comparison of two policies in the same episodes: tests, intervals, and when enough has been seen.

Of n pairs, ``wins`` are those in which only the first succeeds, ``losses`` those in which only the second does; in the
rest, both do or neither. All of it concerns two fixed policies: that one training method is better than another needs
several runs of each.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from statistics import NormalDist

import numpy as np
from numpy.typing import ArrayLike

Z_95 = 1.959963984540054
"""Quantile of the normal distribution that leaves 2.5 % above it."""


def wins_and_losses(first: ArrayLike, second: ArrayLike) -> tuple[int, int]:
    """Number of pairs in which only the first succeeds, and of those in which only the second does.

    Args:
        first: [n] success of the first policy in n episodes.
        second: [n] success of the second in the same ones.
    """
    ours, theirs = np.asarray(first, dtype=bool), np.asarray(second, dtype=bool)
    return int((ours & ~theirs).sum()), int((theirs & ~ours).sum())


def tail_of_fair_coin(wins: int, losses: int) -> float:
    """Probability of at least so many wins among ``wins + losses`` throws of a fair coin."""
    throws = wins + losses
    return math.ldexp(float(sum(math.comb(throws, count) for count in range(wins, throws + 1))), -throws)


def mcnemar_test(wins: int, losses: int) -> float:
    """Two-sided p-value of equal success rates: exact binomial test of the pairs that differ.
    McNemar 1947, Psychometrika 12:153-157.

    With fewer than six such pairs it never falls below 0.05.
    """
    return min(1.0, 2 * tail_of_fair_coin(max(wins, losses), min(wins, losses)))


def tango_interval(pairs: int, wins: int, losses: int, *, z: float = Z_95) -> tuple[float, float]:
    """Bounds of the difference of two success rates in the same episodes, 95 % by default: the differences that a
    score test does not reject.  Tango 1998, Statistics in Medicine 17:891-908.

    Args:
        pairs: number of episodes that both policies ran, n.
        wins: pairs in which only the first succeeds.
        losses: pairs in which only the second succeeds.
        z: quantile of the normal distribution.
    Raises:
        ValueError: there are no pairs, or more wins and losses than pairs.
    """
    if pairs <= 0 or min(wins, losses) < 0 or wins + losses > pairs:
        raise ValueError(f"needs 0 <= wins + losses <= pairs, pairs > 0; got {wins} + {losses} of {pairs}.")

    def score(difference: float) -> float:
        linear = (2 * pairs - wins + losses) * difference - wins - losses
        constant = -losses * difference * (1 - difference)
        share = (math.sqrt(max(linear * linear - 8 * pairs * constant, 0.0)) - linear) / (4 * pairs)
        variance = pairs * (2 * share + difference * (1 - difference))
        distance = wins - losses - pairs * difference
        return distance / math.sqrt(variance) if variance > 0 else math.copysign(math.inf, distance)

    estimate = (wins - losses) / pairs
    low = -1.0 if losses == pairs else _crossing(lambda difference: score(difference) - z, -1.0, estimate)
    high = 1.0 if wins == pairs else _crossing(lambda difference: score(difference) + z, estimate, 1.0)
    return low, high


def holm_adjusted(p_values: Sequence[float]) -> list[float]:
    """P-values of several tests, adjusted so that those below a level are wrong together with at most its
    probability: ``max_{j <= i} min(1, (k - j + 1) p_(j))`` for the i-th smallest of k.
    Holm 1979, Scandinavian Journal of Statistics 6:65-70.
    """
    adjusted = [0.0] * len(p_values)
    highest = 0.0
    for rank, index in enumerate(sorted(range(len(p_values)), key=p_values.__getitem__)):
        highest = max(highest, min(1.0, (len(p_values) - rank) * p_values[index]))
        adjusted[index] = highest
    return adjusted


def simultaneous_z(comparisons: int, *, level: float = 0.95) -> float:
    """Quantile of the normal distribution with which the intervals of several comparisons hold together with
    probability ``level``: that of each one is ``1 - (1 - level) / k``, by Bonferroni's inequality.
    Dunn 1961, JASA 56:52-64.

    Args:
        comparisons: their number, k; 0 counts as 1.
        level: probability that all of them hold.
    """
    return NormalDist().inv_cdf(1 - (1 - level) / 2 / max(1, comparisons))


def indistinguishable_from_best(
    policies: int, beats: Callable[[int, int, float], bool], *, level: float = 0.95
) -> list[int]:
    """Indices of the policies of which none other is shown to be better.

    Policy i leaves the set if for some j a one-sided test that j is better rejects at ``(1 - level) / (k - 1)``; so the
    truly best of k stays in it with probability ``level``. Gupta 1965, Technometrics 7:225-245, with Bonferroni's
    bound.

    Args:
        policies: their number, k.
        beats: True if a test that errs with at most the probability it is given, the third argument, finds the first
            better than the second.
        level: probability that the best is in the set.
    """
    chance = (1 - level) / max(policies - 1, 1)
    return [
        policy
        for policy in range(policies)
        if not any(beats(other, policy, chance) for other in range(policies) if other != policy)
    ]


_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(256)


def log_evidence(pairs: int, wins: int, losses: int, *, difference: float = 0.0) -> float:
    """Logarithm of the evidence against a difference of two success rates: the mean wealth, from 1, of gamblers who
    bet fixed shares at odds that are fair if it is the true one.

    With ``x`` 1, 0 or 1/2 for a win, a loss or neither, and ``m = (1 + difference) / 2``, it is the mean of
    ``prod (1 + bet (x - m))`` over bets between ``-1 / (1 - m)`` and ``1 / m``. At difference 0 that is
    ``2^(b + c) b! c! / (b + c + 1)!`` for b wins and c losses: Robbins 1970, Annals of Mathematical Statistics
    41:1397-1409. The true difference is ever assigned ``1 / alpha`` with probability alpha at most, no matter how
    often one looks (Ville's inequality): Waudby-Smith and Ramdas 2024, JRSS B 86:1-27; Orabona and Jun 2024,
    arXiv:2110.14099.

    Args:
        pairs: number of episodes that both policies ran.
        wins: pairs in which only the first succeeds.
        losses: pairs in which only the second succeeds.
        difference: rate of the first minus rate of the second, in (-1, 1).
    """
    mean = (1 + difference) / 2
    width = 1 / mean + 1 / (1 - mean)
    bets = -1 / (1 - mean) + width * (_NODES + 1) / 2
    gains = (
        wins * np.log1p(bets * (1 - mean))
        + losses * np.log1p(-bets * mean)
        + (pairs - wins - losses) * np.log1p(bets * (0.5 - mean))
    )
    highest = gains.max()
    return float(highest + np.log((_WEIGHTS * np.exp(gains - highest)).sum() / 2))


def anytime_interval(pairs: int, wins: int, losses: int, *, level: float = 0.95) -> tuple[float, float]:
    """Bounds of the difference of two success rates that hold at every number of pairs at once, so that one may look
    after each pair and stop: the differences against which the evidence is below ``1 / (1 - level)``.

    Args:
        pairs: number of episodes that both policies ran.
        wins: pairs in which only the first succeeds.
        losses: pairs in which only the second succeeds.
        level: probability that the true difference is never outside.
    """
    threshold = -math.log(1 - level)
    estimate = (wins - losses) / pairs if pairs else 0.0
    middle = min(max(estimate, -1 + 1e-9), 1 - 1e-9)

    def excess(difference: float) -> float:
        return log_evidence(pairs, wins, losses, difference=difference) - threshold

    edge = 1 - 1e-9
    low = _crossing(excess, -edge, middle) if excess(-edge) > 0 else -1.0
    high = _crossing(lambda difference: -excess(difference), middle, edge) if excess(edge) > 0 else 1.0
    return low, high


def pairs_needed(discordant: float, difference: float, *, power: float = 0.8, z: float = Z_95) -> int:
    """Number of pairs after which a test at 5 % finds a difference with the given power.
    Connor 1987, Biometrics 43:207-211.

    Args:
        discordant: share of the pairs in which only one of the two succeeds; at least the difference.
        difference: difference of the success rates to find, above 0.
        power: probability of finding it.
        z: quantile of the normal distribution that belongs to the level of the test.
    """
    share = max(discordant, difference)
    root = z * math.sqrt(share) + NormalDist().inv_cdf(power) * math.sqrt(share - difference * difference)
    return math.ceil((root / difference) ** 2)


def _crossing(falling: Callable[[float], float], low: float, high: float) -> float:
    """Point between low and high where a function that falls from above 0 to below it is 0."""
    for _ in range(60):
        middle = (low + high) / 2
        if falling(middle) > 0:
            low = middle
        else:
            high = middle
    return (low + high) / 2
