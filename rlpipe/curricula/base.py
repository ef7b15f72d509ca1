"""Interface of a curriculum, which chooses how training episodes begin: their starts, tasks or variations.

It lives with the learner: its starts travel to the workers beside the weights, and the episodes that began in them come
back with the fragments. Evaluations never use it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from rlpipe.config.fields import option
from rlpipe.metrics.declaration import Metric
from rlpipe.metrics.window import MetricWindow
from rlpipe.trajectory import ChosenStart, Episode, Starts, State

SLACK = 16
"""Steps that an episode has beyond its share of the demonstration, so that the shortest ones can succeed at all."""


@dataclass(frozen=True)
class CurriculumConfig:
    """Base of every curriculum's configuration."""

    name: str
    """``none``, ``reverse``, ``forward``, ``reverse_forward``, ``reverse_spread``, ``task_progress``, ``widening``, or
    ``package.module:Class``."""


@dataclass(frozen=True)
class ChoosingConfig(CurriculumConfig):
    """Base of the configuration of a curriculum that chooses starts."""

    own_starts: float = option(0.1, least=0, most=1, unit="fraction")
    """Share of training episodes that begin as the task draws them, and vary as ``env.train.variations`` says. Only
    these are in ``env/success_once``."""


@dataclass(frozen=True)
class DemonstratedEpisode:
    """States of one demonstration of T steps.

    Attributes:
        seed: of its reset.
        states: [T + 1, ...] arrays by name.
    """

    seed: int
    states: State

    @property
    def length(self) -> int:
        """T."""
        return len(next(iter(self.states.values()))) - 1

    def start(self, demonstration: int, step: int, limit: int | None) -> ChosenStart:
        """Returns the start after some steps; see ``ChosenStart``."""
        state = {name: values[step] for name, values in self.states.items()}
        return ChosenStart(self.seed, state, demonstration, step, self.length, limit)


class Curriculum(ABC):
    """Chooses starts. A plug-in has a ``Config`` and is made as ``Curriculum(config, demonstrations, seed)``."""

    Config: ClassVar[type[Any]] = CurriculumConfig
    metrics: ClassVar[tuple[Metric, ...]] = ()
    """Metrics that the curriculum itself declares."""
    console_metrics: ClassVar[tuple[Metric, ...]] = ()
    """Metrics that the terminal shows."""
    needs_states: ClassVar[bool] = True
    """True if episodes begin in states of demonstrations."""
    blends: ClassVar[bool] = False
    """True if episodes also begin between such states and the task's own."""
    chooses: ClassVar[bool] = True
    """True unless every episode begins as the task draws it."""
    chooses_tasks: ClassVar[bool] = False
    """True if it chooses how often each of several tasks is tried, and not how their episodes begin."""
    chooses_levels: ClassVar[bool] = False
    """True if it chooses within which ranges the axes of ``env.train.variations`` vary."""

    def __init__(self, config: Any, demonstrations: Sequence[DemonstratedEpisode], seed: int) -> None:  # noqa: ARG002
        """Begins the curriculum.

        Args:
            config: an instance of ``Config``.
            demonstrations: with their states; none if it needs no states.
            seed: ``runner.seed``.
        """
        self.config = config

    @classmethod
    def make(cls, config: Any, demonstrations: Sequence[DemonstratedEpisode]) -> Curriculum:
        """Makes the curriculum of a run, of whose whole configuration a subclass may read more."""
        return cls(config.curriculum, demonstrations, config.runner.seed)

    @abstractmethod
    def starts(self) -> Starts | None:
        """Returns the starts for the next episodes; None where all begin as the task draws them."""

    @abstractmethod
    def observe(self, episodes: Sequence[Episode]) -> None:
        """Learns how episodes went whose starts it chose, in the order in which they ended."""

    def describe(self, window: MetricWindow) -> None:
        """Observes how far the curriculum has come."""

    @abstractmethod
    def state(self) -> dict[str, NDArray[Any]]:
        """Returns what a later process needs to continue exactly."""

    @abstractmethod
    def load_state(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Restores what ``state`` returned."""


def limit_of(steps_left: int, factor: float) -> int:
    """Time limit of an episode that begins some steps before the end of a demonstration."""
    return SLACK + int(np.ceil(factor * steps_left))
