"""What a policy offers to collection (act) and to learning (log-probabilities, entropy, values).

Randomness comes in from outside, as noise: with the same weights, observations and noise a policy always acts alike,
whichever process it runs in.
"""

from __future__ import annotations

import itertools
import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
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
    warm_start: str | None = None
    """Run directory or checkpoint whose policy a new run begins with."""


class Policy(ABC, nn.Module):
    """A policy with a value function. A plug-in is made as ``Policy(config, spec)`` and offers ``Config``."""

    Config: ClassVar[type[Any]] = PolicyConfig
    bounded: ClassVar[bool] = False
    """Whether sampled actions keep to the bounds of the simulator, and carry gradients."""

    def __init__(self) -> None:
        """Leaves observations as they are; a subclass may set ``normalizer``."""
        super().__init__()
        self.normalizer: RunningMoments | None = None

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

    def normalized(self, observations: Tensor) -> Tensor:
        """[B, D] observations as its networks see them."""
        return observations if self.normalizer is None else self.normalizer.normalize(observations)

    def observe(self, observations: Tensor) -> None:
        """Takes note of [B, D] observations that were learnt from."""
        if self.normalizer is not None:
            self.normalizer.observe(observations)

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


ACTIVATIONS = {"tanh": nn.Tanh, "relu": nn.ReLU, "silu": nn.SiLU}


class RunningMoments(nn.Module):
    """Mean and variance of each dimension over everything observed.

    Parts merge by Chan's formula in float64, so that observing a batch at once, in pieces, or on several workers and
    then merging gives the same moments.  Chan, Golub, LeVeque 1983, The American Statistician 37:242-247.
    """

    count: Tensor
    mean: Tensor
    squares: Tensor

    def __init__(self, width: int) -> None:
        """Nothing observed: normalising changes nothing."""
        super().__init__()
        self.register_buffer("count", torch.zeros((), dtype=torch.float64))
        self.register_buffer("mean", torch.zeros(width, dtype=torch.float64))
        self.register_buffer("squares", torch.zeros(width, dtype=torch.float64))

    def observe(self, values: Tensor) -> None:
        """Takes [B, width] values in."""
        if len(values):
            part = RunningMoments(self.mean.numel()).to(values.device)
            values = values.double()
            part.count.fill_(len(values))
            part.mean.copy_(values.mean(0))
            part.squares.copy_((values - part.mean).square().sum(0))
            self.merge(part)

    def merge(self, other: RunningMoments) -> None:
        """Takes in everything the other has observed."""
        if not other.count:
            return
        total = self.count + other.count
        delta = other.mean - self.mean
        self.mean += delta * (other.count / total)
        self.squares += other.squares + delta.square() * (self.count * other.count / total)
        self.count.copy_(total)

    def normalize(self, values: Tensor) -> Tensor:
        """Values with mean 0 and deviation 1, clamped to 10 deviations; unchanged before anything was observed."""
        if not self.count:
            return values
        deviation = (self.squares / self.count + 1e-8).sqrt()
        return ((values - self.mean.float()) / deviation.float()).clamp(-10.0, 10.0)


def perceptron(sizes: Sequence[int], activation: type[nn.Module], last_gain: float) -> nn.Sequential:
    """Linear layers, orthogonal as in Andrychowicz et al. 2021 (arXiv:2006.05990), the last scaled by ``last_gain``."""
    layers: list[nn.Module] = []
    for index, (fan_in, fan_out) in enumerate(itertools.pairwise(sizes)):
        last = index == len(sizes) - 2
        layer = nn.Linear(fan_in, fan_out)
        nn.init.orthogonal_(layer.weight, last_gain if last else math.sqrt(2))
        nn.init.zeros_(layer.bias)
        layers += [layer] if last else [layer, activation()]
    return nn.Sequential(*layers)


def gaussian_log_prob(mean: Tensor, log_std: Tensor, actions: Tensor) -> Tensor:
    """[B] log-density of independent Gaussians, ``-sum_d ((a - m)^2 / (2 s^2) + ln s + ln(2 pi) / 2)``."""
    scaled = (actions - mean) * (-log_std).exp()
    return -(0.5 * scaled.square() + log_std + 0.5 * math.log(2 * math.pi)).sum(-1)
