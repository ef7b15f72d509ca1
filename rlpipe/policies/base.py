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
from typing import Any, ClassVar, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from rlpipe.config.fields import check_not_empty, check_path, option
from rlpipe.config.schema import Config
from rlpipe.errors import ConfigError
from rlpipe.learner_group import SINGLE_LEARNER, LearnerGroup
from rlpipe.plugins import accept_old_names, resolve
from rlpipe.trajectory import Float32, SpaceSpec

Weights = dict[str, NDArray[Any]]
"""Parameters and buffers by name, as NumPy arrays: what travels to rollout workers and into checkpoints."""


@dataclass(frozen=True)
class PolicyConfig:
    """Base of every policy's configuration."""

    name: str
    """``mlp``, ``squashed_gaussian``, or ``package.module:Class``. Without a ``policy`` section: ``mlp``."""
    warm_start: str | None = option(None, checks=(check_path,))
    """Run directory (its newest whole checkpoint) or checkpoint file whose policy a new run begins with."""

    def __post_init__(self) -> None:
        """Checks options that depend on each other; a subclass that adds some calls this first."""


@dataclass(frozen=True)
class Snapshot:
    """Weights that act, and their version: the number of updates behind them."""

    version: int
    weights: Weights


class Acting(Protocol):
    """What chooses actions: a ``Policy``, or what asks one that lives elsewhere."""

    def noise(self, generator: np.random.Generator, steps: int) -> Float32:
        """As ``Policy.noise``."""

    def act(self, observations: Tensor, noise: Tensor | None) -> tuple[Tensor, Tensor]:
        """As ``Policy.act``."""

    def act_each(self, observations: Tensor, noise: Tensor | None) -> tuple[Tensor, Tensor]:
        """As ``Policy.act_each``."""


class Policy(ABC, nn.Module):
    """A policy with a value function. A plug-in is made as ``Policy(config, spec)`` and offers ``Config``."""

    Config: ClassVar[type[Any]] = PolicyConfig
    bounded: ClassVar[bool] = False
    """Whether sampled actions keep to the bounds of the simulator, and carry gradients."""

    def __init_subclass__(cls) -> None:
        """Accepts the earlier name of a hook."""
        super().__init_subclass__()
        accept_old_names(cls, {"observe": "update_normalizer"})

    def __init__(self) -> None:
        """Leaves observations as they are; a subclass may set ``normalizer``."""
        super().__init__()
        self.normalizer: RunningMoments | None = None

    @abstractmethod
    def noise(self, generator: np.random.Generator, steps: int) -> Float32:
        """[steps, noise width] random numbers that ``act`` turns into a sampled action. They depend on no weights:
        where a server acts, the policy that draws them has none."""

    @abstractmethod
    def act(self, observations: Tensor, noise: Tensor | None) -> tuple[Tensor, Tensor]:
        """Actions for [N, D] observations.

        Args:
            observations: raw, in the simulator's units.
            noise: [N, noise width] to sample, None for the deterministic action.
        Returns:
            actions [N, A] float32 or [N] int64, and their log-probabilities [N] in nats.
        """

    def act_each(self, observations: Tensor, noise: Tensor | None) -> tuple[Tensor, Tensor]:
        """As ``act``, but each row is computed by itself: the size of a matrix product can change the rounding of its
        rows."""
        rows = range(len(observations))
        parts = [self.act(observations[n : n + 1], None if noise is None else noise[n : n + 1]) for n in rows]
        actions, log_probs = zip(*parts, strict=True)
        return torch.cat(actions), torch.cat(log_probs)

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

    def update_normalizer(self, observations: Tensor, learners: LearnerGroup = SINGLE_LEARNER) -> None:
        """Takes note of [B, D] observations that were learnt from, here and by the other learners."""
        if self.normalizer is not None:
            self.normalizer.update(observations, learners)

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


def build_policy(config: Config, spec: SpaceSpec) -> Policy:
    """The configured policy with its first weights, which depend on ``runner.seed`` alone."""
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

    def update(self, values: Tensor, learners: LearnerGroup = SINGLE_LEARNER) -> None:
        """Takes in [B, width] values, and those of the other learners."""
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
        """Values with mean 0 and deviation 1, clamped to 10 deviations; unchanged before anything was observed."""
        deviation = (self.squares / self.count.clamp(min=1.0) + 1e-8).sqrt()
        normal = ((values - self.mean.float()) / deviation.float()).clamp(-10.0, 10.0)
        return torch.where(self.count > 0, normal, values)  # on the device: asking for the count would wait for it


class Head(nn.Linear):
    """The last layer of a network: in float32 also where matrix products have fewer bits, because differences of
    log-probabilities and of values are small."""

    def forward(self, x: Tensor) -> Tensor:
        if not torch.is_autocast_enabled(x.device.type):
            return super().forward(x)
        with torch.autocast(x.device.type, enabled=False):
            return super().forward(x.float())


def perceptron(sizes: Sequence[int], activation: type[nn.Module], last_gain: float) -> nn.Sequential:
    """Linear layers, orthogonal as in Andrychowicz et al. 2021 (arXiv:2006.05990), the last scaled by ``last_gain``."""
    layers: list[nn.Module] = []
    for index, (fan_in, fan_out) in enumerate(itertools.pairwise(sizes)):
        last = index == len(sizes) - 2
        layer = (Head if last else nn.Linear)(fan_in, fan_out)
        nn.init.orthogonal_(layer.weight, last_gain if last else math.sqrt(2))
        nn.init.zeros_(layer.bias)
        layers += [layer] if last else [layer, activation()]
    return nn.Sequential(*layers)


def gaussian_log_prob(mean: Tensor, log_std: Tensor, actions: Tensor) -> Tensor:
    """[B] log-density of independent Gaussians, ``-sum_d ((a - m)^2 / (2 s^2) + ln s + ln(2 pi) / 2)``."""
    scaled = (actions - mean) * (-log_std).exp()
    return -(0.5 * scaled.square() + log_std + 0.5 * math.log(2 * math.pi)).sum(-1)
