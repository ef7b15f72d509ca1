"""Random shifts of the images in a learner's observations. Acting never sees them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from rlpipe.functional.augmentation import draw_shifts, shifted
from rlpipe.trajectory import SpaceSpec, Tree
from rlpipe.trajectory.sequences import Sequences


class RandomShift:
    """Moves all images of an observation by the same few pixels, drawn anew for each observation of each batch."""

    def __init__(self, pixels: int, spec: SpaceSpec, generator: torch.Generator) -> None:
        """Moves nothing, and draws nothing, if there are no images or the largest shift is 0 pixels."""
        self._names = [name for name, leaf in (spec.leaves or {}).items() if leaf.is_image] if pixels else []
        self._pixels, self._generator = pixels, generator

    def draw(self, count: int) -> Tensor | None:
        """Draws the shifts of so many observations; None if nothing is moved."""
        return draw_shifts(count, self._pixels, self._generator) if self._names else None

    def __call__(self, observations: Any, shifts: Tensor | None) -> Any:
        """Returns observations, [B, D], a tree with leaves [B, ...], or either in ``Sequences``, with images moved."""
        if shifts is None:
            return observations
        if isinstance(observations, Sequences):
            return replace(observations, observations=self(observations.observations, shifts))
        return Tree(observations.leaves | {name: shifted(observations[name], shifts) for name in self._names})
