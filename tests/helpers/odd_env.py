"""Simulators that return something odd in a chosen place, for every adapter."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Dict, Discrete
from gymnasium.vector import AutoresetMode, VectorEnv

from rlpipe.envs.base import Beginning, OneByOne, Simulator, SingleEnv, SingleStep, Step
from rlpipe.envs.gymnasium import Gymnasium
from rlpipe.envs.gymnasium.single import GymnasiumEnv
from rlpipe.envs.gymnasium.vector import GymnasiumVector
from rlpipe.trajectory import SpaceSpec

STEPS = 4
"""Steps of each episode."""
PLACES = ("observation", "reward", "terminated", "truncated", "success", "terms", "info", "step", "reset")
"""Places where something may be odd."""


class OddEnv(gymnasium.Env):
    """Observes a number that its seed draws and the step, pays 1 a step, and is solved at the end.

    Attributes:
        odd: by place, what is returned there from some step on: a value, or a function of the right one.
        since: first step of an episode in which it is; 0 is the reset.
    """

    observation_space = Box(-10.0, 10.0, (2,))
    action_space = Box(-1.0, 1.0, (1,))

    def __init__(self, odd: Mapping[str, Any] | None = None, since: int = 1) -> None:
        self.odd, self.since = dict(odd or {}), since
        self.start, self.taken = 0.0, 0

    def given(self, place: str, right: Any) -> Any:
        """Returns what stands in a place."""
        if place not in self.odd or self.taken < self.since:
            return right
        odd = self.odd[place]
        return odd(right) if callable(odd) else odd

    def observed(self) -> Any:
        return self.given("observation", np.array([self.start, self.taken], dtype=np.float32))

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.start, self.taken = float(self.np_random.uniform(-1, 1)), 0
        return self.given("reset", (self.observed(), {}))

    def step(self, action: Any) -> Any:
        self.taken += 1
        info: Any = {"is_success": self.given("success", self.taken == STEPS)}
        if "terms" in self.odd:
            info["reward_terms"] = {"reach": 0.5, "odd": self.given("terms", 0.0)}
        right = (
            self.observed(),
            self.given("reward", 1.0),
            self.given("terminated", False),
            self.given("truncated", self.taken == STEPS),
            self.given("info", info),
        )
        return self.given("step", right)


class OddTree(OddEnv):
    """The same with three leaves: a picture, a category and a vector."""

    observation_space = Dict(
        {"pixels": Box(0, 255, (2, 2, 1), np.uint8), "phase": Discrete(STEPS + 1), "q": Box(-10.0, 10.0, (2,))}
    )

    def observed(self) -> Any:
        vector = np.array([self.start, self.taken], dtype=np.float32)
        right = {"pixels": np.full((2, 2, 1), self.taken, np.uint8), "phase": self.taken, "q": vector}
        return self.given("observation", right)


class OddVector(VectorEnv):
    """Two environments in one; what is odd is so for the whole batch."""

    def __init__(
        self, odd: Mapping[str, Any] | None = None, since: int = 1, mode: Any = AutoresetMode.NEXT_STEP
    ) -> None:
        self.num_envs = 2
        self.metadata = {"autoreset_mode": mode}
        self.single_observation_space, self.single_action_space = OddEnv.observation_space, OddEnv.action_space
        self.observation_space = gymnasium.vector.utils.batch_space(self.single_observation_space, 2)
        self.action_space = gymnasium.vector.utils.batch_space(self.single_action_space, 2)
        self.one = OddEnv(odd, since)
        self.ended = False

    def observed(self) -> Any:
        right = np.array([[self.one.start, self.one.taken]] * 2, dtype=np.float32)
        return self.one.given("observation", right)

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        gymnasium.Env.reset(self.one, seed=seed if seed is None or isinstance(seed, int) else seed[0])
        self.one.start, self.one.taken = float(self.one.np_random.uniform(-1, 1)), 0
        self.ended = False
        return self.one.given("reset", (self.observed(), {}))

    def step(self, actions: Any) -> Any:
        no = np.zeros(2, dtype=bool)
        if self.ended and self.metadata["autoreset_mode"] == AutoresetMode.NEXT_STEP:
            observations, info = self.reset()
            return observations, np.zeros(2), no, no, info
        one = self.one
        one.taken += 1
        last = one.taken == STEPS
        info: Any = {"is_success": one.given("success", no | last)}
        observations = self.observed()
        rest = [one.given("reward", np.ones(2)), one.given("terminated", no), one.given("truncated", no | last)]
        same_step = last and self.metadata["autoreset_mode"] == AutoresetMode.SAME_STEP
        if same_step:
            info |= {"final_obs": observations, "final_info": dict(info)}
        info = one.given("info", info)
        answer = one.given("step", (observations, *rest, info))
        if same_step and answer and isinstance(answer, tuple):
            answer = (self.reset()[0], *answer[1:])
        self.ended = last
        return answer


class OddSingle(SingleEnv):
    """The same as a ``SingleEnv`` of a plug-in, which passes everything on as it is; it has no info of its own."""

    has_success = True

    def __init__(self, odd: Mapping[str, Any] | None = None, since: int = 1) -> None:
        self.env = OddEnv(odd, since)
        bound = np.ones(1, dtype=np.float32)
        self.spec = SpaceSpec(2, 1, None, -bound, bound)

    def reset(self, seed: int | None) -> Any:
        plain = OddEnv.reset(self.env, seed=seed)
        return (plain[0], None) if isinstance(plain, tuple) and "reset" not in self.env.odd else plain

    def step(self, action: Any) -> Any:
        plain = self.env.step(action)
        if "step" in self.env.odd:
            return plain
        observation, reward, terminated, truncated, info = plain
        return SingleStep(
            observation, reward, terminated, truncated, info["is_success"], None, info.get("reward_terms")
        )

    def close(self) -> None:
        pass


class OddPlugin(OneByOne):
    """A plug-in of one environment after the other."""

    @classmethod
    def make(cls, config: Any, num_envs: int, next_seed: Any) -> OddPlugin:
        raise NotImplementedError


class OddSimulator(Simulator):
    """A plug-in that makes its steps itself; what is odd is so for the whole batch."""

    can_wait = False

    def __init__(self, odd: Mapping[str, Any] | None = None, since: int = 1) -> None:
        self.env = OddVector(odd, since, AutoresetMode.SAME_STEP)
        self.spec, self.num_envs, self.has_success = OddSingle().spec, 2, True

    @classmethod
    def make(cls, config: Any, num_envs: int, next_seed: Any) -> OddSimulator:
        raise NotImplementedError

    def reset(self) -> Any:
        plain = self.env.reset(seed=0)
        if "reset" in self.env.one.odd:
            return plain
        return plain[0], {0: Beginning(0, None), 1: Beginning(1, None)}

    def step(self, actions: Any, active: Any = None) -> Any:
        plain = self.env.step(actions)
        if "step" in self.env.one.odd:
            return plain
        observations, rewards, terminated, truncated, info = plain
        ended = bool(self.env.ended)
        beginnings = {0: Beginning(0, None), 1: Beginning(1, None)} if ended else {}
        valid = np.ones(2, dtype=bool)
        final = info.get("final_obs", observations)
        return Step(observations, final, rewards, terminated, truncated, info["is_success"], valid, beginnings)

    def close(self) -> None:
        pass


def seeds(n: int) -> int:
    return 7 + n


def _one_by_one(task: type[OddEnv]) -> Callable[..., Simulator]:
    return lambda odd, since=1: Gymnasium(
        [GymnasiumEnv(task(odd, since), "is_success") for _ in range(2)], seeds, ignore_terminations=False
    )


def _vector(mode: AutoresetMode) -> Callable[..., Simulator]:
    return lambda odd, since=1: GymnasiumVector(OddVector(odd, since, mode), seeds, success_key="is_success")


ADAPTERS: dict[str, Callable[..., Simulator]] = {
    "gymnasium": _one_by_one(OddEnv),
    "gymnasium, tree": _one_by_one(OddTree),
    "vector, NEXT_STEP": _vector(AutoresetMode.NEXT_STEP),
    "vector, SAME_STEP": _vector(AutoresetMode.SAME_STEP),
    "vector, DISABLED": _vector(AutoresetMode.DISABLED),
    "single plug-in": lambda odd, since=1: OddPlugin(
        [OddSingle(odd, since) for _ in range(2)], seeds, ignore_terminations=False
    ),
    "simulator plug-in": OddSimulator,
}
"""Makes a simulator of two environments, by adapter."""

for _name in ("Env", "Tree"):
    with contextlib.suppress(gymnasium.error.Error):
        gymnasium.register(f"Odd{_name}-v0", f"tests.helpers.odd_env:Odd{_name}")
gymnasium.register("OddVector-v0", "tests.helpers.odd_env:OddEnv", vector_entry_point="tests.helpers.odd_env:OddVector")
