"""Augmentation of images: random shifts, Yarats et al. 2021 (DrQ-v2), arXiv:2107.09645, section 3.1."""

from __future__ import annotations

import torch
from torch import Tensor


def draw_shifts(count: int, pixels: int, generator: torch.Generator) -> Tensor:
    """Draws [count, 2] int64 shifts down and to the right, each between minus and plus so many pixels."""
    return torch.randint(-pixels, pixels + 1, (count, 2), generator=generator)


def shifted(images: Tensor, shifts: Tensor) -> Tensor:
    """Moves each of [B, height, width, channels] images by [B, 2] pixels; what comes in repeats the edge.

    Equals a crop from the image whose edges were repeated outwards. Values stay exact, in their own dtype.
    """
    rows, columns = (
        (torch.arange(size, device=images.device) - shift[:, None].to(images.device)).clamp(0, size - 1)
        for size, shift in zip(images.shape[1:3], shifts.unbind(-1), strict=True)
    )
    numbers = torch.arange(len(images), device=images.device)
    return images[numbers[:, None, None], rows[:, :, None], columns[:, None, :]]
