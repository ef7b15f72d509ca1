"""dm_control: its manipulation tasks and its control suite (Tunyasuvunakool et al. 2020, arXiv:2006.12983).

Importing this file imports no dm_control.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rlpipe.config.fields import option
from rlpipe.envs.base import OneByOne, SingleEnv, SingleStep, TaskEntry, TaskFacts
from rlpipe.envs.shared.frames import stacked
from rlpipe.envs.shared.mujoco.physics import AXES, MuJoCoPhysics
from rlpipe.envs.shared.mujoco.pixels import choose_opengl_if_found
from rlpipe.envs.shared.mujoco.scene import MuJoCoGeometry
from rlpipe.envs.shared.slots import NextSeed
from rlpipe.envs.shared.spaces import Spaces
from rlpipe.envs.shared.success import SuccessConfig
from rlpipe.errors import ConfigError
from rlpipe.plugins import nearest, require
from rlpipe.trajectory import Float32, Observations, Scene, SpaceSpec

__all__ = ["DMControl"]

MANIPULATION = "manipulation"
"""First part of the ids of manipulation tasks; of others it is the domain of the suite."""
GOAL_REWARD = 1.0
"""Reward of every manipulation task where its goal is reached, and only there."""
CLOSE = 1e-6
"""Rounding error of a reward, which may be a weighted mean."""
MADE_ANEW = ("lqr/", f"{MANIPULATION}/reassemble_5_bricks_random_order")
"""Beginnings of the ids of tasks whose episodes depend on more than the generator when they are reset: on the seed
with which they were made, or on the order of the bricks in the last episode."""
ATTEMPTS = 20
"""Times that a reset may draw another start, where objects find no free place."""


@dataclass(frozen=True)
class DMControlConfig(SuccessConfig):
    """Options of a dm_control task. Needs ``pip install 'rlpipe[dm-control]'``; see docs/simulators.md#dm_control."""

    id: str = option("")
    """``manipulation/NAME``, such as ``manipulation/reach_site_features``, or ``DOMAIN/TASK`` of the control suite,
    such as ``cheetah/run``."""
    max_episode_steps: int | None = option(None, unit="environment steps", least=1, below=2**31)
    """Time limit, if it is below that of the task; None keeps the task's."""
    success_reward: float | None = option(None)
    """Reward from which on a step is a success. None: 1 for manipulation tasks, which pay that only where the goal is
    reached, and no success for the suite, which defines none."""
    frame_stack: int = option(1, least=1, most=64, unit="pictures", fixed=True)
    """Pictures of the last steps in each image, one behind the other, the oldest first."""
    ignore_observations: list[str] = option([], fixed=True)
    """Leaves of the observation that are left out, such as ``jaco_arm/joints_torque``."""

    @property
    def has_cameras(self) -> bool:
        return self.id.startswith(f"{MANIPULATION}/") and self.id.endswith("_vision")

    @property
    def least_reward(self) -> float | None:
        """Reward from which on a step is a success; None for a task without success."""
        if self.success_reward is not None:
            return self.success_reward
        return GOAL_REWARD if self.id.startswith(f"{MANIPULATION}/") else None


def library() -> tuple[Any, Any]:
    """Imports the manipulation tasks and the control suite. How to draw is settled then, so it is chosen before."""
    choose_opengl_if_found()
    from dm_control import manipulation, suite

    return manipulation, suite


def load_task(config: DMControlConfig, seed: int) -> Any:
    """Makes the library's environment of a task.

    Raises:
        ConfigError: it has to render, and cannot.
    """
    domain, _, task = config.id.partition("/")
    try:
        manipulation, suite = library()
        if domain != MANIPULATION:
            return suite.load(domain, task, task_kwargs={"random": seed})
        return manipulation.load(task, seed=seed)
    except Exception as error:  # a MuJoCo that it does not know, and every way of drawing, have errors of their own
        drawing = (
            " Pictures need OpenGL: install libegl1 and libegl-mesa0 (or libosmesa6 and set MUJOCO_GL=osmesa)."
            if config.has_cameras else ""
        )  # fmt: skip
        raise ConfigError(f"dm_control cannot make {config.id} ({type(error).__name__}: {error}).{drawing}") from error


@functools.cache
def own_limit(task: str) -> int | None:
    """Environment steps after which the library itself ends every episode of a task; None if it never does.

    The answer is kept, because the task is made to find out.
    """
    env = load_task(DMControlConfig("dm_control", id=task), 0)
    limit = env._step_limit if hasattr(env, "_step_limit") else env._time_limit / env.control_timestep()
    env.close()
    return None if np.isinf(limit) else int(np.ceil(limit - CLOSE))


class DMControlEnv(SingleEnv):
    """One environment of dm_control."""

    def __init__(self, config: DMControlConfig) -> None:
        """Makes the environment."""
        self._config = config
        self._env = load_task(config, 0)
        self._anew = config.id.startswith(MADE_ANEW)
        # Observables of the manipulation tasks come from buffers of one value, which is the first axis.
        self._buffered = config.id.startswith(f"{MANIPULATION}/")
        self._spaces = Spaces(
            self._observation_space(), _box(self._env.action_spec()), config.id, config.ignore_observations
        )
        self.spec = self._spaces.spec
        self.has_success = config.least_reward is not None
        self._last = self.spec.observations(1)[0]
        self._geometry = MuJoCoGeometry()
        self._physics = MuJoCoPhysics(lambda: self._env.physics.model.ptr)

    def vary(self, levels: Mapping[str, float]) -> None:
        self._physics.vary(levels)

    def _observation_space(self) -> Any:
        """Returns the space of observations."""
        from gymnasium.spaces import Dict

        specs = self._env.observation_spec().items()
        return Dict({name: _box(spec, first=int(self._buffered)) for name, spec in specs})

    def _translated(self, observation: Mapping[str, NDArray[Any]]) -> Observations:
        """Returns a copy of an observation, because the library writes the next one into the same memory."""
        first = {name: values[0] if self._buffered else values for name, values in observation.items()}
        self._last = self._spaces.observation(first).copy()
        return self._last

    def reset(self, seed: int | None) -> tuple[Observations, bool | None]:
        from dm_control.composer import EpisodeInitializationError

        assert seed is not None
        if self._anew:
            self._env.close()
            self._env = load_task(self._config, seed)
        generator = self._env.random_state if self._buffered else self._env.task.random
        generator.seed(seed)
        for attempt in range(1, ATTEMPTS + 1):
            try:
                observation = self._env.reset().observation
                self._physics.was_reset()
                return self._translated(observation), None
            except EpisodeInitializationError:  # the generator has moved on, so the next start is another one
                if attempt == ATTEMPTS:
                    raise
        raise AssertionError  # the last attempt returns or raises

    def step(self, action: Any) -> SingleStep:
        from dm_control.rl.control import PhysicsError

        try:
            step = self._env.step(self._spaces.action(action))
        except PhysicsError:  # the simulation diverged, which ends the episode, as where the library does not raise
            cut_off = self._config.ignore_terminations  # there is nothing that could go on
            return SingleStep(self._last, 0.0, True, cut_off, False if self.has_success else None, failure=True)
        reward, least = float(step.reward), self._config.least_reward
        over = bool(step.last())
        terminated = over and step.discount == 0.0
        if terminated and self._config.ignore_terminations:
            self._env._reset_next_step = False  # otherwise the next step would begin another episode
        answer = SingleStep(
            self._translated(step.observation),
            reward,
            terminated,
            over and not terminated,
            None if least is None else reward >= least - CLOSE,
        )
        return self._config.judged(answer)

    def scene(self) -> Scene:
        return self._geometry.scene(self._env.physics.model.ptr)

    def poses(self) -> Float32:
        return self._geometry.poses(self._env.physics.data.ptr)

    def close(self) -> None:
        self._env.close()


def _box(spec: Any, *, first: int = 0) -> Any:
    """Returns the space of an array that dm_control specifies, without some of its first axes."""
    from gymnasium.spaces import Box

    shape, dtype = spec.shape[first:], spec.dtype
    if not hasattr(spec, "minimum"):
        return Box(-np.inf, np.inf, shape, dtype)
    low, high = (np.broadcast_to(bound, spec.shape).reshape(shape) for bound in (spec.minimum, spec.maximum))
    return Box(low, high, shape, dtype)


class DMControl(OneByOne):
    """dm_control's tasks, one by one, each episode with the start of its seed."""

    Config = DMControlConfig
    tries_seeds = False
    axes = (*OneByOne.axes, *AXES)

    @classmethod
    def make(cls, config: DMControlConfig, num_envs: int, next_seed: NextSeed) -> DMControl:
        envs = stacked([DMControlEnv(config) for _ in range(num_envs)], config.frame_stack)
        limit = config.max_episode_steps
        simulator = cls(envs, next_seed, ignore_terminations=config.ignore_terminations, limit=limit)
        if _limit(config) is None:
            simulator.notes = (
                f"{config.id} has no time limit, so each episode must end by itself: an evaluation waits for it. "
                "max_episode_steps sets a limit.",
            )
        return simulator

    @classmethod
    def tasks(cls) -> list[TaskEntry]:
        return [TaskEntry(name) for name in known_tasks("dm_control")]

    @classmethod
    def describe(cls, config: DMControlConfig, key: str) -> TaskFacts:
        tasks = known_tasks(f"{key}.name=dm_control")
        if config.id not in tasks:
            raise ConfigError(f"{key}.id is {config.id!r}, but dm_control does not know it{nearest(config.id, tasks)}")
        if config.least_reward is None:
            config.check_success(config.id, "success_reward names the reward from which on a step is a success.")
        return replace(
            super().describe(config, key),
            time_limit=_limit(config),
            success=config.least_reward is not None,
            why_not={"success": "success_reward says from which reward on a step is one"},
            find_spaces=lambda: _spaces(config),
        )


def _limit(config: DMControlConfig) -> int | None:
    limits = [own_limit(config.id), config.max_episode_steps]
    return min((limit for limit in limits if limit is not None), default=None)


def _spaces(config: DMControlConfig) -> SpaceSpec:
    (env,) = stacked([DMControlEnv(config)], config.frame_stack)
    env.close()
    return env.spec


def known_tasks(key: str) -> list[str]:
    """Ids of all tasks, manipulation first.

    Raises:
        ConfigError: it is not installed, or not with this MuJoCo.
    """
    require("dm_control", "dm-control", key)
    try:
        manipulation, suite = library()
    except Exception as error:  # a MuJoCo that it does not know
        raise ConfigError(f"{key} needs dm_control, which fails here ({type(error).__name__}: {error})") from error
    return [f"{MANIPULATION}/{name}" for name in sorted(manipulation.ALL)] + [
        f"{domain}/{task}" for domain, task in suite.ALL_TASKS
    ]
