"""Environments that Gymnasium steps as one, in each of its modes of resetting them."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from rlpipe.envs.base import Beginning, Notes, Simulator, Step
from rlpipe.envs.gymnasium.info import success_notes
from rlpipe.envs.gymnasium.making import config_errors, make_kwargs, make_vector_env
from rlpipe.envs.gymnasium.options import GymnasiumConfig
from rlpipe.envs.gymnasium.single import name_of
from rlpipe.envs.shared.checks import (
    array_or_none,
    check_reset_form,
    check_step_form,
    flag,
    flags,
    number_or_none,
    numbers,
    shown,
    without_names,
)
from rlpipe.envs.shared.seeding import Seeding
from rlpipe.envs.shared.slots import NextSeed, Slots
from rlpipe.envs.shared.spaces import Spaces
from rlpipe.errors import ConfigError, ContractError
from rlpipe.trajectory import Bool, Observations

if TYPE_CHECKING:  # a simulator in a Python of its own does without
    from rlpipe.metrics.declaration import Metric


DRAWS_TOGETHER = (
    "The environments draw from a global generator, which they share, so no episode follows from its own seed, and the "
    "ledger lists no seeds. Draw from self.np_random, or set env.train.vectorized=false."
)


def _has_entries(values: Any, count: int) -> bool:
    """True if there is an entry for each of N environments."""
    if isinstance(values, np.ndarray):
        return bool(values.shape[:1] == (count,))
    return isinstance(values, list | tuple) and len(values) == count


def _is_known(info: Mapping[str, Any], name: str, n: int, count: int) -> bool:
    """True if a vectorised info holds an entry for environment n, as far as its mask says."""
    mask = info.get(f"_{name}")
    return mask is None or (_has_entries(mask, count) and number_or_none(mask[n]) != 0)


def _final_info(info: Mapping[str, Any]) -> Mapping[str, Any]:
    """Returns the info of last steps, which that of a step holds where environments reset themselves in it."""
    final: Mapping[str, Any] = info.get("final_info", {})
    if not isinstance(final, Mapping):
        raise ContractError(
            f"final_info is {shown(final)}, an array with a dictionary for each environment, as in Gymnasium before "
            "1.0; give one dictionary of arrays, as VectorEnv._add_info of gymnasium makes it, or set "
            "env.train.vectorized=false"
        )
    return final


class GymnasiumVector(Simulator):
    """A ``gymnasium.vector.VectorEnv`` in any of the three autoreset modes."""

    Config = GymnasiumConfig
    tries_seeds: ClassVar[bool] = True

    def __init__(
        self,
        env: Any,
        next_seed: NextSeed,
        *,
        success_key: str | None = None,
        ignore_terminations: bool = False,
        ignored: Collection[str] = (),
    ) -> None:
        """Takes over a vectorised environment.

        Raises:
            ConfigError: it does not say how it resets, or cannot do what is asked.
        """
        from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv

        mode = env.metadata.get("autoreset_mode")
        if mode is None:
            raise ConfigError(
                f"{env} does not declare its autoreset mode: metadata['autoreset_mode'] is missing. Set it in the "
                "environment, or use env.train.vectorized=false."
            )
        if mode not in [*AutoresetMode, *(member.value for member in AutoresetMode)]:
            raise ConfigError(
                f"{env} declares metadata['autoreset_mode'] as {mode!r}; it must be one of "
                f"{', '.join(f'AutoresetMode.{member.name}' for member in AutoresetMode)}."
            )
        if ignore_terminations:
            raise ConfigError(
                "a natively vectorised environment resets itself at a termination, so terminations cannot be ignored: "
                "set ignore_terminations=false."
            )
        self._env, self._success_key = env, success_key
        self._mode: str = AutoresetMode(mode).name
        self._slots = Slots(env.num_envs, next_seed)
        self._spaces = Spaces(env.single_observation_space, env.single_action_space, name_of(env), ignored)
        self._seeding = Seeding(tries=self.tries_seeds)
        self._notes = Notes()
        # Vectors made of single environments take a seed for each; others have one generator for all.
        self._seed_each = isinstance(env.unwrapped, SyncVectorEnv | AsyncVectorEnv)
        self._lists_seeds = self._seed_each  # if the seeds decide what happens
        self._resetting: Bool = np.zeros(env.num_envs, dtype=bool)  # whose next step does nothing but reset them
        self.num_envs = env.num_envs
        self.spec = self._spaces.spec
        self.has_success = success_key is not None

    @classmethod
    def make(cls, config: GymnasiumConfig, num_envs: int, next_seed: NextSeed) -> GymnasiumVector:
        with config_errors(config.id, make_kwargs(config)):
            return cls.of(make_vector_env(config, num_envs), next_seed, config)

    @classmethod
    def of(cls, env: Any, next_seed: NextSeed, config: GymnasiumConfig) -> GymnasiumVector:
        """Takes over the vectorised environment of a configuration."""
        return cls(
            env,
            next_seed,
            success_key=config.success_key,
            ignore_terminations=config.ignore_terminations,
            ignored=config.ignore_observations,
        )

    def reset(self) -> tuple[Observations, dict[int, Beginning]]:
        seeds = [self._next_seed(n) for n in range(self.num_envs)]
        self._resetting[:] = False
        reset_seed = seeds if self._seed_each else seeds[0]
        observations, info = self._seeding.begin(lambda: self._begun(seed=reset_seed), next(filter(None, seeds), 0))
        if not self._seeding.repeats:
            self._notes.add(self._seeding.note)
        elif self._seeding.draws_globally:  # one generator serves all environments, whatever their seeds
            self._notes.add(DRAWS_TOGETHER)
        self._lists_seeds = self._seed_each and self._seeding.repeats and not self._seeding.draws_globally
        return observations, self._beginnings(seeds, info)

    def _next_seed(self, n: int) -> int | None:
        """Asks for the seed of a slot's next episode. Without one the slot is idle from now on."""
        episode = self._slots.begin(n)
        return None if episode is None else episode.seed

    def _begun(self, **arguments: Any) -> tuple[Observations, Mapping[str, Any]]:
        """Resets environments; returns the observations of all [N, ...] and the info."""
        answer = self._env.reset(**arguments)
        check_reset_form(answer)
        return self._spaces.observations(answer[0], self.num_envs), answer[1]

    def _beginnings(self, seeds: Sequence[int | None], info: Mapping[str, Any]) -> dict[int, Beginning]:
        """Returns the beginnings of the slots that a reset with seeds [N] began an episode in."""
        return {
            n: Beginning(seed if self._lists_seeds else None, self._success(info, n))
            for n, seed in enumerate(seeds)
            if seed is not None
        }

    def _success(self, info: Mapping[str, Any], n: int) -> bool | None:
        """Success of one environment in a vectorised info; None where the info says nothing about it."""
        if self._success_key is None or self._success_key not in info:
            return None
        if not _is_known(info, self._success_key, n, self.num_envs):
            return None
        values, name = info[self._success_key], f"info[{self._success_key!r}]"
        if not _has_entries(values, self.num_envs):
            raise ContractError(
                f"{name} is {shown(values)}; {self.num_envs} entries are expected, one for each environment"
            )
        return flag(values[n], name)

    def step(self, actions: NDArray[Any], active: Bool | None = None) -> Step:
        assert active is None
        count = self.num_envs
        answer = self._env.step(self._spaces.actions(actions))
        check_step_form(answer)
        observations, rewards, terminated, truncated, info = answer
        rewards = numbers(rewards, "reward", count)
        terminated, truncated = flags(terminated, "terminated", count), flags(truncated, "truncated", count)
        valid = ~(self._resetting | self._slots.idle)
        over = terminated | truncated  # an idle slot still steps; nobody uses its episodes
        terminated, truncated = terminated & valid, truncated & valid
        ended = over & valid
        observations = self._spaces.observations(observations, count)
        # With SAME_STEP, the info of a last step is already that of the reset.
        resets = ended & (self._mode == "SAME_STEP")
        infos = {n: _final_info(info) if resets[n] else info for n in map(int, np.flatnonzero(valid))}
        successes = {n: solved for n, held in infos.items() if (solved := self._success(held, n)) is not None}
        success = np.zeros(count, dtype=bool)
        success[list(successes)] = list(successes.values())
        terms, observed = self._reward_terms(infos), self._own_metrics(infos)
        if not self.has_success:
            for note in success_notes(next(iter(infos.values()), {})):
                self._notes.add(note)
        successors = observations
        if self._mode == "NEXT_STEP":
            beginnings = self._continue_with_next_step(info, ended)
        elif self._mode == "SAME_STEP":
            successors, beginnings = self._continue_in_same_step(observations, info, ended)
        else:
            observations, beginnings = self._continue_by_mask(observations, ended, over)
        return Step(
            observations,
            successors,
            np.where(valid, rewards, 0.0),
            terminated,
            truncated,
            success if self.has_success else None,
            valid,
            beginnings,
            reward_terms=terms,
            observed=observed,
            tells_success=bool(successes),
            notes=self._notes.take(),
        )

    def _continue_with_next_step(self, info: Mapping[str, Any], ended: Bool) -> dict[int, Beginning]:
        """``AutoresetMode.NEXT_STEP``: the step after an episode's last one resets, whatever its action."""
        begun = map(int, np.flatnonzero(self._resetting & ~self._slots.idle))
        beginnings = {n: Beginning(None, self._success(info, n)) for n in begun}
        self._resetting = ended.copy()
        for n in map(int, np.flatnonzero(ended)):
            self._slots.begin(n)
        return beginnings

    def _continue_in_same_step(
        self, observations: Observations, info: Mapping[str, Any], ended: Bool
    ) -> tuple[Observations, dict[int, Beginning]]:
        """``AutoresetMode.SAME_STEP``: the last step of an episode also resets; the info holds its true successor."""
        if not ended.any():
            return observations, {}
        finals = info.get("final_obs", info.get("final_observation"))
        if finals is None:
            raise ContractError(
                "the info of a last step holds no final_obs, although the environment resets itself in the same "
                "step (AutoresetMode.SAME_STEP); add it, or declare the mode that it has"
            )
        successors, beginnings = observations.copy(), {}
        for n in map(int, np.flatnonzero(ended)):
            successors[n] = self._spaces.final(finals, n)
        for n in map(int, np.flatnonzero(ended)):
            if self._slots.begin(n) is not None:
                beginnings[n] = Beginning(None, self._success(info, n))
        return successors, beginnings

    def _continue_by_mask(
        self, observations: Observations, ended: Bool, over: Bool
    ) -> tuple[Observations, dict[int, Beginning]]:
        """``AutoresetMode.DISABLED``: nothing resets by itself, so environments that are over are reset here."""
        if not over.any():
            return observations, {}
        seeds = [self._next_seed(n) if ended[n] else None for n in range(self.num_envs)]
        first, info = self._begun(seed=seeds if self._seed_each else None, options={"reset_mask": over})
        return first, self._beginnings(seeds, info)

    def _reward_terms(self, infos: Mapping[int, Mapping[str, Any]]) -> dict[str, NDArray[np.float64]]:
        """Named terms of the rewards, from the info of each environment that took a step."""
        terms: dict[str, NDArray[np.float64]] = {}
        for name in sorted({name for info in infos.values() for name in info if str(name).startswith("reward_")}):
            values = np.full(self.num_envs, np.nan)
            for n, info in infos.items():
                values_of_all = array_or_none(info.get(name))
                if values_of_all is None or values_of_all.shape != values.shape:
                    continue
                if values_of_all.dtype.kind != "b" and _is_known(info, name, n, self.num_envs):
                    values[n] = values_of_all[n]
            if not np.isnan(values).all():
                terms[name.removeprefix("reward_")] = values
        return terms

    def _own_metrics(self, infos: Mapping[int, Mapping[str, Any]]) -> dict[str | Metric, NDArray[np.float64]]:
        """Numbers that the tasks measure, from the arrays in the ``metrics`` of their infos.

        An array under ``_name`` says in which environments there is a ``name``.
        """
        columns: dict[str | Metric, NDArray[np.float64]] = {}
        for n, info in infos.items():
            metrics = info.get("metrics")
            if not isinstance(metrics, Mapping):
                if metrics is not None and _is_known(info, "metrics", n, self.num_envs):
                    self._notes.add(without_names("metric", metrics))
                continue
            for name in sorted(metrics.keys() - {f"_{other}" for other in metrics}):
                values = metrics[name]
                if not _has_entries(values, self.num_envs) or not _is_known(metrics, name, n, self.num_envs):
                    continue
                if (value := number_or_none(values[n])) is not None:
                    columns.setdefault(str(name), np.full(self.num_envs, np.nan))[n] = value
        return columns

    def close(self) -> None:
        self._env.close()
