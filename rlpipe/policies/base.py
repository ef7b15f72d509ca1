"""Interface of a policy: actions for collection; log-probabilities, entropy and values for learning.

Randomness comes from outside, as noise: with the same weights, observations and noise a policy always takes the same
actions, whichever process it runs in.
"""

from __future__ import annotations

import itertools
import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, ClassVar, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from rlpipe.config.fields import check_not_empty, check_path, option
from rlpipe.config.schema import Config
from rlpipe.errors import ConfigError
from rlpipe.functional.perceptron import perceptron as perceptron_outputs
from rlpipe.functional.perceptron import suits
from rlpipe.learner_group import SINGLE_LEARNER, LearnerGroup
from rlpipe.plugins import accept_old_names, resolve
from rlpipe.trajectory import Float32, SpaceSpec

Weights = dict[str, NDArray[Any]]
"""Parameters and buffers by name, as NumPy arrays; sent to rollout workers and saved in checkpoints."""


@dataclass(frozen=True)
class PolicyConfig:
    """Base of every policy's configuration."""

    name: str
    """``mlp``, ``squashed_gaussian``, or ``package.module:Class``. Without a ``policy`` section: ``mlp``."""
    warm_start: str | None = option(None, checks=(check_path,))
    """Run directory (its newest whole checkpoint) or checkpoint file whose policy a new run begins with."""

    def __post_init__(self) -> None:
        """Checks options that depend on each other; a subclass that adds some calls this first."""


class NoWeights(StrEnum):
    """Reason why a snapshot carries no weights."""

    FROM_SEED = "every receiver has made the first weights from the seed"
    ON_SERVER = "an inference server holds them"
    FROM_FIRST_LEARNER = "the first learner of the group sends them"


@dataclass(frozen=True)
class Snapshot:
    """Weights to act with.

    Attributes:
        version: number of updates behind the weights
        weights: parameters and buffers by name, or the reason why there are none
    """

    version: int
    weights: Weights | NoWeights

    def load_into(self, policy: Policy) -> None:
        """Gives a policy these weights; first weights that follow from the seed are there already.

        Raises:
            ValueError: the weights are elsewhere.
            ConfigError: they belong to a policy of another shape.
        """
        if isinstance(self.weights, dict):
            policy.load_weights(self.weights)
        elif self.weights is not NoWeights.FROM_SEED:
            raise ValueError(f"snapshot {self.version} cannot be loaded: {self.weights}.")


class Acting(Protocol):
    """Chooses actions: a ``Policy``, or a client of one that runs in another process."""

    def noise(self, generator: np.random.Generator, steps: int) -> Float32:
        """See ``Policy.noise``."""

    def act(self, observations: Tensor, noise: Tensor | None) -> tuple[Tensor, Tensor]:
        """See ``Policy.act``."""

    def act_each(self, observations: Tensor, noise: Tensor | None) -> tuple[Tensor, Tensor]:
        """See ``Policy.act_each``."""


class Policy(ABC, nn.Module):
    """A policy with a value function. A plug-in has a ``Config`` and is made as ``Policy(config, spec)``."""

    Config: ClassVar[type[Any]] = PolicyConfig
    bounded: ClassVar[bool] = False
    """True if sampled actions stay within the simulator's bounds and carry gradients."""

    def __init_subclass__(cls) -> None:
        """Accepts the old name of a hook."""
        super().__init_subclass__()
        accept_old_names(cls, {"observe": "update_normalizer"})

    def __init__(self) -> None:
        """Starts without normalising observations; a subclass may set ``normalizer``."""
        super().__init__()
        self.normalizer: RunningMoments | None = None

    @abstractmethod
    def noise(self, generator: np.random.Generator, steps: int) -> Float32:
        """[steps, noise width] random numbers that ``act`` turns into sampled actions.

        They must not depend on the weights: with an inference server, the policy that draws them has none.
        """

    @abstractmethod
    def act(self, observations: Tensor, noise: Tensor | None) -> tuple[Tensor, Tensor]:
        """Chooses actions.

        Args:
            observations: [N, D] raw, in the simulator's units.
            noise: [N, noise width] to sample actions; None for the deterministic action.
        Returns:
            actions [N, A] float32 or [N] int64, and their log-probabilities [N] in nats.
        """

    def act_each(self, observations: Tensor, noise: Tensor | None) -> tuple[Tensor, Tensor]:
        """Chooses actions as ``act`` does, but computes each row alone.

        The size of a matrix product can change the rounding of its rows; here it is always the same.
        """
        rows = range(len(observations))
        answers = [self.act(observations[n : n + 1], None if noise is None else noise[n : n + 1]) for n in rows]
        actions, log_probs = zip(*answers, strict=True)
        return torch.cat(actions), torch.cat(log_probs)

    def act_and_mode(self, observations: Tensor, noise: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Returns what ``act`` does, and the [N, A] deterministic actions; a policy may compute both at once."""
        return *self.act(observations, noise), self.act(observations, None)[0]

    @abstractmethod
    def evaluate_actions(self, observations: Tensor, actions: Tensor) -> tuple[Tensor, Tensor]:
        """Log-probabilities [B] of given actions and entropies [B], in nats, with gradients.

        Args:
            observations: [B, D] raw.
            actions: [B, A] or [B].
        """

    @abstractmethod
    def value(self, observations: Tensor) -> Tensor:
        """[B] values of [B, D] observations, in the unit of the return, with gradients."""

    @abstractmethod
    def actor_parameters(self) -> Iterator[nn.Parameter]:
        """Parameters that the policy loss trains."""

    @abstractmethod
    def critic_parameters(self) -> Iterator[nn.Parameter]:
        """Parameters that the value loss trains."""

    def action_std(self) -> Tensor | None:
        """[A] standard deviations of a Gaussian policy; None for any other policy."""
        return None

    def normalized(self, observations: Tensor) -> Tensor:
        """[B, D] observations as the networks see them."""
        return observations if self.normalizer is None else self.normalizer.normalize(observations)

    def update_normalizer(self, observations: Tensor, learners: LearnerGroup = SINGLE_LEARNER) -> None:
        """Updates running statistics by the [B, D] observations of a batch, after its update.

        Args:
            observations: this learner's share of the batch, raw.
            learners: all learners; the statistics include the shares of the others.
        """
        if self.normalizer is not None:
            self.normalizer.update(observations, learners)

    def weights(self) -> Weights:
        """All parameters and buffers, as copies."""
        return {name: tensor.detach().cpu().numpy().copy() for name, tensor in self.state_dict().items()}

    def acting_weights(self) -> Weights:
        """Weights that ``act`` needs; a policy may leave out its critic."""
        return self.weights()

    def load_weights(self, weights: Mapping[str, NDArray[Any]]) -> None:
        """Replaces the named weights by copies; others keep their values.

        Raises:
            ConfigError: the weights belong to a policy of another shape.
        """
        own = self.state_dict()
        with torch.no_grad():
            for name, array in weights.items():
                if name not in own or tuple(own[name].shape) != array.shape:
                    has = f"has shape {tuple(own[name].shape)}" if name in own else "has no weights of that name"
                    raise ConfigError(
                        f"weights {name} of shape {array.shape} do not fit the policy, which {has}: they were trained "
                        "with another policy or on another task."
                    )
                own[name].copy_(torch.tensor(array))


def build_policy(config: Config, spec: SpaceSpec) -> Policy:
    """Builds the configured policy; its first weights depend on ``runner.seed`` alone."""
    torch.manual_seed(config.runner.seed)
    policy: Policy = resolve("policies", config.policy.name, "policy.name")(config.policy, spec)
    return policy


ACTIVATIONS = {"tanh": nn.Tanh, "relu": nn.ReLU, "silu": nn.SiLU}


@dataclass(frozen=True)
class PerceptronConfig(PolicyConfig):
    """Options of a policy made of perceptrons."""

    hidden_sizes: list[int] = option([256, 256, 256], least=1, checks=(check_not_empty,), unit="units")
    """Width of each hidden layer, the same for actor and value function."""
    activation: str = option("tanh", choices=tuple(ACTIVATIONS))
    """Nonlinearity between the layers."""
    normalize_observations: bool = option(False)
    """Shift and scale observations by their running mean and deviation, which are part of the weights."""


class RunningMoments(nn.Module):
    """Mean and variance of each dimension over all values so far.

    Batches merge by Chan's formula in float64, so one batch, its pieces in turn, or the shares of several learners give
    the same moments.  Chan, Golub, LeVeque 1983, The American Statistician 37:242-247.
    """

    count: Tensor
    mean: Tensor
    squares: Tensor

    def __init__(self, width: int) -> None:
        """Starts without values: normalising changes nothing yet."""
        super().__init__()
        self.register_buffer("count", torch.zeros((), dtype=torch.float64))
        self.register_buffer("mean", torch.zeros(width, dtype=torch.float64))
        self.register_buffer("squares", torch.zeros(width, dtype=torch.float64))

    def update(self, values: Tensor, learners: LearnerGroup = SINGLE_LEARNER) -> None:
        """Adds [B, width] values of this learner, and those of the other learners."""
        values = values.double()
        mean = values.sum(0) / max(len(values), 1)
        moments = torch.stack([torch.full_like(mean, len(values)), mean, (values - mean).square().sum(0)])
        for count, mean, squares in torch.stack(learners.gather(moments)):
            total = self.count + count
            share = count / total.clamp(min=1.0)
            delta = mean - self.mean
            self.mean += delta * share
            self.squares += squares + delta.square() * self.count * share
            self.count.copy_(total[0])

    def normalize(self, values: Tensor) -> Tensor:
        """Shifts and scales values to mean 0 and deviation 1, clamped to 10 deviations; unchanged before any update."""
        deviation = (self.squares / self.count.clamp(min=1.0) + 1e-8).sqrt()
        normal = ((values - self.mean.float()) / deviation.float()).clamp(-10.0, 10.0)
        return torch.where(self.count > 0, normal, values)  # reading the count on the host would wait for the device


class Head(nn.Linear):
    """Last layer of a network, always in float32: differences of log-probabilities and of values are small."""

    def forward(self, x: Tensor) -> Tensor:
        if not torch.is_autocast_enabled(x.device.type):
            return super().forward(x)
        with torch.autocast(x.device.type, enabled=False):
            return super().forward(x.float())


class Perceptron(nn.Sequential):
    """Linear layers with an activation between, computed at once where that is faster."""

    def forward(self, x: Tensor) -> Tensor:
        layers = [layer for layer in self if isinstance(layer, nn.Linear)]
        activation = "" if len(layers) == 1 else type(self[1]).__name__.lower()
        weights = [layer.weight for layer in layers]
        if suits(x, weights, activation):
            return perceptron_outputs(x, weights, [layer.bias for layer in layers], activation)
        outputs: Tensor = super().forward(x)  # type: ignore[no-untyped-call]
        return outputs


def perceptron(sizes: Sequence[int], activation: type[nn.Module], last_gain: float) -> Perceptron:
    """Linear layers with orthogonal weights, as in Andrychowicz et al. 2021 (arXiv:2006.05990).

    Args:
        sizes: widths, from the inputs to the outputs.
        activation: between the layers.
        last_gain: scale of the last layer's weights.
    """
    layers: list[nn.Module] = []
    for index, (fan_in, fan_out) in enumerate(itertools.pairwise(sizes)):
        last = index == len(sizes) - 2
        layer = (Head if last else nn.Linear)(fan_in, fan_out)
        nn.init.orthogonal_(layer.weight, last_gain if last else math.sqrt(2))
        nn.init.zeros_(layer.bias)
        layers += [layer] if last else [layer, activation()]
    return Perceptron(*layers)


def gaussian_log_prob(mean: Tensor, log_std: Tensor, actions: Tensor) -> Tensor:
    """[B] log-density of independent Gaussians, ``-sum_d ((a - m)^2 / (2 s^2) + ln s + ln(2 pi) / 2)``."""
    scaled = (actions - mean) * (-log_std).exp()
    return -(0.5 * scaled.square() + log_std + 0.5 * math.log(2 * math.pi)).sum(-1)
