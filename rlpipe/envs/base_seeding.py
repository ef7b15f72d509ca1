"""Resets that follow from their seed alone, for libraries whose own resets do not.

Importing this file imports no simulator.
"""

from __future__ import annotations

import contextlib
import random
from collections.abc import Iterator
from typing import Any

import numpy as np

DRAWING_GLOBALLY = ("gym_hil",)
"""Packages whose tasks draw from the global generators, whatever the seed of a reset."""
LEAVING_TRACES = ("gym_xarm",)
"""Packages whose resets set only a part of MuJoCo's state, so that an episode depends on the one before."""


@contextlib.contextmanager
def global_generators(seed: int | None) -> Iterator[None]:
    """Seeds the global generators of Python and NumPy for a block, and puts back the states that they had."""
    before = random.getstate(), np.random.get_state()
    if seed is not None:
        random.seed(seed)
        np.random.seed(seed)
    try:
        yield
    finally:
        random.setstate(before[0])
        np.random.set_state(before[1])


class SeededReset:
    """Resets one ``gymnasium.Env``, so that the same seed begins the same episode."""

    def __init__(self, env: Any) -> None:
        """Takes note of the state of an environment that has just been made."""
        self._env = env
        package = type(env.unwrapped).__module__.partition(".")[0]
        self._globally = package in DRAWING_GLOBALLY
        self._clean = None if package not in LEAVING_TRACES else _mujoco_state(env.unwrapped)

    def __call__(self, seed: int | None) -> Any:
        """Returns what the reset returns."""
        if self._clean is not None:
            _set_mujoco_state(self._env.unwrapped, self._clean)
        if not self._globally:
            return self._env.reset(seed=seed)
        with global_generators(seed):
            return self._env.reset(seed=seed)


def _mujoco_state(task: Any) -> Any:
    import mujoco

    state = np.empty(mujoco.mj_stateSize(task.model, mujoco.mjtState.mjSTATE_INTEGRATION))
    mujoco.mj_getState(task.model, task.data, state, mujoco.mjtState.mjSTATE_INTEGRATION)
    return state


def _set_mujoco_state(task: Any, state: Any) -> None:
    import mujoco

    mujoco.mj_setState(task.model, task.data, state, mujoco.mjtState.mjSTATE_INTEGRATION)
