"""Intervals of measured rates and means, and of the difference of two. Needs no torch, which takes seconds to load."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import NormalDist

import numpy as np
from numpy.typing import ArrayLike, NDArray

from rlpipe.functional.paired import Z_95, tango_interval, wins_and_losses


def wilson_interval(successes: int, episodes: int, *, z: float = 1.959963984540054) -> tuple[float, float]:
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


def newcombe_interval(
    first: tuple[int, int], second: tuple[int, int], *, z: float = 1.959963984540054
) -> tuple[float, float]:
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


def bootstrap_over_runs(runs: Sequence[ArrayLike], *, shared: bool = False, level: float = 0.95) -> tuple[float, float]:
    """Bounds of the mean over the episodes of several runs: percentile bootstrap that draws runs with replacement, and
    episodes.

    Where the runs share their episodes, what makes one easy makes it easy for all, so one draw of episodes serves every
    drawn run: pigeonhole bootstrap, Owen 2007, Annals of Applied Statistics 1:386-411. Otherwise each drawn run has a
    draw of its own: Davison and Hinkley 1997, section 3.8.

    Args:
        runs: for each run its [n] values, one per episode.
        shared: number i is the same episode in every run.
        level: of confidence.
    """
    generator = np.random.default_rng(0)
    return _percentiles(_crossed_means([runs], generator)[0] if shared else _pooled_means(runs, generator), level)


def bootstrap_difference(
    first: Sequence[ArrayLike], second: Sequence[ArrayLike], *, shared: bool = False, level: float = 0.95
) -> tuple[float, float]:
    """Bounds of the difference of two such means, by the same bootstrap.

    Args:
        first: for each run its [n] values, one per episode.
        second: likewise, of the runs to subtract.
        shared: number i is the same episode in every run of both.
        level: of confidence.
    """
    return _percentiles(_drawn_differences(first, second, shared), level)


def widened_over_runs(
    bounds: tuple[float, float], runs: Sequence[ArrayLike], *, shared: bool = False
) -> tuple[float, float]:
    """Returns bounds of a mean over episodes that also enclose those over runs, whose episodes depend on each other.

    Args:
        bounds: lower and upper one, from all episodes alike
        runs: value of each episode, of each run; one run adds nothing
        shared: number i is the same episode in every run
    """
    if len(runs) == 1:
        return bounds
    low, high = bootstrap_over_runs(runs, shared=shared)
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

    Shares of one run each, in the same episodes, have Tango's interval. All others are bootstrapped, and for shares the
    bounds also enclose Newcombe's, because a bootstrap alone would be certain of 400 successes against 400.

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
    bounds = [bootstrap_difference(ours, theirs, shared=shared, level=level)]
    if shares:
        counts = [(round(sum(map(sum, runs))), sum(map(len, runs))) for runs in (ours, theirs)]
        bounds.append(newcombe_interval(counts[0], counts[1], z=z))
    return min(low for low, _ in bounds), max(high for _, high in bounds)


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
    ``difference_interval`` leaves out 0.  Davison and Hinkley 1997, section 4.4, with 1 added to what was drawn.

    It is the larger one of the bootstrap's, at least 2 / (RESAMPLES + 1), and of Newcombe's. With few seeds that differ
    much (a standard deviation of 1.5 in the logit of success, 100 episodes) it is below 0.05 for 20, 17, 10 and 5 % of
    equal groups of 2, 3, 5 and 10 seeds each; with a third of that deviation for 9, 6, 3 and 4 %.

    Args:
        ours: 0 or 1 for each episode, of each run, of which one group at least has several
        theirs: likewise
        shared: number i is the same episode in every run of both
    """
    drawn = _drawn_differences(ours, theirs, shared)
    beyond = 1 + min(np.count_nonzero(drawn <= 0), np.count_nonzero(drawn >= 0))
    counts = [(round(sum(map(sum, runs))), sum(map(len, runs))) for runs in (ours, theirs)]
    lowest_z, highest_z = 0.0, 40.0  # between which Newcombe's interval begins to hold 0
    for _ in range(50):
        z = (lowest_z + highest_z) / 2
        low, high = newcombe_interval(counts[0], counts[1], z=z)
        lowest_z, highest_z = (lowest_z, z) if low <= 0 <= high else (z, highest_z)
    return max(min(1.0, 2 * beyond / (RESAMPLES + 1)), math.erfc(lowest_z / math.sqrt(2)))


def _drawn_differences(first: Sequence[ArrayLike], second: Sequence[ArrayLike], shared: bool) -> NDArray[np.float64]:
    """[RESAMPLES] differences of the means of two groups of runs."""
    generator = np.random.default_rng(0)
    if shared:
        ours, theirs = _crossed_means([first, second], generator)
    else:
        ours, theirs = _pooled_means(first, generator), _pooled_means(second, generator)
    return ours - theirs


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


def _pooled_means(runs: Sequence[ArrayLike], generator: np.random.Generator) -> NDArray[np.float64]:
    """[RESAMPLES] means over all episodes of drawn runs; each run weighs by its number of episodes."""
    samples = [np.sort(np.asarray(run, dtype=np.float64)) for run in runs]
    drawn = generator.integers(len(samples), size=(RESAMPLES, len(samples)))
    means, sizes = np.empty(drawn.shape), np.array([sample.size for sample in samples])[drawn]
    for index, sample in enumerate(samples):
        here = drawn == index
        means[here] = _resampled_means(sample, int(here.sum()), generator)
    pooled: NDArray[np.float64] = (means * sizes).sum(1) / sizes.sum(1)
    return pooled


def _crossed_means(groups: Sequence[Sequence[ArrayLike]], generator: np.random.Generator) -> list[NDArray[np.float64]]:
    """[RESAMPLES] means of each group over drawn runs of its own and one draw of the episodes that all runs share."""
    tables = [np.asarray(runs, dtype=np.float64) for runs in groups]  # [runs, episodes] each
    episodes = tables[0].shape[1]
    runs = [generator.integers(len(table), size=(RESAMPLES, len(table))) for table in tables]
    means: list[list[NDArray[np.float64]]] = [[] for _ in tables]
    step = max(1, _AT_ONCE // episodes)
    for begin in range(0, RESAMPLES, step):
        drawn = generator.integers(episodes, size=(min(step, RESAMPLES - begin), episodes))
        for table, rows, parts in zip(tables, runs, means, strict=True):
            of_runs = np.stack([values[drawn].mean(1) for values in table], axis=1)
            parts.append(np.take_along_axis(of_runs, rows[begin : begin + step], axis=1).mean(1))
    return [np.concatenate(parts) for parts in means]
