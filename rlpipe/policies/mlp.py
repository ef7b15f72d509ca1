"""Multilayer perceptrons: separate actor and critic, for continuous or discrete actions.

Continuous actions have a Gaussian whose deviation does not depend on the state, discrete ones a categorical
distribution.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from rlpipe.config.fields import option
from rlpipe.policies.base import (
    ACTIVATIONS,
    PerceptronConfig,
    Policy,
    RunningMoments,
    Weights,
    gaussian_log_prob,
    perceptron,
)
from rlpipe.trajectory import Float32, SpaceSpec

__all__ = ["MLPPolicy"]


@dataclass(frozen=True)
class MLPConfig(PerceptronConfig):
    """Options of the perceptrons."""

    initial_log_std: float = option(-0.5, unit="ln(action units)")
    """Natural logarithm of a Gaussian's first standard deviation."""


class MLPPolicy(Policy):
    """Actor and critic that share at most the normalisation of observations."""

    Config = MLPConfig

    def __init__(self, config: MLPConfig, spec: SpaceSpec) -> None:
        """Draws the first weights from torch's global generator."""
        super().__init__()
        self.spec = spec
        activation = ACTIVATIONS[config.activation]
        outputs = spec.num_actions or spec.action_dim
        self.actor = perceptron([spec.observation_dim, *config.hidden_sizes, outputs], activation, 0.01)
        self.critic = perceptron([spec.observation_dim, *config.hidden_sizes, 1], activation, 1.0)
        self.log_std = (
            None if spec.num_actions else nn.Parameter(torch.full((spec.action_dim,), config.initial_log_std))
        )
        self.normalizer = RunningMoments(spec.observation_dim) if config.normalize_observations else None

    def noise(self, generator: np.random.Generator, steps: int) -> Float32:
        if self.spec.num_actions:
            return generator.gumbel(size=(steps, self.spec.num_actions)).astype(np.float32)
        return generator.standard_normal((steps, self.spec.action_dim), dtype=np.float32)

    def act(self, observations: Tensor, noise: Tensor | None) -> tuple[Tensor, Tensor]:
        output = self.actor(self.normalized(observations))
        if self.log_std is None:
            chosen = (output if noise is None else output + noise).argmax(-1)  # Gumbel noise makes argmax a sample
            return chosen, _categorical_log_prob(output, chosen)
        actions = output if noise is None else output + self.log_std.exp() * noise
        return actions, gaussian_log_prob(output, self.log_std, actions)

    def evaluate_actions(self, observations: Tensor, actions: Tensor) -> tuple[Tensor, Tensor]:
        output = self.actor(self.normalized(observations))
        if self.log_std is None:
            log_probs = output.log_softmax(-1)
            entropy = -(log_probs.exp() * log_probs).sum(-1)
            return _categorical_log_prob(output, actions), entropy
        entropy = (self.log_std + 0.5 * math.log(2 * math.pi * math.e)).sum().expand(len(output))
        return gaussian_log_prob(output, self.log_std, actions), entropy

    def value(self, observations: Tensor) -> Tensor:
        values: Tensor = self.critic(self.normalized(observations)).squeeze(-1)
        return values

    def actor_parameters(self) -> Iterator[nn.Parameter]:
        return itertools.chain(self.actor.parameters(), () if self.log_std is None else (self.log_std,))

    def critic_parameters(self) -> Iterator[nn.Parameter]:
        return self.critic.parameters()

    def action_std(self) -> Tensor | None:
        return None if self.log_std is None else self.log_std.detach().exp()

    def acting_weights(self) -> Weights:
        return {name: array for name, array in self.weights().items() if not name.startswith("critic.")}


def _categorical_log_prob(logits: Tensor, actions: Tensor) -> Tensor:
    return logits.log_softmax(-1).gather(-1, actions.unsqueeze(-1)).squeeze(-1)
