"""Formulas of curricula."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlpipe.functional.curricula import (
    demonstration_shares,
    edge_levels,
    geometric_starts,
    moved_edge,
    range_entropy,
    rank_shares,
    spread_levels,
)


def test_half_of_the_episodes_begin_at_the_present_start_and_the_others_closer_to_the_end():
    steps, probabilities = geometric_starts(10, 20)
    assert steps.tolist() == [10, 11, 12, 13, 14]
    assert probabilities.tolist() == [0.5, 0.25, 0.125, 0.0625, 0.0625]


def test_no_episode_begins_after_the_last_step():
    assert geometric_starts(10, 11)[0].tolist() == [10, 11, 11, 11, 11]


def test_no_episode_begins_before_the_first_level():
    levels, probabilities = spread_levels(2)
    assert levels.tolist() == [2, 1, 0, 0, 0]
    assert probabilities.sum() == 1.0


def test_a_demonstration_gets_episodes_in_proportion_to_how_far_its_start_has_yet_to_move():
    shares = demonstration_shares(np.array([30, 10]), np.array([40, 40]))
    assert shares.tolist() == [0.75, 0.25]


def test_demonstrations_at_their_beginning_share_alike():
    assert demonstration_shares(np.array([0, 0]), np.array([40, 20])).tolist() == [0.5, 0.5]


def test_shares_by_rank_fall_with_the_rank():
    assert rank_shares(np.array([5.0, 7.0]), 1.0) == pytest.approx([1 / 3, 2 / 3])
    assert rank_shares(np.array([5.0, 7.0]), 0.5) == pytest.approx([1 / 5, 4 / 5])


@given(st.lists(st.floats(-10, 10), min_size=1, max_size=20), st.floats(0.1, 2.0))
def test_shares_by_rank_sum_to_one_and_follow_the_scores(scores, temperature):
    shares = rank_shares(np.array(scores), temperature)
    assert shares.sum() == pytest.approx(1.0)
    for one, share in zip(scores, shares, strict=True):
        for other, others in zip(scores, shares, strict=True):
            assert (share >= others) if one >= other else (share <= others)


def test_an_edge_comes_outwards_in_equal_steps_or_by_equal_factors():
    assert edge_levels(1.0, 3.0, 4).tolist() == [1.0, 1.5, 2.0, 2.5, 3.0]
    assert edge_levels(1.0, 0.25, 2, logarithmic=True).tolist() == [1.0, 0.5, 0.25]


@given(st.floats(1e-3, 1e3), st.floats(1e-3, 1e3), st.integers(1, 50), st.booleans())
def test_an_edge_begins_and_ends_exactly_and_never_turns_back(start, widest, steps, logarithmic):
    levels = edge_levels(start, widest, steps, logarithmic=logarithmic)
    assert (levels[0], levels[-1], len(levels)) == (start, widest, steps + 1)
    assert (np.diff(levels) * np.sign(widest - start) >= 0).all()


@pytest.mark.parametrize(
    ("place", "success", "moved"),
    [(1, 0.8, 2), (1, 0.79, 1), (1, 0.5, 1), (1, 0.49, 0), (3, 1.0, 3), (0, 0.0, 0)],
)
def test_an_edge_moves_by_a_step_within_its_way(place, success, moved):
    assert moved_edge(place, 3, success, widen_at=0.8, narrow_at=0.5) == moved


@given(st.integers(0, 9), st.lists(st.floats(0, 1), max_size=40), st.floats(0.5, 1), st.floats(0, 0.5))
def test_an_edge_never_leaves_its_way(place, shares, widen_at, narrow_at):
    for success in shares:
        before, place = place, moved_edge(place, 9, success, widen_at, narrow_at)
        assert 0 <= place <= 9
        assert abs(place - before) <= 1


def test_the_entropy_of_ranges_counts_the_levels_that_they_hold():
    assert range_entropy(np.array([0, 0])) == 0.0
    assert range_entropy(np.array([1, 7])) == pytest.approx((np.log(2) + np.log(8)) / 2)
