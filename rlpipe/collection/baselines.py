"""Baselines: actions of something that has learnt nothing, evaluated like a policy, so that a success rate can be read.

A baseline looks at no observation and takes one environment step at a time. It acts in place of a policy, in an
evaluation only.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rlpipe.collection.actions import ActionSource, RunningEpisode
from rlpipe.config.plan import Plan
from rlpipe.errors import ConfigError
from rlpipe.policies.base import GIVE_BOUNDS, PolicyConfig, check_bounds, first_unbounded
from rlpipe.trajectory import Float32, Observations, SpaceSpec


class Baseline(ActionSource):
    """Source of actions that depend on no observation."""

    def __init__(self, spec: SpaceSpec) -> None:
        """Takes the spaces of the simulator."""
        check_bounds(spec)
        self.spec = spec

    @abstractmethod
    def action(self, episode: int, step: int, generator: np.random.Generator) -> NDArray[Any]:
        """Returns the next action of an episode; the evaluation clips a continuous one to its bounds.

        Args:
            episode: number of the episode in the evaluation, from 0.
            step: environment steps of the episode so far.
            generator: the episode's own.
        """

    def actions(self, observations: Observations, episodes: Sequence[RunningEpisode]) -> NDArray[Any]:  # noqa: ARG002
        """See ``ActionSource.actions``."""
        return np.stack([self.action(episode.number, episode.decisions, episode.generator) for episode in episodes])


class Random(Baseline):
    """Uniform actions: within the bounds, or among the discrete actions."""

    def __init__(self, spec: SpaceSpec, option: str = "--policy") -> None:
        """Raises ConfigError if a continuous action is unbounded; ``option`` is that of the command that names it."""
        super().__init__(spec)
        low, high = spec.action_low, spec.action_high
        if low is not None and high is not None and (first := first_unbounded(low, high)) is not None:
            raise ConfigError(
                f"{option} is random, which draws actions within their bounds, but number {first} of them lies between "
                f"{low[first]} and {high[first]}: {GIVE_BOUNDS}. {option} zero needs none."
            )

    def action(self, episode: int, step: int, generator: np.random.Generator) -> NDArray[Any]:  # noqa: ARG002 - a draw
        low, high, choices = self.spec.action_low, self.spec.action_high, self.spec.num_actions
        if choices is not None:
            return np.asarray(generator.integers(choices))
        assert low is not None
        assert high is not None
        return generator.uniform(low, high)


class Zero(Baseline):
    """Zeros, or the first of the discrete actions."""

    def action(self, episode: int, step: int, generator: np.random.Generator) -> NDArray[Any]:  # noqa: ARG002 - always
        return self.spec.actions()


class DemonstratedActions(Baseline):
    """Demonstrated actions in turn, whatever is observed: episode i repeats demonstration i mod D, and then zeros."""

    def __init__(self, spec: SpaceSpec, demonstrations: Sequence[Float32]) -> None:
        """Takes the actions [L, A] of each demonstration."""
        super().__init__(spec)
        self._demonstrations = demonstrations

    def action(self, episode: int, step: int, generator: np.random.Generator) -> NDArray[Any]:  # noqa: ARG002 - a copy
        demonstration = self._demonstrations[episode % len(self._demonstrations)]
        return demonstration[step] if step < len(demonstration) else self.spec.actions()


NO_INFERENCE = "none"
"""Value of ``rollout.inference`` for workers without a policy; no configuration of a user may have it."""


def acting_config(config: Plan) -> Plan:
    """Returns a configuration for workers without a policy, whose evaluation is otherwise the same.

    A baseline has the spaces of the simulator to train in, so that is the one of the evaluation too: its bounds count.
    """
    env = replace(config.env, train=replace(config.env.eval, total_num_envs=config.env.train.total_num_envs))
    single_actions = PolicyConfig("mlp")  # which no worker makes
    rollout = replace(config.rollout, inference=NO_INFERENCE)
    return replace(config, env=env, policy=single_actions, stages=(), rollout=rollout)
