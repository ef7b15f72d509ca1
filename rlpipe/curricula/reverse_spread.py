"""Reverse curriculum until every demonstration is solved, then starts that spread from there to the task's own."""

from __future__ import annotations

from dataclasses import dataclass

from rlpipe.curricula.base_in_turn import ReverseThen
from rlpipe.curricula.base_reverse import ReverseConfig, ReverseCurriculum
from rlpipe.curricula.base_spread import SpreadConfig, SpreadCurriculum
from rlpipe.metrics import catalogue as m

__all__ = ["ReverseSpreadCurriculum"]


@dataclass(frozen=True)
class ReverseSpreadConfig(ReverseConfig, SpreadConfig):
    """Options of both curricula."""


class ReverseSpreadCurriculum(ReverseThen):
    """Chooses among the states of demonstrations, and then among those between their beginnings and the task's own."""

    Config = ReverseSpreadConfig
    following = SpreadCurriculum
    console_metrics = (*ReverseCurriculum.console_metrics, m.CURRICULUM_BLEND_DEMONSTRATIONS, m.CURRICULUM_BLEND)
    blends = True
