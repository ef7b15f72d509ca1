"""Forward curriculum alone, without demonstrations."""

from __future__ import annotations

from rlpipe.curricula.base_forward import ForwardCurriculum

__all__ = ["ForwardCurriculum"]
