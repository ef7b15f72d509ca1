"""Intervals of measured rates and means, and of the difference of two. Needs no torch, which takes seconds to load."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import NormalDist

import numpy as np
from numpy.typing import ArrayLike, NDArray

from rlpipe.functional.paired import Z_95, tango_interval, wins_and_losses


def wilson_interval(successes: float, episodes: float, *, z: float = Z_95) -> tuple[float, float]:
    """Bounds of a success rate, 95 % by default.  Wilson 1927, JASA 22:209-212.

    Unlike ``p +- z sqrt(p (1 - p) / n)``, they stay inside [0, 1] and do not coincide at 0 and n successes.

    Args:
        successes: number of successful episodes.
        episodes: number of episodes, n.
        z: quantile of the normal distribution.
    Raises:
        ValueError: there are no episodes, or more successes than episodes.
    """
    if not 0 <= successes <= episodes or episodes == 0:
        raise ValueError(f"a success rate needs 0 <= successes <= episodes, episodes > 0; got {successes}/{episodes}.")
    rate = successes / episodes
    center = rate + z * z / (2 * episodes)
    spread = z * math.sqrt(rate * (1 - rate) / episodes + z * z / (4 * episodes * episodes))
    scale = 1 + z * z / episodes
    low = (center - spread) / scale if successes else 0.0  # exact: rounding would miss the rate itself
    high = (center + spread) / scale if successes < episodes else 1.0
    return low, high


def newcombe_interval(first: tuple[int, int], second: tuple[int, int], *, z: float = Z_95) -> tuple[float, float]:
    """Bounds of the difference p_1 - p_2 of two success rates, 95 % by default, from the Wilson bounds (l, u) of each:
    ``d - sqrt((p_1 - l_1)^2 + (u_2 - p_2)^2)``, ``d + sqrt((u_1 - p_1)^2 + (p_2 - l_2)^2)``.
    Newcombe 1998, Statistics in Medicine 17:873-890, method 10.

    Args:
        first: successes and episodes of the first rate.
        second: successes and episodes of the second rate.
        z: quantile of the normal distribution.
    """
    (low_1, high_1), (low_2, high_2) = wilson_interval(*first, z=z), wilson_interval(*second, z=z)
    rate_1, rate_2 = first[0] / first[1], second[0] / second[1]
    difference = rate_1 - rate_2
    return (
        difference - math.hypot(rate_1 - low_1, high_2 - rate_2),
        difference + math.hypot(high_1 - rate_1, rate_2 - low_2),
    )


RESAMPLES = 9_999
"""Resamples of a bootstrap. Its generator always has the same seed, so the same values give the same interval."""
_AT_ONCE = 2_000_000
"""Values drawn at a time, to bound the memory."""


def bootstrap_interval(values: ArrayLike, *, level: float = 0.95) -> tuple[float, float]:
    """Bounds of a mean: bias-corrected and accelerated bootstrap (BCa).  Efron 1987, JASA 82:171-185.

    The order of the values does not matter. Equal values give an interval of width 0.

    Args:
        values: [n] independent observations, n at least 2.
        level: of confidence.
    Raises:
        ValueError: fewer than 2 values, or one that is not finite.
    """
    sample = np.sort(np.asarray(values, dtype=np.float64).ravel())
    if sample.size < 2 or not np.isfinite(sample).all():
        raise ValueError(f"an interval needs at least 2 finite values; got {sample}.")
    if sample[0] == sample[-1]:
        return float(sample[0]), float(sample[0])
    mean = sample.mean()
    scale = np.abs(sample - mean).max()
    offsets = (sample - mean) / scale  # scaled, so that squares and cubes neither vanish nor overflow
    means = np.sort(_resampled_means(offsets, RESAMPLES, np.random.default_rng(0)))
    tie = 1e-9  # differences this small are rounding
    below = (np.count_nonzero(means < -tie) + np.count_nonzero(means <= tie)) / (2 * RESAMPLES)
    normal = NormalDist()
    bias = normal.inv_cdf(min(max(below, 1 / RESAMPLES), 1 - 1 / RESAMPLES))
    acceleration = float((offsets**3).sum() / (6 * (offsets**2).sum() ** 1.5))  # of the jackknifed mean

    def bound(share: float) -> float:
        shifted = bias + normal.inv_cdf(share)
        return float(mean + scale * np.quantile(means, normal.cdf(bias + shifted / (1 - acceleration * shifted))))

    return bound((1 - level) / 2), bound((1 + level) / 2)


def variance_over_runs(groups: Sequence[Sequence[ArrayLike]], *, shared: bool = False) -> tuple[float, float]:
    """Variance of the mean over the episodes of a group of runs, or of the difference of two such means, where seeds
    and episodes vary, and its degrees of freedom.

    Of n runs in the same m episodes, with s^2 the variance between the means of runs and Cov the covariance over
    episodes of the mean of a run with that of another one, of its group (2) or of the other group (3), it is
    ``sum_g s_g^2 / n_g + max(0, sum_g Cov2_g - 2 Cov3)``: Obuchowski and Rockette 1995, Communications in Statistics
    24:285-308, for readers (here seeds) nested within tests (here groups): Hillis 2014, Statistics in Medicine
    33:330-360, p. 344. A group of one run has no s^2: then its seeds are not covered. Runs with episodes of their own
    have s^2 / n alone, which contains what episodes vary; each weighs by their number (Cochran 1977, section 6.3).
    Few seeds make s^2 uncertain, so the degrees of freedom are ``V^2 / sum_i V_i^2 / f_i`` over the parts V_i, with
    n - 1 for seeds and m - 1 for episodes: Satterthwaite 1946, Biometrics Bulletin 2:110-114.

    Args:
        groups: one or two groups; of each run its [m] values, one per episode.
        shared: number i is the same episode in every run of all groups.
    Returns:
        Variance, in the square of the values' unit, and degrees of freedom: infinite where the variance is 0.
    """
    parts = list[tuple[float, int]]()
    for runs in groups:
        samples = [np.asarray(run, dtype=np.float64) for run in runs]
        if len(samples) > 1:
            sizes = np.array([sample.size for sample in samples], dtype=np.float64)
            means = np.array([sample.mean() for sample in samples])
            offsets = (means - sizes @ means / sizes.sum()) * sizes / sizes.mean()
            parts.append((float(offsets @ offsets) / (len(samples) - 1) / len(samples), len(samples) - 1))
        elif not shared and samples[0].size > 1:
            parts.append((float(samples[0].var(ddof=1)) / samples[0].size, samples[0].size - 1))
    if shared and (episodes := np.size(groups[0][0])) > 1:
        parts.append((max(0.0, _covariance_of_episodes(groups)) / episodes, episodes - 1))
    variance = sum(part for part, _ in parts)
    uncertainty = sum(part * part / freedom for part, freedom in parts)
    return variance, variance * variance / uncertainty if uncertainty > 0 else math.inf


def _covariance_of_episodes(groups: Sequence[Sequence[ArrayLike]]) -> float:
    """``m (sum_g Cov2_g - 2 Cov3)`` of one or two groups; a run that is alone in its group counts with its variance."""
    tables = [np.asarray(runs, dtype=np.float64) for runs in groups]  # [runs, episodes] each
    means = [table.mean(0) for table in tables]
    total = float(np.var(means[0] - means[1] if len(means) == 2 else means[0], ddof=1))
    for table, mean in zip(tables, means, strict=True):
        if (runs := len(table)) > 1:  # what is left of a run beyond its group's mean is no covariance of two
            total -= float(np.var(table - mean, axis=1, ddof=1).sum()) / (runs - 1) / runs
    return total


_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(256)
_MOST_FREEDOM = 1e4
"""Degrees of freedom beyond which Student's distribution is taken as if it had so many."""


def student_tail(t: float, freedom: float) -> float:
    """Probability that Student's t exceeds a value of at least 0: with ``t = sqrt(f) / tan(a)`` it is
    ``Gamma((f + 1) / 2) / (sqrt(pi) Gamma(f / 2))`` times the integral of ``sin(x)^(f - 1)`` from 0 to a.

    Args:
        t: value, infinite for a difference without variance.
        freedom: degrees of freedom f, at least 1.
    """
    f = min(freedom, _MOST_FREEDOM)
    angle = math.atan2(math.sqrt(f), t)
    powers = (f - 1) * np.log(np.sin(angle * (_NODES + 1) / 2)) if angle else np.full_like(_NODES, -math.inf)
    scale = math.exp(math.lgamma((f + 1) / 2) - math.lgamma(f / 2)) / math.sqrt(math.pi)
    return float(scale * angle / 2 * (_WEIGHTS @ np.exp(powers)))


def student_quantile(level: float, freedom: float) -> float:
    """Value that Student's t exceeds in size with probability ``1 - level``, of at least 1 degree of freedom."""
    low, high = 0.0, math.pi / 2
    for _ in range(60):
        middle = (low + high) / 2  # in the angle, because the quantile has no bound
        is_beyond = 2 * student_tail(1 / math.tan(middle), freedom) < 1 - level
        low, high = (middle, high) if is_beyond else (low, middle)
    return 1 / math.tan(high)


def widened_over_runs(
    bounds: tuple[float, float], runs: Sequence[ArrayLike], *, shares: bool, shared: bool = False
) -> tuple[float, float]:
    """Returns 95 % bounds of a mean over episodes that also enclose those over runs, whose episodes depend on each
    other: ``mean +- t sqrt(V)`` of ``variance_over_runs``, with Student's t.

    A share has Wilson's instead, of ``p (1 - p) / V`` episodes and with t for z, because so few seeds say little of
    what is left up to 0 and 1: Korn and Graubard 1998, Survey Methodology 24:193-201 (effective number of episodes);
    Franco et al. 2019, Journal of Survey Statistics and Methodology 7:334-364 (Wilson's of it).

    Args:
        bounds: lower and upper one, from all episodes alike
        runs: value of each episode, of each run; one run adds nothing
        shares: True if every value is 0 or 1
        shared: number i is the same episode in every run
    """
    if len(runs) == 1:
        return bounds
    variance, freedom = variance_over_runs([runs], shared=shared)
    if variance == 0:
        return bounds
    mean, t = float(np.concatenate([np.ravel(run) for run in runs]).mean()), student_quantile(0.95, freedom)
    low, high = mean - t * math.sqrt(variance), mean + t * math.sqrt(variance)
    if shares:
        episodes = mean * (1 - mean) / variance
        low, high = wilson_interval(mean * episodes, episodes, z=t)
    return min(low, bounds[0]), max(high, bounds[1])


def difference_interval(
    ours: Sequence[Sequence[float]],
    theirs: Sequence[Sequence[float]],
    *,
    shares: bool,
    shared: bool = False,
    level: float = 0.95,
) -> tuple[float, float]:
    """Returns bounds of how much higher the mean of all episodes is in our runs than in theirs.

    Shares of one run each, in the same episodes, have Tango's interval. All others are ``difference +- t sqrt(V)`` of
    ``variance_over_runs``, with Student's t, and for shares the bounds also enclose Newcombe's, because V alone would
    be certain of 400 successes against 400.

    Args:
        ours: value of each episode, of each run
        theirs: likewise
        shares: True if every value is 0 or 1
        shared: number i is the same episode in every run of both
        level: of confidence
    """
    z = Z_95 if level == 0.95 else NormalDist().inv_cdf((1 + level) / 2)
    if shares and shared and len(ours) == len(theirs) == 1:
        return tango_interval(len(ours[0]), *wins_and_losses(ours[0], theirs[0]), z=z)
    variance, freedom = variance_over_runs([ours, theirs], shared=shared)
    difference, reach = _difference(ours, theirs), student_quantile(level, freedom) * math.sqrt(variance)
    low, high = difference - reach, difference + reach
    if not shares:
        return low, high
    least, most = newcombe_interval(_successes(ours), _successes(theirs), z=z)
    return max(-1.0, min(low, least)), min(1.0, max(high, most))


def probability_of_improvement(
    first: Sequence[float], second: Sequence[float], *, level: float = 0.95
) -> tuple[float, float, float]:
    """Probability that a run of the first kind beats one of the second, and its bounds from a bootstrap that draws runs
    with replacement within each kind.  Agarwal et al. 2021, arXiv:2108.13264, section 4.3:
    ``P(X > Y) = mean_ij S(x_i, y_j)`` with S 1 where x_i > y_j, 1/2 where they are equal, else 0.

    Args:
        first: one score per run.
        second: one score per run, of the other kind.
        level: of confidence.
    """
    x, y = np.asarray(first, dtype=np.float64), np.asarray(second, dtype=np.float64)
    beats = (x[:, None] > y) + 0.5 * (x[:, None] == y)
    generator = np.random.default_rng(0)
    rows = generator.integers(x.size, size=(RESAMPLES, x.size, 1))
    columns = generator.integers(y.size, size=(RESAMPLES, 1, y.size))
    return float(beats.mean()), *_percentiles(beats[rows, columns].mean((1, 2)), level)


def difference_test(
    ours: Sequence[Sequence[float]], theirs: Sequence[Sequence[float]], *, shared: bool = False
) -> float:
    """Two-sided p-value of equal shares in two groups of runs: one minus the highest level at which
    ``difference_interval`` leaves out 0, so the larger one of Student's and of Newcombe's.

    Of equal groups of 2, 3, 5 and 10 seeds in 100 shared episodes, at most 6 % have one below 0.05, whether seeds
    differ much (a standard deviation of 1.5 in the logit of success) or not at all.

    Args:
        ours: 0 or 1 for each episode, of each run, of which one group at least has several
        theirs: likewise
        shared: number i is the same episode in every run of both
    """
    variance, freedom = variance_over_runs([ours, theirs], shared=shared)
    difference = abs(_difference(ours, theirs))
    t = difference / math.sqrt(variance) if variance > 0 else math.inf if difference else 0.0
    counts = _successes(ours), _successes(theirs)
    lowest_z, highest_z = 0.0, 40.0  # between which Newcombe's interval begins to hold 0
    for _ in range(50):
        z = (lowest_z + highest_z) / 2
        low, high = newcombe_interval(*counts, z=z)
        lowest_z, highest_z = (lowest_z, z) if low <= 0 <= high else (z, highest_z)
    return min(1.0, max(2 * student_tail(t, freedom), math.erfc(lowest_z / math.sqrt(2))))


def _difference(first: Sequence[Sequence[float]], second: Sequence[Sequence[float]]) -> float:
    """Difference of the means over all episodes of two groups of runs."""
    ours, theirs = (float(np.concatenate([np.ravel(run) for run in runs]).mean()) for runs in (first, second))
    return ours - theirs


def _successes(runs: Sequence[Sequence[float]]) -> tuple[int, int]:
    """Successes and episodes of all runs."""
    return round(sum(map(sum, runs))), sum(map(len, runs))


def _percentiles(drawn: NDArray[np.float64], level: float) -> tuple[float, float]:
    """Bounds between which the middle share ``level`` of the drawn values lies."""
    low, high = np.quantile(drawn, [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)


def _resampled_means(sample: NDArray[np.float64], count: int, generator: np.random.Generator) -> NDArray[np.float64]:
    """[count] means of resamples, each as large as the sample and drawn with replacement."""
    means = [
        sample[generator.integers(sample.size, size=(min(step, count - begin), sample.size))].mean(1)
        for step in [max(1, _AT_ONCE // sample.size)]
        for begin in range(0, count, step)
    ]
    return np.concatenate(means) if means else np.empty(0)
