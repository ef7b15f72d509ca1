"""A trial of an environment before a run, which finds what is wrong with it."""

from __future__ import annotations

import re
import time
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rlpipe.envs.base import Simulator
from rlpipe.envs.gymnasium.options import GymnasiumConfig
from rlpipe.envs.shared.checks import check_reset_form, check_reset_signature, check_step, check_step_form
from rlpipe.errors import ConfigError, ContractError, how_it_failed
from rlpipe.plugins import closest
from rlpipe.trajectory import SpaceSpec

TRIAL_STEPS, TRIAL_SECONDS, TRIAL_ENVS = 1000, 0.05, 2
"""Steps and seconds of a trial before a run at most, and the size of a vectorised environment there."""


def check_success_key(env: Any, config: GymnasiumConfig) -> None:
    """Checks that ``success_key``, which no info held, is not misspelt; no episode would ever be a success.

    A key that the info lacks is no mistake by itself, because some tasks tell success only where there is one.

    Raises:
        ConfigError: the info of a step holds one that is spelt almost alike, with or without ``is_``.
    """
    key = str(config.success_key)
    env.reset(seed=0)
    *_, info = env.step(env.action_space.sample())
    names = sorted({*map(str, info)} - {f"_{name}" for name in info})  # without the masks of a vectorised info
    bare = {name.lower().removeprefix("is_"): name for name in names}
    if key not in info and (meant := closest(key.lower().removeprefix("is_"), bare, similarity=0.8)):
        raise ConfigError(
            f"success_key is {key!r}, which the info of {config.id} does not hold; did you mean {bare[meant]!r}? "
            f"There are {', '.join(names)}."
        )


def random_actions(spec: SpaceSpec, count: int, generator: np.random.Generator) -> NDArray[Any]:
    """Returns [N, ...] random actions within their bounds."""
    if spec.num_actions is not None:
        parts = generator.integers(np.broadcast_to(spec.num_actions, (count, spec.action_dim)))
        return parts.reshape(count, *spec.action_shape)
    return spec.clip(generator.normal(size=(count, spec.action_dim)).astype(np.float32))


def try_simulator(simulator: Simulator, env: Any, config: GymnasiumConfig) -> None:
    """Takes steps until an episode has ended, or for a moment, so that what is wrong is found before a run.

    Raises:
        ContractError: it returns wrong values.
        ConfigError: ``success_key`` is misspelt.
    """
    generator, began = np.random.default_rng(0), time.perf_counter()
    try:
        simulator.reset()
        for _ in range(TRIAL_STEPS):
            step = simulator.step(random_actions(simulator.spec, simulator.num_envs, generator))
            check_step(step, simulator.spec, simulator.num_envs, has_success=simulator.has_success)
            if time.perf_counter() - began > TRIAL_SECONDS or (step.terminated | step.truncated).any():
                break
        if config.success_key and not step.tells_success:
            check_success_key(env, config)
    except (ContractError, ConfigError):
        raise
    except BaseException as error:  # an environment may raise anything; the workers report it with their machine
        how_it_failed(error)
        check_form(env)


def check_form(env: Any) -> None:
    """Checks the form of what an environment returns without its wrappers, which fail where it is another one."""
    try:
        check_reset_signature(env.unwrapped)
        check_reset_form(env.unwrapped.reset(seed=0))
        check_step_form(env.unwrapped.step(env.action_space.sample()))
    except ContractError:
        raise
    except BaseException as error:  # as above
        how_it_failed(error)


def check_is_environment(config: GymnasiumConfig, error: BaseException) -> None:
    """Checks, where Gymnasium could not make an environment, whether it is one at all."""
    match = re.search(
        r"inherit from the gymnasium.Env class, actual class: (.*?)\. See|Gym is incompatible", str(error)
    )
    if isinstance(error, TypeError) and match:
        kind = match[1] or "an environment of the old gym"
        raise ConfigError(
            f"{config.id} makes {kind}, which is no gymnasium.Env: derive its class from gymnasium.Env, with "
            "reset(self, *, seed=None, options=None) that returns observation, info, and step(self, action) that "
            "returns observation, reward, terminated, truncated, info."
        ) from error
