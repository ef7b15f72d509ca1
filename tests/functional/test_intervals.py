"""Intervals of means over several training runs. The numbers can be checked by hand, or are counted over every draw."""

from __future__ import annotations

import math

import numpy as np
import pytest

from rlpipe.functional.intervals import (
    difference_interval,
    difference_test,
    student_quantile,
    student_tail,
    variance_over_runs,
    widened_over_runs,
    wilson_interval,
)
from rlpipe.functional.paired import tango_interval

FIRST = [[1, 1, 0, 1], [1, 1, 0, 0]]
SECOND = [[0, 0, 1, 0], [0, 0, 1, 0]]
"""Two runs of a kind each, in the same four episodes: five of eight successes against two of eight."""


@pytest.mark.parametrize(("freedom", "quantile"), [(1, 12.706), (2, 4.303), (3, 3.182), (10, 2.228), (math.inf, 1.960)])
def test_students_quantile_is_that_of_the_tables(freedom, quantile):
    assert student_quantile(0.95, freedom) == pytest.approx(quantile, abs=1e-3)
    assert student_tail(quantile, freedom) == pytest.approx(0.025, abs=5e-5)


def test_the_variance_of_a_difference_adds_that_between_seeds_and_the_covariance_over_shared_episodes():
    """Rates are 3/4 and 1/2, and 1/4 twice."""
    covariance = np.cov([*FIRST, *SECOND]) / 4
    within, across = covariance[0, 1] + covariance[2, 3], covariance[:2, 2:].mean()
    between = (1 / 4) ** 2 / 2 / 2  # of the first group alone: the runs of the second have equal rates
    variance, freedom = variance_over_runs([FIRST, SECOND], shared=True)
    assert variance == pytest.approx(between + (episodes := within - 2 * across))
    assert freedom == pytest.approx(variance**2 / (between**2 / 1 + episodes**2 / 3))


def test_runs_with_episodes_of_their_own_vary_as_much_as_their_means_differ():
    variance, freedom = variance_over_runs([FIRST, [[0, 0], [1, 1], [0, 1]]])
    assert variance == pytest.approx((1 / 4) ** 2 / 2 / 2 + 0.25 / 3)
    assert freedom == pytest.approx(variance**2 / ((1 / 64) ** 2 / 1 + (1 / 12) ** 2 / 2))


def test_episodes_that_all_runs_solve_or_fail_alike_are_no_more_evidence_than_one_run():
    run = [1, 0] * 50
    alike = widened_over_runs((0.5, 0.5), [run] * 5, shares=True, shared=True)
    assert alike == pytest.approx(wilson_interval(50, 100), abs=0.01)
    assert widened_over_runs((0.5, 0.5), [run] * 5, shares=True) == (0.5, 0.5)


def test_equal_runs_do_not_differ_where_they_share_their_episodes():
    run = [1, 0] * 50
    assert variance_over_runs([[run] * 2, [run] * 2], shared=True) == (0, math.inf)
    assert difference_interval([run] * 2, [run] * 2, shares=True, shared=True)[1] > 0.05  # 100 episodes are not certain


def test_the_interval_of_a_share_stays_between_0_and_1_where_few_seeds_differ_much():
    low, high = widened_over_runs((0.7, 0.8), [[1] * 100, [1] * 50 + [0] * 50], shares=True, shared=True)
    assert 0 < low < 0.2
    assert 0.9 < high < 1
    assert difference_interval([[1] * 9, [0] * 9], [[0] * 9, [1] * 9], shares=True, shared=True) == (-1, 1)


def test_the_test_of_a_difference_rejects_at_5_percent_where_the_interval_leaves_out_0():
    """Groups of two runs in 20 episodes: the first solves so many of them, the second four."""
    theirs = [[1] * 4 + [0] * 16] * 2
    p_values = []
    for solved in range(4, 21):
        ours = [[1] * solved + [0] * (20 - solved)] * 2
        low, _ = difference_interval(ours, theirs, shares=True, shared=True)
        p_values.append(difference_test(ours, theirs, shared=True))
        assert (p_values[-1] < 0.05) == (low > 0)
        assert p_values[-1] == difference_test(theirs, ours, shared=True)
    assert (p_values[0], p_values == sorted(p_values, reverse=True)) == (1, True)


def test_one_run_each_in_the_same_episodes_has_tangos_interval():
    """Twelve episodes that only the first solves, three that only the second does, 35 alike."""
    first, second = [1] * 12 + [0] * 3 + [1] * 30 + [0] * 5, [0] * 12 + [1] * 3 + [1] * 30 + [0] * 5
    assert difference_interval([first], [second], shares=True, shared=True) == tango_interval(50, 12, 3)
    low, high = difference_interval([first], [second], shares=True)
    assert low < tango_interval(50, 12, 3)[0]
    assert high > tango_interval(50, 12, 3)[1]


SEEDS = [2, 3, 5, 10]
DEVIATIONS = [0.0, 0.5, 1.5]
"""Standard deviations of the logit of success between seeds."""
RATES = [0.5, 0.9]


def outcomes(generator: np.random.Generator, seeds: int, deviation: float, logits: np.ndarray) -> np.ndarray:
    """[seeds, episodes] success of runs whose logit differs from that of each episode by one number of the run."""
    shifts = generator.normal(0, deviation, size=(seeds, 1))
    return (generator.random((seeds, len(logits))) < 1 / (1 + np.exp(-(logits + shifts)))).astype(float)


def wrong_decisions(seeds: int, deviation: float, rate: float, comparisons: int) -> float:
    """Share of comparisons of equal groups, in 100 shared episodes of which some are harder, with p below 0.05."""
    generator, decisions = np.random.default_rng(0), 0
    for _ in range(comparisons):
        logits = generator.normal(math.log(rate / (1 - rate)), 1.5, size=100)
        ours, theirs = (outcomes(generator, seeds, deviation, logits) for _ in range(2))
        decisions += difference_test(ours, theirs, shared=True) < 0.05
    return decisions / comparisons


def coverage(seeds: int, deviation: float, rate: float, groups: int) -> float:
    """Share of the intervals of one group that hold its mean over all seeds and episodes."""
    nodes, weights = np.polynomial.hermite_e.hermegauss(60)
    center = math.log(rate / (1 - rate))
    truth = weights @ (1 / (1 + np.exp(-(center + math.hypot(1.5, deviation) * nodes)))) / weights.sum()
    generator, covered = np.random.default_rng(0), 0
    for _ in range(groups):
        runs = outcomes(generator, seeds, deviation, generator.normal(center, 1.5, size=100))
        low, high = widened_over_runs(wilson_interval(runs.sum(), runs.size), runs, shares=True, shared=True)
        covered += low <= truth <= high
    return covered / groups


def test_three_seeds_that_differ_much_are_rarely_taken_for_a_difference_and_their_interval_holds_the_mean():
    assert wrong_decisions(3, 1.5, rate=0.5, comparisons=300) <= 0.06
    assert coverage(3, 1.5, rate=0.5, groups=300) >= 0.90


@pytest.mark.soak
@pytest.mark.parametrize("rate", RATES)
@pytest.mark.parametrize("deviation", DEVIATIONS)
@pytest.mark.parametrize("seeds", SEEDS)
def test_p_errs_as_rarely_as_it_says_and_intervals_hold_the_mean(seeds, deviation, rate):
    assert wrong_decisions(seeds, deviation, rate, comparisons=1_000) <= 0.06
    assert coverage(seeds, deviation, rate, groups=1_000) >= (0.90 if seeds > 2 else 0.85)
