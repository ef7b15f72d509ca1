"""Where a hand should move to grasp an object from above and bring it to a goal, from any state on."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

CLEARANCE = 0.05
"""Height in m above an object or a goal from which a hand comes down, as of ManiSkill's solutions."""
NEAR = 0.004
"""Distance in m within which an object is where it should be."""
AROUND = 0.01
"""Distance in m to the side of a thing within which a hand comes down around it. It closes within half as much again,
and as far above or below it as this."""
SLOPE = 4.0
"""Height that the hand keeps, for each metre that it is away to the side: it comes down in a funnel."""
OPEN = 0.06
"""Distance in m between the fingers from which on a hand can come down around an object."""


class Move(NamedTuple):
    """Move of a hand.

    Attributes:
        displacement: [3] from the hand to where it should be, in m.
        opens: True if the fingers should be open.
    """

    displacement: NDArray[np.float64]
    opens: bool


def funnel(offset: NDArray[np.float64], near: float) -> NDArray[np.float64]:
    """Displacement that brings something above a target, and then down to it.

    With h the distance to the side, the height to keep above the target is z = min(CLEARANCE, SLOPE max(0, h - near)),
    and the share of the way to the side is 1 - (what is missing of that height) / CLEARANCE, at least 0.

    Args:
        offset: [3] from where it is to the target, in m.
        near: distance to the side, in m, within which it comes all the way down.
    """
    to_the_side, height = float(np.hypot(offset[0], offset[1])), -float(offset[2])
    kept_height = min(CLEARANCE, SLOPE * max(0.0, to_the_side - near))
    share = float(np.clip(1.0 - (kept_height - height) / CLEARANCE, 0.0, 1.0))
    return np.array([share * offset[0], share * offset[1], kept_height - height])


def grasp_and_place(
    hand: NDArray[np.float64],
    fingers: float,
    thing: NDArray[np.float64],
    goal: NDArray[np.float64],
    *,
    grasped: bool,
    releases: bool,
) -> Move:
    """Move of a hand that grasps a thing from above, brings it to a goal, and perhaps lets go of it there.

    It depends on the present state alone: a thing that was dropped or pushed away is grasped again.

    Args:
        hand: [3] point between the fingers, in m.
        fingers: distance between them, in m.
        thing: [3] its centre.
        goal: [3] where the centre should be.
        grasped: True if the hand holds the thing.
        releases: True if the thing should lie at the goal, and False if it should be held there.
    """
    is_there = float(np.linalg.norm(goal - thing)) <= NEAR
    if releases and is_there:
        return Move(np.zeros(3), opens=True)
    if grasped:
        return Move(funnel(goal - thing, NEAR) if releases else goal - thing, opens=False)
    offset = thing - hand
    if np.hypot(offset[0], offset[1]) <= 1.5 * AROUND and abs(offset[2]) <= AROUND:
        return Move(offset, opens=False)
    if fingers < OPEN and offset[2] < -2 * AROUND:  # it must not come down on the thing
        offset = offset + np.array([0.0, 0.0, CLEARANCE])
    return Move(funnel(offset, AROUND), opens=True)
