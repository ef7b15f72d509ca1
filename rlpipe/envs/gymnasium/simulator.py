"""Registered Gymnasium environments, one by one or natively vectorised.

Importing this file imports no Gymnasium.
"""

from __future__ import annotations

import importlib
import importlib.util
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar

from rlpipe.envs.base import NO_STATES, OneByOne, Simulator, TaskEntry, TaskFacts, check_ends
from rlpipe.envs.gymnasium.making import config_errors, make_env, make_kwargs, make_vector_env
from rlpipe.envs.gymnasium.options import GymnasiumConfig
from rlpipe.envs.gymnasium.registry import ATTENDED, DRAWING, entry_of, register_tasks, unknown, unregistered
from rlpipe.envs.gymnasium.single import GymnasiumEnv
from rlpipe.envs.gymnasium.trial import TRIAL_ENVS, check_is_environment, try_simulator
from rlpipe.envs.gymnasium.vector import GymnasiumVector
from rlpipe.envs.shared.frames import stacked
from rlpipe.envs.shared.goals import GoalTask, task_of_goal_env
from rlpipe.envs.shared.mujoco.physics import AXES
from rlpipe.envs.shared.mujoco.pixels import choose_opengl_if_found
from rlpipe.envs.shared.mujoco.state import is_of_mujoco, why_without_states
from rlpipe.envs.shared.slots import NextSeed
from rlpipe.errors import ConfigError, ContractError, how_it_failed, ignored
from rlpipe.plugins import WHERE_MODULES_ARE
from rlpipe.trajectory import SpaceSpec


def time_limit(config: GymnasiumConfig) -> int | None:
    """Returns the environment steps after which every episode ends; None for no limit."""
    import gymnasium

    limit: int | None = make_kwargs(config).get("max_episode_steps")
    if limit is None:
        limit = gymnasium.spec(config.id.rpartition(":")[2]).max_episode_steps
    return None if limit == -1 else limit  # as in gymnasium.make


class Gymnasium(OneByOne):
    """Registered Gymnasium environments, one by one; with ``vectorized``, a ``GymnasiumVector`` instead."""

    Config = GymnasiumConfig
    axes = (*OneByOne.axes, *AXES)
    evaluation_options: ClassVar[Mapping[str, Any]] = {"vectorized": False}

    @classmethod
    def make(cls, config: GymnasiumConfig, num_envs: int, next_seed: NextSeed) -> Simulator:
        simulator: Simulator
        if config.vectorized:
            simulator = GymnasiumVector.make(config, num_envs, next_seed)
        else:
            with config_errors(config.id, make_kwargs(config)):
                envs = [make_env(config) for _ in range(num_envs)]
            simulator = cls.of(envs, next_seed, config)
        if time_limit(config) is None:
            simulator.notes = (
                f"{config.id} registers no time limit, so each episode must end by itself: an evaluation waits for it. "
                "max_episode_steps sets a limit.",
            )
        return simulator

    @classmethod
    def of(cls, envs: Sequence[Any], next_seed: NextSeed, config: GymnasiumConfig) -> Gymnasium:
        """Takes over the environments of a configuration."""
        singles = [GymnasiumEnv(env, config.success_key, config.ignore_observations) for env in envs]
        stacks = stacked(singles, config.frame_stack)
        return cls(stacks, next_seed, ignore_terminations=config.ignore_terminations)

    @classmethod
    def tasks(cls) -> list[TaskEntry]:
        import gymnasium

        register_tasks()
        return [
            entry_of(spec)
            for _, spec in sorted(gymnasium.registry.items())
            if isinstance(spec.entry_point, str) and not any(spec.kwargs.get(name) for name in ATTENDED)
        ]

    @classmethod
    def goal_task(cls, config: GymnasiumConfig) -> GoalTask:
        import gymnasium

        with warnings.catch_warnings(action="ignore"):  # the workers repeat them
            try:
                env = gymnasium.make(config.id, **make_kwargs(config))  # goals do not need pictures
            except Exception as error:
                raise ConfigError(
                    f"algorithm.hindsight asks {config.id} for its reward function, but the learner cannot make one: "
                    f"{type(error).__name__}: {error}"
                ) from error
            return task_of_goal_env(env, config.id, ignore_terminations=config.ignore_terminations)

    @classmethod
    def describe(cls, config: GymnasiumConfig, key: str) -> TaskFacts:
        import gymnasium

        module, _, name = config.id.rpartition(":")
        if config.id.startswith(DRAWING):
            choose_opengl_if_found()
        before = set(gymnasium.registry)
        try:
            if module:
                importlib.import_module(module)
        except (gymnasium.error.Error, ImportError) as error:
            is_missing = isinstance(error, ModuleNotFoundError) and error.name == module.partition(".")[0]
            remedy = f". {WHERE_MODULES_ARE}." if is_missing else ""
            raise ConfigError(f"{key}.id is {config.id!r}, but {module} cannot be imported: {error}{remedy}") from error
        try:
            registered = gymnasium.spec(name)
        except gymnasium.error.Error as error:
            remedy = unregistered(module, name, before) if module else unknown(name, cls.tasks())
            raise ConfigError(f"{key}.id is {config.id!r}, but {remedy}") from error
        if config.vectorized and registered.vector_entry_point is None:
            raise ConfigError(f"{key}.vectorized is true, but {config.id} has no vectorisation of its own.")
        limit = time_limit(config)
        check_ends(config, key, limit)
        one_by_one, obstacle = not config.vectorized, why_without_states(config.id)
        facts = super().describe(config, key)
        varies = one_by_one and is_of_mujoco(config.id)
        return replace(
            facts,
            axes=tuple(axis for axis in facts.axes if varies or axis not in AXES),
            time_limit=limit,
            waits=one_by_one,
            seeds=one_by_one,
            success=config.success_key is not None,
            starts=one_by_one,
            states=one_by_one and obstacle is None,
            blends=one_by_one and obstacle is None,
            stops_after_success=one_by_one,
            why_not={
                "waits": f"{key}.vectorized=false",
                "starts": f"{key}.vectorized=false",
                "seeds": f"{key}.vectorized is true, but a vectorised simulator draws its own seeds after the first "
                f"episode of each slot, while an evaluation needs held-out seeds: set {key}.vectorized=false.",
                "success": "name the entry of info that does in success_key, such as is_success",
                "states": obstacle or NO_STATES,  # where it is vectorised
            },
            find_spaces=lambda: cls.find_spaces(config),
        )

    @classmethod
    def find_spaces(cls, config: GymnasiumConfig) -> SpaceSpec | None:
        """As of ``TaskFacts``, after a trial of the environment."""
        with warnings.catch_warnings(action="ignore"):  # the workers repeat them
            try:
                env = make_vector_env(config, TRIAL_ENVS) if config.vectorized else make_env(config)
            except ConfigError:
                raise
            except BaseException as error:  # as in ``try_simulator``
                how_it_failed(error)
                check_is_environment(config, error)
                return None
            try:
                simulator: Simulator  # which is thrown away after a few steps
                if config.vectorized:
                    simulator = GymnasiumVector.of(env, lambda n: n, config)
                else:
                    simulator = cls.of([env], lambda n: n, config)
                try_simulator(simulator, env, config)
            except ContractError as error:
                raise ConfigError(f"{config.id}: {error.problem}.") from error
            finally:
                with ignored():
                    env.close()
        return simulator.spec
