"""Recorded episodes: what was observed, done and rewarded in each step; to look at, or to learn from."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rlpipe.trajectory.episode import Episode
from rlpipe.trajectory.starts import State


@dataclass(frozen=True, eq=False)
class RecordedSteps:
    """Episode of T steps, as it was recorded.

    Attributes:
        episode: its record, as in the ledger.
        rewards: [T] float64, of each step.
        success: [T] bool, after each step; None for a simulator without a notion of success.
        actions: [T, A] float32 as the simulator took them, within its bounds; discrete ones [T] or [T, M] int64.
        observations: by leaf, [T + 1, ...]: before the first step and after each.
    """

    episode: Episode
    rewards: NDArray[np.float64]
    success: NDArray[np.bool_] | None
    actions: NDArray[np.generic]
    observations: Mapping[str, NDArray[Any]]


@dataclass(frozen=True, eq=False)
class Replay(RecordedSteps):
    """A recorded episode to look at. Its observations are vectors as float32; images are left out.

    Attributes:
        poses: [T + 1, B, 7] float32, x, y, z in m and a unit quaternion w, x, y, z of each body of the scene, before
            the first step and after each; None without geometry.
        scene: key of the ``Scene``; empty without geometry.
    """

    poses: NDArray[np.float32] | None = None
    scene: str = ""


@dataclass(frozen=True, eq=False)
class Recording(RecordedSteps):
    """A recorded episode to learn from. Its observations are as they were, pictures too.

    Attributes:
        states: of the simulator by name, [T + 1, ...], before the first step and after each; None where it cannot begin
            an episode in one.
    """

    states: State | None = None


def worth_keeping(replays: Iterable[Replay], most: int) -> list[Replay]:
    """Chooses the replays of an evaluation that are kept, by their seed, or else by the step at which they ended.

    These are the first ones, the first ones without success, and those with the largest and the smallest return. What
    is chosen of parts, and then of all that was chosen, is what is chosen of the whole.

    Args:
        replays: of some episodes.
        most: number of first ones, and of failures.
    """
    ordered = sorted(replays, key=_place)
    if most < 1 or not ordered:
        return []
    failures = [replay for replay in ordered if replay.episode.success_once is False]
    totals = np.array([replay.episode.episode_return for replay in ordered])
    returns = np.where(np.isfinite(totals), totals, -np.inf)
    best, worst = ordered[int(np.argmax(returns))], ordered[int(np.argmin(returns))]
    identities = {id(replay) for replay in (*ordered[:most], *failures[:most], best, worst)}
    return [replay for replay in ordered if id(replay) in identities]


def _place(replay: Replay) -> tuple[bool, int, int, int]:
    episode = replay.episode
    return episode.seed is None, episode.seed or 0, episode.step, episode.slot
