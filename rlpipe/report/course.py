"""Course of a run: every metric over iterations, environment steps and the wall clock, read as a stream."""

from __future__ import annotations

import math
from array import array
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rlpipe.analysis.logs import Log
from rlpipe.metrics import catalogue as m
from rlpipe.run.directory import read_jsonl

STEP_AXES = ("global_step", "step", "time/total_timesteps", "total_timesteps")
"""Positions in another system's log that count environment steps."""


@dataclass
class Series:
    """Values of one metric.

    Attributes:
        at: index of the row of each value
        values: the numbers, as they are in the log
    """

    at: array[int] = field(default_factory=lambda: array("l"))
    values: array[float] = field(default_factory=lambda: array("d"))

    def __len__(self) -> int:
        return len(self.values)

    def add(self, row: int, value: float) -> None:
        """Appends the value of a row."""
        self.at.append(row)
        self.values.append(value)

    def thinned(self, most: int) -> Series:
        """Keeps the lowest and the highest value of equally many consecutive values each, about ``most`` in all."""
        if len(self) <= most:
            return self
        thin, bins = Series(), max(1, most // 2)
        for number in range(bins):
            first, end = number * len(self) // bins, (number + 1) * len(self) // bins
            lowest = min(range(first, end), key=self.values.__getitem__)
            highest = max(range(first, end), key=self.values.__getitem__)
            for index in sorted({lowest, highest}):
                thin.add(self.at[index], self.values[index])
        return thin

    def every(self, stride: int) -> Series:
        """Keeps the values of every so many rows, so that several runs keep the same rows, and the newest value."""
        thin = Series()
        for row, value in zip(self.at, self.values, strict=True):
            if (row + 1) % stride == 0:
                thin.add(row, value)
        if self.at and (not thin.at or thin.at[-1] != self.at[-1]):
            thin.add(self.at[-1], self.values[-1])
        return thin


@dataclass(frozen=True)
class Course:
    """All rows of a run, by column.

    Attributes:
        axes: position of each row by axis: ``steps``, ``seconds`` and ``iteration``, as far as they are known
        series: values by metric, in the order of the newest rows
        histograms: distributions of the last row that has any: (name, what the row holds)
        histograms_at: iteration of that row; 0 without any
        nonfinite: number of observations by metric that were not finite, over the run
        dead_seconds: time between rows that was not training, as between an end and a resume; 0 if there was none
    """

    axes: dict[str, list[float]]
    series: dict[str, Series]
    histograms: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    histograms_at: int = 0
    nonfinite: Mapping[str, int] = field(default_factory=dict)
    dead_seconds: float = 0.0

    @property
    def rows(self) -> int:
        """Number of rows."""
        return max(map(len, self.axes.values()), default=0)

    def last(self, name: str) -> float | None:
        """Returns the newest value of a metric."""
        series = self.series.get(name)
        return series.values[-1] if series else None

    def steps_after(self, iteration: int) -> float:
        """Returns the environment steps after an iteration."""
        row, steps = min(iteration, self.rows) - 1, self.axes.get("steps", [])
        return steps[row] if 0 <= row < len(steps) else 0.0


def read_course(directory: Path) -> Course:
    """Reads the rows of a run directory one by one; a run without rows has an empty course."""
    file = directory / "metrics.jsonl"
    axes: dict[str, list[float]] = {"steps": [], "seconds": [], "iteration": []}
    series: dict[str, Series] = {}
    nonfinite = Counter[str]()
    histograms, histograms_at, times = {}, 0, array("d")
    for index, row in enumerate(read_jsonl(file) if file.is_file() else ()):
        axes["iteration"].append(row["iteration"])
        axes["steps"].append(row["total_timesteps"])
        times.append(row["time"])
        for name, value in _numbers(row):
            series.setdefault(name, Series()).add(index, value)
        nonfinite.update(row.get("nonfinite", {}))
        if row.get("histograms"):
            histograms, histograms_at = row["histograms"], row["iteration"]
    if not times:
        return Course({}, {})
    axes["seconds"], dead = _training_seconds(times, series.get(m.TIME_ELAPSED.name))
    return Course(axes, series, histograms, histograms_at, nonfinite, dead)


def _numbers(row: Mapping[str, Any]) -> Iterator[tuple[str, float]]:
    """Yields the metrics of a row, then those of single workers under the names that ``Row.series`` gives them."""
    yield from row["metrics"].items()
    for rank, metrics in row.get("workers", {}).items():
        for name, value in metrics.items():
            yield f"workers/{rank}/{name}", value


def _training_seconds(times: array[float], elapsed: Series | None) -> tuple[list[float], float]:
    """Returns seconds of training at each row, and the time between rows that is not in them.

    The run's own clock, ``time/time_elapsed``, continues after a resume where it stood. Without it, the times of the
    rows are used, and nothing is excluded.
    """
    if elapsed is None or len(elapsed) < len(times):
        return [moment - times[0] for moment in times], 0.0
    seconds = list(elapsed.values)
    dead = (times[-1] - times[0]) - (seconds[-1] - seconds[0])
    return seconds, max(0.0, dead)


def course_of_log(log: Log) -> Course:
    """Returns the course of another system's run: one axis, and its numbers under the catalogue's names."""
    axis = "steps" if log.axis in STEP_AXES else "iteration"
    series: dict[str, Series] = {}
    nonfinite = Counter[str]()
    for index, entry in enumerate(log.entries):
        for name, value in entry.values.items():
            if math.isfinite(value):
                series.setdefault(name, Series()).add(index, value)
        nonfinite.update(entry.nonfinite)
    return Course({axis: [float(entry.at) for entry in log.entries]}, series, nonfinite=nonfinite)
