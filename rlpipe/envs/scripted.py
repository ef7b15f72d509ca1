"""A simulator with known outcomes, for tests: a script fixes every reward, end and success.

A script lists the episodes of each slot; after the last one the slot starts over. Observations are
``[slot, episode, step, bias]``, so no two transitions are alike. Actions change nothing, unless ``match_actions`` is
set: then each step pays 1 for the action with the sign of the bias, which PPO learns in seconds.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rlpipe import files
from rlpipe.config.fields import option
from rlpipe.envs.base import OneByOne, SimulatorConfig, SingleEnv, SingleStep, Step, TaskFacts
from rlpipe.envs.shared.slots import NextSeed
from rlpipe.errors import ConfigError
from rlpipe.trajectory import Bool, Float32, SpaceSpec

__all__ = ["Scripted"]


@dataclass(frozen=True)
class ScriptedEpisode:
    """One episode with a known course.

    Attributes:
        length: steps, at least 1.
        end: how the last step ends the episode: ``terminated``, ``truncated`` or ``both``.
        success_at: steps after which success holds, counted from 1; 0 means solved at reset.
        reward: reward of the last step; every other step pays 0.
        fail_at: steps after which the task has failed; None for a simulator without a notion of failure.
        reward_terms: by name, terms of the reward, paid in every step.
        metrics: by name, numbers observed after each step, over and over; None where one does not apply.
    """

    length: int
    end: str = "truncated"
    success_at: tuple[int, ...] = ()
    reward: float = 0.0
    fail_at: tuple[int, ...] | None = None
    reward_terms: dict[str, float] = field(default_factory=dict)
    metrics: dict[str, list[float | None]] = field(default_factory=dict)


@dataclass(frozen=True)
class ScriptedConfig(SimulatorConfig):
    """Options of the scripted simulator."""

    script: list[list[dict[str, Any]]] = option([[{"length": 10}]])
    """Episodes of each slot, with ``length``, ``end``, ``success_at`` and ``reward``; slots beyond the last start
    over."""
    match_actions: bool = option(False)
    """Pay 1 for each step whose action has the sign of the observed bias; when discrete, action 1 is positive."""
    discrete: bool = option(False)
    """Offer two discrete actions instead of one continuous one."""
    step_seconds: float = option(0.0, unit="s")
    """Time that each step takes, as a stand-in for a slow simulator."""


class ScriptedEnv(SingleEnv):
    """One slot of a script."""

    def __init__(
        self, slot: int, episodes: list[ScriptedEpisode], *, match_actions: bool = False, discrete: bool = False
    ) -> None:
        """Runs the episodes of a slot in turn; the options are those of ``ScriptedConfig``."""
        bound = None if discrete else np.ones(1, dtype=np.float32)
        self.spec = SpaceSpec(4, 1, 2 if discrete else None, None if bound is None else -bound, bound)
        self.has_success = True
        self._slot = slot
        self._episodes = episodes
        self._match_actions = match_actions
        self._count = -1
        self._step = 0
        self._bias = 0.0

    def _observation(self) -> Float32:
        return np.array([self._slot, self._count, self._step, self._bias], dtype=np.float32)

    @property
    def _episode(self) -> ScriptedEpisode:
        return self._episodes[self._count % len(self._episodes)]

    def reset(self, seed: int | None) -> tuple[Float32, bool | None]:
        self._count += 1
        self._step = 0
        if self._match_actions:
            self._bias = 1.0 if np.random.default_rng(seed).random() < 0.5 else -1.0
        return self._observation(), 0 in self._episode.success_at

    def step(self, action: Any) -> SingleStep:
        self._step += 1
        episode = self._episode
        last = self._step >= episode.length
        reward = episode.reward if last else 0.0
        metrics = {name: values[(self._step - 1) % len(values)] for name, values in episode.metrics.items()}
        if self._match_actions:
            positive = bool(np.asarray(action).ravel()[0] > (0.5 if self.spec.num_actions else 0.0))
            reward += float(positive == (self._bias > 0))
        return SingleStep(
            self._observation(),
            reward,
            last and episode.end in ("terminated", "both"),
            last and episode.end in ("truncated", "both"),
            self._step in episode.success_at,
            None if episode.fail_at is None else self._step in episode.fail_at,
            episode.reward_terms or None,
            {name: math.nan if value is None else value for name, value in metrics.items()},
        )

    def close(self) -> None:
        """Holds nothing."""


class Scripted(OneByOne):
    """Slots that follow a script."""

    Config = ScriptedConfig
    tries_seeds = False
    _step_seconds = 0.0

    @classmethod
    def make(cls, config: ScriptedConfig, num_envs: int, next_seed: NextSeed) -> Scripted:
        script = _script(config, "script")
        envs: list[SingleEnv] = [
            ScriptedEnv(n, script[n % len(script)], match_actions=config.match_actions, discrete=config.discrete)
            for n in range(num_envs)
        ]
        simulator = cls(envs, next_seed, ignore_terminations=config.ignore_terminations)
        simulator._step_seconds = config.step_seconds
        return simulator

    @classmethod
    def describe(cls, config: ScriptedConfig, key: str) -> TaskFacts:
        _script(config, key)
        return super().describe(config, key)

    def step(self, actions: NDArray[Any], active: Bool | None = None) -> Step:
        if self._step_seconds:
            time.sleep(self._step_seconds)
        return super().step(actions, active)


def _script(config: ScriptedConfig, key: str) -> list[list[ScriptedEpisode]]:
    """Episodes of each slot."""
    if not config.script or not all(config.script):
        raise ConfigError(f"{key}.script is {config.script!r}; each slot needs at least one episode.")
    return [[_episode(episode, f"{key}.script") for episode in slot] for slot in config.script]


def _episode(values: dict[str, Any], key: str) -> ScriptedEpisode:
    try:
        ScriptedEpisode(**values)
    except TypeError as error:
        raise ConfigError(f"{key} holds {values!r}, which is not an episode: {error}.") from error
    episode = files.checked(values, ScriptedEpisode, key)
    if episode.length < 1 or episode.end not in ("terminated", "truncated", "both"):
        raise ConfigError(
            f"{key} holds {values!r}; length must be at least 1 and end one of terminated, truncated, both."
        )
    return episode
