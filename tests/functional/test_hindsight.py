"""Which step's achievement becomes a goal, and what ends under it."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from rlpipe.functional.hindsight import first_true, future_steps, terminated_under_goal


@st.composite
def steps_of_episodes(draw):
    """Positions and lengths of up to 20 steps, each in an episode of its own, and random numbers."""
    count = draw(st.integers(1, 20))
    lengths = draw(arrays(np.int64, count, elements=st.integers(1, 2**40)))
    positions = np.array([draw(st.integers(0, int(length) - 1)) for length in lengths], dtype=np.int64)
    below_one = st.floats(0.0, 1.0, exclude_max=True)
    return positions, lengths, draw(arrays(np.float64, count, elements=below_one))


@given(steps_of_episodes())
def test_a_goal_comes_from_the_step_itself_or_a_later_one_of_its_episode(steps):
    positions, lengths, uniform = steps
    later = future_steps(positions, lengths, uniform)
    assert (positions <= later).all()
    assert (later < lengths).all()


def test_each_later_step_has_an_equal_part_of_the_random_numbers():
    uniform = np.array([0.0, 0.24, 0.25, 0.49, 0.5, 0.74, 0.75, 0.99])
    later = future_steps(np.full(8, 6), np.full(8, 10), uniform)
    assert later.tolist() == [6, 6, 7, 7, 8, 8, 9, 9]


def test_the_last_step_can_only_achieve_its_own_goal():
    assert future_steps(np.array([9]), np.array([10]), np.array([0.99])).tolist() == [9]


@pytest.mark.parametrize(
    ("terminated", "by_old_goal", "by_new_goal", "expected"),
    [
        (False, False, False, False),
        (False, False, True, True),  # it achieves the new goal
        (True, True, False, False),  # it achieved the old goal only
        (True, True, True, True),
        (True, False, False, True),  # it fell over, whatever the goal
        (True, False, True, True),
    ],
)
def test_a_step_ends_the_task_under_a_goal_that_ends_it_or_for_another_reason(
    terminated, by_old_goal, by_new_goal, expected
):
    columns = (np.array([value]) for value in (terminated, by_old_goal, by_new_goal))
    assert terminated_under_goal(*columns).tolist() == [expected]


def test_the_first_true_row_of_each_column_is_found_and_0_stands_for_none():
    assert first_true(np.array([[0, 1, 0], [1, 1, 0], [1, 0, 0]], dtype=bool)).tolist() == [1, 0, 0]
