"""Hindsight experience replay: which goal a step is given afterwards, and what ends under it.

Andrychowicz et al. 2017, arXiv:1707.01495.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def future_steps(
    positions: NDArray[np.int64], ends: NDArray[np.int64], uniform: NDArray[np.float64]
) -> NDArray[np.int64]:
    """Later steps of the same episodes, ``t' = t + floor(u (T - t))``, so that each of t, ..., T - 1 is equally likely.

    The strategy ``future`` of section 4.5: the goal of step t becomes what was achieved after step t'. With t' = t the
    step itself achieves its goal.

    Args:
        positions: [B] number of each step, t, counted along its episode from anywhere.
        ends: [B] number behind the last step of the episode, T > t; its length where steps count from 0.
        uniform: [B] random numbers, 0 <= u < 1.
    Returns:
        [B] number of the later step in the same episode, t'.
    """
    left = ends - positions
    later = np.minimum((uniform * left).astype(np.int64), left - 1)  # the product may round up to ``left``
    return np.asarray(positions + later, dtype=np.int64)


def terminated_under_goal(
    terminated: NDArray[np.bool_], by_old_goal: NDArray[np.bool_], by_new_goal: NDArray[np.bool_]
) -> NDArray[np.bool_]:
    """True where a step ends the task under its new goal: by that goal, or because it ended for no reason of goals.

    Args:
        terminated: [B] True where the step ended the task when it was collected.
        by_old_goal: [B] True where the goal that it was collected for ends the task after it.
        by_new_goal: [B] the same for the new goal.
    """
    return np.asarray(by_new_goal | (terminated & ~by_old_goal))


def first_true(rows: NDArray[np.bool_]) -> NDArray[np.int64]:
    """[B] number of the first of [K, B] rows that is True in each column; 0 where none is."""
    return np.asarray(rows.argmax(0), dtype=np.int64)
