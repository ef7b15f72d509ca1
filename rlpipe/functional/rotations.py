"""Orientations as unit quaternions."""

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
