"""Commits to the episodes of an evaluation: hashes what they observe, do and get, as their steps are taken."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rlpipe.envs.base import Step
from rlpipe.trajectory import Observations
from rlpipe.trajectory.tree import named_leaves


class EpisodeCommitments:
    """SHA-256 of the running episode of each slot, over these bytes in turn:

    - names, types and shapes of the leaves of an observation, and of an action, as JSON;
    - the first observation, leaf by leaf;
    - for each environment step: the action as the simulator took it, the observation after it, the reward (float64),
      and a byte each for terminated, truncated, and success (2 where the simulator tells none).

    Nothing in it depends on the slot, or on how many slots and workers there are.
    """

    def __init__(self) -> None:
        """Follows no episode."""
        self._hashers: dict[int, Any] = {}  # by slot
        self._starts: dict[int, str] = {}
        self._heading: bytes | None = None

    def begin(self, slots: Iterable[int], observations: Observations, actions: NDArray[Any]) -> None:
        """Begins the episodes of some slots.

        Args:
            slots: numbers of the slots that were reset
            observations: [N, ...] of all slots; those of the others are not looked at
            actions: [N, ...] any actions of all slots, for their type and shape
        """
        numbers = list(slots)
        if not numbers:
            return
        if self._heading is None:
            leaves = {name: [leaf.dtype.str, leaf.shape[1:]] for name, leaf in named_leaves(observations).items()}
            self._heading = json.dumps([leaves, [actions.dtype.str, actions.shape[1:]]]).encode()
        rows = _bytes_of(named_leaves(observations).values())
        for n in numbers:
            hasher = self._hashers[n] = hashlib.sha256(self._heading)
            hasher.update(rows[n].data)
            self._starts[n] = hasher.hexdigest()

    def step(self, step: Step, actions: NDArray[Any]) -> None:
        """Adds a step of every running episode.

        Args:
            step: answer of the simulator
            actions: [N, ...] as the simulator took them
        """
        success = np.full(len(actions), 2, dtype=np.uint8) if step.success is None else step.success
        ends = (step.rewards, step.terminated, step.truncated, success)
        rows = _bytes_of((actions, *named_leaves(step.successors).values(), *ends))
        for n in np.flatnonzero(step.valid).tolist():
            self._hashers[n].update(rows[n].data)

    def of(self, n: int) -> tuple[str, str]:
        """Returns the hash of the start of a slot's episode, and that of all of it so far, as hexadecimal digits."""
        return self._starts[n], self._hashers[n].hexdigest()


def _bytes_of(arrays: Iterable[NDArray[Any]]) -> NDArray[np.uint8]:
    """[N, B] bytes of the rows of [N, ...] arrays, one array after the other."""
    views = [np.ascontiguousarray(array).view(np.uint8).reshape(len(array), -1) for array in arrays]
    return views[0] if len(views) == 1 else np.concatenate(views, axis=1)
