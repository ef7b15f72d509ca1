"""A small causal transformer (Vaswani et al. 2017, arXiv:1706.03762) that decodes the tokens of a decision in order."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional

from rlpipe.policies.shared.bins import drawn, taken_of

Seen = list[Tensor]
"""Keys and values [B, heads, positions so far, width / heads] of a block; empty before the first position."""


class _Block(nn.Module):
    """Attention to earlier positions and a layer of its own for each, normalised before (Xiong et al. 2020,
    arXiv:2002.04745).
    """

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self._heads = heads
        self.attention_norm, self.layer_norm = nn.LayerNorm(width), nn.LayerNorm(width)
        self.query_key_value, self.mixed = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.wide, self.narrow = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        for last in (self.mixed, self.narrow):  # a block that begins as the identity learns steadily from rewards
            nn.init.zeros_(last.weight)
            nn.init.zeros_(last.bias)

    def forward(self, x: Tensor, seen: Seen | None) -> Tensor:
        """[B, n, W] of [B, n, W]: all positions of a decision, or with ``seen`` the next one, which is added to it."""
        count, length, width = x.shape
        split = self.query_key_value(self.attention_norm(x)).view(count, length, 3, self._heads, width // self._heads)
        query, key, value = split.permute(2, 0, 3, 1, 4)
        if seen:
            key, value = torch.cat([seen[0], key], 2), torch.cat([seen[1], value], 2)
        if seen is not None:
            seen[:] = key, value
        attended = functional.scaled_dot_product_attention(query, key, value, is_causal=seen is None)
        x = x + self.mixed(attended.transpose(1, 2).reshape(count, length, width))
        outputs: Tensor = x + self.narrow(functional.gelu(self.wide(self.layer_norm(x))))
        return outputs


class CausalDecoder(nn.Module):
    """Combines each slot with the tokens before it; never with later ones."""

    def __init__(self, length: int, width: int, bins: int, layers: int, heads: int) -> None:
        """Draws the first weights from torch's global generator; the width of a slot is a multiple of ``heads``."""
        super().__init__()
        self.positions = nn.Parameter(torch.randn(length, width))
        self.embedding = nn.Embedding(bins, width)
        self.blocks = nn.ModuleList([_Block(width, heads) for _ in range(layers)])
        self.norm = nn.LayerNorm(width)

    def _outputs(self, x: Tensor, seen: Sequence[Seen | None]) -> Tensor:
        for block, earlier in zip(self.blocks, seen, strict=True):
            x = block(x, earlier)
        outputs: Tensor = self.norm(x)
        return outputs

    def forward(self, slots: Tensor, tokens: Tensor) -> Tensor:
        """[B, k * A, W] outputs where the tokens are given (teacher forcing).

        Args:
            slots: [B, k * A, W] of the observation.
            tokens: [B, k * A] int64; the output at a position depends on those before it.
        """
        before = functional.pad(self.embedding(tokens[:, :-1]), (0, 0, 1, 0))
        return self._outputs(slots + self.positions + before, [None] * len(self.blocks))

    def decode(
        self, slots: Tensor, noise: Tensor | None, log_probs: Callable[[Tensor], Tensor]
    ) -> tuple[Tensor, Tensor]:
        """Chooses one token after the other; keys and values of earlier positions are computed once.

        Args:
            slots: [B, k * A, W] of the observation.
            noise: [B, k * A] uniform in [0, 1); None for the most likely token at each position.
            log_probs: turns outputs [B, 1, W] into log-probabilities [B, 1, bins].
        Returns:
            [B, k * A] int64 tokens, and the log-probability of each given those before it, in nats.
        """
        seen: list[Seen] = [[] for _ in self.blocks]
        before = torch.zeros_like(slots[:, :1])
        tokens, token_log_probs = [], []
        for i in range(slots.shape[1]):
            every = log_probs(self._outputs(slots[:, i : i + 1] + self.positions[i] + before, seen))
            token = drawn(every, None if noise is None else noise[:, i : i + 1])
            tokens.append(token)
            token_log_probs.append(taken_of(every, token))
            before = self.embedding(token)
        return torch.cat(tokens, 1), torch.cat(token_log_probs, 1)
