"""EnvPool: compiled simulators that step many environments in one call (Weng et al. 2022, arXiv:2206.10558).

Meta-World, Gymnasium-Robotics and MuJoCo Playground's Panda tasks are among its 1,600. Importing this file imports no
EnvPool.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from rlpipe.config.fields import option
from rlpipe.envs.base import Beginning, OneByOne, Simulator, SingleEnv, SingleStep, Step, TaskEntry, TaskFacts
from rlpipe.envs.shared.checks import shown
from rlpipe.envs.shared.slots import NextSeed, Slots
from rlpipe.envs.shared.spaces import Spaces
from rlpipe.envs.shared.success import SuccessConfig
from rlpipe.errors import ConfigError, ContractError
from rlpipe.plugins import nearest, require
from rlpipe.trajectory import Bool, Observations
from rlpipe.trajectory.tree import mapped

__all__ = ["EnvPool"]

SUCCESS_KEYS = ("success", "is_success", "reward_success")
"""Entries of an info that tell success, by preference: of Meta-World and Adroit, of Fetch and the Shadow Hand, and of
MuJoCo Playground. Each is above 0 where the goal is reached."""

RESERVED = {"batch_size", "num_envs", "num_threads", "seed"}
"""Options of a pool that follow from the run."""


@dataclass(frozen=True)
class EnvPoolConfig(SuccessConfig):
    """Options of an EnvPool task. Needs ``pip install 'rlpipe[envpool]'``; see docs/simulators.md#envpool."""

    id: str = option("")
    """Id of the task, such as ``MetaWorld/PickPlace-v3``, ``FetchPush-v4`` or ``PandaPickCube-v1``."""
    max_episode_steps: int | None = option(None, unit="environment steps", least=1, below=2**31)
    """Time limit; None keeps the registered one."""
    success_key: str | None = option(None)
    """Entry of the info that is above 0 where the goal is reached; None takes ``success``, ``is_success`` or
    ``reward_success``, if the task has one."""
    seed_each_episode: bool = option(False)
    """Begin each episode with a seed of its own, by making its environment anew, as evaluations do. Otherwise only the
    first episode of each slot has one, and the ledger says so."""
    threads: int = option(1, least=1, most=1024, unit="threads")
    """Threads in which each worker steps its environments."""
    ignore_observations: list[str] = option([], fixed=True)
    """Leaves of a Dict observation that are left out."""
    kwargs: dict[str, Any] = option({})
    """Further options of the task, such as ``{partially_observable: false}``, with which Meta-World shows its goal."""

    def __post_init__(self) -> None:
        """Checks options that depend on each other."""
        if self.ignore_terminations:
            raise ConfigError(
                "EnvPool's environments reset themselves at a termination, so terminations cannot be ignored: set "
                "ignore_terminations=false and, for episodes that go on after a success, end_on_success=false."
            )

    @property
    def options(self) -> dict[str, Any]:
        """Options of the task, as EnvPool takes them."""
        limit = {} if self.max_episode_steps is None else {"max_episode_steps": self.max_episode_steps}
        return {**self.kwargs, **limit}


class PoolTask(NamedTuple):
    """Facts about a task that EnvPool tells without making it.

    Attributes:
        spaces: spaces of one environment.
        success_key: entry of the info that tells success; None for a task without one.
        time_limit: environment steps after which every episode ends.
    """

    spaces: Spaces
    success_key: str | None
    time_limit: int


def task_of(config: EnvPoolConfig) -> PoolTask:
    """Returns the facts about a task that EnvPool tells without making it.

    Raises:
        ConfigError: EnvPool cannot make it with these options, or no policy can use its spaces.
    """
    import envpool

    try:
        spec = envpool.make_spec(config.id, **config.options)
    except (TypeError, ValueError, AssertionError) as error:
        raise ConfigError(f"EnvPool cannot make {config.id} with {config.options}: {error}") from error
    names = [name.removeprefix("info:") for name in spec.state_array_spec if name.startswith("info:")]
    key = config.success_key or next((key for key in SUCCESS_KEYS if key in names), None)
    if config.success_key is not None and config.success_key not in names:
        raise ConfigError(
            f"success_key is {config.success_key!r}, which the info of {config.id} does not hold"
            f"{nearest(config.success_key, names)} There are {', '.join(sorted(names))}."
        )
    if key is None:
        config.check_success(config.id, "name an entry of its info with success_key.")
    spaces = Spaces(spec.observation_space, spec.action_space, config.id, config.ignore_observations)
    return PoolTask(spaces, key, int(spec.config.max_episode_steps))


class EnvironmentPool:
    """N environments of one task, which never reset themselves: each is reset as soon as its episode has ended."""

    def __init__(self, config: EnvPoolConfig, task: PoolTask, seeds: Sequence[int]) -> None:
        """Makes the environments."""
        import envpool

        self._config, self._task, self._count = config, task, len(seeds)
        threads = min(config.threads, len(seeds))
        self._env = envpool.make(
            config.id, "gymnasium", num_envs=len(seeds), seed=list(seeds), num_threads=threads, **config.options
        )

    def reset(self, mask: Bool | None = None) -> tuple[Observations, Bool | None]:
        """Begins episodes in all environments, or in those of a [N] mask.

        Returns:
            [K, ...] observations and [K] bool success, in the order of their numbers.
        """
        observations, info = self._env.reset(options=None if mask is None else {"reset_mask": mask})
        count = self._count if mask is None else int(mask.sum())
        return self._task.spaces.observations(observations, count), self._success(info)

    def step(self, actions: NDArray[Any], numbers: NDArray[np.int32] | None = None) -> Step:
        """Takes one action in each environment, or in some. Returns the answer of those alone, K in number.

        Args:
            actions: [K, ...] actions of a policy.
            numbers: [K] their environments, in rising order; None for all.
        """
        spaces, config = self._task.spaces, self._config
        observations, rewards, terminated, truncated, info = self._env.step(spaces.actions(actions), numbers)
        success = self._success(info)
        terminated = np.array(terminated, dtype=bool)
        if config.end_on_success and success is not None:
            terminated |= success
        paid = success if config.reward_mode == "sparse" else rewards
        successors = spaces.observations(observations, len(actions))
        return Step(
            successors,
            successors,
            np.array(paid, dtype=np.float64),
            terminated,
            np.array(truncated, dtype=bool),
            success,
            np.ones(len(actions), dtype=bool),
            {},
            reward_terms={
                name.removeprefix("reward_").removesuffix("_reward"): np.array(values, dtype=np.float64)
                for name, values in info.items()
                if name.startswith("reward_") or name.endswith("_reward")
            },
        )

    def _success(self, info: Mapping[str, Any]) -> Bool | None:
        key = self._task.success_key
        if key is None:
            return None
        values = np.asarray(info[key])
        if values.dtype.kind == "f" and np.isnan(values).any():
            raise ContractError(f"info[{key!r}] is {shown(values)}; a number above 0 is a success, and NaN is none")
        return values > 0

    def close(self) -> None:
        """Frees the environments."""
        self._env.close()


class PoolOfOne(SingleEnv):
    """One environment, made anew for each episode, because EnvPool takes a seed only then."""

    def __init__(self, config: EnvPoolConfig, task: PoolTask) -> None:
        """Makes nothing yet."""
        self._config, self._task = config, task
        self._pool: EnvironmentPool | None = None
        self.spec = task.spaces.spec
        self.has_success = task.success_key is not None

    def reset(self, seed: int | None) -> tuple[Observations, bool | None]:
        assert seed is not None
        self.close()
        self._pool = EnvironmentPool(self._config, self._task, [seed])
        observations, success = self._pool.reset()
        return observations[0], None if success is None else bool(success[0])

    def step(self, action: Any) -> SingleStep:
        assert self._pool is not None
        step = self._pool.step(np.asarray(action)[None])
        return SingleStep(
            step.successors[0],
            float(step.rewards[0]),
            bool(step.terminated[0]),
            bool(step.truncated[0]),
            None if step.success is None else bool(step.success[0]),
            reward_terms={name: float(values[0]) for name, values in step.reward_terms.items()} or None,
        )

    def close(self) -> None:
        if self._pool is not None:
            self._pool.close()
        self._pool = None


class EnvPoolVector(Simulator):
    """N environments of an EnvPool task, stepped in one call. Only the first episode of each has a known seed."""

    Config = EnvPoolConfig
    can_wait = True

    def __init__(self, config: EnvPoolConfig, task: PoolTask, num_envs: int, next_seed: NextSeed) -> None:
        """Makes no environment before the first reset, which has the seeds."""
        self._config, self._task, self._slots = config, task, Slots(num_envs, next_seed)
        self._pool: EnvironmentPool | None = None
        self.num_envs = num_envs
        self.spec = task.spaces.spec
        self.has_success = task.success_key is not None
        self.reset_seconds: float = 0.0

    @classmethod
    def make(cls, config: EnvPoolConfig, num_envs: int, next_seed: NextSeed) -> EnvPoolVector:
        return cls(config, task_of(config), num_envs, next_seed)

    def reset(self) -> tuple[Observations, dict[int, Beginning]]:
        began = time.perf_counter()
        episodes = [self._slots.begin(n) for n in range(self.num_envs)]
        seeds = [None if episode is None else episode.seed for episode in episodes]
        first = self._pool is None
        self._pool = self._pool or EnvironmentPool(self._config, self._task, [seed or 0 for seed in seeds])
        observations, success = self._pool.reset()
        self.reset_seconds += time.perf_counter() - began
        return observations, {
            n: Beginning(seed if first else None, None if success is None else bool(success[n]))
            for n, seed in enumerate(seeds)
            if seed is not None
        }

    def step(self, actions: NDArray[Any], active: Bool | None = None) -> Step:
        assert self._pool is not None
        count = self.num_envs
        valid = self._slots.stepping(active)
        whole = bool(valid.all())
        numbers = np.flatnonzero(valid).astype(np.int32)
        step = self._pool.step(actions if whole else actions[numbers], None if whole else numbers)

        def placed(values: NDArray[Any], empty: Any) -> NDArray[Any]:
            """Values of those that took a step, at their places."""
            if whole:
                return values
            out = np.full((count, *values.shape[1:]), empty, dtype=values.dtype)
            out[numbers] = values
            return out

        terminated, truncated = placed(step.terminated, False), placed(step.truncated, False)
        successors = mapped(lambda leaf: placed(leaf, 0), step.successors)
        observations, beginnings = self._begin_after(terminated | truncated, successors)
        return Step(
            observations,
            successors,
            placed(step.rewards, 0.0),
            terminated,
            truncated,
            None if step.success is None else placed(step.success, False),
            valid,
            beginnings,
            reward_terms={name: placed(values, np.nan) for name, values in step.reward_terms.items()},
        )

    def _begin_after(self, ended: Bool, successors: Observations) -> tuple[Observations, dict[int, Beginning]]:
        """Begins the next episodes where some have ended; EnvPool itself would spend a step on each."""
        if not ended.any():
            return successors, {}
        assert self._pool is not None
        began = time.perf_counter()
        for n in map(int, np.flatnonzero(ended)):
            self._slots.begin(n)
        observations, beginnings = successors.copy(), {}
        first, success = self._pool.reset(ended)
        observations[ended] = first
        for place, n in enumerate(map(int, np.flatnonzero(ended))):
            if not self._slots.idle[n]:
                beginnings[n] = Beginning(None, None if success is None else bool(success[place]))
        self.reset_seconds += time.perf_counter() - began
        return observations, beginnings

    def close(self) -> None:
        if self._pool is not None:
            self._pool.close()


class EnvPool(OneByOne):
    """EnvPool's tasks, each episode with a seed of its own; without ``seed_each_episode``, an ``EnvPoolVector``."""

    Config = EnvPoolConfig
    tries_seeds = False
    evaluation_options: ClassVar[Mapping[str, Any]] = {"seed_each_episode": True}

    @classmethod
    def make(cls, config: EnvPoolConfig, num_envs: int, next_seed: NextSeed) -> Simulator:
        if not config.seed_each_episode:
            return EnvPoolVector.make(config, num_envs, next_seed)
        task = task_of(config)
        return cls([PoolOfOne(config, task) for _ in range(num_envs)], next_seed, ignore_terminations=False)

    @classmethod
    def tasks(cls) -> list[TaskEntry]:
        require("envpool", "envpool", "envpool")
        import envpool

        return [TaskEntry(name) for name in envpool.list_all_envs()]

    @classmethod
    def describe(cls, config: EnvPoolConfig, key: str) -> TaskFacts:
        require("envpool", "envpool", f"{key}.name=envpool")
        import envpool

        tasks = envpool.list_all_envs()
        if config.id not in tasks:
            raise ConfigError(f"{key}.id is {config.id!r}, but EnvPool does not know it{nearest(config.id, tasks)}")
        for name in sorted(RESERVED & config.kwargs.keys()):
            raise ConfigError(f"{key}.kwargs gives {name}, which follows from the run: leave it out.")
        task = task_of(config)
        return replace(
            super().describe(config, key),
            time_limit=task.time_limit,
            seeds=config.seed_each_episode,
            starts=config.seed_each_episode,
            success=task.success_key is not None,
            why_not={
                "seeds": f"{key}.seed_each_episode is false, but an evaluation needs held-out seeds: leave it out.",
                "success": "name the entry of info that does in success_key, such as is_success",
            },
            find_spaces=lambda: task.spaces.spec,
        )
