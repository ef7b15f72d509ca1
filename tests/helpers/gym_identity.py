"""Gymnasium environments that pay for repeating what was observed, in every space that an action may have.

They ask the same as the identity environments that Stable-Baselines3 is tested with, so a policy that learns at all
comes close to ``STEPS``, the largest return.
"""

from __future__ import annotations

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete

from tests.helpers.gym_trees import Timed

SPACES = {
    "discrete": Discrete(4, start=3),
    "several": MultiDiscrete([3, 2]),
    "binary": MultiBinary(3),
    "box": Box(-1.0, 1.0, (2,)),
}
TOLERANCE = 0.3
"""Distance to the observed numbers within which a continuous action hits them."""


class Identity(Timed):
    """Pays 1 for the action that was observed."""

    def __init__(self, kind="discrete"):
        self.observation_space = self.action_space = SPACES[kind]

    def draw(self):
        self.observation_space.seed(int(self.np_random.integers(2**31)))
        self.target = self.observation_space.sample()

    def observation(self):
        return self.target

    def reward(self, action):
        assert self.action_space.contains(np.asarray(action, dtype=self.action_space.dtype))
        tolerance = TOLERANCE if isinstance(self.action_space, Box) else 0
        return float(np.abs(np.asarray(action) - self.target).max() <= tolerance)


class Shade(Timed):
    """A picture without colours, whose brightness says which of two actions pays."""

    observation_space = Box(0, 255, (18, 18, 1), np.uint8)
    action_space = Discrete(2)

    def draw(self):
        self.bright = self.np_random.integers(2)

    def observation(self):
        return self.np_random.integers(100, 156, (18, 18, 1), dtype=np.uint8) + np.uint8(100 * self.bright)

    def reward(self, action):
        return float(action == self.bright)


class Maze(gymnasium.Env):
    """Three rooms by three, each with a picture and a vector of its own; a step costs 0.1 and the last room pays 1."""

    observation_space = Dict({"image": Box(0, 255, (18, 18, 1), np.uint8), "vector": Box(-1.0, 1.0, (4,))})
    action_space = Discrete(4)
    MOVES = ((0, 1), (1, 0), (0, -1), (-1, 0))
    LIMIT = 30

    def __init__(self):
        looks = np.random.default_rng(0)
        self.images = looks.integers(0, 256, (3, 3, 18, 18, 1), dtype=np.uint8)
        self.vectors = looks.uniform(-1, 1, (3, 3, 4)).astype(np.float32)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.room, self.taken = (0, 0), 0
        return self.look(), {}

    def look(self):
        return {"image": self.images[self.room].copy(), "vector": self.vectors[self.room].copy()}

    def step(self, action):
        down, right = self.MOVES[action]
        self.room = min(max(self.room[0] + down, 0), 2), min(max(self.room[1] + right, 0), 2)
        self.taken += 1
        there = self.room == (2, 2)
        return self.look(), 1.0 if there else -0.1, there, self.taken == self.LIMIT, {"is_success": there}


for task in (Identity, Shade, Maze):
    gymnasium.register(f"{task.__name__}-v0", task)
