"""Random shifts of images."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn import functional

from rlpipe.functional.augmentation import draw_shifts, shifted

IMAGE = torch.arange(6, dtype=torch.uint8).reshape(1, 2, 3, 1)  # 0 1 2 / 3 4 5


def test_what_comes_in_repeats_the_edge():
    moved = shifted(IMAGE, torch.tensor([[1, -1]]))  # down by one, left by one
    assert moved[0, ..., 0].tolist() == [[1, 2, 2], [1, 2, 2]]
    assert moved.dtype == torch.uint8
    assert IMAGE.flatten().tolist() == [0, 1, 2, 3, 4, 5]


@given(st.integers(0, 4), st.integers(0, 2**31))
def test_a_shift_is_a_crop_from_the_image_with_its_edges_repeated(pixels, seed):
    """As in DrQ-v2's own code, which pads by replication and crops at random."""
    generator = torch.Generator().manual_seed(seed)
    images = torch.randint(256, (5, 6, 7, 3), dtype=torch.uint8, generator=generator)
    shifts = draw_shifts(5, pixels, generator)
    assert shifts.abs().max() <= pixels
    planes = images.permute(0, 3, 1, 2).float()
    padded = functional.pad(planes, (pixels,) * 4, mode="replicate").permute(0, 2, 3, 1).byte()
    for image, whole, (down, right) in zip(shifted(images, shifts), padded, shifts.tolist(), strict=True):
        assert torch.equal(image, whole[pixels - down :, pixels - right :][:6, :7])


def test_every_shift_is_as_likely():
    shifts = draw_shifts(9000, 1, torch.Generator().manual_seed(0))
    counts = torch.bincount((shifts[:, 0] + 1) * 3 + shifts[:, 1] + 1)
    assert len(counts) == 9
    assert 900 < counts.min() <= counts.max() < 1100
