"""A leaf of categories: a 1 at the place of each value, and 0 elsewhere."""

from __future__ import annotations

import itertools

import torch
from torch import Tensor

from rlpipe.policies.encoders.base import Encoder, EncoderConfig
from rlpipe.trajectory import LeafSpec

__all__ = ["OneHot"]


class OneHot(Encoder):
    """Encodes each entry of a leaf in as many numbers as it has values; it has no weights."""

    first: Tensor

    def __init__(self, _: EncoderConfig, leaf: LeafSpec) -> None:
        """Places the entries side by side."""
        super().__init__()
        ends = list(itertools.accumulate(leaf.choices or ()))
        self.width = ends[-1]
        self.register_buffer("first", torch.tensor([0, *ends[:-1]]), persistent=False)

    @classmethod
    def misfit(cls, leaf: LeafSpec) -> str | None:
        return "a Discrete or MultiDiscrete space" if leaf.choices is None else None

    def forward(self, values: Tensor) -> Tensor:
        rows = values.shape[0]
        places = values.reshape(rows, len(self.first)).long() + self.first
        return torch.zeros(rows, self.width, device=values.device).scatter_(1, places, 1.0)
