"""No curriculum: every episode begins as the task draws it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from numpy.typing import NDArray

from rlpipe.curricula.base import Curriculum
from rlpipe.trajectory import Episode

__all__ = ["NoCurriculum"]


class NoCurriculum(Curriculum):
    """Leaves all starts to the task."""

    needs_states = False
    chooses = False

    def starts(self) -> None:
        return None

    def observe(self, episodes: Sequence[Episode]) -> None:
        """Has nothing to learn."""

    def state(self) -> dict[str, NDArray[Any]]:
        return {}

    def load_state(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Has nothing to restore."""
