"""Episodes of a run, read as a stream: exact aggregates over all of them, and a selection that is shown one by one."""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rlpipe.functional.intervals import wilson_interval
from rlpipe.metrics import catalogue as m
from rlpipe.metrics.reductions import Mean
from rlpipe.report.course import Course
from rlpipe.run.directory import read_jsonl

BINS = 60
"""Largest number of consecutive parts of a run whose episodes are pooled."""
LEAST_BINS = 8
"""Number of parts that a run keeps where they hold few episodes."""
FEW_EPISODES = 30
"""Episodes below which a pool says hardly more than nothing: the interval of 1 or 2 reaches over most of the chart."""


MOST_NEWEST = 1000
"""Newest episodes that are shown one by one."""
MOST_FAILURES = 500
"""Newest failures before those, likewise."""
MOST_POINTS = 2000
"""Episodes of the scatter, evenly over the run."""


@dataclass(frozen=True)
class Pool:
    """Episodes that ended in consecutive iterations.

    Attributes:
        first: first of these iterations
        until: last of them
        episodes: number of episodes
        success: share of them that succeeded at least once, with its Wilson interval; None without success
        mean_return: mean of the finite returns, exactly rounded; None if none was finite
        mean_length: mean length in environment steps, likewise
    """

    first: int
    until: int
    episodes: int
    success: tuple[float, float, float] | None
    mean_return: float | None
    mean_length: float | None


@dataclass(frozen=True)
class Ledger:
    """Training episodes of a run.

    Attributes:
        total: number of all episodes
        chosen_starts: number of those that began where a curriculum chose; they count in nothing that is called success
        judged: number of the others that say whether they succeeded
        successes: number of these that succeeded at least once
        pools: pools of the episodes that began where the task begins
        elsewhere: pools of the episodes that began where a curriculum chose
        listed: selection for the table: every field that is shown, the oldest episode first
        points: selection for the scatter, likewise
        failures_listed: number of listed failures that are older than the newest episodes
        failures_total: number of all failures, from chosen starts as well
        tasks: number of episodes by task; empty for one task
    """

    total: int
    chosen_starts: int
    judged: int
    successes: int
    pools: list[Pool]
    elsewhere: list[Pool]
    listed: list[dict[str, Any]]
    points: list[dict[str, Any]]
    failures_listed: int
    failures_total: int
    tasks: dict[str, int]


SHOWN = (
    "iteration", "seed", "task", "success_once", "first_success", "length", "return", "chosen", "demonstration",
    "demonstration_step", "demonstration_length", "blend", "towards", "edge",
)  # fmt: skip

LEVEL = "variations/"
"""Begins the name of the column that has the levels on an axis."""


@dataclass
class _Pooling:
    """Pools the episodes of every ``width`` iterations, as they come; ``number`` is that of the open pool."""

    width: int
    iterations: int
    pools: list[Pool] = field(default_factory=list)
    number: int = -1
    _lengths: list[int] = field(default_factory=list)
    _returns: list[float] = field(default_factory=list)
    _judged: list[bool] = field(default_factory=list)

    def add(self, row: Mapping[str, Any]) -> None:
        number = (row["iteration"] - 1) // self.width
        if number != self.number:
            self.close()
            self.number = number
        self._lengths.append(row["length"])
        if row["return"] is not None:
            self._returns.append(row["return"])
        if row["success_once"] is not None:
            self._judged.append(row["success_once"])

    def close(self) -> None:
        """Completes the open pool."""
        if self._lengths:
            judged = self._judged
            rate = _mean(judged)
            success = None if rate is None else (rate, *wilson_interval(sum(judged), len(judged)))
            self.pools.append(
                Pool(
                    self.number * self.width + 1,
                    min((self.number + 1) * self.width, self.iterations),
                    len(self._lengths),
                    success,
                    _mean(self._returns),
                    _mean(self._lengths),
                )
            )
        self._lengths, self._returns, self._judged = [], [], []


def _mean(values: list[Any]) -> float | None:
    """Returns the mean as a metric would have it."""
    return Mean.of(values).read()["mean"] if values else None


def read_ledger(directory: Path, course: Course) -> Ledger | None:
    """Reads ``episodes.jsonl`` one line at a time; None without any episode.

    Only episodes whose iteration has a row count, as everywhere else.
    """
    file = directory / "episodes.jsonl"
    iterations = int(course.axes["iteration"][-1]) if course.rows else 0
    expected = int(course.last("time/total_episodes") or 0)
    stride = max(1, math.ceil(expected / MOST_POINTS))
    task_starts, elsewhere = (
        _Pooling(pool_width(course, metric.name), iterations)
        for metric in (m.ENV_NUM_TRAJECTORIES, m.CURRICULUM_NUM_TRAJECTORIES)
    )
    newest: deque[Mapping[str, Any]] = deque(maxlen=MOST_NEWEST)
    failures: deque[Mapping[str, Any]] = deque(maxlen=MOST_FAILURES)
    points, tasks = [], Counter[str]()
    total = chosen_starts = judged = successes = failures_total = 0
    for row in read_jsonl(file) if file.is_file() else ():
        if row["iteration"] > iterations:
            break
        if row.get("chosen"):
            chosen_starts += 1
            elsewhere.add(row)
        else:
            task_starts.add(row)
            judged += row["success_once"] is not None
            successes += bool(row["success_once"])
        if len(newest) == MOST_NEWEST and newest[0]["success_once"] is False:
            failures.append(newest[0])
        newest.append(row)
        if total % stride == 0:
            points.append(_fields_shown(row))
        total += 1
        failures_total += row["success_once"] is False
        if row.get("task") is not None:
            tasks[row["task"]] += 1
    task_starts.close()
    elsewhere.close()
    if not total:
        return None
    listed = [_fields_shown(row) for row in (*failures, *newest)]
    return Ledger(
        total, chosen_starts, judged, successes, task_starts.pools, elsewhere.pools, listed, points,
        len(failures), failures_total, dict(tasks),
    )  # fmt: skip


def pool_width(course: Course, count: str) -> int:
    """Returns the iterations in a pool: more where few episodes, whose number the metric ``count`` has, end in each."""
    series, iterations = course.series.get(count), course.rows
    episodes = math.fsum(series.values) if series else 0.0
    full = iterations * FEW_EPISODES / max(1.0, episodes)
    return max(1, math.ceil(iterations / BINS), math.ceil(min(full, iterations / LEAST_BINS)))


def _fields_shown(row: Mapping[str, Any]) -> dict[str, Any]:
    levels = {f"{LEVEL}{axis}": level for axis, level in row.get("variations", {}).items()}
    return {key: row.get(key) for key in SHOWN} | levels


MOST_EVALUATIONS = 40
"""Newest evaluations whose episodes are shown."""


def read_evaluations(directory: Path, course: Course) -> tuple[dict[int, list[dict[str, Any]]], int]:
    """Reads ``eval_episodes.jsonl``: by iteration, the oldest first, the episodes of the evaluation after it.

    Returns:
        The newest evaluations, and the number of older ones, which are left out.
    """
    file = directory / "eval_episodes.jsonl"
    iterations = int(course.axes["iteration"][-1]) if course.rows else 0
    evaluations: dict[int, list[dict[str, Any]]] = {}
    left_out = 0
    for row in read_jsonl(file) if file.is_file() else ():
        if row["iteration"] > iterations:
            break
        evaluations.setdefault(row["iteration"], []).append(_fields_shown(row))
        if len(evaluations) > MOST_EVALUATIONS:
            evaluations.pop(next(iter(evaluations)))
            left_out += 1
    return evaluations, left_out
