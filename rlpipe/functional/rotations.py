"""Rotations: orientations as unit quaternions, and pictures that are turned."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray


def rotation_between(first: ArrayLike, second: ArrayLike, share: float) -> NDArray[np.float64]:
    """[4] unit quaternion some share of the shorter way from one to another.

    Both are interpolated and normalised, which turns at an almost even pace. ``q`` and ``-q`` are the same orientation.

    Args:
        first: [4] unit quaternion.
        second: likewise.
        share: from 0 for the first to 1 for the second.
    """
    start, end = np.asarray(first, dtype=np.float64), np.asarray(second, dtype=np.float64)
    mixed = (1.0 - share) * np.copysign(1.0, start @ end) * start + share * end
    unit: NDArray[np.float64] = mixed / np.linalg.norm(mixed)
    return unit


def rotation_product(first: ArrayLike, second: ArrayLike) -> NDArray[np.float64]:
    """[4] unit quaternion w, x, y, z of the second rotation, and then the first."""
    w, x, y, z = np.asarray(first, dtype=np.float64)
    a, b, c, d = np.asarray(second, dtype=np.float64)
    return np.array(
        [
            w * a - x * b - y * c - z * d,
            w * b + x * a + y * d - z * c,
            w * c - x * d + y * a + z * b,
            w * d + x * c - y * b + z * a,
        ]
    )


def moved_pixels(height: int, width: int, down: float, right: float, angle: float) -> NDArray[np.intp]:
    """[height, width] pixel, counted row by row, that each pixel of a picture shows once the picture has moved.

    The picture turns about its centre c by an angle, and then shifts: the pixel at p shows the nearest one to
    ``R(-angle) (p - shift - c) + c``. What comes in from beyond the edges repeats them.

    Args:
        height: rows.
        width: columns.
        down: shift in pixels.
        right: likewise.
        angle: rad, clockwise as seen.
    """
    middle = np.array([height - 1, width - 1]) / 2
    rows = np.arange(height)[:, None] - down - middle[0]
    columns = np.arange(width) - right - middle[1]
    cosine, sine = np.cos(angle), np.sin(angle)
    source_row = np.rint(cosine * rows - sine * columns + middle[0])
    source_column = np.rint(sine * rows + cosine * columns + middle[1])
    pixels: NDArray[np.intp] = (
        np.clip(source_row, 0, height - 1) * width + np.clip(source_column, 0, width - 1)
    ).astype(np.intp)
    return pixels
