"""What a policy offers to collection (act) and to learning (log-probabilities, entropy, values).

Randomness comes in from outside, as noise: with the same weights, observations and noise a policy always acts alike,
whichever process it runs in.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from rlpipe.plugins import ConfigError
from rlpipe.trajectory import Float32

Weights = dict[str, NDArray[Any]]
"""Parameters and buffers by name, as NumPy arrays: what travels to rollout workers and into checkpoints."""


@dataclass(frozen=True)
class PolicyConfig:
    """What every policy's own configuration begins with."""

    name: str
    """File in ``rlpipe/policies/``, or ``package.module:Class``."""


class Policy(ABC, nn.Module):
    """A policy with a value function. A plug-in is made as ``Policy(config, spec)`` and offers ``Config``."""

    Config: ClassVar[type[Any]] = PolicyConfig

    @abstractmethod
    def noise(self, generator: np.random.Generator, steps: int) -> Float32:
        """[steps, noise width] random numbers that ``act`` turns into a sampled action."""

    @abstractmethod
    def act(self, observations: Tensor, noise: Tensor | None) -> tuple[Tensor, Tensor]:
        """Actions for [N, D] observations.

        Args:
            observations: raw, in the simulator's units.
            noise: [N, noise width] to sample, None for the deterministic action.
        Returns:
            actions [N, A] float32 or [N] int64, and their log-probabilities [N] in nats.
        """

    @abstractmethod
    def evaluate_actions(self, observations: Tensor, actions: Tensor) -> tuple[Tensor, Tensor]:
        """Log-probability [B] and entropy [B] in nats, with gradients, of [B, D] observations and their actions."""

    @abstractmethod
    def value(self, observations: Tensor) -> Tensor:
        """[B] values of [B, D] observations, in the unit of the return, with gradients."""

    @abstractmethod
    def actor_parameters(self) -> Iterator[nn.Parameter]:
        """Parameters the policy loss trains."""

    @abstractmethod
    def critic_parameters(self) -> Iterator[nn.Parameter]:
        """Parameters the value loss trains."""

    def action_std(self) -> Tensor | None:
        """[A] standard deviations of a Gaussian policy, None for another."""
        return None

    def observe(self, observations: Tensor) -> None:
        """Takes note of [B, D] observations that were learnt from, after the update; the default does nothing."""

    def weights(self) -> Weights:
        """Everything, as copies."""
        return {name: tensor.detach().cpu().numpy().copy() for name, tensor in self.state_dict().items()}

    def acting_weights(self) -> Weights:
        """What ``act`` needs; a policy whose critic does not act leaves it out."""
        return self.weights()

    def load_weights(self, weights: Mapping[str, NDArray[Any]]) -> None:
        """Copies weights in; those that are not given stay.

        Raises:
            ConfigError: they belong to a policy of another shape.
        """
        own = self.state_dict()
        with torch.no_grad():
            for name, array in weights.items():
                if name not in own or tuple(own[name].shape) != array.shape:
                    has = f"has shape {tuple(own[name].shape)}" if name in own else "has none of that name"
                    raise ConfigError(
                        f"weights {name} of shape {array.shape} do not fit the policy, which {has}: they were trained "
                        "with another policy or on another task."
                    )
                own[name].copy_(torch.tensor(array))
