"""Orientations between two others."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from rlpipe.functional.rotations import rotation_between

NONE = [1.0, 0.0, 0.0, 0.0]


def about_z(angle):
    return np.array([np.cos(angle / 2), 0.0, 0.0, np.sin(angle / 2)])


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_halfway_between_none_and_a_quarter_turn_is_an_eighth_of_a_turn(sign):
    found = rotation_between(NONE, sign * about_z(np.pi / 2), 0.5)
    assert np.abs(found) == pytest.approx(np.abs(about_z(np.pi / 4)))


def test_three_quarters_of_a_turn_are_reached_backwards():
    found = rotation_between(NONE, about_z(3 * np.pi / 2), 0.5)
    assert np.abs(found) == pytest.approx(np.abs(about_z(-np.pi / 4)))


@given(st.lists(st.floats(-1, 1), min_size=8, max_size=8), st.floats(0, 1))
def test_the_result_is_a_unit_quaternion_that_begins_and_ends_where_it_should(numbers, share):
    first, second = np.array(numbers[:4]), np.array(numbers[4:])
    assume(min(np.linalg.norm(first), np.linalg.norm(second)) > 0.1)
    first, second = first / np.linalg.norm(first), second / np.linalg.norm(second)
    assert np.linalg.norm(rotation_between(first, second, share)) == pytest.approx(1.0)
    assert abs(rotation_between(first, second, 0.0) @ first) == pytest.approx(1.0)
    assert abs(rotation_between(first, second, 1.0) @ second) == pytest.approx(1.0)
