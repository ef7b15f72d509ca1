"""Gaussian that tanh squashes into the bounds of the action, with a deviation that depends on the state.

Haarnoja et al. 2018, arXiv:1812.05905, appendix C. Its sampled actions carry gradients, as soft actor-critic needs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor

from rlpipe.config.fields import option
from rlpipe.errors import ConfigError
from rlpipe.policies.base import NoiseKinds
from rlpipe.policies.shared.squashed import EDGE, SquashedConfig, SquashedPolicy
from rlpipe.trajectory import SpaceSpec, Tree

__all__ = ["SquashedGaussianPolicy"]

COLLECTED = "collected"
"""Name of the number of environment steps so far, among the weights."""


@dataclass(frozen=True)
class SquashedGaussianConfig(SquashedConfig):
    """Options of the perceptrons and of the Gaussian."""

    random_actions: float = option(0.0, least=0, most=1)
    """Share of the sampled decisions that are uniform within the bounds instead (arXiv:1707.01495, appendix A), for
    tasks in which a policy that is sure of itself stops touching anything ([sparse.md](sparse.md#hindsight)). Only for
    ``sac`` and ``rlpd``. Evaluations have them too if their actions are sampled."""
    random_steps: int = option(0, least=0, below=2**53, unit="environment steps")
    """Steps at the beginning of training in which every decision is uniform within the bounds. Only for ``sac`` and
    ``rlpd``; usually as many as ``algorithm.learning_starts``."""

    @property
    def explores(self) -> bool:
        """True if some decisions do not follow the policy."""
        return self.random_actions > 0 or self.random_steps > 0


class SquashedGaussianPolicy(SquashedPolicy):
    """``a = middle + half_range tanh(m(s) + exp(l(s)) noise)``.

    Noise is [N, A], with 1 + A columns of uniform numbers beside it where some decisions are uniform: in a row whose
    first one is below their share, the others are the action. Log-probabilities are those of the Gaussian throughout. A
    learner draws no such columns, so it learns about the Gaussian alone.
    """

    Config = SquashedGaussianConfig
    collected: Tensor

    @classmethod
    def check(cls, config: Any) -> None:
        super().check(config)
        policy = config.policy
        if policy.explores and not config.algorithm_class.needs_bounds:
            key = "random_actions" if policy.random_actions else "random_steps"
            raise ConfigError(
                f"policy.{key} is {getattr(policy, key)}, but algorithm.name={config.algorithm.name} learns from the "
                "probabilities of what was done, and those of uniform actions are not the policy's: set "
                f"policy.{key}=0, or algorithm.name=sac or rlpd."
            )

    def __init__(self, config: SquashedGaussianConfig, spec: SpaceSpec) -> None:
        """Draws the first weights from torch's global generator.

        Raises:
            ConfigError: the actions are discrete, or have no finite bounds.
        """
        super().__init__(config, spec, "squashed_gaussian")
        self._explores, self._share, self._random_steps = config.explores, config.random_actions, config.random_steps
        if self._random_steps:
            self.register_buffer(COLLECTED, torch.zeros((), dtype=torch.int64))

    def load_weights(self, weights: Mapping[str, NDArray[Any]]) -> None:
        """Replaces weights as every policy does; the number of collected steps is left out where nothing needs it."""
        counted = self._random_steps > 0
        super().load_weights({name: array for name, array in weights.items() if counted or name != COLLECTED})

    def count_steps(self, steps: int) -> None:
        if self._random_steps:
            self.collected += steps

    @property
    def noise_kinds(self) -> NoiseKinds:
        return (*super().noise_kinds, *([("uniform", 1 + self.spec.action_dim)] if self._explores else []))

    def _moments(self, observations: Tensor | Tree) -> tuple[Tensor, Tensor]:
        """[B, A] means and logarithms of standard deviations, before squashing."""
        return self.moments_of(self.actor_outputs(observations))

    def _log_prob(self, mean: Tensor, log_std: Tensor, unsquashed: Tensor) -> Tensor:
        """[B, A] log-densities of squashed actions."""
        return self.of_varying(self.log_density(mean, log_std, unsquashed, self.scale))

    def _squashed(self, unsquashed: Tensor) -> Tensor:
        return self.middle + self.half_range * unsquashed.tanh()

    def _sampled(self, mean: Tensor, log_std: Tensor, noise: Tensor) -> Tensor:
        """[B, A] actions before squashing: the Gaussian's, and uniform ones in their place where the noise says so."""
        width = mean.shape[-1]
        gaussian = mean + log_std.exp() * noise[:, :width]
        if noise.shape[-1] == width:
            return gaussian
        is_uniform, uniform = noise[:, width : width + 1] < self._share, 2.0 * noise[:, width + 1 :] - 1.0
        if self._random_steps:  # a comparison on the device: reading the number on the host would wait for it
            is_uniform = is_uniform | (self.collected < self._random_steps)
        return torch.where(is_uniform, uniform.clamp(-EDGE, EDGE).atanh(), gaussian)

    def act(self, observations: Tensor | Tree, noise: Tensor | None) -> tuple[Tensor, Tensor]:
        mean, log_std = self._moments(observations)
        unsquashed = mean if noise is None else self._sampled(mean, log_std, noise)
        return self._squashed(unsquashed), self.by_action(self._log_prob(mean, log_std, unsquashed))

    def act_and_mode(self, observations: Tensor | Tree, noise: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        mean, log_std = self._moments(observations)
        unsquashed = self._sampled(mean, log_std, noise)
        actions = self._squashed(unsquashed)  # in this order, because gradients are added in the order of computation
        return actions, self.by_action(self._log_prob(mean, log_std, unsquashed)), self._squashed(mean)

    def evaluate_entries(self, observations: Tensor | Tree, actions: Tensor) -> tuple[Tensor, Tensor]:
        mean, log_std = self._moments(observations)
        squashed = ((actions - self.middle) / self.scale).clamp(-EDGE, EDGE)
        log_probs = self._log_prob(mean, log_std, squashed.atanh())
        return log_probs, -log_probs  # the entropy has no closed form; the taken action estimates it
