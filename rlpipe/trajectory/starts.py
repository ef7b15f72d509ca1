"""Starts of episodes that a curriculum chooses, on their way from the learner to the simulators."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

State = Mapping[str, NDArray[Any]]
"""Everything that a simulator must set to continue from a moment of an episode, as arrays by name."""


@dataclass(frozen=True)
class ChosenStart:
    """Start of an episode that a curriculum chose, instead of one that the task draws.

    Attributes:
        seed: of the reset, which fixes what a state does not hold, such as sizes; None for the slot's own next seed.
        state: to begin in; None for that of the reset.
        demonstration: number of the demonstration that the state is from; None for no demonstration.
        step: steps of that demonstration before the state.
        length: steps of that demonstration.
        limit: environment steps after which the episode is cut off; None for the task's own time limit.
        blend: share of the way from the state to the target at which the episode begins; 0 for the state itself.
        target: state to move towards; None for that of the reset.
        towards: number of the demonstration that the target is from; None for that of the reset.
        ranges: lowest and highest level of the episode on axes that vary, by name; on the others as configured.
        edge: edge of a range at which the level is put, ``<axis>_low`` or ``<axis>_high``; None for none.
    """

    seed: int | None = None
    state: State | None = None
    demonstration: int | None = None
    step: int = 0
    length: int | None = None
    limit: int | None = None
    blend: float = 0.0
    target: State | None = None
    towards: int | None = None
    ranges: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    edge: str | None = None


@dataclass(frozen=True)
class Starts:
    """Starts that a curriculum offers to the next episodes.

    Attributes:
        offered: M starts.
        probabilities: [M] float64 of each, for an episode that begins in one of them.
        share: share of the episodes that do; the others begin as the task draws them.
        task_weights: factor of the share of each of several tasks, by label; 1 for one that is not named.
    """

    offered: tuple[ChosenStart, ...]
    probabilities: NDArray[np.float64]
    share: float = 1.0
    task_weights: Mapping[str, float] = field(default_factory=dict)

    def draw(self, generator: np.random.Generator) -> ChosenStart | None:
        """Draws a start; None for an episode that begins as the task draws it."""
        if not self.offered or generator.random() >= self.share:
            return None
        return self.offered[generator.choice(len(self.offered), p=self.probabilities)]
