"""Actions as tokens: each number of an action falls into one of equal bins, and the policy is a distribution over them.

The tokens of a decision are decoded in parallel, or one after the other, each given those before it.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass

from torch import Tensor, nn

from rlpipe.config.fields import option
from rlpipe.errors import ConfigError
from rlpipe.policies.base import finite_bounds
from rlpipe.policies.shared.bins import BinnedActions, BinsConfig, drawn, taken_of
from rlpipe.policies.shared.decoder import CausalDecoder
from rlpipe.policies.shared.perceptron import Head, PerceptronConfig, PerceptronPolicy
from rlpipe.trajectory import SpaceSpec, Tree

__all__ = ["TokenPolicy"]

AUTOREGRESSIVE = "autoregressive"


@dataclass(frozen=True)
class TokenConfig(BinsConfig, PerceptronConfig):
    """Options of the perceptrons and of the tokens."""

    activation: str = "relu"
    slot_width: int = option(32, least=1, unit="units")
    """Numbers that the perceptron gives for each token; one layer, the same for all, turns them into probabilities."""
    decoding: str = option("parallel", choices=("parallel", AUTOREGRESSIVE))
    """``parallel``: tokens do not depend on each other. ``autoregressive``: each is drawn given those before it, by a
    causal transformer over the slots ([policies.md](policies.md#tokens))."""
    decoder_layers: int = option(2, least=1)
    """Blocks of that transformer."""
    decoder_heads: int = option(4, least=1)
    """Attention heads of each block; divides ``slot_width``, its width."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.decoding == AUTOREGRESSIVE and self.slot_width % self.decoder_heads:
            raise ConfigError(
                f"policy.slot_width is {self.slot_width}, which cannot be cut into {self.decoder_heads} equal heads "
                "(policy.decoder_heads). Choose a multiple."
            )


class TokenPolicy(BinnedActions, PerceptronPolicy):
    """Categorical distributions over the tokens of a decision, independent or each given those before it."""

    Config = TokenConfig
    in_tokens = True

    def __init__(self, config: TokenConfig, spec: SpaceSpec) -> None:
        """Draws the first weights from torch's global generator.

        Raises:
            ConfigError: the actions are discrete, or have no finite bounds.
        """
        low, high = finite_bounds(spec, "tokens")
        in_order = config.decoding == AUTOREGRESSIVE
        # a slot of the decoder stands beside tokens of size 1; else it turns into log-probabilities at once
        super().__init__(config, spec, spec.action_dim * config.slot_width, 1.0 if in_order else 0.01)
        self.head = Head(config.slot_width, config.bins)
        nn.init.orthogonal_(self.head.weight, 0.01)
        nn.init.zeros_(self.head.bias)
        self.make_bins(low, high, config.bins, config.quantile)
        self.decoder: CausalDecoder | None = None
        if in_order:
            sizes = (spec.action_dim, config.slot_width, config.bins, config.decoder_layers, config.decoder_heads)
            self.decoder = CausalDecoder(*sizes)

    def _slots(self, observations: Tensor | Tree) -> Tensor:
        """[B, k * A, slot width] outputs of the perceptron."""
        outputs = self.actor_outputs(observations)
        return outputs.view(outputs.shape[0], self.spec.action_dim, self.head.in_features)

    def _log_probs(self, slots: Tensor) -> Tensor:
        """[..., bins] log-probabilities of every token, of slots or outputs of the decoder [..., slot width]."""
        every: Tensor = self.head(slots).log_softmax(-1)
        return every

    def act(self, observations: Tensor | Tree, noise: Tensor | None) -> tuple[Tensor, Tensor]:
        slots = self._slots(observations)
        if self.decoder is None:
            every = self._log_probs(slots)
            tokens = drawn(every, noise)
            log_probs = taken_of(every, tokens)
        else:
            tokens, log_probs = self.decoder.decode(slots, noise, self._log_probs)
        return self.centres(tokens), self.by_action(log_probs)

    def evaluate_entries(self, observations: Tensor | Tree, actions: Tensor) -> tuple[Tensor, Tensor]:
        slots, tokens = self._slots(observations), self.tokens(actions)
        every = self._log_probs(slots if self.decoder is None else self.decoder(slots, tokens))
        return taken_of(every, tokens), -(every.exp() * every).sum(-1)

    def recomputed_modules(self) -> Iterator[nn.Module]:
        return itertools.chain(super().recomputed_modules(), () if self.decoder is None else self.decoder.blocks)

    def actor_parameters(self) -> Iterator[nn.Parameter]:
        of_decoder = () if self.decoder is None else self.decoder.parameters()
        return itertools.chain(super().actor_parameters(), self.head.parameters(), of_decoder)
