"""Reverse curriculum until every demonstration is solved, then starts that spread from there to the task's own.

A policy that solves each demonstration from its beginning has learnt a handful of scenes, and almost every scene that
the task draws is too far from them: no episode succeeds, and there is nothing to learn from. So episodes then begin
some share of the way from a demonstration's beginning to a scene of the task's own, and the share grows as success
there allows, so that what has been learnt spreads. Ranges that widen with success: Akkaya et al. 2019,
arXiv:1910.07113, section 5.

Where the task's seed also fixes sizes, which a state does not hold, even the first level has sizes that no
demonstration has. Where they matter, starts first spread among the demonstrations, in their own scenes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rlpipe.config.fields import option
from rlpipe.curricula.base import ChoosingConfig, Curriculum, DemonstratedEpisode
from rlpipe.curricula.reverse import ReverseConfig, ReverseCurriculum, ReverseThen
from rlpipe.functional.curricula import pairs, spread_levels
from rlpipe.metrics import catalogue as m
from rlpipe.metrics.window import MetricWindow
from rlpipe.trajectory import ChosenStart, Episode, Starts

__all__ = ["ReverseSpreadCurriculum"]

MOST_PAIRS = 200
"""Pairs of demonstrations between whose beginnings episodes begin; all of up to 14 demonstrations."""


@dataclass(frozen=True)
class SpreadConfig(ChoosingConfig):
    """Options of the spread curriculum."""

    levels: int = option(20, least=1, below=2**10, unit="levels")
    """Number of equal parts into which the way from a demonstration's beginning to the task's own starts is divided."""
    spread_window: int = option(20, least=1, below=2**10, unit="episodes")
    """Last episodes at the present level by which it is judged."""
    spread_success: float = option(0.7, above=0, most=1, unit="fraction")
    """Share of them that must succeed before starts move on to the next level."""
    spread_demonstrations: bool = option(False)
    """First spread starts from each demonstration's beginning towards those of the others, keeping the sizes of its own
    scene: for tasks whose seeds fix sizes that a state does not hold. Without effect for one demonstration."""


class SpreadCurriculum(Curriculum):
    """Keeps one level for all demonstrations.

    Attributes:
        demonstration_level: present level of starts between demonstrations; ``levels`` once finished, or disabled.
        level: present level after that; 0 is the demonstrations' beginnings, ``levels`` the task's own starts.
    """

    Config = SpreadConfig
    config: SpreadConfig
    console_metrics = (m.CURRICULUM_SUCCESS_ONCE, m.CURRICULUM_BLEND_DEMONSTRATIONS, m.CURRICULUM_BLEND)
    blends = True

    def __init__(self, config: SpreadConfig, demonstrations: Sequence[DemonstratedEpisode], seed: int) -> None:
        super().__init__(config, demonstrations, seed)
        states = [{name: values[0] for name, values in episode.states.items()} for episode in demonstrations]
        self._beginnings = [ChosenStart(state=state, demonstration=number) for number, state in enumerate(states)]
        self._pairs: list[ChosenStart] = []
        if config.spread_demonstrations and len(states) > 1:
            self._pairs = [
                replace(self._beginnings[start], seed=demonstrations[start].seed, target=states[other], towards=other)
                for start, other in pairs(len(states), MOST_PAIRS).tolist()
            ]
        self.demonstration_level = 0 if self._pairs else config.levels
        self.level = 0
        self._outcomes: list[bool] = []

    @property
    def _is_between_demonstrations(self) -> bool:
        return self.demonstration_level < self.config.levels

    def starts(self) -> Starts | None:
        config = self.config
        if self.level >= config.levels:
            return None
        levels, shares = spread_levels(self.demonstration_level if self._is_between_demonstrations else self.level)
        spread = self._pairs if self._is_between_demonstrations else self._beginnings
        offered = tuple(replace(start, blend=level / config.levels) for start in spread for level in levels.tolist())
        return Starts(offered, np.tile(shares / len(spread), len(spread)), 1.0 - config.own_starts)

    def observe(self, episodes: Sequence[Episode]) -> None:
        config = self.config
        for episode in episodes:
            between = self._is_between_demonstrations
            level = self.demonstration_level if between else self.level
            same_spread = episode.demonstration_step == 0 and (episode.towards is not None) == between
            if not same_spread or episode.blend != level / config.levels:
                continue  # begun at an easier level, or before the level rose
            self._outcomes = [*self._outcomes, bool(episode.success_once)][-config.spread_window :]
            full = len(self._outcomes) == config.spread_window
            if full and np.mean(self._outcomes) >= config.spread_success and self.level < config.levels:
                if between:
                    self.demonstration_level += 1
                else:
                    self.level += 1
                self._outcomes = []

    def describe(self, window: MetricWindow) -> None:
        if self._pairs:
            window.observe(m.CURRICULUM_BLEND_DEMONSTRATIONS, self.demonstration_level / self.config.levels)
        if not self._is_between_demonstrations:
            window.observe(m.CURRICULUM_BLEND, self.level / self.config.levels)

    def state(self) -> dict[str, NDArray[Any]]:
        reached = {"level": self.level, "levels": self.config.levels}
        reached |= {"among": self.demonstration_level} if self._pairs else {}
        state = {name: np.array(value) for name, value in reached.items()}
        return state | {"outcomes": np.array(self._outcomes, dtype=bool)}

    def load_state(self, state: Mapping[str, NDArray[Any]]) -> None:
        levels = int(state.get("levels", self.config.levels))  # which an earlier version did not say
        was_among = int(state.get("among", levels)) < levels
        self.level = int(state["level"]) * self.config.levels // levels
        if self._pairs:  # from the beginning, if they were not asked for until now
            self.demonstration_level = int(state.get("among", 0)) * self.config.levels // levels
        same_starts = was_among == self._is_between_demonstrations and levels == self.config.levels
        self._outcomes = state["outcomes"].tolist() if same_starts else []


@dataclass(frozen=True)
class ReverseSpreadConfig(ReverseConfig, SpreadConfig):
    """Options of both curricula."""


class ReverseSpreadCurriculum(ReverseThen):
    """Chooses among the states of demonstrations, and then among those between their beginnings and the task's own."""

    Config = ReverseSpreadConfig
    following = SpreadCurriculum
    console_metrics = (*ReverseCurriculum.console_metrics, m.CURRICULUM_BLEND_DEMONSTRATIONS, m.CURRICULUM_BLEND)
    blends = True
