"""Actions of the running episodes of an evaluation."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rlpipe.collection.decisions import in_float32
from rlpipe.config.schema import Config
from rlpipe.envs.base import Simulator
from rlpipe.policies.base import Acting, Policy, Snapshot, build_policy
from rlpipe.trajectory import Observations, SpaceSpec
from rlpipe.trajectory.tree import tensors


@dataclass
class RunningEpisode:
    """Episode that a slot is running.

    Attributes:
        number: number of the episode among those of its task, from 0
        seed: seed that it was reset with
        generator: source of its action noise
        decisions: number of decisions that were taken so far
        memory: [H] of a policy with a memory, after the last decision; None before the first that counts
        slot: number of its environment in the simulator of this worker
    """

    number: int
    seed: int
    generator: np.random.Generator
    decisions: int = 0
    memory: Tensor | None = None
    slot: int = 0


@dataclass(frozen=True)
class CheckpointPolicy:
    """Policy with all that it needs to act, for workers without one: so several take turns in the same simulator.

    Attributes:
        name: of its checkpoint; a worker builds each once
        config: configuration with which it is evaluated
        spec: spaces that it is made for
        snapshot: its weights
    """

    name: str
    config: Config
    spec: SpaceSpec
    snapshot: Snapshot

    def build(self) -> Policy:
        """Returns the policy with its weights."""
        policy = build_policy(self.config, self.spec)
        self.snapshot.load_into(policy)
        return policy


@dataclass(frozen=True)
class Label:
    """Answer of an expert in a state that a policy has visited.

    Attributes:
        action: [A], or the number of a discrete action
        intervened: True if the expert acted there itself
    """

    action: NDArray[Any]
    intervened: bool


class ActionSource(ABC):
    """Source of the actions of an evaluation: a policy, or a baseline.

    Attributes:
        labels: by slot, what an expert said of the states of the last actions; empty without one
    """

    labels: Mapping[int, Label] = MappingProxyType({})

    def enter(self, simulator: Simulator) -> None:
        """Takes the simulator whose episodes follow, before the first action in it; by default that is nothing."""

    @abstractmethod
    def actions(self, observations: Observations, episodes: Sequence[RunningEpisode]) -> NDArray[Any]:
        """Returns the next action, or chunk of actions, of each episode.

        Each is computed by itself, from the noise of its own episode: an episode must not depend on how many others run
        beside it.
        """

    def close(self) -> None:
        """Ends what the episodes have opened; by default that is nothing. More episodes may follow."""


class PolicyActions(ActionSource):
    """Actions of a policy."""

    def __init__(self, policy: Acting, *, deterministic: bool, memory_width: int) -> None:
        """Acts by a policy's most likely or by sampled actions; it remembers ``memory_width`` numbers, H."""
        self._policy = policy
        self._deterministic = deterministic
        self._empty = torch.zeros(memory_width, dtype=torch.float32)

    def actions(self, observations: Observations, episodes: Sequence[RunningEpisode]) -> NDArray[Any]:
        """See ``ActionSource.actions``."""
        noise = memories = None
        if not self._deterministic:
            noise = torch.from_numpy(np.concatenate([self._policy.noise(episode.generator, 1) for episode in episodes]))
        if len(self._empty):
            memories = torch.stack([self._empty if episode.memory is None else episode.memory for episode in episodes])
        decided = in_float32(self._policy.decide_each, tensors(observations), noise, memories)
        if decided.memories is not None:
            for episode, memory in zip(episodes, decided.memories, strict=True):
                episode.memory = memory
        actions: NDArray[Any] = decided.actions.numpy()
        return actions
