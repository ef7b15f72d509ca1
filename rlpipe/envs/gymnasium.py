"""Any registered Gymnasium environment, one by one or natively vectorised, with Box observations and Box or Discrete
actions.

Importing this file imports no Gymnasium.
"""

from __future__ import annotations

import contextlib
import importlib
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rlpipe.config.fields import option
from rlpipe.envs.base import Beginning, NextSeed, OneByOne, Simulator, SimulatorConfig, SingleEnv, SingleStep, Step
from rlpipe.errors import ConfigError
from rlpipe.plugins import nearest
from rlpipe.trajectory import Bool, Float32, SpaceSpec

__all__ = ["Gymnasium"]


@dataclass(frozen=True)
class GymnasiumConfig(SimulatorConfig):
    """Options of a Gymnasium environment."""

    id: str = option("")
    """Registered id, such as ``CartPole-v1``; ``module:Name-v0`` imports the module that registers it first."""
    max_episode_steps: int | None = option(None, unit="environment steps")
    """Time limit; None keeps the registered one."""
    success_key: str | None = option(None)
    """Entry of ``info`` that says whether the goal is reached, such as ``is_success``; None for a task without one."""
    vectorized: bool = option(False)
    """Use the environment's own vectorisation. It then draws its own seeds after the first episode of each slot; such
    episodes have no seed in the ledger. Evaluation needs seeds, so set ``env.eval.vectorized=false`` as well."""
    kwargs: dict[str, Any] = option({})
    """Further keyword arguments of ``gymnasium.make``."""


def space_spec(observation_space: Any, action_space: Any, name: str) -> SpaceSpec:
    """What a policy must know of two Gymnasium spaces.

    Raises:
        ConfigError: a kind of space that no policy here can use.
    """
    from gymnasium.spaces import Box, Discrete

    if not isinstance(observation_space, Box):
        raise ConfigError(
            f"{name} has observations {observation_space}; only Box works. Wrap it with "
            "gymnasium.wrappers.FlattenObservation and register the result."
        )
    width = int(np.prod(observation_space.shape))
    if isinstance(action_space, Discrete):
        if action_space.start != 0:
            raise ConfigError(f"{name} numbers its actions from {action_space.start}; only 0 works.")
        return SpaceSpec(width, 1, int(action_space.n))
    if isinstance(action_space, Box) and len(action_space.shape) == 1:
        return SpaceSpec(
            width,
            action_space.shape[0],
            None,
            action_space.low.astype(np.float32),
            action_space.high.astype(np.float32),
        )
    raise ConfigError(f"{name} has actions {action_space}; only Discrete and one-dimensional Box work.")


def reward_terms(info: Mapping[str, Any]) -> dict[str, float] | None:
    """Named parts of a reward: the info's ``reward_terms``, else its ``reward_*``, as in Gymnasium's MuJoCo."""
    if "reward_terms" in info:
        return {str(name): float(value) for name, value in info["reward_terms"].items()}
    return {
        name.removeprefix("reward_"): float(value)
        for name, value in info.items()
        if name.startswith("reward_") and isinstance(value, int | float | np.number) and not isinstance(value, bool)
    } or None


class GymnasiumEnv(SingleEnv):
    """One ``gymnasium.Env``."""

    def __init__(self, env: Any, success_key: str | None = None) -> None:
        """Takes over an environment."""
        self._env = env
        self._success_key = success_key
        self.spec = space_spec(env.observation_space, env.action_space, str(env))
        self.has_success = success_key is not None

    def reset(self, seed: int | None) -> tuple[Float32, bool | None]:
        observation, info = self._env.reset(seed=seed)
        solved = info.get(self._success_key) if self._success_key else None
        return np.asarray(observation, dtype=np.float32).ravel(), None if solved is None else bool(solved)

    def step(self, action: Any) -> SingleStep:
        observation, reward, terminated, truncated, info = self._env.step(action)
        return SingleStep(
            np.asarray(observation, dtype=np.float32).ravel(),
            float(reward),
            bool(terminated),
            bool(truncated),
            bool(info.get(self._success_key, False)) if self._success_key else None,
            reward_terms=reward_terms(info),
        )

    def close(self) -> None:
        self._env.close()


class GymnasiumVector(Simulator):
    """A ``gymnasium.vector.VectorEnv`` in any of the three auto-reset modes."""

    def __init__(
        self, env: Any, next_seed: NextSeed, *, success_key: str | None = None, ignore_terminations: bool = False
    ) -> None:
        """Takes over a vectorised environment.

        Raises:
            ConfigError: it does not say how it resets, or cannot do what is asked.
        """
        from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv

        mode = env.metadata.get("autoreset_mode")
        if mode is None:
            raise ConfigError(
                f"{env} does not say how it resets: metadata['autoreset_mode'] is missing. Set it in the environment, "
                "or use env.train.vectorized=false."
            )
        self._mode = AutoresetMode(mode).name
        if ignore_terminations:
            raise ConfigError("a natively vectorised environment ends its own episodes: set ignore_terminations=false.")
        self._env = env
        # Vectors made of single environments take a seed for each; others have one generator for all.
        self._seed_each = isinstance(env.unwrapped, SyncVectorEnv | AsyncVectorEnv)
        self._next_seed = next_seed
        self._success_key = success_key
        self.num_envs = env.num_envs
        self.spec = space_spec(env.single_observation_space, env.single_action_space, str(env))
        self.has_success = success_key is not None
        self._resetting = np.zeros(self.num_envs, dtype=bool)
        self._idle = np.zeros(self.num_envs, dtype=bool)

    @classmethod
    def make(cls, config: Any, num_envs: int, next_seed: NextSeed) -> Simulator:
        return Gymnasium.make(config, num_envs, next_seed)

    def reset(self) -> tuple[Float32, dict[int, Beginning]]:
        seeds = [self._next_seed(n) for n in range(self.num_envs)]
        self._idle = np.array([seed is None for seed in seeds])
        self._resetting[:] = False
        observations, info = self._env.reset(seed=seeds if self._seed_each else seeds[0])
        return self._flat(observations), {
            n: Beginning(seeds[n] if self._seed_each else None, self._solved(info, n))
            for n in range(self.num_envs)
            if not self._idle[n]
        }

    def _flat(self, observations: Any) -> Float32:
        return np.array(observations, dtype=np.float32).reshape(self.num_envs, -1)

    def _solved(self, info: Mapping[str, Any], n: int) -> bool | None:
        """Success of one environment in a vectorised info; None where it says nothing."""
        if self._success_key is None or self._success_key not in info:
            return None
        known = info.get(f"_{self._success_key}")
        return bool(info[self._success_key][n]) if known is None or known[n] else None

    def step(self, actions: NDArray[Any]) -> Step:
        observations, rewards, terminated, truncated, info = self._env.step(actions)
        successors = self._flat(observations)
        valid = ~(self._resetting | self._idle)
        over = np.array(terminated | truncated, dtype=bool)  # also where a slot is idle and plays on unwatched
        terminated = np.array(terminated, dtype=bool) & valid
        truncated = np.array(truncated, dtype=bool) & valid
        ended = over & valid
        final_info: Mapping[str, Any] = info.get("final_info", {})
        success = np.zeros(self.num_envs, dtype=bool)
        for n in np.flatnonzero(valid):
            at_end = self._mode == "SAME_STEP" and ended[n]  # there `info` already speaks of the next episode
            success[n] = bool(self._solved(final_info if at_end else info, int(n)))
        terms = self._reward_terms(info, final_info, ended, valid)
        begun = self._begin(ended, over, info)
        observations = successors if self._mode != "DISABLED" else self._flat(begun.pop(-1, observations))
        if self._mode == "SAME_STEP" and ended.any():
            finals = info["final_obs"] if "final_obs" in info else info["final_observation"]
            successors = successors.copy()
            for n in np.flatnonzero(ended):
                successors[n] = np.asarray(finals[n], dtype=np.float32).ravel()
        return Step(
            observations,
            successors,
            np.where(valid, rewards, 0.0),
            terminated,
            truncated,
            success if self.has_success else None,
            valid,
            begun,
            reward_terms=terms,
        )

    def _reward_terms(
        self, info: Mapping[str, Any], final_info: Mapping[str, Any], ended: Bool, valid: Bool
    ) -> dict[str, NDArray[np.float64]]:
        """Named parts of the rewards, of the episode that took the step."""
        terms: dict[str, NDArray[np.float64]] = {}
        for name in [name for name in {*info, *final_info} if name.startswith("reward_")]:
            values = np.full(self.num_envs, np.nan)
            for n in np.flatnonzero(valid):
                source = final_info if self._mode == "SAME_STEP" and ended[n] else info
                known = source.get(f"_{name}")
                numbers = np.asarray(source.get(name))
                if numbers.ndim == 1 and numbers.dtype.kind in "fiu" and (known is None or known[n]):
                    values[n] = numbers[n]
            if not np.isnan(values).all():
                terms[name.removeprefix("reward_")] = values
        return terms

    def _begin(self, ended: Bool, over: Bool, info: Mapping[str, Any]) -> dict[int, Any]:
        """Beginnings after a step, by environment; under DISABLED also does the reset, whose observations are at -1."""
        begun: dict[int, Any] = {}
        if self._mode == "NEXT_STEP":
            for n in np.flatnonzero(self._resetting & ~self._idle):
                begun[int(n)] = Beginning(None, self._solved(info, int(n)))
            self._resetting = ended.copy()
            for n in np.flatnonzero(ended):
                self._idle[n] = self._next_seed(int(n)) is None
        elif self._mode == "SAME_STEP":
            for n in np.flatnonzero(ended):
                self._idle[n] = self._next_seed(int(n)) is None
                if not self._idle[n]:
                    begun[int(n)] = Beginning(None, self._solved(info, int(n)))
        elif over.any():
            seeds = [self._next_seed(int(n)) if ended[n] else None for n in range(self.num_envs)]
            given = seeds if self._seed_each else None
            begun[-1], reset_info = self._env.reset(seed=given, options={"reset_mask": over})
            for n in np.flatnonzero(ended):
                self._idle[n] = seeds[n] is None
                if seeds[n] is not None:
                    seed = seeds[n] if self._seed_each else None
                    begun[int(n)] = Beginning(seed, self._solved(reset_info, int(n)))
        return begun

    def close(self) -> None:
        self._env.close()


def _arguments(config: GymnasiumConfig) -> dict[str, Any]:
    """Returns the keyword arguments of ``gymnasium.make``."""
    limit = {} if config.max_episode_steps is None else {"max_episode_steps": config.max_episode_steps}
    return {**config.kwargs, **limit}


class Gymnasium(OneByOne):
    """Registered Gymnasium environments, one by one; or, when vectorised, a ``GymnasiumVector`` in their place."""

    Config = GymnasiumConfig

    @classmethod
    def make(cls, config: GymnasiumConfig, num_envs: int, next_seed: NextSeed) -> Simulator:
        import gymnasium

        kwargs = _arguments(config)
        try:
            if config.vectorized:
                env = gymnasium.make_vec(config.id, num_envs, vectorization_mode="vector_entry_point", **kwargs)
                return GymnasiumVector(
                    env, next_seed, success_key=config.success_key, ignore_terminations=config.ignore_terminations
                )
            made = [gymnasium.make(config.id, **kwargs) for _ in range(num_envs)]
        except (TypeError, gymnasium.error.Error) as error:
            raise ConfigError(f"Gymnasium cannot make {config.id} with {kwargs}: {error}") from error
        envs: list[SingleEnv] = [GymnasiumEnv(env, config.success_key) for env in made]
        return cls(envs, next_seed, ignore_terminations=config.ignore_terminations)

    @classmethod
    def check(cls, config: GymnasiumConfig, key: str) -> None:
        import gymnasium

        module, _, name = config.id.rpartition(":")
        try:
            if module:
                importlib.import_module(module)
            registered = gymnasium.spec(name)
        except (gymnasium.error.Error, ModuleNotFoundError) as error:
            near = nearest(name, gymnasium.registry)
            raise ConfigError(f"{key}.id is {config.id!r}, but Gymnasium does not know it{near} ({error})") from error
        if config.vectorized and key == "env.eval":
            raise ConfigError(
                "env.eval.vectorized is true, but such a simulator draws its own seeds after the first episode of each "
                "slot, and an evaluation plays held-out ones: set env.eval.vectorized=false."
            )
        if config.vectorized and registered.vector_entry_point is None:
            raise ConfigError(f"{key}.vectorized is true, but {config.id} has no vectorisation of its own.")

    @classmethod
    def check_spaces(cls, config: GymnasiumConfig) -> None:
        import gymnasium

        if config.vectorized:
            return
        with warnings.catch_warnings(action="ignore"):  # the workers repeat them
            try:
                env = gymnasium.make(config.id, **_arguments(config))
            except Exception:  # an environment may raise anything; the workers report it with their machine
                return
            space_spec(env.observation_space, env.action_space, str(env))
            with contextlib.suppress(Exception):
                env.close()
