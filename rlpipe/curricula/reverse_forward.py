"""Reverse curriculum until every demonstration is solved, then the forward curriculum (arXiv:2405.03379, section 4)."""

from __future__ import annotations

from dataclasses import dataclass

from rlpipe.curricula.forward import ForwardConfig, ForwardCurriculum
from rlpipe.curricula.reverse import ReverseConfig, ReverseCurriculum, ReverseThen
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
