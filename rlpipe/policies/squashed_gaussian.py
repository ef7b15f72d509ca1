"""Gaussian that tanh squashes into the bounds of the action, with a deviation that depends on the state.

Haarnoja et al. 2018, arXiv:1812.05905, appendix C. Its sampled actions carry gradients, as soft actor-critic needs.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from rlpipe.config.fields import option
from rlpipe.errors import ConfigError
from rlpipe.policies.base import finite_bounds
from rlpipe.policies.base_perceptron import PerceptronConfig, PerceptronPolicy
from rlpipe.trajectory import Float32, SpaceSpec, Tree

__all__ = ["SquashedGaussianPolicy"]

_EDGE = 1.0 - 1e-6
"""Bound, in half ranges, to which given actions are clamped: at the action's own bound the density is infinite."""


@dataclass(frozen=True)
class SquashedGaussianConfig(PerceptronConfig):
    """Options of the perceptrons."""

    hidden_sizes: list[int] = field(default_factory=lambda: [128, 128, 128])
    activation: str = "relu"
    log_std_min: float = option(-5.0)
    """Smallest natural logarithm of a standard deviation, before squashing."""
    log_std_max: float = option(2.0)
    """Largest natural logarithm of a standard deviation, before squashing."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.log_std_min >= self.log_std_max:
            raise ConfigError(f"policy.log_std_min is {self.log_std_min}; it must be below policy.log_std_max.")


class SquashedGaussianPolicy(PerceptronPolicy):
    """``a = middle + half_range tanh(m(s) + exp(l(s)) noise)``."""

    Config = SquashedGaussianConfig
    bounded: ClassVar[bool] = True
    middle: Tensor
    half_range: Tensor

    def __init__(self, config: SquashedGaussianConfig, spec: SpaceSpec) -> None:
        """Draws the first weights from torch's global generator.

        Raises:
            ConfigError: the actions are discrete, or have no finite bounds.
        """
        low, high = finite_bounds(spec, "squashed_gaussian")
        super().__init__(config, spec, 2 * spec.action_dim)
        self._limits = (config.log_std_min, config.log_std_max)
        self.register_buffer("middle", torch.tensor(0.5 * (high + low)), persistent=False)
        self.register_buffer("half_range", torch.tensor(0.5 * (high - low)), persistent=False)

    def _moments(self, observations: Tensor | Tree) -> tuple[Tensor, Tensor]:
        """[B, A] means and logarithms of standard deviations, before squashing."""
        mean, log_std = self.actor_outputs(observations).chunk(2, -1)
        low, high = self._limits
        return mean, low + 0.5 * (high - low) * (torch.tanh(log_std) + 1.0)

    def _log_prob(self, mean: Tensor, log_std: Tensor, unsquashed: Tensor) -> Tensor:
        """[B, A] log-densities of squashed actions, with ``ln(1 - tanh(u)^2) = 2 (ln 2 - u - softplus(-2 u))``."""
        scaled = (unsquashed - mean) * (-log_std).exp()
        gaussian = -(0.5 * scaled.square() + log_std + 0.5 * math.log(2 * math.pi))
        slope = 2.0 * (math.log(2.0) - unsquashed - functional.softplus(-2.0 * unsquashed)) + self.half_range.log()
        return gaussian - slope

    def noise(self, generator: np.random.Generator, steps: int) -> Float32:
        return generator.standard_normal((steps, self.spec.action_dim), dtype=np.float32)

    def _squashed(self, unsquashed: Tensor) -> Tensor:
        return self.middle + self.half_range * unsquashed.tanh()

    def act(self, observations: Tensor | Tree, noise: Tensor | None) -> tuple[Tensor, Tensor]:
        mean, log_std = self._moments(observations)
        unsquashed = mean if noise is None else mean + log_std.exp() * noise
        return self._squashed(unsquashed), self.by_action(self._log_prob(mean, log_std, unsquashed))

    def act_and_mode(self, observations: Tensor | Tree, noise: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        mean, log_std = self._moments(observations)
        unsquashed = mean + log_std.exp() * noise
        actions = self._squashed(unsquashed)  # in this order, because gradients are added in the order of computation
        return actions, self.by_action(self._log_prob(mean, log_std, unsquashed)), self._squashed(mean)

    def evaluate_entries(self, observations: Tensor | Tree, actions: Tensor) -> tuple[Tensor, Tensor]:
        mean, log_std = self._moments(observations)
        squashed = ((actions - self.middle) / self.half_range).clamp(-_EDGE, _EDGE)
        log_probs = self._log_prob(mean, log_std, squashed.atanh())
        return log_probs, -log_probs  # the entropy has no closed form; the taken action estimates it
