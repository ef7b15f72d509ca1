"""Two curricula, one after the other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from numpy.typing import NDArray

from rlpipe.curricula.base import Curriculum, DemonstratedEpisode
from rlpipe.curricula.base_reverse import ReverseCurriculum
from rlpipe.metrics.window import MetricWindow
from rlpipe.trajectory import Episode, Starts


class ReverseThen(Curriculum):
    """Follows the reverse curriculum until every demonstration is solved from its beginning, and then another one."""

    following: ClassVar[type[Curriculum]]
    """The curriculum that follows."""

    def __init__(self, config: Any, demonstrations: Sequence[DemonstratedEpisode], seed: int) -> None:
        super().__init__(config, demonstrations, seed)
        self._reverse = ReverseCurriculum(config, demonstrations, seed)
        self._following = self.following(config, demonstrations, seed)
        self._parts = {"reverse": self._reverse, "following": self._following}

    def starts(self) -> Starts | None:
        return self._following.starts() if self._reverse.solved.all() else self._reverse.starts()

    def observe(self, episodes: Sequence[Episode]) -> None:
        (self._following if self._reverse.solved.all() else self._reverse).observe(episodes)

    def describe(self, window: MetricWindow) -> None:
        self._reverse.describe(window)
        if self._reverse.solved.all():
            self._following.describe(window)

    def state(self) -> dict[str, NDArray[Any]]:
        return {f"{part}/{name}": values for part, one in self._parts.items() for name, values in one.state().items()}

    def load_state(self, state: Mapping[str, NDArray[Any]]) -> None:
        for part, one in self._parts.items():
            prefix = f"{part}/"
            one.load_state({key.removeprefix(prefix): state[key] for key in state if key.startswith(prefix)})
