"""Forward curriculum: of many initial states, those are tried most that are neither mastered nor hopeless.

Tao et al. 2024, arXiv:2405.03379, section 4.2, after prioritized level replay (Jiang et al. 2021, arXiv:2010.03934).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rlpipe.config.fields import option
from rlpipe.config.schema import FIRST_TRAINING_SEED
from rlpipe.curricula.base import ChoosingConfig, Curriculum, DemonstratedEpisode
from rlpipe.functional.curricula import rank_shares
from rlpipe.metrics import catalogue as m
from rlpipe.metrics.window import MetricWindow
from rlpipe.trajectory import ChosenStart, Episode, Starts

__all__ = ["ForwardCurriculum"]

MASTERED = 0.75
"""Share of successes from which a seed counts as mastered."""
SCORES = {"mastered": 1.0, "unsolved": 2.0, "between": 3.0}
"""Priorities of seeds by how their last episodes went; seeds at the edge of what is mastered come first."""


@dataclass(frozen=True)
class ForwardConfig(ChoosingConfig):
    """Options of the forward curriculum."""

    seeds: int = option(1000, least=2, below=2**20, unit="seeds")
    """Number of initial states, each fixed by a seed, among which the curriculum chooses."""
    history: int = option(5, least=1, unit="episodes")
    """Last episodes of a seed by which it is judged."""
    temperature: float = option(0.1, above=0)
    """Temperature of the shares by rank; small values favour the highest priorities more."""
    staleness: float = option(0.1, least=0, most=1, unit="fraction")
    """Share of the choices that goes to the seeds that have not been tried for longest."""


class ForwardCurriculum(Curriculum):
    """Keeps the last outcomes of each of K seeds."""

    Config = ForwardConfig
    config: ForwardConfig
    console_metrics = (m.CURRICULUM_SUCCESS_ONCE, m.CURRICULUM_SEEDS_MASTERED)
    needs_states = False

    def __init__(self, config: ForwardConfig, demonstrations: Sequence[DemonstratedEpisode], seed: int) -> None:
        super().__init__(config, demonstrations, seed)
        generator = np.random.default_rng([seed, config.seeds])
        drawn = generator.choice(FIRST_TRAINING_SEED, config.seeds, replace=False)
        seeds = (FIRST_TRAINING_SEED + drawn).tolist()
        self._offered = tuple(ChosenStart(seed=seed) for seed in seeds)
        self._numbers = {seed: number for number, seed in enumerate(seeds)}
        self._outcomes = np.full((config.seeds, config.history), np.nan)
        self._waited = np.zeros(config.seeds, dtype=np.int64)  # episodes of others since the last one of each seed

    def _shares_of_success(self) -> NDArray[np.float64]:
        """[K] share of the last episodes of each seed that succeeded; 0 for one that was never tried."""
        shares: NDArray[np.float64] = np.nan_to_num(self._outcomes).mean(1)
        return shares

    def starts(self) -> Starts | None:
        config, success = self.config, self._shares_of_success()
        scores = np.full(len(success), SCORES["between"])
        scores[success == 0.0] = SCORES["unsolved"]
        scores[success >= MASTERED] = SCORES["mastered"]
        shares = (1.0 - config.staleness) * rank_shares(scores, config.temperature)
        shares += config.staleness * rank_shares(self._waited.astype(np.float64), config.temperature)
        return Starts(self._offered, shares / shares.sum(), 1.0 - config.own_starts)

    def observe(self, episodes: Sequence[Episode]) -> None:
        for episode in episodes:
            number = self._numbers.get(episode.seed) if episode.seed is not None else None
            if number is None or episode.demonstration is not None:
                continue
            self._outcomes[number] = np.roll(self._outcomes[number], -1)
            self._outcomes[number, -1] = bool(episode.success_once)
            self._waited += 1
            self._waited[number] = 0

    def describe(self, window: MetricWindow) -> None:
        success = self._shares_of_success()
        window.observe(m.CURRICULUM_SEEDS_MASTERED, success >= MASTERED)
        window.observe(m.CURRICULUM_SEEDS_UNSOLVED, success == 0.0)

    def state(self) -> dict[str, NDArray[Any]]:
        return {"outcomes": self._outcomes.copy(), "waited": self._waited.copy()}

    def load_state(self, state: Mapping[str, NDArray[Any]]) -> None:
        if state["outcomes"].shape != self._outcomes.shape:
            raise ValueError(
                f"the curriculum had [seeds, history] {list(state['outcomes'].shape)}, and now has "
                f"{list(self._outcomes.shape)}"
            )
        self._outcomes, self._waited = state["outcomes"].copy(), state["waited"].copy()
