"""The residual convolutional encoder of IMPALA, Espeholt et al. 2018, arXiv:1802.01561, figure 3 (right)."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor, nn
from torch.nn import functional

from rlpipe.config.fields import option
from rlpipe.policies.encoders.base import Encoder, EncoderConfig, scaled, too_small
from rlpipe.trajectory import LeafSpec

__all__ = ["ImpalaCNN"]

LEAST_PIXELS = 8
"""Smallest height and width: each of three stages halves them."""


@dataclass(frozen=True)
class ImpalaCNNConfig(EncoderConfig):
    """Options of the encoder."""

    channels: list[int] = option([16, 32, 32], least=1)
    """Filters of each stage: a convolution, a maximum over 3 x 3 with stride 2, and two residual blocks."""
    width: int = option(256, least=1, unit="units")
    """Number of outputs."""


class ImpalaCNN(Encoder):
    """Stages of residual blocks, then one linear layer."""

    Config = ImpalaCNNConfig

    def __init__(self, config: ImpalaCNNConfig, leaf: LeafSpec) -> None:
        """Draws the first weights from torch's global generator."""
        super().__init__()
        height, width, depth = leaf.shape
        stages: list[nn.Module] = []
        for channels in config.channels:
            stages += [nn.Conv2d(depth, channels, 3, padding=1), nn.MaxPool2d(3, 2, padding=1)]
            stages += [_Residual(channels), _Residual(channels)]
            depth, height, width = channels, (height + 1) // 2, (width + 1) // 2
        self.stages = nn.Sequential(*stages, nn.ReLU())
        self.head = nn.Sequential(nn.Linear(depth * height * width, config.width), nn.ReLU())
        self.width = config.width

    @classmethod
    def misfit(cls, leaf: LeafSpec) -> str | None:
        return too_small(leaf, LEAST_PIXELS)

    def forward(self, values: Tensor) -> Tensor:
        encoded: Tensor = self.head(self.stages(scaled(values)).flatten(1))
        return encoded


class _Residual(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.first, self.second = (nn.Conv2d(channels, channels, 3, padding=1) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        added: Tensor = self.second(functional.relu(self.first(functional.relu(x))))
        return x + added
