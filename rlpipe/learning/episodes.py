"""Order of the stored steps of each episode, although fragments cut episodes and hold those of many slots."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rlpipe.functional.hindsight import future_steps
from rlpipe.trajectory.batch import TrajectoryBatch

Numbers = NDArray[np.int64]


@dataclass
class _Running:
    """Episode of a slot that has not ended.

    Attributes:
        length: steps it has taken.
        steps: numbers of those that are stored, one array per fragment.
    """

    length: int
    steps: list[Numbers] = field(default_factory=list)


class Later(NamedTuple):
    """Later steps of the same episodes.

    Attributes:
        numbers: [B] number of the later step; anything where it is unknown.
        ahead: [B] steps from each to the later one; -1 where it is unknown.
    """

    numbers: Numbers
    ahead: Numbers


class Episodes:
    """Finds a later step of the same episode in one lookup.

    The steps of an episode are listed, one after the other, once it has ended, or once its slot begins another one
    without an end, as a replaced worker does. Until then, nobody knows which steps are still to come.

    Steps have the numbers of the replay buffer, which counts them as they come and drops them in that order.
    """

    def __init__(self, capacity: int) -> None:
        """Starts without steps; ``capacity`` is the largest number of stored ones."""
        self._capacity = capacity
        self._places = np.full(capacity, -1, dtype=np.int64)  # of each stored step in the list; -1: not listed yet
        self._ends = np.zeros(capacity, dtype=np.int64)  # place behind the last step of its episode
        # A ring. Steps that were listed after a stored one are stored too, or older than it and stored when it was
        # listed: at most twice the capacity.
        self._listed = np.zeros(2 * capacity, dtype=np.int64)
        self._count = 0
        self._running: dict[int, _Running] = {}

    def add(self, batch: TrajectoryBatch, first: int, oldest: int) -> None:
        """Takes in the valid steps of a fragment.

        Args:
            batch: the fragment, in which a decision is one step.
            first: number of its first valid step; the others follow in the order of time, then of slots.
            oldest: number of the oldest step that is still stored.
        """
        assert batch.steps_before is not None
        numbers = np.zeros(batch.valid.shape, dtype=np.int64)
        numbers[batch.valid] = first + np.arange(np.count_nonzero(batch.valid))
        self._places[numbers[batch.valid] % self._capacity] = -1
        ended = batch.terminated | batch.truncated
        for n, before in enumerate(batch.steps_before.tolist()):
            slot, valid = batch.first_slot + n, batch.valid[:, n]
            if before == 0 or slot not in self._running or self._running[slot].length != before:
                self._end(slot, oldest)
                self._running[slot] = _Running(before)
            *whole, rest = np.split(numbers[valid, n], np.flatnonzero(ended[valid, n]) + 1)
            for steps in whole:
                self._continue(slot, steps, oldest)
                self._end(slot, oldest)
            self._continue(slot, rest, oldest)

    def _continue(self, slot: int, steps: Numbers, oldest: int) -> None:
        """Adds steps to the running episode of a slot."""
        running = self._running[slot]
        running.length += len(steps)
        running.steps = [part for part in (*running.steps, steps) if len(part) and part[-1] >= oldest]

    def _end(self, slot: int, oldest: int) -> None:
        """Lists the steps of a slot's episode that are still stored; another one begins."""
        ended, self._running[slot] = self._running.get(slot, _Running(0)), _Running(0)
        if not ended.steps:
            return
        steps = np.concatenate(ended.steps)
        steps = steps[steps >= oldest]
        places = self._count + np.arange(len(steps))
        self._count += len(steps)
        self._listed[places % len(self._listed)] = steps
        self._places[steps % self._capacity] = places
        self._ends[steps % self._capacity] = self._count

    def later(self, numbers: Numbers, uniform: NDArray[np.float64]) -> Later:
        """Draws a later step of the same episode for each stored step, itself included.

        Args:
            numbers: [B] of stored steps.
            uniform: [B] random numbers in [0, 1).
        """
        places, ends = (column[numbers % self._capacity] for column in (self._places, self._ends))
        drawn = future_steps(places, ends, uniform)
        return Later(self._listed[drawn % len(self._listed)], np.where(places >= 0, drawn - places, -1))

    def state(self, oldest: int, count: int) -> dict[str, Tensor]:
        """Returns what ``later`` needs of so many stored steps, the oldest first, and the running episodes."""
        stored = np.arange(oldest, oldest + count) % self._capacity
        places, ends = _without_gaps(self._places[stored], self._ends[stored])
        stretches, members = [], [np.empty(0, dtype=np.int64)]
        for slot, running in sorted(self._running.items()):
            steps = np.concatenate([np.empty(0, dtype=np.int64), *running.steps])
            steps = steps[steps >= oldest]
            stretches.append((slot, running.length, len(steps)))
            members.append(steps - oldest)
        arrays = {
            "places": places,
            "ends": ends,
            "running": np.array(stretches, dtype=np.int64).reshape(-1, 3),
            "running_steps": np.concatenate(members),
        }
        return {name: torch.from_numpy(array) for name, array in arrays.items()}

    def load_state(self, state: Mapping[str, Tensor], dropped: int) -> None:
        """Restores what ``state`` returned, with numbers from 0, but for so many of the oldest steps."""
        places, ends = _without_gaps(state["places"].numpy()[dropped:], state["ends"].numpy()[dropped:])
        listed = np.flatnonzero(places >= 0)
        self._places.fill(-1)
        self._places[: len(places)], self._ends[: len(ends)] = places, ends
        self._listed[places[listed]] = listed
        self._count = len(listed)
        self._running = {}
        steps = state["running_steps"].numpy() - dropped
        for slot, length, count in state["running"].tolist():
            stored, steps = steps[:count], steps[count:]
            stored = stored[stored >= 0]
            self._running[slot] = _Running(length, [stored] if len(stored) else [])


def _without_gaps(places: Numbers, ends: Numbers) -> tuple[Numbers, Numbers]:
    """Numbers the places of stored steps from 0, without those of steps that were dropped; -1 stays."""
    listed = places >= 0
    order = np.sort(places[listed])
    dense, behind = np.full_like(places, -1), np.zeros_like(ends)
    dense[listed], behind[listed] = np.searchsorted(order, places[listed]), np.searchsorted(order, ends[listed])
    return dense, behind
