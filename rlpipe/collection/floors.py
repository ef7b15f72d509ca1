"""Floors: policies that have learnt nothing, evaluated like a learnt one, so that a success rate can be read.

A floor looks at no observation and takes one environment step at a time. Only an ``Evaluator`` asks it for actions.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor, nn

from rlpipe.config.schema import Config
from rlpipe.errors import ConfigError
from rlpipe.plugins import nearest
from rlpipe.policies.base import GIVE_BOUNDS, Policy, PolicyConfig, Weights, first_unbounded
from rlpipe.trajectory import Float32, SpaceSpec, Tree


class Floor(Policy):
    """Policy that can neither collect nor learn."""

    def __init__(self, config: PolicyConfig, spec: SpaceSpec) -> None:  # noqa: ARG002 - as of every policy
        """Takes the spaces of the simulator."""
        super().__init__()
        self.spec = spec

    @abstractmethod
    def action(self, episode: int, step: int, generator: np.random.Generator) -> NDArray[Any]:
        """Returns the next action of an episode; the evaluation clips a continuous one to its bounds.

        Args:
            episode: number of the episode in the evaluation, from 0.
            step: environment steps of the episode so far.
            generator: the episode's own.
        """

    def noise(self, generator: np.random.Generator, steps: int) -> Float32:
        raise NotImplementedError  # only ``action`` is asked for

    def act(self, observations: Tensor | Tree, noise: Tensor | None) -> tuple[Tensor, Tensor]:
        raise NotImplementedError  # only ``action`` is asked for

    def evaluate_actions(
        self, observations: Tensor | Tree, actions: Tensor, num_steps: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        raise NotImplementedError  # it does not learn

    def value(self, observations: Tensor | Tree) -> Tensor:
        raise NotImplementedError  # it does not learn

    def actor_parameters(self) -> Iterator[nn.Parameter]:
        raise NotImplementedError  # it has none

    def critic_parameters(self) -> Iterator[nn.Parameter]:
        raise NotImplementedError  # it has none


class Random(Floor):
    """Uniform actions: within the bounds, or among the discrete actions."""

    def __init__(self, config: PolicyConfig, spec: SpaceSpec) -> None:
        """Checks the bounds.

        Raises:
            ConfigError: a continuous action is unbounded.
        """
        super().__init__(config, spec)
        low, high = spec.action_low, spec.action_high
        first = None if low is None or high is None else first_unbounded(low, high)
        if low is not None and high is not None and first is not None:
            raise ConfigError(
                f"--policy is random, which draws actions within their bounds, but number {first} of them lies between "
                f"{low[first]} and {high[first]}: {GIVE_BOUNDS}. --policy zero needs none."
            )

    def action(self, episode: int, step: int, generator: np.random.Generator) -> NDArray[Any]:  # noqa: ARG002 - a draw
        low, high, choices = self.spec.action_low, self.spec.action_high, self.spec.num_actions
        if choices is not None:
            return np.asarray(generator.integers(choices))
        assert low is not None
        assert high is not None
        return generator.uniform(low, high)


class Zero(Floor):
    """Zeros, or the first of the discrete actions."""

    def action(self, episode: int, step: int, generator: np.random.Generator) -> NDArray[Any]:  # noqa: ARG002 - always
        return self.spec.actions()


class Replay(Floor):
    """Demonstrated actions in turn, whatever is observed: episode i repeats demonstration i mod D, and then zeros."""

    def load_weights(self, weights: Mapping[str, NDArray[Any]]) -> None:
        """Takes what ``weights_of`` returned."""
        self._demonstrations = np.split(weights["actions"], np.cumsum(weights["lengths"])[:-1])

    def action(self, episode: int, step: int, generator: np.random.Generator) -> NDArray[Any]:  # noqa: ARG002 - a copy
        demonstration = self._demonstrations[episode % len(self._demonstrations)]
        return demonstration[step] if step < len(demonstration) else self.spec.actions()

    @staticmethod
    def weights_of(demonstrations: Sequence[Float32]) -> Weights:
        """Packs the actions [L, A] of each demonstration into a snapshot's weights."""
        lengths = np.array([len(actions) for actions in demonstrations], dtype=np.int64)
        return {"actions": np.concatenate(demonstrations), "lengths": lengths}


KINDS: dict[str, type[Floor]] = {"random": Random, "zero": Zero, "replay": Replay}
"""Floors by name."""


def check_kind(kind: str) -> None:
    """Checks the name of a floor.

    Raises:
        ConfigError: there is no such floor.
    """
    if kind not in KINDS:
        raise ConfigError(f"--policy is {kind!r}{nearest(kind, KINDS)} Allowed values: {', '.join(KINDS)}.")


def acting_config(config: Config, kind: str) -> Config:
    """Returns a configuration whose rollout workers act as a floor, and whose evaluation is otherwise the same.

    A policy has the spaces of the simulator to train in, so that is the one of the evaluation too: its bounds count.
    """
    env = replace(config.env, train=replace(config.env.eval, total_num_envs=config.env.train.total_num_envs))
    policy = PolicyConfig(name=f"{__name__}:{KINDS[kind].__name__}")
    return replace(config, env=env, policy=policy, stages=(), rollout=replace(config.rollout, inference="local"))
