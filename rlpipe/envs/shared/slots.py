"""Slots of a simulator: what is known of the episode of each, and how its next one begins."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from rlpipe.trajectory import Bool, ChosenStart

NextSeed = Callable[[int], int | None]
"""Returns the seed of a slot's next episode; None when the slot has run all its episodes and must stay idle."""
NextStart = Callable[[int], ChosenStart | None]
"""Returns the chosen start of a slot's next episode; None where the task draws it. Asked once its seed is known."""

_ENDLESS = np.iinfo(np.int64).max


class NextEpisode(NamedTuple):
    """How the next episode of a slot begins.

    Attributes:
        seed: seed of its reset.
        start: start that a curriculum chose; None where the task draws it.
    """

    seed: int
    start: ChosenStart | None

    @property
    def own_seed(self) -> int:
        """Seed that the episode follows from: that of the chosen start, where it has one."""
        return self.seed if self.start is None or self.start.seed is None else self.start.seed


class Slots:
    """N slots.

    Attributes:
        idle: [N] bool, slots that have run all their episodes.
    """

    def __init__(self, count: int, next_seed: NextSeed, limit: int | None = None) -> None:
        """No slot is idle before its first episode.

        Args:
            count: N.
            next_seed: called before each reset of a slot.
            limit: environment steps of every episode; None where the simulator itself ends it.
        """
        self.idle: Bool = np.zeros(count, dtype=bool)
        self._next_seed = next_seed
        self._limit = _ENDLESS if limit is None else limit
        self._left: NDArray[np.int64] = np.full(count, self._limit)
        self._never: Bool = np.zeros(count, dtype=bool)
        self._any_limit = limit is not None  # nothing to count otherwise, in every step of every run

    def begin(self, n: int, next_start: NextStart | None = None) -> NextEpisode | None:
        """Asks how the next episode of a slot begins; None if there is none, and the slot is idle from now on."""
        seed = self._next_seed(n)
        self.idle[n] = seed is None
        if seed is None:
            return None
        start = None if next_start is None else next_start(n)
        limit = None if start is None else start.limit
        self._left[n] = self._limit if limit is None else min(limit, self._limit)
        self._any_limit |= limit is not None
        return NextEpisode(seed, start)

    def stepping(self, active: Bool | None) -> Bool:
        """[N] True where a step is taken: in slots that are not idle, of those that are ``active``."""
        return ~self.idle if active is None else ~self.idle & active

    def cut_off(self, valid: Bool, success: Bool, steps_after_success: int | None) -> Bool:
        """Counts a step; [N] True where it was the last one of an episode, by its time limit or after a success.

        Args:
            valid: [N] slots that took it.
            success: [N] after the step.
            steps_after_success: environment steps of an episode after its first success; None for all.
        """
        if not self._any_limit and steps_after_success is None:
            return self._never
        self._left -= valid
        if steps_after_success is not None:
            self._left = np.where(valid & success, np.minimum(self._left, steps_after_success), self._left)
        return valid & (self._left <= 0)
