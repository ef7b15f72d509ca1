"""Units of a decision, each with a probability ratio: its tokens, its actions, or the whole (RLinf's ``logprob_type``).

A decision of a chunked policy has k actions of A parts (numbers, or tokens that stand for them). B decisions.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

LEVELS = ("token", "action", "chunk")


class Units(NamedTuple):
    """Values of decisions, cut into the units of a level.

    Attributes:
        values: [B, G]; 0 for what was never taken.
        taken: [B, G] bool, units that were taken.
    """

    values: Tensor
    taken: Tensor

    def mean(self) -> Tensor:
        """[B] means over the units that were taken."""
        return self.of(self.values)

    def of(self, values: Tensor) -> Tensor:
        """[B] means of other values [B, G] over the units that were taken."""
        return (values * self.taken).sum(-1) / self.taken.sum(-1).clamp(min=1)


def at_level(parts: Tensor, num_steps: Tensor | None, level: str) -> Units:
    """Sums the parts of each unit: none at ``token``, those of an action at ``action``, all taken ones at ``chunk``.

    Args:
        parts: [B, k, A] log-probabilities or entropies.
        num_steps: [B] number of actions that were taken; None for all.
        level: one of ``LEVELS``.
    """
    _, size, width = parts.shape
    mask = torch.ones(parts.shape[:2], dtype=torch.bool, device=parts.device)
    if num_steps is not None:
        mask = taken_actions(num_steps, size)
    summands = parts * mask.unsqueeze(-1)
    if level == "token":
        return Units(summands.flatten(1), mask.unsqueeze(-1).expand(-1, -1, width).flatten(1))
    if level == "action":
        return Units(summands.sum(-1), mask)
    return Units(summands.sum((-1, -2)).unsqueeze(-1), mask.any(-1, keepdim=True))


def taken_actions(num_steps: Tensor, size: int) -> Tensor:
    """[..., k] bool of [...] numbers of actions that were taken, of k = ``size``."""
    return torch.arange(size, device=num_steps.device) < num_steps.unsqueeze(-1)


def by_unit(values: Tensor, count: int) -> Tensor:
    """[B, G] values of ``count`` = G units, each that of its decision [B], or of its action [B, k]."""
    if values.dim() == 1:
        return values.unsqueeze(-1).expand(-1, count)
    return values.repeat_interleave(count // values.shape[1], 1)
