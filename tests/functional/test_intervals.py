"""Intervals of means over several training runs. The numbers can be checked by hand, or are counted over every draw."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from rlpipe.functional.intervals import (
    bootstrap_difference,
    bootstrap_over_runs,
    difference_interval,
    difference_test,
    wilson_interval,
)
from rlpipe.functional.paired import tango_interval

FIRST = [[1, 1, 0, 1], [1, 0, 0, 1]]
SECOND = [[1, 0, 0, 0], [0, 0, 0, 1]]
"""Two runs of a kind each, in the same four episodes: five of eight successes against two of eight."""


def every_draw() -> np.ndarray:
    """Difference for each of the 2^2 * 2^2 * 4^4 ways to draw two runs of each kind, and four episodes for all."""
    episodes = list(itertools.product(range(4), repeat=4))
    runs = list(itertools.product(range(2), repeat=2))

    def means(table: list[list[int]]) -> np.ndarray:
        """[draws of runs, draws of episodes]"""
        cells = np.asarray(table)[:, np.asarray(episodes)].mean(-1)
        return cells[np.asarray(runs)].mean(1)

    return (means(FIRST)[:, None] - means(SECOND)[None]).reshape(-1)


def test_the_crossed_bootstrap_draws_runs_and_one_set_of_episodes_for_all_of_them():
    draws = every_draw()
    assert (len(draws), draws.mean()) == (4096, 3 / 8)
    assert draws.std() == pytest.approx(0.203, abs=5e-4)
    assert bootstrap_difference(FIRST, SECOND, shared=True) == (0, 0.75) == tuple(np.quantile(draws, [0.025, 0.975]))


def test_episodes_that_all_runs_solve_or_fail_alike_are_no_more_evidence_than_one_run():
    run = [1, 0] * 50
    low, high = bootstrap_over_runs([run] * 5, shared=True)
    assert (low, high) == pytest.approx(wilson_interval(50, 100), abs=0.02)
    apart = bootstrap_over_runs([run] * 5)
    assert apart[1] - apart[0] < 0.6 * (high - low)


def test_equal_runs_do_not_differ_where_they_share_their_episodes():
    run = [1, 0] * 50
    assert bootstrap_difference([run] * 2, [run] * 2, shared=True) == (0, 0)
    assert difference_interval([run] * 2, [run] * 2, shares=True, shared=True)[1] > 0.05  # 100 episodes are not certain


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


def test_a_mean_over_runs_that_share_episodes_is_covered_as_often_as_it_says():
    """Three runs in the same 50 episodes, half of them easy and half hard; another evaluation has other episodes."""
    generator, truth, comparisons = np.random.default_rng(0), 0.5, 150
    covered = {True: 0, False: 0}
    for _ in range(comparisons):
        rates = generator.choice([0.1, 0.9], size=50)
        runs = (generator.random((3, 50)) < rates).astype(float)
        for shared in covered:
            low, high = bootstrap_over_runs(runs, shared=shared)
            covered[shared] += low <= truth <= high
    assert covered[True] / comparisons >= 0.93
    assert covered[False] / comparisons <= 0.88
