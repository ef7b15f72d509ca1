"""Gymnasium environments whose observations are trees.

Importing this module registers them, as ``tests.helpers.gym_trees:Name`` in a configuration does.
"""

from __future__ import annotations

import multiprocessing

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Dict, Discrete, MultiDiscrete, Text

STEPS = 8
"""Steps of each episode here."""


class Timed(gymnasium.Env):
    """Draws a target anew after each step; an action that hits it pays 1."""

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.taken = 0
        self.draw()
        return self.observation(), {"is_success": False}

    def step(self, action):
        reward = self.reward(action)
        self.taken += 1
        self.draw()
        truncated = self.taken == STEPS
        return self.observation(), reward, False, truncated, {"is_success": reward == 1.0}


class Signs(Timed):
    """Three leaves: an image that is bright on one side, a vector of noise, and a sign that may turn the answer round.

    Their product, the side times the sign, is the sign that the action should have.
    """

    observation_space = Dict({
        "camera": Dict({"rgb": Box(0, 255, (20, 20, 3), np.uint8)}),
        "noise": Box(-np.inf, np.inf, (2,), np.float64),
        "sign": Discrete(2, start=5),
    })  # fmt: skip
    action_space = Box(-1.0, 1.0, (1, 1))

    def draw(self):
        self.side, self.sign = self.np_random.integers(2, size=2)

    def observation(self):
        image = np.zeros((20, 20, 3), dtype=np.uint8)
        image[:, 10:] = 255 * self.side
        image[:, :10] = 255 * (1 - self.side)
        return {"camera": {"rgb": image}, "noise": self.np_random.normal(size=2), "sign": 5 + self.sign}

    def reward(self, action):
        assert action.shape == (1, 1)
        return float((action[0, 0] > 0) == (self.side == self.sign))


class Parts(Signs):
    """The same with an action of two parts: the answer, and the sign."""

    action_space = MultiDiscrete([2, 3])

    def reward(self, action):
        assert action.shape == (2,)
        return float(action[0] == (self.side == self.sign) and action[1] == self.sign)


class Sides(Signs):
    """The same without a sign: the image alone says what to do."""

    def draw(self):
        self.side, self.sign = self.np_random.integers(2), 1


class Reach(Timed):
    """A goal dictionary: move a point on a line to the goal, in two steps at most."""

    observation_space = Dict({
        "observation": Box(-np.inf, np.inf, (1,)),
        "achieved_goal": Box(-2.0, 2.0, (1,)),
        "desired_goal": Box(-1.0, 1.0, (1,)),
    })  # fmt: skip
    action_space = Box(-1.0, 1.0, (1,))

    def reset(self, *, seed=None, options=None):
        gymnasium.Env.reset(self, seed=seed)
        self.taken, self.place = 0, 0.0
        self.goal = self.np_random.uniform(-1.0, 1.0)
        return self.observation(), {"is_success": False}

    def observation(self):
        numbers = {"observation": 0.0, "achieved_goal": self.place, "desired_goal": self.goal}
        return {name: np.array([number], dtype=np.float32) for name, number in numbers.items()}

    def step(self, action):
        self.taken += 1
        self.place = float(np.clip(self.place + 0.5 * action[0], -2.0, 2.0))
        distance = abs(self.place - self.goal)
        success = distance < 0.1
        return self.observation(), -distance, success, self.taken == STEPS, {"is_success": success}


class DrawnReach(Reach):
    """A goal dictionary, with a picture of the number of steps."""

    metadata = {"render_modes": ["rgb_array"]}  # noqa: RUF012

    def __init__(self, render_mode=None):
        self.render_mode = render_mode

    def render(self):
        return np.full((20, 20, 3), 10 * self.taken, dtype=np.uint8)


class Place(gymnasium.Env):
    """A goal dictionary with sparse reward: 0 where a point in a cube is close to the goal, else -1.

    A random walk comes close in about one of a hundred episodes.
    """

    observation_space = Dict({
        "observation": Box(-np.inf, np.inf, (1,)),
        "achieved_goal": Box(-2.0, 2.0, (3,), np.float64),
        "desired_goal": Box(-1.0, 1.0, (3,), np.float64),
    })  # fmt: skip
    action_space = Box(-1.0, 1.0, (3,))

    def __init__(self, ends=False):
        self.ends = ends

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.taken, self.place, self.goal = 0, np.zeros(3), self.np_random.uniform(-1.0, 1.0, size=3)
        return self.observation(), {"is_success": False}

    def observation(self):
        nothing = np.zeros(1, dtype=np.float32)
        return {"observation": nothing, "achieved_goal": self.place.copy(), "desired_goal": self.goal.copy()}

    def step(self, action):
        self.taken += 1
        self.place = np.clip(self.place + 0.4 * action, -2.0, 2.0)
        info = {"is_success": bool(np.linalg.norm(self.place - self.goal) <= 0.15)}
        reward = float(self.compute_reward(self.place, self.goal, info))
        terminated = self.compute_terminated(self.place, self.goal, info)
        return self.observation(), reward, terminated, self.taken == STEPS, info

    def compute_reward(self, achieved_goal, desired_goal, info):
        return -(np.linalg.norm(achieved_goal - desired_goal, axis=-1) > 0.15).astype(np.float64)

    def compute_terminated(self, achieved_goal, desired_goal, info):  # of one goal, as in Gymnasium-Robotics
        return self.ends and bool(np.linalg.norm(achieved_goal - desired_goal) <= 0.15)


class Recall(gymnasium.Env):
    """Shows the goal, a sign, before the first action only; the share of actions with that sign is the return.

    Every other episode or so is a step longer, so that episodes end at different places of a fragment.
    """

    observation_space = Box(-1.0, 1.0, (2,), np.float32)

    def __init__(self, discrete=True, steps=5):
        self.action_space = Discrete(2) if discrete else Box(-1.0, 1.0, (1,), np.float32)
        self.discrete, self.steps = discrete, steps

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.taken, self.goal = 0, int(self.np_random.integers(2))
        self.length = self.steps + int(self.np_random.integers(2))
        return np.array([1.0, 2.0 * self.goal - 1.0], dtype=np.float32), {"is_success": False}

    def step(self, action):
        self.taken += 1
        chosen = action if self.discrete else int(action[0] > 0)
        right = chosen == self.goal
        observation = np.array([1.0 - self.taken / 10, 0.0], dtype=np.float32)
        return observation, right / self.length, False, self.taken == self.length, {"is_success": right}


class Words(Timed):
    """Observes what it wants as a text, which no policy can use, and as a number."""

    observation_space = Dict({"mission": Dict({"words": Text(5)}), "number": Discrete(2)})
    action_space = Discrete(2)

    def draw(self):
        self.number = int(self.np_random.integers(2))

    def observation(self):
        return {"mission": {"words": ("left", "right")[self.number]}, "number": self.number}

    def reward(self, action):
        return float(action == self.number)


class Endless(Signs):
    """An action with a number that has no bounds."""

    action_space = Box(np.array([-1.0, -np.inf]), np.array([1.0, np.inf]), dtype=np.float64)


class Unpaid(Signs):
    """No action pays."""

    def reward(self, action):
        return 0.0


class Managed(Signs):
    """Starts a process that shares a dictionary, at a socket of Python's choice."""

    def __init__(self):
        self.manager = multiprocessing.Manager()

    def close(self):
        self.manager.shutdown()


for task in (Signs, Parts, Sides, Reach, DrawnReach, Place, Recall, Words, Endless, Unpaid, Managed):
    gymnasium.register(f"{task.__name__}-v0", task)
