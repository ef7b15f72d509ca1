"""Bins of equal width for each number of an action, and the tokens that name them.

Bins lie between quantiles of the demonstrated actions, as in OpenVLA (Kim et al. 2024, arXiv:2406.09246, section 3.2),
or between the simulator's bounds.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from rlpipe.config.fields import option
from rlpipe.policies.base import NoiseKinds
from rlpipe.trajectory import Float32, SpaceSpec


@dataclass(frozen=True)
class BinsConfig:
    """Options of the bins; stands before ``PolicyConfig`` among the bases, so that ``name`` stays the first key."""

    bins: int = option(256, least=2, below=2**16)
    """Number of tokens for each number of an action."""
    quantile: float = option(0.01, least=0, below=0.5)
    """Share of the demonstrated numbers below the lowest bin and above the highest one, for each dimension."""


class BinnedActions(nn.Module):
    """Part of a policy whose actions are tokens; the bins are among its weights.

    Attributes:
        lowest: [k * A] lower edge of the lowest bin, in the simulator's unit.
        width: [k * A] width of a bin.
    """

    spec: SpaceSpec
    lowest: Tensor
    width: Tensor

    def make_bins(self, low: Float32, high: Float32, bins: int, quantile: float) -> None:
        """Places the bins between bounds [k * A]; called once, by the policy's ``__init__``."""
        self._bins, self._quantile = bins, quantile
        self.register_buffer("lowest", torch.tensor(low))
        self.register_buffer("width", _width(torch.tensor(low), torch.tensor(high), bins))

    def fit_actions(self, actions: Tensor) -> None:
        """Places the bins between quantiles of demonstrated actions [B, A]."""
        low, high = (torch.quantile(actions, share, dim=0) for share in (self._quantile, 1.0 - self._quantile))
        chunk = len(self.lowest) // len(low)
        self.lowest.copy_(low.repeat(chunk))
        self.width.copy_(_width(low, high, self._bins).repeat(chunk))

    @property
    def noise_kinds(self) -> NoiseKinds:
        """Uniform numbers, one for each token; see ``Policy.noise_kinds``."""
        return (("uniform", self.spec.action_dim),)

    def tokens(self, actions: Tensor) -> Tensor:
        """[B, k * A] int64 tokens of [B, k * A] actions; numbers beyond the bins fall into the outermost ones."""
        return ((actions - self.lowest) / self.width).floor().long().clamp(0, self._bins - 1)

    def centres(self, tokens: Tensor) -> Tensor:
        """[B, k * A] actions that tokens [B, k * A] stand for: the middles of their bins."""
        return self.lowest + (tokens + 0.5) * self.width


def _width(low: Tensor, high: Tensor, bins: int) -> Tensor:
    """Width of so many bins between bounds [A], which may be equal: as wide that float32 tells neighbours apart."""
    return torch.maximum((high - low) / bins, 1e-6 * low.abs().clamp(min=1.0))


def drawn(log_probs: Tensor, noise: Tensor | None) -> Tensor:
    """[...] int64 tokens drawn from log-probabilities [..., bins]: the first at which they add up beyond the noise.

    Args:
        log_probs: of every token, in nats.
        noise: [...] uniform in [0, 1); None for the most likely token.
    """
    if noise is None:
        return log_probs.argmax(-1)
    return (log_probs.exp().cumsum(-1) <= noise.unsqueeze(-1)).sum(-1).clamp(max=log_probs.shape[-1] - 1)


def taken_of(log_probs: Tensor, tokens: Tensor) -> Tensor:
    """[...] log-probabilities of tokens [...] among those of every token, [..., bins]."""
    return log_probs.gather(-1, tokens.unsqueeze(-1)).squeeze(-1)
