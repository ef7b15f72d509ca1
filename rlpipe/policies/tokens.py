"""Actions as tokens: each number of an action falls into one of equal bins, and the policy is a distribution over them.

All tokens of a decision are decoded in parallel.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from torch import Tensor, nn

from rlpipe.config.fields import option
from rlpipe.policies.base import finite_bounds
from rlpipe.policies.base_bins import BinnedActions, drawn
from rlpipe.policies.base_perceptron import Head, PerceptronConfig, PerceptronPolicy
from rlpipe.trajectory import Float32, SpaceSpec, Tree

__all__ = ["TokenPolicy"]


@dataclass(frozen=True)
class TokenConfig(PerceptronConfig):
    """Options of the perceptrons and of the tokens."""

    activation: str = "relu"
    bins: int = option(256, least=2, below=2**16)
    """Number of tokens for each number of an action."""
    slot_width: int = option(32, least=1, unit="units")
    """Numbers that the perceptron gives for each token; one layer, the same for all, turns them into probabilities."""
    quantile: float = option(0.01, least=0, below=0.5)
    """Share of the demonstrated numbers below the lowest bin and above the highest one, for each dimension."""


class TokenPolicy(BinnedActions, PerceptronPolicy):
    """Independent categorical distributions over the tokens of a decision."""

    Config = TokenConfig
    in_tokens = True

    def __init__(self, config: TokenConfig, spec: SpaceSpec) -> None:
        """Draws the first weights from torch's global generator.

        Raises:
            ConfigError: the actions are discrete, or have no finite bounds.
        """
        low, high = finite_bounds(spec, "tokens")
        super().__init__(config, spec, spec.action_dim * config.slot_width)
        self._slots = config.slot_width
        self.head = Head(config.slot_width, config.bins)
        nn.init.orthogonal_(self.head.weight, 0.01)
        nn.init.zeros_(self.head.bias)
        self.make_bins(low, high, config.bins, config.quantile)

    def _log_probs(self, observations: Tensor | Tree) -> Tensor:
        """[B, k * A, bins] log-probabilities of every token."""
        slots = self.actor_outputs(observations)
        every: Tensor = self.head(slots.view(len(slots), -1, self._slots)).log_softmax(-1)
        return every

    def noise(self, generator: np.random.Generator, steps: int) -> Float32:
        return generator.random((steps, self.spec.action_dim), dtype=np.float32)

    def act(self, observations: Tensor | Tree, noise: Tensor | None) -> tuple[Tensor, Tensor]:
        every = self._log_probs(observations)
        tokens = drawn(every, noise)
        taken = every.gather(-1, tokens.unsqueeze(-1)).squeeze(-1)
        return self.centres(tokens), self.by_action(taken)

    def evaluate_entries(self, observations: Tensor | Tree, actions: Tensor) -> tuple[Tensor, Tensor]:
        every = self._log_probs(observations)
        entropy = -(every.exp() * every).sum(-1)
        return every.gather(-1, self.tokens(actions).unsqueeze(-1)).squeeze(-1), entropy

    def actor_parameters(self) -> Iterator[nn.Parameter]:
        return itertools.chain(super().actor_parameters(), self.head.parameters())
