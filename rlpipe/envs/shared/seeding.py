"""Resets that follow from their seed alone, for libraries whose own resets do not.

Importing this file imports no simulator.
"""

from __future__ import annotations

import contextlib
import random
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from rlpipe.envs.shared.checks import array_or_none
from rlpipe.trajectory.tree import leaves_of

Began = TypeVar("Began", bound=tuple[Any, Any])


def _torch() -> Any:
    """Global generator of torch; None where no torch is loaded."""
    torch = sys.modules.get("torch")
    return getattr(torch, "default_generator", None)


def global_states() -> tuple[Any, Any, Any]:
    """Returns the states of the global generators of Python, NumPy and torch."""
    torch = _torch()
    return random.getstate(), np.random.get_state(), None if torch is None else torch.get_state()


def set_global_states(states: tuple[Any, Any, Any]) -> None:
    """Puts back states of ``global_states``."""
    random.setstate(states[0])
    np.random.set_state(states[1])
    if (torch := _torch()) is not None and states[2] is not None:
        torch.set_state(states[2])


def _same_states(first: tuple[Any, Any, Any], other: tuple[Any, Any, Any]) -> bool:
    ours, theirs = ([np.asarray(part) for part in (state[1][1], state[1][2], state[1][4])] for state in (first, other))
    same_torch = first[2] is None or other[2] is None or bool((first[2] == other[2]).all())
    return first[0] == other[0] and all(map(np.array_equal, ours, theirs)) and same_torch


def seed_global_generators(*seed: int) -> None:
    """Seeds the global generators of Python, NumPy and torch with whole numbers from 0, all of which count."""
    drawn = int(np.random.SeedSequence(seed).generate_state(1)[0]) if len(seed) > 1 else seed[0]
    random.seed(drawn)
    np.random.seed(drawn % 2**32)
    if (torch := _torch()) is not None:
        torch.manual_seed(drawn)


@contextlib.contextmanager
def global_generators(seed: int | None) -> Iterator[None]:
    """Seeds the global generators of Python, NumPy and torch for a block, and puts back the states that they had."""
    before = global_states()
    if seed is not None:
        seed_global_generators(seed)
    try:
        yield
    finally:
        set_global_states(before)


class Seeding:
    """Begins the episodes of a simulator, so that they follow from their seeds also where it draws globally.

    The first episode tells whether it draws from the global generators; they are then seeded for each episode.

    Attributes:
        draws_globally: True if the first episode drew from the global generators; None before it.
        repeats: False if two resets with one seed gave different first observations.
        note: sentence on that.
    """

    note = (
        "reset(seed=s) gave two different first observations, so no episode can be repeated, and the ledger lists no "
        "seeds. Draw everything of an episode from self.np_random, which super().reset(seed=seed) seeds."
    )

    def __init__(self, *, tries: bool) -> None:
        """Knows nothing yet.

        Args:
            tries: begin the first episode twice, and compare.
        """
        self._tries = tries
        self.draws_globally: bool | None = None
        self.repeats = True

    def begin(self, begin: Callable[[], Began], seed: int) -> Began:
        """Begins an episode, and returns what ``begin`` returns, the first observation and a beginning."""
        if self.draws_globally is None:
            return self._try(begin, seed)
        if not self.draws_globally:
            return begin()
        with global_generators(seed):
            return begin()

    def _try(self, begin: Callable[[], Began], seed: int) -> Began:
        before = global_states()
        began = begin()
        self.draws_globally = not _same_states(before, global_states())
        if not self.draws_globally and not self._tries:
            return began
        if self.draws_globally:
            began = self.begin(begin, seed)
        if not self._tries:
            return began
        first = copies(began[0])  # an environment may write the next one into the same memory
        again = self.begin(begin, seed)
        self.repeats = same_observations(first, copies(again[0]))
        return again


def copies(observation: Any) -> list[NDArray[Any]]:
    """Copies of the leaves of an observation, as far as they are numbers; checks of the others come later."""
    leaves = (array_or_none(leaf) for leaf in leaves_of(observation))
    return [np.array(leaf) for leaf in leaves if leaf is not None]


def same_observations(first: Sequence[NDArray[Any]], other: Sequence[NDArray[Any]]) -> bool:
    """True if the leaves of two observations are equal, NaN included."""
    return len(first) == len(other) and all(
        np.array_equal(ours, theirs, equal_nan=ours.dtype.kind == "f")
        for ours, theirs in zip(first, other, strict=True)
    )
