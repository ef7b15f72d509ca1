"""Observations of ManiSkill's cameras as a tree with plain names.

Importing this file imports no simulator.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from rlpipe.errors import ConfigError
from rlpipe.trajectory import Tree

MODES = {
    "state": "state",
    "rgb": "rgb",
    "depth": "depth",
    "rgbd": "rgb+depth",
    "state+rgb": "state+rgb",
    "state+depth": "state+depth",
    "state+rgbd": "state+rgb+depth",
}
"""ManiSkill's observation mode by ours."""

_LEFT_OUT = "sensor_param"
"""Poses and lenses of the cameras, which do not change, or follow from the robot's joints."""
_UNNAMED = ("agent", "extra", "sensor_data")
"""Levels whose names no leaf bears."""


def camera_tree(observation: Mapping[str, Any]) -> Tree:
    """Turns an observation of one environment, whose tensors are [1, ...], into a tree of arrays.

    Leaves are ``state``, or what the robot senses and the task adds (``qpos``, ``tcp_pose``), and ``<camera>_rgb``,
    uint8 [H, W, 3], and ``<camera>_depth``, int16 [H, W, 1] in millimetres. True and False become 1 and 0.

    Raises:
        ConfigError: two of them would have the same name.
    """
    leaves: dict[str, Any] = {}
    for name, value in _named(observation, ()):
        if name in leaves:
            raise ConfigError(f"the task has two observations that would both be called {name}: take obs_mode=state.")
        leaves[name] = _array(value)
    return Tree(leaves)


def _array(value: Any) -> Any:
    array = value.numpy()[0]
    return np.float32(array) if array.dtype.kind in "bf" else array


def _named(values: Mapping[str, Any], way: tuple[str, ...]) -> Iterator[tuple[str, Any]]:
    for key, value in values.items():
        if not way and key == _LEFT_OUT:
            continue
        if isinstance(value, Mapping):
            yield from _named(value, way if not way and key in _UNNAMED else (*way, key))
        else:
            yield "_".join((*way, key)), value
