"""A hand that grasps something from above and brings it to a goal."""

from __future__ import annotations

import numpy as np
import pytest

from rlpipe.functional.grasping import CLEARANCE, funnel, grasp_and_place

CUBE, GOAL = np.array([0.1, 0.0, 0.02]), np.array([0.0, 0.2, 0.3])


def move(hand, *, fingers=0.08, grasped=False, releases=False, thing=CUBE, goal=GOAL):
    return grasp_and_place(np.array(hand), fingers, thing, goal, grasped=grasped, releases=releases)


@pytest.mark.parametrize(
    ("offset", "displacement"),
    [
        ([0.2, 0.0, -0.05], [0.2, 0.0, 0.0]),  # at the height to keep: to the side alone
        ([0.2, 0.0, 0.0], [0.0, 0.0, 0.05]),  # beside the target: up first
        ([0.2, 0.0, -0.025], [0.1, 0.0, 0.025]),  # half as high: half the way
        ([0.0, 0.003, -0.05], [0.0, 0.003, -0.05]),  # above it: down
        ([0.0, 0.009, -0.02], [0.0, 0.009, 0.0]),  # 9 mm beside it, 4 * (9 - 4) mm above it: on the rim of the funnel
    ],
)
def test_something_comes_down_on_its_target_in_a_funnel(offset, displacement):
    np.testing.assert_allclose(funnel(np.array(offset), 0.004), displacement, atol=1e-12)


def test_a_hand_opens_on_its_way_to_the_thing_and_closes_once_it_is_around_it():
    assert move([0.0, 0.0, 0.3]).opens
    np.testing.assert_allclose(move([0.1, 0.0, 0.1]).displacement, [0.0, 0.0, -0.08], atol=1e-12)
    around = move([0.1, 0.0, 0.025])
    assert not around.opens
    np.testing.assert_allclose(around.displacement, [0.0, 0.0, -0.005], atol=1e-12)
    assert not move([0.1, 0.0, 0.025], fingers=0.04).opens  # it goes on closing
    assert move([0.1, 0.0, 0.031]).opens  # 11 mm too high
    assert move([0.1, 0.016, 0.02]).opens  # 16 mm to the side


def test_a_closed_hand_waits_above_the_thing_until_it_is_open():
    closed = move([0.1, 0.0, 0.1], fingers=0.01)
    assert closed.opens
    np.testing.assert_allclose(closed.displacement, [0.0, 0.0, CLEARANCE - 0.08], atol=1e-12)


def test_what_is_grasped_is_brought_straight_to_a_goal_in_the_air_and_held_there():
    carried = move([0.1, 0.0, 0.02], grasped=True)
    assert not carried.opens
    np.testing.assert_allclose(carried.displacement, GOAL - CUBE)
    held = move(GOAL, grasped=True, thing=GOAL)
    assert not held.opens
    np.testing.assert_allclose(held.displacement, 0.0)


def test_what_is_to_lie_at_its_goal_comes_from_above_and_is_let_go_there():
    carried = move([0.1, 0.0, 0.02], grasped=True, releases=True, goal=np.array([0.0, 0.0, 0.02]))
    assert not carried.opens
    np.testing.assert_allclose(carried.displacement, [0.0, 0.0, CLEARANCE], atol=1e-12)
    for grasped in (True, False):
        there = move([0.0, 0.0, 0.02], grasped=grasped, releases=True, goal=CUBE + 0.001)
        assert there.opens
        np.testing.assert_allclose(there.displacement, 0.0)


def test_what_was_dropped_on_the_way_is_grasped_again():
    dropped = move([0.0, 0.2, 0.3], fingers=0.0, thing=np.array([0.0, 0.1, 0.02]))
    assert dropped.opens
    assert dropped.displacement[1] < 0
