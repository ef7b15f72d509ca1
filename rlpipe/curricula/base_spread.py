"""Spread curriculum: starts move from the beginnings of the demonstrations to those that the task draws.

A policy that solves each demonstration from its beginning has learnt a handful of scenes, and almost every scene that
the task draws is too far from them: no episode succeeds, and there is nothing to learn from. Here episodes begin some
share of the way from a demonstration's beginning to a scene of the task's own, and the share grows as success there
allows, so that what has been learnt spreads. Ranges that widen with success: Akkaya et al. 2019, arXiv:1910.07113,
section 5.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rlpipe.config.fields import option
from rlpipe.curricula.base import ChoosingConfig, Curriculum, DemonstratedEpisode
from rlpipe.functional.curricula import spread_levels
from rlpipe.metrics import catalogue as m
from rlpipe.metrics.window import MetricWindow
from rlpipe.trajectory import ChosenStart, Episode, Starts


@dataclass(frozen=True)
class SpreadConfig(ChoosingConfig):
    """Options of the spread curriculum."""

    levels: int = option(20, least=1, below=2**10, unit="levels")
    """Number of equal parts into which the way from a demonstration's beginning to the task's own starts is divided."""
    spread_window: int = option(20, least=1, below=2**10, unit="episodes")
    """Last episodes at the present level by which it is judged."""
    spread_success: float = option(0.7, above=0, most=1, unit="fraction")
    """Share of them that must succeed before starts move on to the next level."""


class SpreadCurriculum(Curriculum):
    """Keeps one level for all demonstrations.

    Attributes:
        level: present level; 0 is the demonstrations' beginnings, ``levels`` the task's own starts.
    """

    Config = SpreadConfig
    config: SpreadConfig
    console_metrics = (m.CURRICULUM_SUCCESS_ONCE, m.CURRICULUM_BLEND)
    blends = True

    def __init__(self, config: SpreadConfig, demonstrations: Sequence[DemonstratedEpisode], seed: int) -> None:
        super().__init__(config, demonstrations, seed)
        self._beginnings = [{name: values[0] for name, values in one.states.items()} for one in demonstrations]
        self.level = 0
        self._outcomes: list[bool] = []

    def starts(self) -> Starts | None:
        config = self.config
        if self.level >= config.levels:
            return None
        levels, shares = spread_levels(self.level)
        offered = tuple(
            ChosenStart(state=state, demonstration=number, blend=level / config.levels)
            for number, state in enumerate(self._beginnings)
            for level in levels.tolist()
        )
        return Starts(offered, np.tile(shares / len(self._beginnings), len(self._beginnings)), 1.0 - config.own_starts)

    def observe(self, episodes: Sequence[Episode]) -> None:
        config = self.config
        for episode in episodes:
            if episode.blend != self.level / config.levels or episode.demonstration_step != 0:
                continue  # begun at an easier level, or before the level rose
            self._outcomes = [*self._outcomes, bool(episode.success_once)][-config.spread_window :]
            full = len(self._outcomes) == config.spread_window
            if full and np.mean(self._outcomes) >= config.spread_success and self.level < config.levels:
                self.level += 1
                self._outcomes = []

    def describe(self, window: MetricWindow) -> None:
        window.observe(m.CURRICULUM_BLEND, self.level / self.config.levels)

    def state(self) -> dict[str, NDArray[Any]]:
        return {"level": np.array(self.level), "outcomes": np.array(self._outcomes, dtype=bool)}

    def load_state(self, state: Mapping[str, NDArray[Any]]) -> None:
        self.level, self._outcomes = int(state["level"]), state["outcomes"].tolist()
