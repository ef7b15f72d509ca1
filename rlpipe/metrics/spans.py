"""Spans of the wall clock: which actor did what, and when. They travel in windows and become ``timeline.jsonl``."""

from __future__ import annotations

import itertools
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

ITERATION = "iteration"
"""Name of the driver's span that contains its other spans."""

_SINCE_1970 = max(time.time() - time.perf_counter() for _ in range(5))
"""Offset from ``time.perf_counter`` to the wall clock: the largest of five, because another process may run between the
two calls. Taken once, so that the spans of a process never overlap."""
_VISIBLE = 1e-5
"""Smallest duration of a span in seconds; anything shorter had nothing to do."""


@dataclass(frozen=True)
class Span:
    """Activity of one actor from one moment to another.

    Attributes:
        actor: driver, rollout-0, inference-0, learner or learner-0, metric-logger; ``part`` in the files of a run.
        name: name of the activity.
        began: seconds since 1970, by the clock of the actor's node; in ``timeline.jsonl`` by the driver's clock.
        ended: likewise.
    """

    actor: str
    name: str
    began: float
    ended: float

    def by_clock(self, ahead: float) -> Span:
        """Returns the span by another clock, of which the clock of this span is so many seconds ahead."""
        return replace(self, began=self.began - ahead, ended=self.ended - ahead)

    def as_json(self) -> dict[str, Any]:
        """Returns an entry of ``timeline.jsonl``, rounded to microseconds."""
        return {"part": self.actor, "name": self.name, "began": round(self.began, 6), "ended": round(self.ended, 6)}

    @classmethod
    def from_json(cls, entry: Mapping[str, Any]) -> Span:
        """Inverse of ``as_json``."""
        return cls(entry["part"], entry["name"], entry["began"], entry["ended"])


def span(actor: str, name: str, began: float, ended: float) -> Span:
    """Makes a span from two moments of ``time.perf_counter``."""
    return Span(actor, name, began + _SINCE_1970, ended + _SINCE_1970)


def spans(actor: str, moments: Sequence[float], names: Sequence[str]) -> list[Span]:
    """Makes consecutive spans: ``names[i]`` lasts from moment i to moment i + 1 of ``time.perf_counter``."""
    pairs = zip(names, itertools.pairwise(moments), strict=True)
    return [span(actor, name, *pair) for name, pair in pairs if pair[1] - pair[0] >= _VISIBLE]
