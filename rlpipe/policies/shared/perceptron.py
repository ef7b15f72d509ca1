"""Perceptrons, and policies made of them."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from rlpipe.config.fields import check_not_empty, option
from rlpipe.errors import ConfigError
from rlpipe.functional.perceptron import perceptron as perceptron_outputs
from rlpipe.functional.perceptron import suits
from rlpipe.policies.base import PolicyConfig, Weights
from rlpipe.policies.encoders.base import check_encoders
from rlpipe.policies.shared.features import Features, TreeMoments
from rlpipe.policies.shared.moments import RunningMoments
from rlpipe.policies.shared.parts import PartsPolicy
from rlpipe.policies.shared.recomputation import recompute
from rlpipe.trajectory import SpaceSpec, Tree

ACTIVATIONS = {"tanh": nn.Tanh, "relu": nn.ReLU, "silu": nn.SiLU}
_FUNCTIONS = {"tanh": torch.tanh, "relu": torch.relu, "silu": functional.silu}


@dataclass(frozen=True)
class PerceptronConfig(PolicyConfig):
    """Options of a policy made of perceptrons."""

    hidden_sizes: list[int] = option([256, 256, 256], least=1, checks=(check_not_empty,), unit="units")
    """Width of each hidden layer, the same for actor and value function."""
    activation: str = option("tanh", choices=tuple(ACTIVATIONS))
    """Nonlinearity between the layers."""
    normalize_observations: bool = option(False)
    """Shift and scale observations by their running mean and deviation, which are part of the weights; of a tree, the
    leaves of fractions."""
    encoders: dict[str, Any] = option({}, checks=(check_encoders,))
    """For an observation tree, encoders by leaf, with their options ([policies.md](policies.md#observations)):
    ``{camera: {name: impala_cnn}}``. A leaf that is not named gets the one that fits it: ``drq_cnn`` for an
    image, ``one_hot`` for a Discrete or MultiDiscrete, ``vector`` for anything else."""
    actor_observations: list[str] | None = option(None, checks=(check_not_empty,))
    """Leaves of the observation tree that the actor sees; None for all."""
    critic_observations: list[str] | None = option(None, checks=(check_not_empty,))
    """Leaves that critics see, who need not act: the state of the simulator, for example; None for all."""
    shared_encoder: bool = option(False)
    """Give actor and critic the same encoders of an observation tree. SAC and RLPD train them by the critics' loss
    alone, as in DrQ-v2 ([cameras.md](cameras.md)); other algorithms by all losses."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.shared_encoder and self.actor_observations != self.critic_observations:
            raise ConfigError(
                "policy.shared_encoder is true, but policy.actor_observations and policy.critic_observations differ: "
                "give both the same leaves, or leave shared_encoder out."
            )


class Head(nn.Linear):
    """Last layer of a network, always in float32: differences of log-probabilities and of values are small."""

    def forward(self, x: Tensor) -> Tensor:
        if not torch.is_autocast_enabled(x.device.type):
            return super().forward(x)
        with torch.autocast(x.device.type, enabled=False):
            return super().forward(x.float())


class Perceptron(nn.Sequential):
    """Linear layers with an activation between, computed at once where that is faster."""

    def __init__(self, layers: Sequence[nn.Linear], activation: str) -> None:
        """Puts an activation, by its name in ``ACTIVATIONS``, between linear layers."""
        between = [[layer, ACTIVATIONS[activation]()] for layer in layers[:-1]]
        super().__init__(*itertools.chain.from_iterable(between), layers[-1])
        self._linear, self._activation = tuple(layers), activation

    def forward(self, x: Tensor) -> Tensor:
        weights = [layer.weight for layer in self._linear]
        if suits(x, weights, self._activation):
            return perceptron_outputs(x, weights, [layer.bias for layer in self._linear], self._activation)
        if torch.is_autocast_enabled(x.device.type):
            outputs: Tensor = super().forward(x)  # type: ignore[no-untyped-call]
            return outputs
        activate = _FUNCTIONS[self._activation]
        for layer, weight in zip(self._linear[:-1], weights[:-1], strict=True):
            x = activate(functional.linear(x, weight, layer.bias))  # a call of a module takes as long as a small layer
        return functional.linear(x, weights[-1], self._linear[-1].bias)


def perceptron(sizes: Sequence[int], activation: str, last_gain: float) -> Perceptron:
    """Linear layers with orthogonal weights, as in Andrychowicz et al. 2021 (arXiv:2006.05990).

    ``last_gain`` is the scale of the last layer's.
    """
    layers: list[nn.Linear] = []
    for index, (fan_in, fan_out) in enumerate(itertools.pairwise(sizes)):
        last = index == len(sizes) - 2
        layer = (Head if last else nn.Linear)(fan_in, fan_out)
        nn.init.orthogonal_(layer.weight, last_gain if last else math.sqrt(2))
        nn.init.zeros_(layer.bias)
        layers.append(layer)
    return Perceptron(layers, activation)


class PerceptronPolicy(PartsPolicy):
    """A policy whose actor and critic are perceptrons, with encoders of their own for an observation tree."""

    def __init__(
        self,
        config: PerceptronConfig,
        spec: SpaceSpec,
        outputs: int,
        last_gain: float = 0.01,
        inputs: int | None = None,
        extra_actor_inputs: int = 0,
    ) -> None:
        """Draws the first weights from torch's global generator.

        Args:
            config: options.
            spec: spaces of the simulator.
            outputs: width of the actor's last layer.
            last_gain: scale of that layer's first weights.
            inputs: width of what a subclass puts between the features and the perceptrons; None for nothing.
            extra_actor_inputs: width of what a subclass appends to the actor's inputs.
        Raises:
            ConfigError: the options name an unknown leaf, or ``shared_encoder`` is set without an encoder.
        """
        super().__init__()
        if config.shared_encoder and spec.leaves is None:
            raise ConfigError(
                "policy.shared_encoder is true, but the observation is one vector, which has no encoder: set "
                "policy.shared_encoder=false."
            )
        self.spec = spec
        self.chunk_size = config.chunk_size
        self._config = config
        self.actor_features = Features(spec, config.encoders, config.actor_observations, "policy.actor_observations")
        seen = (inputs or self.actor_features.width) + extra_actor_inputs
        self.actor = perceptron([seen, *config.hidden_sizes, outputs], config.activation, last_gain)
        self.shares_encoder = config.shared_encoder
        self._encoder_is_trained_elsewhere = False
        if not self.shares_encoder:
            self.critic_features = self.make_critic_features(spec)
        self._critic_inputs = inputs or self._features_of_critic.width
        self.critic = self._make_critic(1)
        if config.normalize_observations:
            self.normalizer = RunningMoments(spec.observation_dim) if spec.leaves is None else TreeMoments(spec.leaves)

    @property
    def _features_of_critic(self) -> Features:
        return self.actor_features if self.shares_encoder else self.critic_features

    def lend_encoder(self) -> Features:
        """Hands the shared encoder to a critic outside, whose loss alone trains it from now on."""
        self._encoder_is_trained_elsewhere = True
        return self.actor_features

    def make_critic_features(self, spec: SpaceSpec) -> Features:
        config = self._config
        features = Features(spec, config.encoders, config.critic_observations, "policy.critic_observations")
        if config.checkpoint_gradients:
            recompute(features.modules_with_weights())
        return features

    def _make_critic(self, outputs: int) -> Perceptron:
        config = self._config
        return perceptron([self._critic_inputs, *config.hidden_sizes, outputs], config.activation, 1.0)

    def value_each_action(self) -> None:
        self.critic = self._make_critic(self.chunk_size)

    def actor_inputs(self, observations: Tensor | Tree) -> Tensor:
        """[B, width] features that the actor sees, whose gradients end where another loss trains the encoders."""
        features: Tensor = self.actor_features(self.normalized(observations))
        return features.detach() if self._encoder_is_trained_elsewhere else features

    def actor_outputs(self, observations: Tensor | Tree) -> Tensor:
        """[B, outputs] of the actor's last layer."""
        outputs: Tensor = self.actor(self.actor_inputs(observations))
        return outputs

    def value(self, observations: Tensor | Tree) -> Tensor:
        values: Tensor = self.critic(self._features_of_critic(self.normalized(observations))).squeeze(-1)
        return values

    def recomputed_modules(self) -> Iterator[nn.Module]:
        return itertools.chain(self.actor_features.modules_with_weights(), (self.actor, self.critic))

    def actor_parameters(self) -> Iterator[nn.Parameter]:
        lent = self._encoder_is_trained_elsewhere
        return itertools.chain(() if lent else self.actor_features.parameters(), self.actor.parameters())

    def critic_parameters(self) -> Iterator[nn.Parameter]:
        of_features = () if self.shares_encoder else self.critic_features.parameters()
        return itertools.chain(of_features, self.critic.parameters())

    def acting_weights(self) -> Weights:
        of_critic = ("critic.", "critic_features.")
        return {name: array for name, array in self.weights().items() if not name.startswith(of_critic)}


def gaussian_log_densities(mean: Tensor, log_std: Tensor, actions: Tensor) -> Tensor:
    """[B, A] log-densities of independent Gaussians, ``-((a - m)^2 / (2 s^2) + ln s + ln(2 pi) / 2)``."""
    return -_gaussian_terms(mean, log_std, actions)


def gaussian_log_prob(mean: Tensor, log_std: Tensor, actions: Tensor) -> Tensor:
    """[B] sums of ``gaussian_log_densities``, whose gradients are rounded as those of the sum."""
    return -_gaussian_terms(mean, log_std, actions).sum(-1)


def _gaussian_terms(mean: Tensor, log_std: Tensor, actions: Tensor) -> Tensor:
    scaled = (actions - mean) * (-log_std).exp()
    return 0.5 * scaled.square() + log_std + 0.5 * math.log(2 * math.pi)
