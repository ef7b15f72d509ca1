"""Gaussian that tanh squashes into the bounds of the action, with a deviation that depends on the state.

Haarnoja et al. 2018, arXiv:1812.05905, appendix C. Its sampled actions carry gradients, as soft actor-critic needs.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from rlpipe.policies.base_squashed import EDGE, SquashedConfig, SquashedPolicy
from rlpipe.trajectory import SpaceSpec, Tree

__all__ = ["SquashedGaussianPolicy"]


@dataclass(frozen=True)
class SquashedGaussianConfig(SquashedConfig):
    """Options of the perceptrons and of the Gaussian."""


class SquashedGaussianPolicy(SquashedPolicy):
    """``a = middle + half_range tanh(m(s) + exp(l(s)) noise)``."""

    Config = SquashedGaussianConfig

    def __init__(self, config: SquashedGaussianConfig, spec: SpaceSpec) -> None:
        """Draws the first weights from torch's global generator.

        Raises:
            ConfigError: the actions are discrete, or have no finite bounds.
        """
        super().__init__(config, spec, "squashed_gaussian")

    def _moments(self, observations: Tensor | Tree) -> tuple[Tensor, Tensor]:
        """[B, A] means and logarithms of standard deviations, before squashing."""
        return self.moments_of(self.actor_outputs(observations))

    def _log_prob(self, mean: Tensor, log_std: Tensor, unsquashed: Tensor) -> Tensor:
        """[B, A] log-densities of squashed actions."""
        return self.log_density(mean, log_std, unsquashed, self.half_range)

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
        squashed = ((actions - self.middle) / self.half_range).clamp(-EDGE, EDGE)
        log_probs = self._log_prob(mean, log_std, squashed.atanh())
        return log_probs, -log_probs  # the entropy has no closed form; the taken action estimates it
