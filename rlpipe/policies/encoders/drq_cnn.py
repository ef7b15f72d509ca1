"""The convolutional encoder of DrQ-v2, Yarats et al. 2021, arXiv:2107.09645, for small images."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor, nn

from rlpipe.config.fields import option
from rlpipe.policies.encoders.base import Encoder, EncoderConfig, scaled, too_small
from rlpipe.trajectory import LeafSpec

__all__ = ["DrQCNN"]

LEAST_PIXELS = 17
"""Smallest height and width that leaves a pixel after four convolutions, the first of stride 2."""


@dataclass(frozen=True)
class DrQCNNConfig(EncoderConfig):
    """Options of the encoder."""

    channels: int = option(32, least=1)
    """Filters of each of the four convolutions of 3 x 3; the first has stride 2."""
    width: int = option(50, least=1, unit="units")
    """Number of outputs, which are normalised and squashed by tanh."""


class DrQCNN(Encoder):
    """Four convolutions, then one linear layer with layer normalisation."""

    Config = DrQCNNConfig

    def __init__(self, config: DrQCNNConfig, leaf: LeafSpec) -> None:
        """Draws orthogonal first weights from torch's global generator, as the paper's code does."""
        super().__init__()
        height, width, depth = leaf.shape
        layers: list[nn.Module] = []
        for stride in (2, 1, 1, 1):
            layers += [nn.Conv2d(depth, config.channels, 3, stride), nn.ReLU()]
            depth, height, width = config.channels, (height - 3) // stride + 1, (width - 3) // stride + 1
        self.convolutions = nn.Sequential(*layers)
        self.head = nn.Sequential(
            nn.Linear(depth * height * width, config.width), nn.LayerNorm(config.width), nn.Tanh()
        )
        for module in self.modules():
            if isinstance(module, nn.Conv2d | nn.Linear):
                nn.init.orthogonal_(module.weight, 2**0.5 if isinstance(module, nn.Conv2d) else 1.0)
                nn.init.zeros_(module.bias)  # type: ignore[arg-type]
        self.width = config.width

    @classmethod
    def misfit(cls, leaf: LeafSpec) -> str | None:
        return too_small(leaf, LEAST_PIXELS)

    def forward(self, values: Tensor) -> Tensor:
        encoded: Tensor = self.head(self.convolutions(scaled(values)).flatten(1))
        return encoded
