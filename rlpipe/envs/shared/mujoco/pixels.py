"""Gymnasium environments observed by their rendered pictures.

Importing this file imports no Gymnasium.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from ctypes.util import find_library
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rlpipe.errors import ConfigError

STATE = "state"
"""Name of the leaf with the environment's own observation. A Dict keeps the names of its leaves instead."""
PIXELS = "pixels"
"""Name of the leaf with the picture, beside ``STATE``."""


def choose_opengl() -> None:
    """Lets MuJoCo draw without a screen, unless the environment variable ``MUJOCO_GL`` says how to draw."""
    if "MUJOCO_GL" not in os.environ and "DISPLAY" not in os.environ:
        os.environ["MUJOCO_GL"] = "egl"


def choose_opengl_if_found() -> None:
    """Does the same where EGL is installed, for libraries that cannot be imported with a way of drawing that is not."""
    if find_library("EGL") is not None:
        choose_opengl()


def make_with_pixels(name: str, kwargs: Mapping[str, Any], size: int, *, state: bool) -> Any:
    """Makes a ``gymnasium.Env`` that observes what it renders.

    Args:
        name: registered id.
        kwargs: further keyword arguments of ``gymnasium.make``.
        size: height and width of the pictures, in pixels; each is the mean of those it covers.
        state: True to keep the environment's own observation beside the picture: one leaf, or, of a Dict, its own.
    Raises:
        ConfigError: it cannot render here, or its own observation has a name in the way.
        TypeError, gymnasium.error.Error: it cannot be made with these arguments.
    """
    import gymnasium
    from gymnasium.spaces import Box, Dict
    from gymnasium.wrappers import AddRenderObservation, TransformObservation

    with _rendering_errors(name, size, ignored=(TypeError, gymnasium.error.Error)):
        env = gymnasium.make(name, **{"render_mode": "rgb_array", **kwargs})
    if state and isinstance(env.observation_space, Dict) and PIXELS in env.observation_space.spaces:
        raise ConfigError(
            f"pixels_with_state is true, but {name} itself observes something called {PIXELS}: set "
            "pixels_with_state=false."
        )
    with _rendering_errors(name, size):
        seen = AddRenderObservation(env, render_only=not state, render_key=PIXELS, obs_key=STATE)
    picture = Box(0, 255, (size, size, 3), np.uint8)
    if not state:
        return TransformObservation(seen, lambda image: resized(image, size), picture)
    space = Dict({**seen.observation_space.spaces, PIXELS: picture})
    return TransformObservation(seen, lambda both: {**both, PIXELS: resized(both[PIXELS], size)}, space)


@contextmanager
def _rendering_errors(name: str, size: int, ignored: tuple[type[Exception], ...] = ()) -> Iterator[None]:
    """Turns what an environment raises where it cannot draw into errors of the configuration.

    Args:
        name: registered id.
        size: of the pictures, in pixels.
        ignored: exceptions that have another cause, unless the environment takes no render mode.
    """
    try:
        yield
    except Exception as error:  # every way of drawing has errors of its own
        if isinstance(error, ignored) and "argument 'render_mode'" not in str(error):
            raise
        raise ConfigError(
            f"pixels is {size}, but {name} cannot be made to render here ({type(error).__name__}: {error}). "
            "MuJoCo needs OpenGL: install libegl1 and libegl-mesa0 (or libosmesa6 and set MUJOCO_GL=osmesa); classic "
            "control needs pygame. See docs/cameras.md."
        ) from error


def resized(image: NDArray[np.uint8], size: int) -> NDArray[np.uint8]:
    """[size, size, channels] picture of a [height, width, channels] one."""
    if image.shape[:2] == (size, size):
        return image
    import torch

    planes = torch.from_numpy(np.ascontiguousarray(image)).permute(2, 0, 1).float()
    small = torch.nn.functional.adaptive_avg_pool2d(planes, size)
    return small.round().to(torch.uint8).permute(1, 2, 0).contiguous().numpy()
