"""Recorded episodes, to look at: what was observed, done and rewarded in each step, and where every body was."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rlpipe.trajectory.episode import Episode


@dataclass(frozen=True, eq=False)
class Replay:
    """A recorded episode of T steps.

    Attributes:
        episode: its record, as in the ledger.
        rewards: [T] float64, of each step.
        success: [T] bool, after each step; None for a simulator without a notion of success.
        actions: [T, A] float32 as the simulator took them, within its bounds; discrete ones [T] or [T, M] int64.
        observations: by leaf, [T + 1, D] float32: before the first step and after each. Images are left out.
        poses: [T + 1, B, 7] float32, x, y, z in m and a unit quaternion w, x, y, z of each body of the scene, likewise;
            None without geometry.
        scene: key of the ``Scene``; empty without geometry.
    """

    episode: Episode
    rewards: NDArray[np.float64]
    success: NDArray[np.bool_] | None
    actions: NDArray[np.generic]
    observations: Mapping[str, NDArray[np.float32]]
    poses: NDArray[np.float32] | None = None
    scene: str = ""


def in_order(replays: Iterable[Replay]) -> list[Replay]:
    """Sorts replays by their seed, and those without by the step at which they ended."""
    return sorted(replays, key=lambda one: _place(one.episode))


def _place(episode: Episode) -> tuple[bool, int, int, int]:
    return episode.seed is None, episode.seed or 0, episode.step, episode.slot


def worth_keeping(replays: Iterable[Replay], most: int) -> list[Replay]:
    """Chooses the replays of an evaluation that are kept, in their order.

    These are the first ones, the first ones without success, and those with the largest and the smallest return. What
    is chosen of parts, and then of all that was chosen, is what is chosen of the whole.

    Args:
        replays: of some episodes.
        most: number of first ones, and of failures.
    """
    found = in_order(replays)
    if most < 1 or not found:
        return []
    failures = [one for one in found if one.episode.success_once is False]
    returns = [_return(one) for one in found]
    best, worst = found[int(np.argmax(returns))], found[int(np.argmin(returns))]
    kept = {id(one) for one in (*found[:most], *failures[:most], best, worst)}
    return [one for one in found if id(one) in kept]


def _return(replay: Replay) -> float:
    total = replay.episode.episode_return
    return total if np.isfinite(total) else -np.inf
