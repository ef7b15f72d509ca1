"""Shares of several tasks that follow learning progress: more environments for the tasks whose success changes.

Teacher-student curriculum learning, Matiisen et al. 2017, arXiv:1707.00183, section 3, with the window of its section
3.3 and the absolute value of progress, so that a task that is being forgotten comes back as well.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rlpipe.config.fields import option
from rlpipe.curricula.base import Curriculum, CurriculumConfig, DemonstratedEpisode
from rlpipe.functional.curricula import progress_shares
from rlpipe.metrics import catalogue as m
from rlpipe.metrics.window import MetricWindow
from rlpipe.trajectory import Episode, Starts

__all__ = ["TaskProgress"]


@dataclass(frozen=True)
class TaskProgressConfig(CurriculumConfig):
    """Options of the curriculum."""

    interval: int = option(50, least=1, below=2**31, unit="iterations")
    """Iterations between changes of the shares. Environments are made anew with each, and running episodes dropped."""
    progress_window: int = option(50, least=2, below=2**15, unit="episodes")
    """Last episodes of a task whose success is compared with that of as many before them."""
    uniform_share: float = option(0.5, above=0, most=1, unit="fraction")
    """Part of the environments that stays as ``env.train.tasks`` shares it; the rest follows progress."""


class TaskProgress(Curriculum):
    """Keeps the last outcomes of each task."""

    Config = TaskProgressConfig
    config: TaskProgressConfig
    needs_states = False
    chooses_tasks = True

    def __init__(self, config: TaskProgressConfig, demonstrations: Sequence[DemonstratedEpisode], seed: int) -> None:
        super().__init__(config, demonstrations, seed)
        self._outcomes: dict[str, list[bool]] = {}
        self._weights: dict[str, float] = {}
        self._iterations = 0

    def starts(self) -> Starts:
        return Starts((), np.empty(0), 0.0, dict(self._weights))

    def observe(self, episodes: Sequence[Episode]) -> None:
        config = self.config
        for episode in episodes:
            if episode.task is not None and episode.success_once is not None:
                outcomes = self._outcomes.setdefault(episode.task, [])
                self._outcomes[episode.task] = [*outcomes, episode.success_once][-2 * config.progress_window :]
        self._iterations += 1
        full = all(len(outcomes) == 2 * config.progress_window for outcomes in self._outcomes.values())
        if self._iterations % config.interval == 0 and self._outcomes and full:
            labels = sorted(self._outcomes)
            halves = np.array([self._outcomes[label] for label in labels]).reshape(len(labels), 2, -1).mean(2)
            shares = progress_shares(np.abs(halves[:, 1] - halves[:, 0]), config.uniform_share)
            self._weights = dict(zip(labels, (len(labels) * shares).tolist(), strict=True))

    def describe(self, window: MetricWindow) -> None:
        for label, weight in self._weights.items():
            window.observe(m.TASK_WEIGHT.member(label), weight)

    def state(self) -> dict[str, NDArray[Any]]:
        text = json.dumps([self._outcomes, self._weights, self._iterations])
        return {"tasks": np.frombuffer(text.encode(), dtype=np.uint8)}

    def load_state(self, state: Mapping[str, NDArray[Any]]) -> None:
        self._outcomes, self._weights, self._iterations = json.loads(state["tasks"].tobytes())
