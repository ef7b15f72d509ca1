"""Widening curriculum: the range of each axis of variations widens as success at its edges allows.

Automatic domain randomisation, Akkaya et al. 2019, arXiv:1910.07113, section 5.2.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rlpipe.config.fields import option
from rlpipe.config.variations import CHOICE, LOG_UNIFORM, Levels, Variations
from rlpipe.curricula.base import ChoosingConfig, Curriculum, DemonstratedEpisode
from rlpipe.errors import ConfigError
from rlpipe.functional.curricula import edge_levels, moved_edge, range_entropy
from rlpipe.metrics import catalogue as m
from rlpipe.metrics.window import MetricWindow
from rlpipe.plugins import resolve
from rlpipe.trajectory import ChosenStart, Episode, Starts

__all__ = ["WideningCurriculum"]


@dataclass(frozen=True)
class WideningConfig(ChoosingConfig):
    """Options of the widening curriculum."""

    edge_share: float = option(0.5, above=0, most=1, unit="fraction")
    """Share of the curriculum's episodes in which one axis is at one of its edges; in the others, all are within their
    ranges."""
    edge_window: int = option(20, least=1, below=2**15, unit="episodes")
    """Episodes at an edge after which it is judged, and its count begins anew."""
    edge_steps: int = option(10, least=1, below=2**15, unit="steps")
    """Steps of an edge from the neutral level to the end of its range, unless the range is a choice: then from each
    level to the next."""
    widen_at: float = option(0.8, above=0, most=1, unit="fraction")
    """Share of these episodes that must succeed for the edge to move outwards."""
    narrow_at: float = option(0.5, least=0, below=1, unit="fraction")
    """Share of these episodes below which the edge moves inwards."""

    def __post_init__(self) -> None:
        """Checks that an edge does not have to move both ways."""
        if self.narrow_at >= self.widen_at:
            raise ConfigError(
                f"curriculum.narrow_at is {self.narrow_at}, but curriculum.widen_at is {self.widen_at}: an edge that "
                "moves inwards below the one and outwards from the other on needs narrow_at below widen_at."
            )


@dataclass
class Edge:
    """Edge of the range of an axis.

    Attributes:
        axis: name of the axis.
        side: ``low`` or ``high``.
        levels: [K + 1] levels from where it begins to the widest one.
        place: number of its present level, from 0.
        outcomes: successes of its episodes there since it was last judged.
    """

    axis: str
    side: str
    levels: NDArray[np.float64]
    place: int = 0
    outcomes: list[bool] = field(default_factory=list)

    @property
    def name(self) -> str:
        """Name in metrics and in the ledger."""
        return f"{self.axis}_{self.side}"

    @property
    def level(self) -> float:
        """Present level."""
        return float(self.levels[self.place])

    @property
    def last(self) -> int:
        """Number of its widest level."""
        return len(self.levels) - 1

    def add(self, success: bool, config: WideningConfig) -> None:
        """Adds the outcome of an episode at the present level, and moves once there are enough."""
        self.outcomes.append(success)
        if len(self.outcomes) == config.edge_window:
            share = float(np.mean(self.outcomes))
            self.place = moved_edge(self.place, self.last, share, config.widen_at, config.narrow_at)
            self.outcomes = []


def edges_of(axis: str, levels: Levels, neutral: float, steps: int) -> list[Edge]:
    """Returns the edges of an axis that have a way to go, at its neutral level, or at the nearest that it can have.

    Args:
        axis: its name.
        levels: the widest distribution of its levels.
        neutral: its neutral level.
        steps: number of steps of an edge that moves through a range.
    """
    low, high = min(levels.values), max(levels.values)
    if levels.kind == CHOICE:
        choices = np.unique(levels.values)
        start = choices[np.abs(choices - neutral).argmin()]
        ways = {"low": choices[choices <= start][::-1], "high": choices[choices >= start]}
    else:
        start, logarithmic = min(max(neutral, low), high), levels.kind == LOG_UNIFORM
        ways = {
            side: edge_levels(start, widest, steps, logarithmic=logarithmic)
            for side, widest in (("low", low), ("high", high))
        }
    return [Edge(axis, side, way) for side, way in ways.items() if way[0] != way[-1]]


class WideningCurriculum(Curriculum):
    """Keeps the edges of each axis.

    Attributes:
        edges: those that have a way to go; an axis at one level only has none.
    """

    Config = WideningConfig
    config: WideningConfig
    console_metrics = (m.CURRICULUM_SUCCESS_ONCE, m.CURRICULUM_WIDTH)
    needs_states = False
    chooses_levels = True

    def __init__(
        self,
        config: WideningConfig,
        demonstrations: Sequence[DemonstratedEpisode],
        seed: int,
        widest: Variations,
        neutral: Mapping[str, float],
    ) -> None:
        """Begins at the neutral levels.

        Args:
            config: an instance of ``Config``.
            demonstrations: not used.
            seed: not used.
            widest: ``env.train.variations``.
            neutral: neutral level of each axis.
        """
        super().__init__(config, demonstrations, seed)
        self.edges = [
            edge
            for axis, levels in widest.levels.items()
            for edge in edges_of(axis, levels, neutral[axis], config.edge_steps)
        ]
        self._by_name = {edge.name: edge for edge in self.edges}

    @classmethod
    def make(cls, config: Any, demonstrations: Sequence[DemonstratedEpisode]) -> WideningCurriculum:
        train = config.env.train
        neutral = {axis.name: axis.neutral for axis in resolve("envs", train.name, "env.train.name").axes}
        return cls(config.curriculum, demonstrations, config.runner.seed, Variations.of(train), neutral)

    @property
    def ranges(self) -> dict[str, tuple[float, float]]:
        """Lowest and highest level of each axis that has an edge; an end that has no way to go is where it begins."""
        ranges = {edge.axis: (float(edge.levels[0]), float(edge.levels[0])) for edge in self.edges}
        for edge in self.edges:
            low, high = ranges[edge.axis]
            ranges[edge.axis] = (edge.level, high) if edge.side == "low" else (low, edge.level)
        return ranges

    def starts(self) -> Starts:
        share, within = self.config.edge_share, ChosenStart(ranges=self.ranges)
        at_edges = [
            replace(within, ranges={**within.ranges, edge.axis: (edge.level, edge.level)}, edge=edge.name)
            for edge in self.edges
        ]
        probabilities = np.array([1.0 - share, *[share / len(at_edges)] * len(at_edges)])
        return Starts((within, *at_edges), probabilities, 1.0 - self.config.own_starts)

    def observe(self, episodes: Sequence[Episode]) -> None:
        for episode in episodes:
            edge = None if episode.edge is None else self._by_name.get(episode.edge)
            if edge is not None and episode.variations[edge.axis] == edge.level:  # else begun before it moved
                edge.add(bool(episode.success_once), self.config)

    def describe(self, window: MetricWindow) -> None:
        steps, widest = (dict.fromkeys((edge.axis for edge in self.edges), 0) for _ in range(2))
        for edge in self.edges:
            window.observe(m.CURRICULUM_EDGE_LEVEL.member(edge.name), edge.level)
            steps[edge.axis] += edge.place
            widest[edge.axis] += edge.last
        reached = np.array(list(steps.values()))
        window.observe(m.CURRICULUM_WIDTH, reached / np.array(list(widest.values())))
        window.observe(m.CURRICULUM_RANGE_ENTROPY, range_entropy(reached))

    def state(self) -> dict[str, NDArray[Any]]:
        return {
            f"{edge.name}/{name}": value
            for edge in self.edges
            for name, value in (("level", np.array(edge.level)), ("outcomes", np.array(edge.outcomes, dtype=bool)))
        }

    def load_state(self, state: Mapping[str, NDArray[Any]]) -> None:
        for edge in self.edges:
            if f"{edge.name}/level" not in state:  # an axis that did not vary before begins as all did
                continue
            level = float(state[f"{edge.name}/level"])
            beyond = edge.levels < level if edge.side == "low" else edge.levels > level
            edge.place = max(int(np.count_nonzero(~beyond)) - 1, 0)  # the widest that is not beyond it
            outcomes = state[f"{edge.name}/outcomes"].tolist()
            edge.outcomes = outcomes if edge.level == level and len(outcomes) < self.config.edge_window else []
