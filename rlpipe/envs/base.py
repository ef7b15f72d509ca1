"""The step contract: what every simulator says after a step, whatever its own conventions (stop 1 on the data's way).

Auto-reset, the true successor observation, termination against truncation, and success are settled here, once, so that
collection and evaluation need not know which simulator they drive.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from rlpipe.config.fields import option
from rlpipe.errors import ConfigError
from rlpipe.metrics.declaration import Metric
from rlpipe.trajectory import Bool, Float32, SpaceSpec

NextSeed = Callable[[int], int | None]
"""Seed of the next episode of a slot; None when the slot has run all its episodes and must stay idle."""


@dataclass(frozen=True)
class SimulatorConfig:
    """Base of every simulator's configuration."""

    name: str
    """``gymnasium``, ``maniskill``, ``scripted``, or ``package.module:Class``."""
    total_num_envs: int = option(16, least=1, below=2**31, unit="environments")
    """Number of environments over all rollout workers (N). Under ``env.eval``: slots of the evaluation, at most one per
    episode."""
    ignore_terminations: bool = option(False)
    """End episodes only by the time limit, so that a goal must be held to count at the end."""

    def largest_return(self, discount: float) -> float | None:  # noqa: ARG002 - for tasks whose rewards are known
        """Largest discounted return of an episode; None if it is unknown.

        Args:
            discount: weight of a reward one step later.
        """
        return None


@dataclass(frozen=True)
class Beginning:
    """Start of an episode.

    Attributes:
        seed: it was reset with; None where the simulator drew its own.
        success: whether it was solved before the first step; None where the simulator does not say.
    """

    seed: int | None
    success: bool | None


@dataclass(frozen=True)
class Step:
    """What N environments answered to one action each. No array is written to afterwards.

    Attributes:
        observations: [N, D] float32, what to act on next; after a reset where the episode ended.
        successors: [N, D] float32, the true successor of this step, before any reset.
        rewards: [N] float64.
        terminated, truncated: [N] bool, the task ended; a time limit cut it off. Both can hold.
        success: [N] bool after this step, or None for a simulator without a notion of success.
        valid: [N] bool; False where the environment took no step: it only reset, or is idle.
        beginnings: episodes that start with the next valid step, by environment.
        failure: [N] 1 where the task is in a failed state, 0 where not, NaN where that is unknown; None: nowhere known.
        reward_terms: [N] each, named parts of this step's reward; NaN where a term does not apply.
        observed: [N] each, for metrics of the simulator's own.
    """

    observations: Float32
    successors: Float32
    rewards: NDArray[np.float64]
    terminated: Bool
    truncated: Bool
    success: Bool | None
    valid: Bool
    beginnings: dict[int, Beginning]
    failure: NDArray[np.float64] | None = None
    reward_terms: Mapping[str, NDArray[np.float64]] = field(default_factory=dict)
    observed: Mapping[Metric, NDArray[np.float64]] = field(default_factory=dict)


class Simulator(ABC):
    """N environments that step together and reset themselves.

    A plug-in offers ``Config``, a ``SimulatorConfig``, and is made by ``make``.

    Attributes:
        spec: what a policy must know.
        num_envs: N.
        has_success: whether steps say anything about success.
        notes: sentences a user should read once, such as that rendering is off.
        reset_seconds: time spent in resets since it was made, where they can be told apart from steps.
        metrics: declarations of its own, beside its code.
    """

    Config: ClassVar[type[Any]] = SimulatorConfig
    spec: SpaceSpec
    num_envs: int
    has_success: bool
    notes: tuple[str, ...] = ()
    reset_seconds: float | None = None
    metrics: ClassVar[tuple[Metric, ...]] = ()

    @classmethod
    def check(cls, config: Any, key: str) -> None:
        """Checks, without starting anything, that the simulator can be made.

        Args:
            config: an instance of ``Config``.  key: where it stands in the configuration, for the error.
        Raises:
            ConfigError: it cannot.
        """

    @classmethod
    def check_spaces(cls, config: Any) -> None:
        """Checks that a policy can use the observations and actions, where that is quick to find out in the driver.

        Args:
            config: an instance of ``Config``.
        Raises:
            ConfigError: no policy can. A simulator that cannot be made here passes: the workers may have what it needs.
        """

    @classmethod
    @abstractmethod
    def make(cls, config: Any, num_envs: int, next_seed: NextSeed) -> Simulator:
        """The simulator of one worker.

        Args:
            config: an instance of ``Config``.  num_envs: N.  next_seed: asked before each reset of a slot.
        Raises:
            ConfigError: it cannot be made as configured.
        """

    @abstractmethod
    def reset(self) -> tuple[Float32, dict[int, Beginning]]:
        """Begins an episode everywhere: observations [N, D], and the beginnings."""

    @abstractmethod
    def step(self, actions: NDArray[Any]) -> Step:
        """Takes one action per environment: [N, A] float32, or [N] int64 when discrete."""

    @abstractmethod
    def close(self) -> None:
        """Frees the simulator's resources."""


class SingleStep(NamedTuple):
    """What one environment answered: ``Step`` without the first axis; None where it says nothing."""

    observation: Float32
    reward: float
    terminated: bool
    truncated: bool
    success: bool | None
    failure: bool | None = None
    reward_terms: Mapping[str, float] | None = None


class SingleEnv(ABC):
    """One environment, for ``OneByOne``. It never resets itself."""

    spec: SpaceSpec
    has_success: bool

    @abstractmethod
    def reset(self, seed: int | None) -> tuple[Float32, bool | None]:
        """First observation [D], and whether it is already solved."""

    @abstractmethod
    def step(self, action: Any) -> SingleStep:
        """Takes one action."""

    @abstractmethod
    def close(self) -> None:
        """Frees the resources."""


class OneByOne(Simulator):
    """N separate environments in one process, stepped in turn and reset at their end with the seeds we choose."""

    def __init__(self, envs: list[SingleEnv], next_seed: NextSeed, *, ignore_terminations: bool) -> None:
        """Takes over environments that share a spec.

        Raises:
            ConfigError: they do not.
        """
        self._envs = envs
        self._next_seed = next_seed
        self._ignore_terminations = ignore_terminations
        self.spec = envs[0].spec
        self.num_envs = len(envs)
        self.has_success = all(env.has_success for env in envs)
        self._idle = np.zeros(self.num_envs, dtype=bool)
        self.reset_seconds: float = 0.0
        if not all(env.spec.same_as(self.spec) for env in envs):
            raise ConfigError(f"the environments of one worker differ in their spaces: {[env.spec for env in envs]}.")

    def reset(self) -> tuple[Float32, dict[int, Beginning]]:
        observations = np.zeros((self.num_envs, self.spec.observation_dim), dtype=np.float32)
        beginnings: dict[int, Beginning] = {}
        for n in range(self.num_envs):
            self._begin(n, observations, beginnings)
        return observations, beginnings

    def _begin(self, n: int, observations: Float32, beginnings: dict[int, Beginning]) -> None:
        seed = self._next_seed(n)
        self._idle[n] = seed is None
        if seed is not None:
            began = time.perf_counter()
            observations[n], success = self._envs[n].reset(seed)
            self.reset_seconds += time.perf_counter() - began
            beginnings[n] = Beginning(seed, success)

    def step(self, actions: NDArray[Any]) -> Step:
        count = self.num_envs
        successors = np.zeros((count, self.spec.observation_dim), dtype=np.float32)
        rewards = np.zeros(count, dtype=np.float64)
        terminated, truncated, success = (np.zeros(count, dtype=bool) for _ in range(3))
        failure: NDArray[np.float64] | None = None
        reward_terms: dict[str, NDArray[np.float64]] = {}
        valid = ~self._idle
        for n, env in enumerate(self._envs):
            if not valid[n]:
                continue
            answer = env.step(actions[n])
            successors[n] = answer.observation
            rewards[n] = answer.reward
            terminated[n] = answer.terminated and not self._ignore_terminations
            truncated[n] = answer.truncated
            success[n] = bool(answer.success)
            if answer.failure is not None:
                failure = np.full(count, np.nan) if failure is None else failure
                failure[n] = answer.failure
            if answer.reward_terms:
                for name, value in answer.reward_terms.items():
                    reward_terms.setdefault(name, np.full(count, np.nan))[n] = value
        observations = successors
        beginnings: dict[int, Beginning] = {}
        ended = np.flatnonzero(terminated | truncated).tolist()
        if ended:
            observations = successors.copy()
            for n in ended:
                self._begin(n, observations, beginnings)
        return Step(
            observations,
            successors,
            rewards,
            terminated,
            truncated,
            success if self.has_success else None,
            valid,
            beginnings,
            failure,
            reward_terms,
        )

    def close(self) -> None:
        for env in self._envs:
            env.close()
