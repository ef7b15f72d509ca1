"""A leaf as it is: its numbers, side by side."""

from __future__ import annotations

from torch import Tensor

from rlpipe.policies.encoders.base import Encoder, EncoderConfig
from rlpipe.trajectory import LeafSpec

__all__ = ["Vector"]


class Vector(Encoder):
    """Flattens a leaf of numbers; it has no weights."""

    def __init__(self, _: EncoderConfig, leaf: LeafSpec) -> None:
        """Takes the width of the leaf."""
        super().__init__()
        self.width = leaf.size

    @classmethod
    def misfit(cls, leaf: LeafSpec) -> str | None:
        return None if leaf.choices is None else "numbers"

    def forward(self, values: Tensor) -> Tensor:
        return values.flatten(1).float() if values.dim() > 1 else values.float().unsqueeze(-1)
