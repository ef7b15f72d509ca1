"""Meta-World's 50 tasks of one arm, by its own library (Yu et al. 2019, arXiv:1910.10897).

The library draws an episode's goal from NumPy's global generator, whatever the seed of the reset. Here it follows from
the seed. Importing this file imports no Meta-World.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from rlpipe.config.fields import option
from rlpipe.envs.base import OneByOne, SingleEnv, SingleStep, TaskEntry, TaskFacts
from rlpipe.envs.shared.checks import flag
from rlpipe.envs.shared.mujoco.physics import AXES, MuJoCoPhysics
from rlpipe.envs.shared.mujoco.scene import MuJoCoGeometry
from rlpipe.envs.shared.slots import NextSeed
from rlpipe.envs.shared.spaces import Spaces
from rlpipe.envs.shared.success import SuccessConfig
from rlpipe.errors import ConfigError
from rlpipe.plugins import nearest, require
from rlpipe.trajectory import Float32, Observations, Scene, SpaceSpec

__all__ = ["MetaWorld"]

TIME_LIMIT = 500
"""Environment steps after which the library itself ends an episode; it refuses to go on."""


@dataclass(frozen=True)
class MetaWorldConfig(SuccessConfig):
    """Options of a Meta-World task. Needs ``pip install 'rlpipe[metaworld]'``; see docs/simulators.md#meta-world."""

    id: str = option("")
    """Name of the task, such as ``reach-v3`` or ``pick-place-v3``."""
    max_episode_steps: int = option(TIME_LIMIT, unit="environment steps", least=1, most=TIME_LIMIT)
    """Time limit."""
    show_goal: bool = option(True)
    """Observe the goal, in the last three numbers. They are 0 otherwise, as in the meta-learning benchmarks."""
    reward_function_version: str = option("v2", choices=("v1", "v2"))
    """Version of the dense reward."""


def make_task(config: MetaWorldConfig) -> Any:
    """Makes the library's environment of a task, whose goals are drawn by its own generator.

    Raises:
        ConfigError: the library cannot make it.
    """
    from metaworld.env_dict import ALL_V3_ENVIRONMENTS

    try:
        env = ALL_V3_ENVIRONMENTS[config.id](reward_function_version=config.reward_function_version)
    except (TypeError, ValueError, AttributeError) as error:  # as with a MuJoCo that it does not know
        raise ConfigError(f"Meta-World cannot make {config.id}: {error}") from error
    # What the library's classes with a shown or hidden goal set, except that they keep one goal for good.
    env._set_task_called = True
    env._freeze_rand_vec = False
    env.seeded_rand_vec = True
    if config.show_goal:
        env._partially_observable = False
        env.__dict__.pop("sawyer_observation_space", None)  # cached, with the bounds of a hidden goal
    return env


class MetaWorldEnv(SingleEnv):
    """One environment of Meta-World."""

    has_success = True

    def __init__(self, config: MetaWorldConfig) -> None:
        """Makes the environment."""
        self._config = config
        self._env = make_task(config)
        self._spaces = Spaces(self._env.sawyer_observation_space, self._env.action_space, config.id)
        self.spec = self._spaces.spec
        self._geometry = MuJoCoGeometry()
        self._observation = np.zeros(self.spec.observation_dim)  # before the next step
        self._physics = MuJoCoPhysics(lambda: self._env.model)

    def vary(self, levels: Mapping[str, float]) -> None:
        self._physics.vary(levels)

    def reset(self, seed: int | None) -> tuple[Observations, bool | None]:
        assert seed is not None
        self._env.seed(seed)
        self._observation, _ = self._env.reset()
        self._physics.was_reset()
        return self._spaces.observation(self._observation), None

    def expert_action(self) -> Float32:
        from metaworld.policies import ENV_POLICY_MAP

        observation = np.append(self._observation[:-3], self._env._get_pos_goal())  # which may be hidden
        with warnings.catch_warnings(action="ignore"):  # of every action beyond the bounds
            action = ENV_POLICY_MAP[self._config.id]().get_action(observation)
        return self.spec.clip(action.astype(np.float32))

    def step(self, action: Any) -> SingleStep:
        self._observation, reward, terminated, truncated, info = self._env.step(self._spaces.action(action))
        answer = SingleStep(
            self._spaces.observation(self._observation),
            reward,
            flag(terminated, "terminated"),
            truncated,
            info["success"],
            reward_terms={
                name.removesuffix("_reward"): float(value) for name, value in info.items() if name.endswith("_reward")
            },
        )
        return self._config.judged(answer)

    def scene(self) -> Scene:
        return self._geometry.scene(self._env.model)

    def poses(self) -> Float32:
        return self._geometry.poses(self._env.data)

    def close(self) -> None:
        self._env.close()


class MetaWorld(OneByOne):
    """Meta-World's tasks, one by one, each episode with a goal of its own that follows from its seed."""

    Config = MetaWorldConfig
    tries_seeds = False
    axes = (*OneByOne.axes, *AXES)

    @classmethod
    def make(cls, config: MetaWorldConfig, num_envs: int, next_seed: NextSeed) -> MetaWorld:
        envs: list[SingleEnv] = [MetaWorldEnv(config) for _ in range(num_envs)]
        limit = config.max_episode_steps
        return cls(envs, next_seed, ignore_terminations=config.ignore_terminations, limit=limit)

    @classmethod
    def tasks(cls) -> list[TaskEntry]:
        require("metaworld", "metaworld", "metaworld")
        from metaworld.env_dict import ALL_V3_ENVIRONMENTS

        return [TaskEntry(name, TIME_LIMIT) for name in ALL_V3_ENVIRONMENTS]

    @classmethod
    def describe(cls, config: MetaWorldConfig, key: str) -> TaskFacts:
        require("metaworld", "metaworld", f"{key}.name=metaworld")
        from metaworld.env_dict import ALL_V3_ENVIRONMENTS

        if config.id not in ALL_V3_ENVIRONMENTS:
            near = nearest(config.id, ALL_V3_ENVIRONMENTS)
            raise ConfigError(f"{key}.id is {config.id!r}, but Meta-World does not know it{near}")
        return replace(super().describe(config, key), expert=True, find_spaces=lambda: _spaces(config))


def _spaces(config: MetaWorldConfig) -> SpaceSpec:
    env = MetaWorldEnv(config)
    env.close()
    return env.spec
