"""One iteration as it is written: row, event, histogram."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any


class Status(StrEnum):
    """State of a run, as ``run.json`` has it."""

    RUNNING = "running"
    COMPLETED = "completed"
    INTERRUPTED = "interrupted"
    STOPPED = "stopped"
    FAILED = "failed"


class EventKind(StrEnum):
    """Kinds of events in ``events.jsonl``."""

    ALERT = "alert"
    BACKEND = "backend"
    COMPLETED = "completed"
    DAMAGED = "damaged"
    DISK = "disk"
    FAILED = "failed"
    INTERRUPTED = "interrupted"
    LEAVING = "leaving"
    MOVED = "moved"
    NONFINITE = "nonfinite"
    NOTE = "note"
    RECOVERED = "recovered"
    REPAIRED = "repaired"
    RESTARTED = "restarted"
    RESUMED = "resumed"
    SIMULATOR = "simulator"
    STAGE = "stage"
    STARTED = "started"
    STOPPED = "stopped"
    TARGET_KL = "target_kl"
    VIDEO = "video"


@dataclass(frozen=True)
class HistogramView:
    """A distribution as it is shown: B bins of equal width, and percentiles right to 0.5 % (1e-9 to 1e9).

    Attributes:
        edges: B + 1 numbers, from the smallest to the largest observation.  counts: B.
        percentiles: p0, p1, p5, p25, p50, p75, p95, p99, p100.
    """

    edges: list[float]
    counts: list[int]
    percentiles: dict[str, float]


@dataclass(frozen=True)
class Row:
    """One iteration: a line of ``metrics.jsonl``.

    Attributes:
        iteration: from 1.  total_timesteps: environment steps so far.  time: seconds since 1970.
        metrics: number by name; a metric that has nothing to say is absent.
        nonfinite: how many observations of a metric were not finite and so are not in its number; usually empty.
        histograms: distributions by name.
        dialects: the same numbers under the names and with the signs of other systems, by dialect.
        workers: what each rollout worker saw by itself, by rank; only with ``runner.logger.per_worker``.
        events: what happened in the iteration, such as alerts; not part of the line.
    """

    iteration: int
    total_timesteps: int
    time: float
    metrics: dict[str, float]
    nonfinite: dict[str, int] = field(default_factory=dict)
    histograms: dict[str, HistogramView] = field(default_factory=dict)
    dialects: dict[str, dict[str, float]] = field(default_factory=dict)
    workers: dict[str, dict[str, float]] = field(default_factory=dict)
    events: tuple[Event, ...] = ()

    @property
    def series(self) -> dict[str, float]:
        """Every number of the row: the metrics, and those of single workers as ``workers/<rank>/<metric>``."""
        apart = {f"workers/{rank}/{name}": v for rank, metrics in self.workers.items() for name, v in metrics.items()}
        return {**self.metrics, **apart}

    def as_json(self) -> dict[str, Any]:
        """The line; what is empty is left out, but for the numbers. Cloning takes 0 steps, which is not empty."""
        fields = asdict(self)
        del fields["events"]
        return {name: value for name, value in fields.items() if value != {} or name == "metrics"}

    @classmethod
    def from_json(cls, line: Mapping[str, Any]) -> Row:
        """Inverse of ``as_json``."""
        histograms = {name: HistogramView(**view) for name, view in line.get("histograms", {}).items()}
        return cls(**{**line, "histograms": histograms})


@dataclass(frozen=True)
class Event:
    """Something that happened once: a stage change, a resume, a signal. A line of ``events.jsonl``.

    Attributes:
        kind: short name, for programs.  message: sentence, for people.  iteration: it happened in or after.
        time: seconds since 1970.  data: whatever else a program may want.
    """

    kind: str
    message: str
    iteration: int
    time: float
    data: dict[str, Any] = field(default_factory=dict)

    def as_json(self) -> dict[str, Any]:
        """The line."""
        return asdict(self)
