"""Reverse curriculum until every demonstration is solved, then the forward curriculum (arXiv:2405.03379, section 4)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from numpy.typing import NDArray

from rlpipe.curricula.base import Curriculum, DemonstratedEpisode
from rlpipe.curricula.base_forward import ForwardConfig, ForwardCurriculum
from rlpipe.curricula.base_reverse import ReverseConfig, ReverseCurriculum
from rlpipe.metrics import catalogue as m
from rlpipe.metrics.window import MetricWindow
from rlpipe.trajectory import Episode, Starts

__all__ = ["ReverseForwardCurriculum"]


@dataclass(frozen=True)
class ReverseForwardConfig(ReverseConfig, ForwardConfig):
    """Options of both curricula."""


class ReverseForwardCurriculum(Curriculum):
    """Follows one curriculum after the other."""

    Config = ReverseForwardConfig
    console_metrics = (*ReverseCurriculum.console_metrics, m.CURRICULUM_SEEDS_MASTERED)

    def __init__(self, config: ReverseForwardConfig, demonstrations: Sequence[DemonstratedEpisode], seed: int) -> None:
        super().__init__(config, demonstrations, seed)
        self._reverse = ReverseCurriculum(config, demonstrations, seed)
        self._forward = ForwardCurriculum(config, demonstrations, seed)

    def starts(self) -> Starts | None:
        return self._reverse.starts() or self._forward.starts()

    def observe(self, episodes: Sequence[Episode]) -> None:
        self._reverse.observe(episodes)
        self._forward.observe(episodes)

    def describe(self, window: MetricWindow) -> None:
        self._reverse.describe(window)
        if self._reverse.solved.all():
            self._forward.describe(window)

    def state(self) -> dict[str, NDArray[Any]]:
        kept = {"reverse": self._reverse.state(), "forward": self._forward.state()}
        return {f"{stage}/{name}": values for stage, state in kept.items() for name, values in state.items()}

    def load_state(self, state: Mapping[str, NDArray[Any]]) -> None:
        for name, curriculum in (("reverse", self._reverse), ("forward", self._forward)):
            own = {key.removeprefix(f"{name}/"): values for key, values in state.items() if key.startswith(f"{name}/")}
            curriculum.load_state(own)
