"""Environments that Gymnasium steps as one, in each of its modes of resetting them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

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


class VectorSlots(Slots):
    """N slots of a vectorised environment: their seeds and what the infos say about them.

    Attributes:
        env: the ``gymnasium.vector.VectorEnv``.
        num_envs: N.
        spaces: of a single environment.
        seed_each: True if a reset takes a seed for each environment; otherwise one generator serves all.
        lists_seeds: True if the seeds decide what happens, so that the ledger lists them.
    """

    def __init__(self, env: Any, next_seed: NextSeed, success_key: str | None, ignored: Collection[str]) -> None:
        """Takes over the environment; no slot is idle yet."""
        from gymnasium.vector import AsyncVectorEnv, SyncVectorEnv

        super().__init__(env.num_envs, next_seed)
        self.env = env
        self.num_envs: int = env.num_envs
        self.spaces = Spaces(env.single_observation_space, env.single_action_space, name_of(env), ignored)
        # Vectors made of single environments take a seed for each; others have one generator for all.
        self.seed_each = isinstance(env.unwrapped, SyncVectorEnv | AsyncVectorEnv)
        self.lists_seeds = self.seed_each
        self._success_key = success_key

    def next_seed(self, n: int) -> int | None:
        """Asks for the seed of a slot's next episode. Without one the slot is idle from now on."""
        episode = self.begin(n)
        return None if episode is None else episode.seed

    def converted(self, observations: Any) -> Observations:
        """[N, ...] copy of the environments' observations."""
        return self.spaces.observations(observations, self.num_envs)

    def success(self, info: Mapping[str, Any], n: int) -> bool | None:
        """Success of one environment in a vectorised info; None where the info says nothing about it."""
        if self._success_key is None or self._success_key not in info:
            return None
        if not _is_known(info, self._success_key, n, self.num_envs):
            return None
        name = f"info[{self._success_key!r}]"
        return flag(_entry_of(info[self._success_key], n, self.num_envs, name), name)


def _has_entries(values: Any, count: int) -> bool:
    """True if there is an entry for each of N environments."""
    if isinstance(values, np.ndarray):
        return bool(values.shape[:1] == (count,))
    return isinstance(values, list | tuple) and len(values) == count


def _is_known(info: Mapping[str, Any], name: str, n: int, count: int) -> bool:
    """True if a vectorised info holds an entry for environment n, as far as its mask says."""
    mask = info.get(f"_{name}")
    return mask is None or (_has_entries(mask, count) and number_or_none(mask[n]) != 0)


def _entry_of(values: Any, n: int, count: int, name: str) -> Any:
    """Returns the entry of one of N environments in a vectorised info.

    Raises:
        ContractError: it has not an entry for each.
    """
    if not _has_entries(values, count):
        raise ContractError(f"{name} is {shown(values)}; {count} entries are expected, one for each environment")
    return values[n]


class VectorStep(NamedTuple):
    """Answer of a vectorised environment to a step.

    Attributes:
        observations: [N, ...].
        info: the vectorised info.
        ended: [N] bool, episodes that ended with this step.
        over: [N] bool, the same and also episodes of idle slots.
    """

    observations: Observations
    info: Mapping[str, Any]
    ended: Bool
    over: Bool


class Continuation(NamedTuple):
    """Continuation of a step, with the next episode where one ended.

    Attributes:
        observations: [N, ...] to act on next.
        successors: [N, ...] true successors of the step, before any reset.
        beginnings: episodes that start with the next valid step, by environment.
    """

    observations: Observations
    successors: Observations
    beginnings: dict[int, Beginning]


class ResetAdapter(ABC):
    """Meets the step contract under one of Gymnasium's autoreset modes.

    Attributes:
        resetting: [N] bool, environments whose next step does nothing but reset them.
    """

    def __init__(self, slots: VectorSlots) -> None:
        """Starts with no environment about to reset."""
        self.slots = slots
        self.resetting = np.zeros(slots.num_envs, dtype=bool)

    def step_info(self, answer: VectorStep, n: int) -> Mapping[str, Any]:  # noqa: ARG002 - for modes where it depends on n
        """Info of environment n about the step itself, before any reset."""
        return answer.info

    @abstractmethod
    def continue_after(self, answer: VectorStep) -> Continuation:
        """Continues with the next episode where one ended."""


class NextStepReset(ResetAdapter):
    """``AutoresetMode.NEXT_STEP``: the step after an episode's last one resets, whatever its action."""

    def continue_after(self, answer: VectorStep) -> Continuation:
        slots = self.slots
        beginnings: dict[int, Beginning] = {}
        for n in map(int, np.flatnonzero(self.resetting & ~slots.idle)):
            beginnings[n] = Beginning(None, slots.success(answer.info, n))
        self.resetting = answer.ended.copy()
        for n in map(int, np.flatnonzero(answer.ended)):
            slots.next_seed(n)
        return Continuation(answer.observations, answer.observations, beginnings)


class SameStepReset(ResetAdapter):
    """``AutoresetMode.SAME_STEP``: the last step of an episode also resets; the info holds its true outcome."""

    def step_info(self, answer: VectorStep, n: int) -> Mapping[str, Any]:
        if not answer.ended[n]:
            return answer.info
        own: Mapping[str, Any] = answer.info.get("final_info", {})
        if not isinstance(own, Mapping):
            raise ContractError(
                f"final_info is {shown(own)}, an array with a dictionary for each environment, as in Gymnasium before "
                "1.0; give one dictionary of arrays, as VectorEnv._add_info of gymnasium makes it, or set "
                "env.train.vectorized=false"
            )
        return own

    def continue_after(self, answer: VectorStep) -> Continuation:
        slots, info = self.slots, answer.info
        successors = answer.observations
        if answer.ended.any():
            finals = info.get("final_obs", info.get("final_observation"))
            if finals is None:
                raise ContractError(
                    "the info of a last step holds no final_obs, although the environment resets itself in the same "
                    "step (AutoresetMode.SAME_STEP); add it, or declare the mode that it has"
                )
            successors = successors.copy()
            for n in map(int, np.flatnonzero(answer.ended)):
                successors[n] = slots.spaces.final(finals, n)
        beginnings: dict[int, Beginning] = {}
        for n in map(int, np.flatnonzero(answer.ended)):
            if slots.next_seed(n) is not None:
                beginnings[n] = Beginning(None, slots.success(info, n))
        return Continuation(answer.observations, successors, beginnings)


class MaskedReset(ResetAdapter):
    """``AutoresetMode.DISABLED``: nothing resets by itself, so environments that are over are reset here, by a mask."""

    def continue_after(self, answer: VectorStep) -> Continuation:
        if not answer.over.any():
            return Continuation(answer.observations, answer.observations, {})
        slots = self.slots
        seeds = [slots.next_seed(n) if answer.ended[n] else None for n in range(slots.num_envs)]
        begun = slots.env.reset(seed=seeds if slots.seed_each else None, options={"reset_mask": answer.over})
        check_reset_form(begun)
        first, info = begun
        beginnings = {
            n: Beginning(seed if slots.lists_seeds else None, slots.success(info, n))
            for n, seed in enumerate(seeds)
            if seed is not None
        }
        return Continuation(slots.converted(first), answer.observations, beginnings)


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
        from gymnasium.vector import AutoresetMode

        mode = env.metadata.get("autoreset_mode")
        if mode is None:
            raise ConfigError(
                f"{env} does not declare its autoreset mode: metadata['autoreset_mode'] is missing. Set it in the "
                "environment, or use env.train.vectorized=false."
            )
        adapters: dict[AutoresetMode, type[ResetAdapter]] = {
            AutoresetMode.NEXT_STEP: NextStepReset,
            AutoresetMode.SAME_STEP: SameStepReset,
            AutoresetMode.DISABLED: MaskedReset,
        }
        if mode not in [*AutoresetMode, *(one.value for one in AutoresetMode)]:
            raise ConfigError(
                f"{env} declares metadata['autoreset_mode'] as {mode!r}; it must be one of "
                f"{', '.join(f'AutoresetMode.{one.name}' for one in AutoresetMode)}."
            )
        adapter = adapters[AutoresetMode(mode)]
        if ignore_terminations:
            raise ConfigError(
                "a natively vectorised environment resets itself at a termination, so terminations cannot be ignored: "
                "set ignore_terminations=false."
            )
        self._slots = VectorSlots(env, next_seed, success_key, ignored)
        self._seeding = Seeding(tries=self.tries_seeds)
        self._notes = Notes()
        self._resets = adapter(self._slots)
        self.num_envs = env.num_envs
        self.spec = self._slots.spaces.spec
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
        slots = self._slots
        seeds = [slots.next_seed(n) for n in range(self.num_envs)]
        self._resets.resetting[:] = False
        given = seeds if slots.seed_each else seeds[0]
        observations, info = self._seeding.begin(lambda: self._begun(given), next(filter(None, seeds), 0))
        if not self._seeding.repeats:
            self._notes.add(self._seeding.note)
        elif self._seeding.draws_globally:  # one generator serves all environments, whatever their seeds
            self._notes.add(DRAWS_TOGETHER)
        slots.lists_seeds = slots.seed_each and self._seeding.repeats and not self._seeding.draws_globally
        return observations, {
            n: Beginning(seeds[n] if slots.lists_seeds else None, slots.success(info, n))
            for n in range(self.num_envs)
            if not slots.idle[n]
        }

    def _begun(self, seeds: Any) -> tuple[Observations, Mapping[str, Any]]:
        """Resets all environments; returns their observations and the info."""
        answer = self._slots.env.reset(seed=seeds)
        check_reset_form(answer)
        return self._slots.converted(answer[0]), answer[1]

    def step(self, actions: NDArray[Any], active: Bool | None = None) -> Step:
        assert active is None
        slots, count = self._slots, self.num_envs
        taken = slots.env.step(slots.spaces.actions(actions))
        check_step_form(taken)
        observations, rewards, terminated, truncated, info = taken
        rewards = numbers(rewards, "reward", count)
        terminated, truncated = flags(terminated, "terminated", count), flags(truncated, "truncated", count)
        valid = ~(self._resets.resetting | slots.idle)
        over = terminated | truncated  # an idle slot still steps; nobody uses its episodes
        terminated, truncated = terminated & valid, truncated & valid
        answer = VectorStep(slots.converted(observations), info, over & valid, over)
        infos = {n: self._resets.step_info(answer, n) for n in map(int, np.flatnonzero(valid))}
        told = {n: held for n, own in infos.items() if (held := slots.success(own, n)) is not None}
        success = np.zeros(count, dtype=bool)
        success[list(told)] = list(told.values())
        terms, observed = self._reward_terms(infos), self._own_metrics(infos)
        if not self.has_success:
            for note in success_notes(next(iter(infos.values()), {})):
                self._notes.add(note)
        after = self._resets.continue_after(answer)
        return Step(
            after.observations,
            after.successors,
            np.where(valid, rewards, 0.0),
            terminated,
            truncated,
            success if self.has_success else None,
            valid,
            after.beginnings,
            reward_terms=terms,
            observed=observed,
            tells_success=bool(told),
            notes=self._notes.take(),
        )

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
        found: dict[str | Metric, NDArray[np.float64]] = {}
        for n, info in infos.items():
            told = info.get("metrics")
            if not isinstance(told, Mapping):
                if told is not None and _is_known(info, "metrics", n, self.num_envs):
                    self._notes.add(without_names("metric", told))
                continue
            for name in sorted(told.keys() - {f"_{other}" for other in told}):
                values = told[name]
                if not _has_entries(values, self.num_envs) or not _is_known(told, name, n, self.num_envs):
                    continue
                if (value := number_or_none(values[n])) is not None:
                    found.setdefault(str(name), np.full(self.num_envs, np.nan))[n] = value
        return found

    def close(self) -> None:
        self._slots.env.close()
