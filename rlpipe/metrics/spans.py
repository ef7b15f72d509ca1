"""What a part of a run did when: spans on the wall clock. They travel in the windows and become ``timeline.jsonl``."""

from __future__ import annotations

import itertools
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

ITERATION = "iteration"
"""The driver's span that holds its others."""

_SINCE_1970 = max(time.time() - time.perf_counter() for _ in range(5))
"""What makes a moment of ``time.perf_counter`` one of the wall clock; the largest, for between the two calls others may
have run. Taken once, so that the spans of a process never overlap."""
_VISIBLE = 1e-5
"""Seconds that a span has at least; what is shorter had nothing to do."""


@dataclass(frozen=True)
class Span:
    """What a part did from one moment to another.

    Attributes:
        part: driver, rollout-0, inference-0, learner or learner-0, metric-logger.
        name: what it did.
        began, ended: seconds since 1970, by the clock of the part's node; in ``timeline.jsonl`` by the driver's.
    """

    part: str
    name: str
    began: float
    ended: float

    def by_clock(self, ahead: float) -> Span:
        """The same by a clock that ``self``'s is so many seconds ahead of."""
        return replace(self, began=self.began - ahead, ended=self.ended - ahead)

    def as_json(self) -> dict[str, Any]:
        """As in ``timeline.jsonl``, to the microsecond."""
        return {**asdict(self), "began": round(self.began, 6), "ended": round(self.ended, 6)}


def span(part: str, name: str, began: float, ended: float) -> Span:
    """What a part did between two moments of ``time.perf_counter``."""
    return Span(part, name, began + _SINCE_1970, ended + _SINCE_1970)


def spans(part: str, moments: Sequence[float], names: Sequence[str]) -> list[Span]:
    """What a part did one after the other: ``names[i]`` between moments i and i + 1 of ``time.perf_counter``."""
    pairs = zip(names, itertools.pairwise(moments), strict=True)
    return [span(part, name, *pair) for name, pair in pairs if pair[1] - pair[0] >= _VISIBLE]
