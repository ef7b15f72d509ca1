"""A task that is learnt in a minute: bring a point to its goal, paid only on arrival."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from rlpipe.envs.base import OneByOne, SimulatorConfig, SingleEnv, SingleStep, Step, TaskFacts
from rlpipe.envs.shared.slots import NextSeed
from rlpipe.trajectory import Float32, LeafSpec, SpaceSpec, State, Tree


@dataclass(frozen=True)
class ReachConfig(SimulatorConfig):
    """Options of the task."""

    step_seconds: float = 0.0
    """Time each step takes, as a stand-in for a slow simulator."""


class ReachEnv(SingleEnv):
    """Point and goal lie in [-1, 1]; a step moves the point by at most 0.2; ten steps are enough."""

    def __init__(self) -> None:
        bound = np.ones(1, dtype=np.float32)
        self.spec = SpaceSpec(3, 1, None, -bound, bound)
        self.has_success = True

    def _observation(self) -> Float32:
        return np.array([self._point, self._goal, self._steps / 12], dtype=np.float32)

    def reset(self, seed: int | None) -> tuple[Float32, bool | None]:
        self._point, self._goal = np.random.default_rng(seed).uniform(-1.0, 1.0, size=2)
        self._steps = 0
        return self._observation(), False

    def state(self) -> State:
        return {"reach": np.array([self._point, self._goal, self._steps])}

    def set_state(self, state: State) -> tuple[Float32, bool | None]:
        self._point, self._goal, self._steps = state["reach"]
        return self._observation(), False

    def blended(self, state: State, share: float) -> State:
        return {"reach": (1.0 - share) * state["reach"] + share * self.state()["reach"]}

    def step(self, action: Any) -> SingleStep:
        self._steps += 1
        self._point += 0.2 * float(np.clip(np.asarray(action).ravel()[0], -1.0, 1.0))
        arrived = abs(self._point - self._goal) < 0.05
        return SingleStep(self._observation(), float(arrived), arrived, self._steps >= 12, arrived, None, None)

    def close(self) -> None:
        """Holds nothing."""


class Reach(OneByOne):
    """The task, for several environments."""

    Config = ReachConfig
    Env = ReachEnv

    @classmethod
    def describe(cls, config: ReachConfig, key: str) -> TaskFacts:
        return replace(super().describe(config, key), states=True, blends=True)

    @classmethod
    def make(cls, config: ReachConfig, num_envs: int, next_seed: NextSeed) -> Reach:
        made = cls([cls.Env() for _ in range(num_envs)], next_seed, ignore_terminations=config.ignore_terminations)
        made._step_seconds = config.step_seconds
        return made

    def step(self, actions: Any) -> Step:
        time.sleep(self._step_seconds)
        return super().step(actions)


class WornEnv(ReachEnv):
    """Its point wears off: each step of the environment's life makes it a little slower."""

    def __init__(self) -> None:
        super().__init__()
        self._life = 0

    def step(self, action: Any) -> SingleStep:
        self._life += 1
        return super().step(np.asarray(action) * 0.999**self._life)


class WornReach(Reach):
    """Reach with something that a reset does not undo."""

    Env = WornEnv

    @classmethod
    def describe(cls, config: ReachConfig, key: str) -> TaskFacts:
        return replace(super().describe(config, key), independent=False)


class DrawnReachEnv(ReachEnv):
    """Shows the point in a picture, red, and the goal, green; the vector is that of the task."""

    def __init__(self) -> None:
        super().__init__()
        leaves = {"camera_rgb": LeafSpec((2, 64, 3), "uint8"), "state": LeafSpec((3,))}
        self.spec = SpaceSpec.of_tree(leaves, 1, None, self.spec.action_low, self.spec.action_high)

    def _observation(self) -> Tree:
        picture = np.zeros((2, 64, 3), np.uint8)
        for row, place in enumerate((self._point, self._goal)):
            picture[row, int(np.clip(32 + 20 * place, 0, 63)), row] = 255
        return Tree({"camera_rgb": picture, "state": super()._observation()})


class DrawnReach(Reach):
    """The task in front of a camera."""

    Env = DrawnReachEnv
