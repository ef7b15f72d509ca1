"""Reverse curriculum alone; once every demonstration is solved, episodes begin as the task draws them."""

from __future__ import annotations

from rlpipe.curricula.base_reverse import ReverseCurriculum

__all__ = ["ReverseCurriculum"]
