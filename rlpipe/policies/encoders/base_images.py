"""Scaling and size check shared by the encoders of images."""

from __future__ import annotations

import torch
from torch import Tensor

from rlpipe.trajectory import LeafSpec


def scaled(images: Tensor) -> Tensor:
    """[B, channels, height, width] between -0.5 and 0.5 of [B, height, width, channels] bytes; of depth, metres."""
    planes = images.permute(0, 3, 1, 2).to(torch.float32, memory_format=torch.contiguous_format)
    return planes / 255.0 - 0.5 if images.dtype == torch.uint8 else planes / 1000.0


def too_small(leaf: LeafSpec, least: int) -> str | None:
    """Returns what an encoder of images needs, where a leaf is no image or has too few pixels; None if it fits.

    Args:
        leaf: what is to be encoded.
        least: smallest height and width, in pixels.
    """
    if leaf.is_image and min(leaf.shape[:2]) >= least:
        return None
    return f"a uint8 image [height, width, channels], or int16 depth, of at least {least} x {least} pixels"
