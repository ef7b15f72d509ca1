"""Reverse curriculum until every demonstration is solved, then the forward curriculum (arXiv:2405.03379, section 4)."""

from __future__ import annotations

from dataclasses import dataclass

from rlpipe.curricula.base_forward import ForwardConfig, ForwardCurriculum
from rlpipe.curricula.base_in_turn import ReverseThen
from rlpipe.curricula.base_reverse import ReverseConfig, ReverseCurriculum
from rlpipe.metrics import catalogue as m

__all__ = ["ReverseForwardCurriculum"]


@dataclass(frozen=True)
class ReverseForwardConfig(ReverseConfig, ForwardConfig):
    """Options of both curricula."""


class ReverseForwardCurriculum(ReverseThen):
    """Chooses among the states of demonstrations, and then among seeds."""

    Config = ReverseForwardConfig
    following = ForwardCurriculum
    console_metrics = (*ReverseCurriculum.console_metrics, m.CURRICULUM_SEEDS_MASTERED)
