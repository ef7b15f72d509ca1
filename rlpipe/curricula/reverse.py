"""Reverse curriculum: starts move from the end of each demonstration to its beginning, as success there allows.

Tao et al. 2024, "Reverse Forward Curriculum Learning", arXiv:2405.03379, section 4.1.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from rlpipe.config.fields import option
from rlpipe.curricula.base import ChoosingConfig, Curriculum, DemonstratedEpisode, limit_of
from rlpipe.functional.curricula import demonstration_shares, geometric_starts
from rlpipe.metrics import catalogue as m
from rlpipe.metrics.window import MetricWindow
from rlpipe.trajectory import Episode, Starts

__all__ = ["ReverseCurriculum"]


@dataclass(frozen=True)
class ReverseConfig(ChoosingConfig):
    """Options of the reverse curriculum."""

    step_back: int = option(8, least=1, unit="environment steps")
    """Number of steps by which a demonstration's start moves back (delta in the paper)."""
    successes: int = option(3, least=1, unit="episodes")
    """Successes in a row, from a demonstration's present start, after which it moves back (m in the paper)."""
    limit_factor: float = option(1.0, above=0)
    """Time limit of an episode: 16 steps and this multiple of those that the demonstration has left. The paper's tasks
    take a third, because their demonstrations are slow; shorter episodes give more of them."""


class ReverseCurriculum(Curriculum):
    """Keeps a start for each demonstration, and moves it back.

    Attributes:
        at: [D] int64, present start of each demonstration.
        solved: [D] bool, demonstrations that succeed again and again from their beginning.
    """

    Config = ReverseConfig
    config: ReverseConfig
    console_metrics = (m.CURRICULUM_SUCCESS_ONCE, m.CURRICULUM_START)

    def __init__(self, config: ReverseConfig, demonstrations: Sequence[DemonstratedEpisode], seed: int) -> None:
        super().__init__(config, demonstrations, seed)
        self._demonstrations = demonstrations
        self._lengths = np.array([demonstration.length for demonstration in demonstrations], dtype=np.int64)
        self.at = np.maximum(self._lengths - config.step_back, 0)
        self.solved = np.zeros(len(demonstrations), dtype=bool)
        self._in_a_row = np.zeros(len(demonstrations), dtype=np.int64)

    def starts(self) -> Starts | None:
        if self.solved.all():
            return None
        offered, probabilities = [], []
        shares = demonstration_shares(np.where(self.solved, 0, self.at), self._lengths)
        for number, (demonstration, share) in enumerate(zip(self._demonstrations, shares, strict=True)):
            steps, weights = geometric_starts(int(self.at[number]), max(demonstration.length - 1, 0))
            for step, weight in zip(steps.tolist(), weights, strict=True):
                limit = limit_of(demonstration.length - step, self.config.limit_factor)
                offered.append(demonstration.start(number, step, limit))
                probabilities.append(share * weight)
        return Starts(tuple(offered), np.array(probabilities), 1.0 - self.config.own_starts)

    def observe(self, episodes: Sequence[Episode]) -> None:
        for episode in episodes:
            number = episode.demonstration
            if number is None or episode.demonstration_step != self.at[number]:
                continue  # begun closer to the end, or before the start moved
            self._in_a_row[number] = self._in_a_row[number] + 1 if episode.success_once else 0
            if self._in_a_row[number] >= self.config.successes:
                self._in_a_row[number] = 0
                self.solved[number] |= self.at[number] == 0
                self.at[number] = max(self.at[number] - self.config.step_back, 0)

    def describe(self, window: MetricWindow) -> None:
        window.observe(m.CURRICULUM_START, self.at / self._lengths)
        window.observe(m.CURRICULUM_SOLVED, self.solved)

    def state(self) -> dict[str, NDArray[Any]]:
        return {"at": self.at.copy(), "solved": self.solved.copy(), "in_a_row": self._in_a_row.copy()}

    def load_state(self, state: Mapping[str, NDArray[Any]]) -> None:
        if state["at"].shape != self.at.shape:
            raise ValueError(f"the curriculum had {len(state['at'])} demonstrations, and now has {len(self.at)}")
        self.at, self.solved, self._in_a_row = (state[name].copy() for name in ("at", "solved", "in_a_row"))


class ReverseThen(Curriculum):
    """Follows the reverse curriculum until every demonstration is solved from its beginning, and then another one."""

    following: ClassVar[type[Curriculum]]
    """The curriculum that follows."""

    def __init__(self, config: Any, demonstrations: Sequence[DemonstratedEpisode], seed: int) -> None:
        super().__init__(config, demonstrations, seed)
        self._reverse = ReverseCurriculum(config, demonstrations, seed)
        self._following = self.following(config, demonstrations, seed)
        self._phases = {"reverse": self._reverse, "following": self._following}

    def starts(self) -> Starts | None:
        return self._following.starts() if self._reverse.solved.all() else self._reverse.starts()

    def observe(self, episodes: Sequence[Episode]) -> None:
        (self._following if self._reverse.solved.all() else self._reverse).observe(episodes)

    def describe(self, window: MetricWindow) -> None:
        self._reverse.describe(window)
        if self._reverse.solved.all():
            self._following.describe(window)

    def state(self) -> dict[str, NDArray[Any]]:
        states = {phase: curriculum.state() for phase, curriculum in self._phases.items()}
        return {f"{phase}/{name}": values for phase, state in states.items() for name, values in state.items()}

    def load_state(self, state: Mapping[str, NDArray[Any]]) -> None:
        for phase, curriculum in self._phases.items():
            prefix = f"{phase}/"
            curriculum.load_state({key.removeprefix(prefix): state[key] for key in state if key.startswith(prefix)})
