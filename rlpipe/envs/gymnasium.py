"""Registered Gymnasium environments, one by one or natively vectorised.

Importing this file imports no Gymnasium.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import io
import re
import sys
import time
import warnings
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from rlpipe.config.fields import option
from rlpipe.envs.base import (
    NO_STATES,
    Beginning,
    NextSeed,
    Notes,
    OneByOne,
    Simulator,
    SimulatorConfig,
    SingleEnv,
    SingleStep,
    Step,
    TaskEntry,
    check_ends,
)
from rlpipe.envs.base_checks import (
    array_or_none,
    check_reset_form,
    check_reset_signature,
    check_step,
    check_step_form,
    flag,
    flags,
    number_or_none,
    numbers,
    shown,
    without_names,
)
from rlpipe.envs.base_frames import stacked
from rlpipe.envs.base_goals import GoalTask, task_of_goal_env
from rlpipe.envs.base_mujoco_scene import MuJoCoGeometry, goals_of, has_mujoco
from rlpipe.envs.base_mujoco_state import MuJoCoStates, is_mujoco_task, why_without_states
from rlpipe.envs.base_pixels import choose_opengl, choose_opengl_if_found, make_with_pixels
from rlpipe.envs.base_seeding import SeededReset, Seeding
from rlpipe.envs.base_spaces import Spaces
from rlpipe.errors import ConfigError, ContractError, how_it_failed, ignored
from rlpipe.plugins import WHERE_MODULES_ARE, closest
from rlpipe.trajectory import Bool, Float32, Observations, Scene, SpaceSpec, State

if TYPE_CHECKING:  # a simulator in a Python of its own does without
    from rlpipe.metrics.declaration import Metric

__all__ = ["Gymnasium"]


REGISTERING = ("gymnasium_robotics", "gym_pusht", "gym_xarm", "gym_hil")
"""Packages whose import registers tasks, if they are installed."""
DRAWING = ("gym_hil", "gym_xarm")
"""Those whose tasks open OpenGL as soon as they are made, even if they observe no pictures."""
ATTENDED = ("use_viewer", "use_inputs_control")
"""Arguments in the registration of a task that needs a screen, and a person at a keyboard or gamepad."""
SUCCESS_KEYS = {
    "gymnasium_robotics.envs.fetch": "is_success",
    "gymnasium_robotics.envs.shadow_dexterous_hand": "is_success",
    "gymnasium_robotics.envs.adroit_hand": "success",
    "gymnasium_robotics.envs.maze": "success",
    "gym_pusht": "is_success",
    "gym_xarm": "is_success",
    "gym_hil": "succeed",
}
"""Entry of the info that tells success, by the beginning of the module of a task."""
TRIAL_STEPS, TRIAL_SECONDS, TRIAL_ENVS = 1000, 0.05, 2
"""Steps and seconds of a trial before a run at most, and the size of a vectorised environment there."""
LOOKS = 200
"""First observations of each environment that are compared with their declared bounds."""
MOST_UNUSUAL = 5
"""Notes on them."""
DRAWS_TOGETHER = (
    "The environments draw from a global generator, which they share, so no episode follows from its own seed, and the "
    "ledger lists no seeds. Draw from self.np_random, or set env.train.vectorized=false."
)
MOST_SHOWN = 10
"""Ids in an error."""
NEEDED = {"gymnasium.envs.mujoco": "mujoco", "gymnasium.envs.box2d": "Box2D", "gymnasium_robotics": "mujoco"}
"""Package that a task needs, likewise."""


@dataclass(frozen=True)
class GymnasiumConfig(SimulatorConfig):
    """Options of a Gymnasium environment."""

    id: str = option("")
    """Registered id, such as ``CartPole-v1``; ``module:Name-v0`` imports the module that registers it first."""
    max_episode_steps: int | None = option(None, least=1, below=2**31, unit="environment steps")
    """Time limit; None keeps the registered one."""
    success_key: str | None = option(None)
    """Entry of ``info`` that says whether the goal is reached, such as ``is_success``; None for a task without one."""
    vectorized: bool = option(False)
    """Use the environment's own vectorisation. It then draws its own seeds after the first episode of each slot; such
    episodes have no seed in the ledger. Evaluations need seeds, so ``env.eval`` does not repeat this."""
    pixels: int | None = option(None, least=8, most=4096, unit="pixels", fixed=True)
    """Observe the rendered picture, so high and wide, instead of the environment's own observation
    ([cameras.md](cameras.md)). None: do not render."""
    pixels_with_state: bool = option(False, fixed=True)
    """With ``pixels``, a tree of the picture, ``pixels``, and the environment's own observation: ``state``, or, of a
    Dict, its leaves under their own names."""
    frame_stack: int = option(1, least=1, most=64, unit="pictures", fixed=True)
    """Pictures of the last steps in each image, one behind the other, the oldest first."""
    ignore_observations: list[str] = option([], fixed=True)
    """Leaves of a Dict or Tuple observation that are left out, such as a text, which no policy can use; the name of a
    space that holds leaves leaves out all of them."""
    kwargs: dict[str, Any] = option({})
    """Further keyword arguments of ``gymnasium.make``."""

    def __post_init__(self) -> None:
        """Checks options that depend on each other."""
        if self.vectorized and (self.pixels is not None or self.frame_stack > 1):
            raise ConfigError(
                f"vectorized is true, but pixels is {self.pixels} and frame_stack is {self.frame_stack}: pictures need "
                "vectorized=false."
            )
        if self.pixels_with_state and self.pixels is None:
            raise ConfigError("pixels_with_state is true, but pixels is null: set pixels, such as pixels=64.")

    @property
    def has_cameras(self) -> bool:
        return self.pixels is not None


def reward_terms(info: Mapping[str, Any]) -> dict[str, Any] | None:
    """Named terms of a reward: the info's ``reward_terms``, or else its ``reward_*``, as in Gymnasium's MuJoCo tasks.

    None if the info holds neither. What ``reward_terms`` holds is meant as numbers, whatever it is.
    """
    terms = info.get("reward_terms")
    if terms is not None and isinstance(terms, Mapping):
        return {str(name): value for name, value in terms.items()}
    return {
        name.removeprefix("reward_"): float(value)
        for name, value in info.items()
        if isinstance(name, str)
        and name.startswith("reward_")
        and name != "reward_terms"
        and isinstance(value, int | float | np.number)
        and not isinstance(value, bool)
    } or None


def own_metrics(info: Mapping[str, Any]) -> Any:
    """Numbers by name that the task measures in a step: the info's ``metrics``, whatever they are; None without any."""
    told = info.get("metrics")
    if told is None:  # as in nearly every step
        return None
    return {str(name): value for name, value in told.items()} if isinstance(told, Mapping) else told


def success_notes(info: Mapping[str, Any]) -> list[str]:
    """Sentences on the success in an info, where no ``success_key`` is set."""
    return [
        f"The info holds {key!r}: set env.train.success_key={key} to measure success."
        for key in dict.fromkeys(SUCCESS_KEYS.values())
        if key in info
    ][:1]


def make_env(config: GymnasiumConfig) -> Any:
    """Makes the ``gymnasium.Env`` of a configuration.

    Raises:
        ConfigError: it has to render, and cannot.
    """
    import gymnasium

    if config.pixels is None:
        if config.id.startswith(DRAWING):
            choose_opengl_if_found()
        return gymnasium.make(config.id, **make_kwargs(config))
    choose_opengl()
    return make_with_pixels(config.id, make_kwargs(config), config.pixels, state=config.pixels_with_state)


def make_vector_env(config: GymnasiumConfig, num_envs: int) -> Any:
    """Makes the ``gymnasium.vector.VectorEnv`` of a configuration."""
    import gymnasium

    return gymnasium.make_vec(config.id, num_envs, vectorization_mode="vector_entry_point", **make_kwargs(config))


def name_of(env: Any) -> str:
    """Registered id of an environment; one that was not registered describes itself."""
    return str(env) if env.spec is None else str(env.spec.id)


def observed(env: Any) -> Any:
    """Returns the present observation of a MuJoCo task, as its wrappers change it."""
    import gymnasium

    if env is env.unwrapped:
        return env._get_obs()
    inner = observed(env.env)
    return env.observation(inner) if isinstance(env, gymnasium.ObservationWrapper) else inner


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

    Args:
        simulator: to be thrown away.
        env: its environment, with Gymnasium's wrappers.
        config: its options.
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
    """Checks the form of what an environment returns without its wrappers, which fail where it is another one.

    Raises:
        ContractError: it is that of the old Gym.
    """
    try:
        check_reset_signature(env.unwrapped)
        check_reset_form(env.unwrapped.reset(seed=0))
        check_step_form(env.unwrapped.step(env.action_space.sample()))
    except ContractError:
        raise
    except BaseException as error:  # as above
        how_it_failed(error)


class GymnasiumEnv(SingleEnv):
    """One ``gymnasium.Env``."""

    def __init__(self, env: Any, success_key: str | None = None, ignored: Collection[str] = ()) -> None:
        """Takes over an environment.

        Args:
            env: a ``gymnasium.Env``.
            success_key: entry of its info that holds the success; None for a task without one.
            ignored: leaves of its observation that are left out.
        """
        self._env = env
        self._success_key = success_key
        self._spaces = Spaces(env.observation_space, env.action_space, name_of(env), ignored)
        self.spec = self._spaces.spec
        self.has_success = success_key is not None
        self.success_name = f"info[{success_key!r}]"
        self._looks = LOOKS
        self._reset = SeededReset(env)
        self._states = MuJoCoStates(env.unwrapped) if is_mujoco_task(type(env.unwrapped)) else None
        self._geometry = MuJoCoGeometry() if has_mujoco(env.unwrapped) else None

    def reset(self, seed: int | None) -> tuple[Observations, bool | None]:
        answer = self._reset(seed)
        check_reset_form(answer)
        observation, info = answer
        if self._states is not None:
            self._states.was_reset()
        solved = info.get(self._success_key) if self._success_key else None
        solved = None if solved is None else flag(solved, self.success_name)
        return self._observation(observation), solved

    def _observation(self, observation: Any) -> Observations:
        """Translates an observation; looks closely at the first ones."""
        translated = self._spaces.observation(observation)
        if self._looks:
            self._looks -= 1
            self.unusual = list(dict.fromkeys([*self.unusual, *self._spaces.beyond(observation)]))[:MOST_UNUSUAL]
        return translated

    def state(self) -> State:
        assert self._states is not None
        return self._states.state()

    def set_state(self, state: State) -> tuple[Observations, bool | None]:
        assert self._states is not None
        self._states.set_state(state)
        return self._spaces.observation(observed(self._env)), None

    def blended(self, state: State, share: float) -> State:
        assert self._states is not None
        return self._states.blended(state, share)

    def scene(self) -> Scene | None:
        return None if self._geometry is None else self._geometry.scene(self._env.unwrapped.model)

    def poses(self) -> Float32:
        assert self._geometry is not None
        task = self._env.unwrapped
        return self._geometry.poses(task.data, goals_of(task))

    def step(self, action: Any) -> SingleStep:
        if self._states is not None:
            self._states.will_step()
        answer = self._env.step(self._spaces.action(action))
        if type(answer) is not tuple or len(answer) != 5 or type(answer[4]) is not dict:
            check_step_form(answer)
        observation, reward, terminated, truncated, info = answer
        key, success = self._success_key, None
        if key and key in info:
            success = flag(info[key], self.success_name)
        elif key is None and self._looks:
            self.unusual = list(dict.fromkeys([*success_notes(info), *self.unusual]))
        return SingleStep(
            self._observation(observation) if self._looks else self._spaces.observation(observation),
            reward,
            terminated,
            truncated,
            success,
            reward_terms=reward_terms(info) if info else None,
            observed=own_metrics(info) if info else None,
        )

    def close(self) -> None:
        self._env.close()


class VectorSlots:
    """N slots of a vectorised environment: their seeds and what the infos say about them.

    Attributes:
        env: the ``gymnasium.vector.VectorEnv``.
        num_envs: N.
        spaces: of a single environment.
        seed_each: True if a reset takes a seed for each environment; otherwise one generator serves all.
        lists_seeds: True if the seeds decide what happens, so that the ledger lists them.
        idle: [N] bool, slots that have run all their episodes.
    """

    def __init__(self, env: Any, next_seed: NextSeed, success_key: str | None, ignored: Collection[str]) -> None:
        """Takes over the environment; no slot is idle yet."""
        from gymnasium.vector import AsyncVectorEnv, SyncVectorEnv

        self.env = env
        self.num_envs: int = env.num_envs
        self.spaces = Spaces(env.single_observation_space, env.single_action_space, name_of(env), ignored)
        # Vectors made of single environments take a seed for each; others have one generator for all.
        self.seed_each = isinstance(env.unwrapped, SyncVectorEnv | AsyncVectorEnv)
        self.lists_seeds = self.seed_each
        self.idle = np.zeros(self.num_envs, dtype=bool)
        self._next_seed = next_seed
        self._success_key = success_key

    def next_seed(self, n: int) -> int | None:
        """Asks for the seed of a slot's next episode. Without one the slot is idle from now on."""
        seed = self._next_seed(n)
        self.idle[n] = seed is None
        return seed

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


class Answer(NamedTuple):
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

    def step_info(self, answer: Answer, n: int) -> Mapping[str, Any]:  # noqa: ARG002 - for modes where it depends on n
        """Info of environment n about the step itself, before any reset."""
        return answer.info

    @abstractmethod
    def continue_after(self, answer: Answer) -> Continuation:
        """Continues with the next episode where one ended."""


class NextStepReset(ResetAdapter):
    """``AutoresetMode.NEXT_STEP``: the step after an episode's last one resets, whatever its action."""

    def continue_after(self, answer: Answer) -> Continuation:
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

    def step_info(self, answer: Answer, n: int) -> Mapping[str, Any]:
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

    def continue_after(self, answer: Answer) -> Continuation:
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

    def continue_after(self, answer: Answer) -> Continuation:
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
        answer = Answer(slots.converted(observations), info, over & valid, over)
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


def make_kwargs(config: GymnasiumConfig) -> dict[str, Any]:
    """Keyword arguments of ``gymnasium.make`` and ``make_vec``."""
    limit = {} if config.max_episode_steps is None else {"max_episode_steps": config.max_episode_steps}
    return {**config.kwargs, **limit}


def check_is_environment(config: GymnasiumConfig, error: BaseException) -> None:
    """Checks, where Gymnasium could not make an environment, whether it is one at all.

    Raises:
        ConfigError: it is of another library, or none.
    """
    found = re.search(
        r"inherit from the gymnasium.Env class, actual class: (.*?)\. See|Gym is incompatible", str(error)
    )
    if isinstance(error, TypeError) and found:
        kind = found[1] or "an environment of the old gym"
        raise ConfigError(
            f"{config.id} makes {kind}, which is no gymnasium.Env: derive its class from gymnasium.Env, with "
            "reset(self, *, seed=None, options=None) that returns observation, info, and step(self, action) that "
            "returns observation, reward, terminated, truncated, info."
        ) from error


@contextmanager
def config_errors(env_id: str, kwargs: Mapping[str, Any]) -> Iterator[None]:
    """Turns Gymnasium's errors while it makes an environment into errors of the configuration."""
    import gymnasium

    try:
        yield
    except (TypeError, ValueError, gymnasium.error.Error) as error:
        if isinstance(error, ConfigError):
            raise
        raise ConfigError(f"Gymnasium cannot make {env_id} with {kwargs}: {error}") from error


def register_tasks() -> None:
    """Imports the packages that register tasks, if they are installed."""
    choose_opengl_if_found()  # some settle how to draw when they are imported
    for package in REGISTERING:
        printed = io.StringIO()  # they print advice
        with contextlib.suppress(ImportError), contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed):
            importlib.import_module(package)


def unknown(name: str, tasks: Sequence[TaskEntry]) -> str:
    """End of the error on an id without a module, which nobody has registered."""
    known = {entry.id.rpartition(":")[2]: entry.id for entry in tasks}
    found = closest(name, known, similarity=0.7)
    near = "." if found is None else f"; did you mean {known[found]!r}?"
    return f"Gymnasium does not know it{near} If a module of yours registers it, write module:{name or 'Name-v0'}."


def unregistered(module: str, name: str, before: Collection[str]) -> str:
    """End of the error on an id that a module, which was imported, does not register.

    Args:
        module: as in ``module:name``.
        name: the id.
        before: what was registered before the import; what the module's own classes serve counts as well.
    """
    import gymnasium

    file = getattr(sys.modules.get(module), "__file__", None) or "built in"
    if module.partition(".")[0] in sys.stdlib_module_names:
        return f"{module} is the module of Python's standard library ({file}): give your file another name."
    own = sorted({*gymnasium.registry} - {*before} | {one for one in before if _serves(module, one)})
    if not own:
        return (
            f"{module} ({file}) registers no task: call gymnasium.register({name!r}, its class) there, or name the "
            "module that does, as in module:Name-v0."
        )
    if found := closest(name, own):
        return f"{module} ({file}) does not register it; did you mean '{module}:{found}'?"
    more = f" and {len(own) - MOST_SHOWN} more" if len(own) > MOST_SHOWN else ""
    return f"{module} ({file}) does not register it. It registers {', '.join(own[:MOST_SHOWN])}{more}."


def _serves(module: str, env_id: str) -> bool:
    """True if a registered environment is of a class in a module, or in one below it."""
    import gymnasium

    made_by = gymnasium.registry[env_id].entry_point
    place = made_by if isinstance(made_by, str) else str(getattr(made_by, "__module__", ""))
    return f"{place.partition(':')[0]}.".startswith(f"{module}.")


def _entry(spec: Any) -> TaskEntry:
    """Returns what the registration of an environment says of it."""
    module = spec.entry_point.partition(":")[0]
    package = module.partition(".")[0]
    key = next((key for start, key in SUCCESS_KEYS.items() if module.startswith(start)), None)
    needed = next((needed for start, needed in NEEDED.items() if module.startswith(start)), None)
    missing = needed is not None and importlib.util.find_spec(needed) is None
    prefix = f"{package}:" if package in REGISTERING else ""
    settings, needs = f"success_key={key}" if key else "", f"the package {needed}" if missing else ""
    return TaskEntry(f"{prefix}{spec.id}", spec.max_episode_steps, settings, needs)


class Gymnasium(OneByOne):
    """Registered Gymnasium environments, one by one; with ``vectorized``, a ``GymnasiumVector`` instead."""

    Config = GymnasiumConfig
    evaluation_options: ClassVar[Mapping[str, Any]] = {"vectorized": False}

    @classmethod
    def make(cls, config: GymnasiumConfig, num_envs: int, next_seed: NextSeed) -> Simulator:
        simulator: Simulator
        if config.vectorized:
            simulator = GymnasiumVector.make(config, num_envs, next_seed)
        else:
            with config_errors(config.id, make_kwargs(config)):
                made = [make_env(config) for _ in range(num_envs)]
            own = [GymnasiumEnv(env, config.success_key, config.ignore_observations) for env in made]
            envs = stacked(own, config.frame_stack)
            simulator = cls(envs, next_seed, ignore_terminations=config.ignore_terminations)
        if cls.time_limit(config) is None:
            simulator.notes = (
                f"{config.id} registers no time limit, so each episode must end by itself: an evaluation waits for it. "
                "max_episode_steps sets a limit.",
            )
        return simulator

    @classmethod
    def tasks(cls) -> list[TaskEntry]:
        import gymnasium

        register_tasks()
        return [
            _entry(spec)
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
    def can_wait_with(cls, config: GymnasiumConfig) -> bool:
        return not config.vectorized

    @classmethod
    def can_choose_starts(cls, config: GymnasiumConfig) -> bool:
        return not config.vectorized

    @classmethod
    def can_set_state(cls, config: GymnasiumConfig) -> bool:
        return not config.vectorized and why_without_states(config.id) is None

    @classmethod
    def can_blend(cls, config: GymnasiumConfig) -> bool:
        return cls.can_set_state(config)

    @classmethod
    def why_without_states(cls, config: GymnasiumConfig) -> str:
        return why_without_states(config.id) or NO_STATES

    @classmethod
    def time_limit(cls, config: GymnasiumConfig) -> int | None:
        import gymnasium

        registered: int | None = gymnasium.spec(config.id.rpartition(":")[2]).max_episode_steps
        given: int | None = make_kwargs(config).get("max_episode_steps")
        limit = registered if given is None else given
        return None if limit == -1 else limit  # as in gymnasium.make

    @classmethod
    def check(cls, config: GymnasiumConfig, key: str) -> None:
        import gymnasium

        module, _, name = config.id.rpartition(":")
        if config.id.startswith(DRAWING):
            choose_opengl_if_found()
        before = set(gymnasium.registry)
        try:
            if module:
                importlib.import_module(module)
        except (gymnasium.error.Error, ImportError) as error:
            own = isinstance(error, ModuleNotFoundError) and error.name == module.partition(".")[0]
            remedy = f". {WHERE_MODULES_ARE}." if own else ""
            raise ConfigError(f"{key}.id is {config.id!r}, but {module} cannot be imported: {error}{remedy}") from error
        try:
            registered = gymnasium.spec(name)
        except gymnasium.error.Error as error:
            remedy = unregistered(module, name, before) if module else unknown(name, cls.tasks())
            raise ConfigError(f"{key}.id is {config.id!r}, but {remedy}") from error
        if config.vectorized and registered.vector_entry_point is None:
            raise ConfigError(f"{key}.vectorized is true, but {config.id} has no vectorisation of its own.")
        check_ends(config, key, cls.time_limit(config))

    @classmethod
    def check_evaluation(cls, config: GymnasiumConfig, key: str) -> None:
        if config.vectorized:
            raise ConfigError(
                f"{key}.vectorized is true, but a vectorised simulator draws its own seeds after the first episode of "
                f"each slot, while an evaluation needs held-out seeds: set {key}.vectorized=false."
            )

    @classmethod
    def why_without_success(cls, config: GymnasiumConfig) -> str | None:
        if config.success_key is not None:
            return None
        return "name the entry of info that does in success_key, such as is_success"

    @classmethod
    def check_spaces(cls, config: GymnasiumConfig) -> SpaceSpec | None:
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
                simulator = cls.on_trial(env, config)
                try_simulator(simulator, env, config)
            except ContractError as error:
                raise ConfigError(f"{config.id}: {error.problem}.") from error
            finally:
                with ignored():
                    env.close()
        return simulator.spec

    @classmethod
    def on_trial(cls, env: Any, config: GymnasiumConfig) -> Simulator:
        """Returns a simulator that is thrown away after a few steps."""
        if config.vectorized:
            return GymnasiumVector.of(env, lambda n: n, config)
        own = stacked([GymnasiumEnv(env, config.success_key, config.ignore_observations)], config.frame_stack)
        return cls(own, lambda n: n, ignore_terminations=config.ignore_terminations)
