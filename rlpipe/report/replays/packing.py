"""Arrays in the form in which a page carries them: base64 of little-endian numbers, poses and vertices in 16 bits."""

from __future__ import annotations

import base64
from typing import Any

import numpy as np
from numpy.typing import NDArray

STEPS = 65535
MOST_ERROR = 5e-5
"""Largest error of a pose, in metres or as part of a quaternion, up to which 16 bits are taken instead of 32."""


def packed(values: NDArray[Any]) -> dict[str, str]:
    """Packs an array of float32, float64, uint16 or uint32, without its shape."""
    kind = values.dtype.newbyteorder("<")
    return {"type": kind.str[1:], "data": base64.b64encode(np.ascontiguousarray(values, dtype=kind).tobytes()).decode()}


def packed_poses(poses: NDArray[np.float32]) -> dict[str, Any]:
    """Packs poses [T + 1, B, 7].

    What never moves is held once. The rest takes 16 bits a number, each within the range of its own column, unless one
    of them moves so far that the error would exceed ``MOST_ERROR``.
    """
    columns = poses.reshape(len(poses), -1).astype(np.float64)
    moving = np.flatnonzero(np.ptp(columns, axis=0) > 0)
    low, step = _grid(columns[:, moving])
    coarse = bool(moving.size) and float(step.max()) / 2 > MOST_ERROR
    held: dict[str, Any] = {"first": packed(poses[0].reshape(-1)), "columns": moving.tolist()}
    if coarse:
        return {**held, "low": None, "step": None, "values": packed(columns[:, moving].astype(np.float32))}
    return {
        **held,
        "low": low.tolist(),
        "step": step.tolist(),
        "values": packed(_places(columns[:, moving], low, step)),
    }


def packed_mesh(vertices: NDArray[np.float32], triangles: NDArray[np.int32]) -> dict[str, Any]:
    """Packs a mesh: vertices [V, 3] as 16-bit places in the box around them, triangles [F, 3]."""
    points = np.asarray(vertices, dtype=np.float64)
    low, step = _grid(points)
    corners = np.asarray(triangles, dtype=np.uint16 if len(points) <= STEPS else np.uint32)
    return {
        "low": low.tolist(),
        "step": step.tolist(),
        "points": packed(_places(points, low, step)),
        "triangles": packed(corners.reshape(-1)),
    }


def _grid(columns: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Returns the smallest value and the distance of two places, by column."""
    return columns.min(axis=0), np.ptp(columns, axis=0) / STEPS


def _places(columns: NDArray[np.float64], low: NDArray[np.float64], step: NDArray[np.float64]) -> NDArray[np.uint16]:
    places: NDArray[np.uint16] = np.rint((columns - low) / np.where(step > 0, step, 1.0)).astype(np.uint16)
    return places
