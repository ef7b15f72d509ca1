"""Policies from elsewhere, as a user would write them."""

from __future__ import annotations

import numpy as np


def leaning(observation):
    """Pushes CartPole's cart to the side the pole leans to."""
    return int(observation[2] + observation[3] > 0)


def towards(observation):
    """Moves the point of ``Reach`` to its goal."""
    return np.clip(5 * (observation[1:2] - observation[:1]), -1, 1)


def failing(observation):
    raise OSError("the camera is gone")


def wordy(observation):
    return "left"


def beyond(observation):
    return 7


def not_a_number(observation):
    return np.array([np.nan])


class Counting:
    """Pushes left and right in turn, from the left on in each episode, two actions in an answer."""

    def __init__(self):
        self.asked = None

    def reset(self, seed):
        self.asked = 0

    def act(self, observation):
        self.asked += 1
        return [0, 1]


class Named:
    """Reads what the configuration shows it."""

    def act(self, observation):
        assert set(observation) == {"state", "prompt"}
        assert observation["prompt"] == "balance the pole"
        return leaning(observation["state"])
