"""Shares of the variance of an outcome. The numbers can be checked by hand, or are counted over many tables."""

from __future__ import annotations

import numpy as np
import pytest

from rlpipe.functional.sensitivity import first_order_share, total_share


def test_a_quantity_that_decides_the_outcome_has_all_of_the_variance():
    groups, outcomes = np.repeat([0, 1], 50), np.repeat([0, 1], 50)
    assert first_order_share(groups, outcomes)[0] == 1
    assert total_share([0, 0, 1, 1], [1, 1, 0, 0])[0] == 2  # an estimate; the share itself is at most 1
    assert total_share([0, 1, 0, 1], [1, 1, 0, 0])[0] == 1  # half of them change, as half of fair coins would


def test_what_chance_adds_to_the_variance_between_groups_is_taken_off():
    """Groups with 1 and 2 of 4: SST 1.875, SSB 0.125, MSW 1.75 / 6, so (0.125 - 0.2917) / 1.875."""
    share, low, high = first_order_share([0] * 4 + [1] * 4, [0, 0, 0, 1, 0, 0, 1, 1])
    assert share == pytest.approx((0.125 - 1.75 / 6) / 1.875)
    assert low == 0
    assert high > 0


def test_an_outcome_that_never_changes_has_a_total_share_of_zero_with_an_upper_bound():
    share, low, high = total_share([0, 1] * 50, [0, 1] * 50)
    assert (share, low) == (0, 0)
    assert high == pytest.approx(2 * 0.037, abs=0.001)  # Wilson's upper bound of 0 of 100


@pytest.mark.parametrize("outcomes", [[0] * 8, [1] * 8])
def test_without_variance_there_is_nothing_to_share(outcomes):
    with pytest.raises(ValueError, match="both kinds"):
        first_order_share([0, 1] * 4, outcomes)
    with pytest.raises(ValueError, match="both kinds"):
        total_share(outcomes, outcomes)


@pytest.mark.parametrize("episodes", [200, 1000])
def test_bounds_hold_and_find_no_share_where_there_is_none(episodes):
    """Success of 0.05 where both of two quantities are high, else of 0.95; a third one does nothing.

    A half by two fifths of the square fails: p = 0.95 - 0.9 * 0.2 = 0.77, Var 0.1771. On the first quantity alone the
    rate is 0.5 or 0.95 (Var 0.4 * 0.6 * 0.45^2), on the second 0.59 or 0.95 (Var 0.25 * 0.36^2). With all else known,
    the first decides where the second is high and luck in the middle (0.5 * 0.9, Var 0.4 * 0.6), and likewise the
    second (0.4 * 0.9, Var 0.25).
    """
    generator = np.random.default_rng(0)
    first, total = np.array([0.0486, 0.0324, 0.0]) / 0.1771, np.array([0.108, 0.09, 0.0]) / 0.1771
    tables, held, found = 100, np.zeros((2, 3)), 0
    for _ in range(tables):
        levels, other = generator.random((2, episodes, 3))
        luck = generator.random(episodes)

        def succeeds(drawn: np.ndarray, luck: np.ndarray = luck) -> np.ndarray:
            return luck < np.where((drawn[:, 0] > 0.6) & (drawn[:, 1] > 0.5), 0.05, 0.95)

        outcomes = succeeds(levels)
        for axis in range(3):
            redrawn = levels.copy()
            redrawn[:, axis] = other[:, axis]
            _, low, high = first_order_share((levels[:, axis] * 10).astype(int), outcomes)
            held[0, axis] += low <= first[axis] <= high
            found += axis == 2 and low > 0
            _, low, high = total_share(outcomes, succeeds(redrawn))
            held[1, axis] += low <= total[axis] <= high
    assert held.min() / tables >= 0.9
    assert found / tables <= 0.05
