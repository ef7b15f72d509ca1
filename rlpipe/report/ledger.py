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


@dataclass(frozen=True)
class Limits:
    """Numbers of episodes that are shown one by one.

    Attributes:
        last: of the newest ones
        failures: of the newest failures before those
        points: of the scatter, evenly over the run
    """

    last: int = 1000
    failures: int = 500
    points: int = 2000


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
        chosen: number of those that began where a curriculum chose; they count in nothing that is called success
        judged: number of the others that say whether they succeeded
        successes: number of these that succeeded at least once
        own: pools of the episodes that began where the task begins
        elsewhere: pools of the episodes that began where a curriculum chose
        listed: selection for the table: every field that is shown, the oldest episode first
        points: selection for the scatter, likewise
        stride: the scatter shows every so many episodes
        failures_listed: number of listed failures that are older than the newest episodes
        failures_total: number of all failures, from chosen starts as well
        tasks: number of episodes by task; empty for one task
    """

    total: int
    chosen: int
    judged: int
    successes: int
    own: list[Pool]
    elsewhere: list[Pool]
    listed: list[dict[str, Any]]
    points: list[dict[str, Any]]
    stride: int
    failures_listed: int
    failures_total: int
    tasks: dict[str, int]


SHOWN = (
    "iteration", "seed", "task", "success_once", "first_success", "length", "return", "chosen", "demonstration",
    "demonstration_step", "demonstration_length", "blend", "towards",
)  # fmt: skip


@dataclass
class _Pooling:
    """Pools episodes as they come.

    Attributes:
        width: number of iterations of a pool
        iterations: number of iterations of the run
        found: complete pools
        number: number of the open pool
    """

    width: int
    iterations: int
    found: list[Pool] = field(default_factory=list)
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
            self.found.append(
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


def read_ledger(directory: Path, course: Course, limits: Limits | None = None) -> Ledger | None:
    """Reads ``episodes.jsonl`` one line at a time; None without any episode.

    Only episodes whose iteration has a row count, as everywhere else.

    Raises:
        ConfigError: the file is damaged.
    """
    limits = limits or Limits()
    file = directory / "episodes.jsonl"
    iterations = int(course.axes["iteration"][-1]) if course.rows else 0
    expected = int(course.last("time/total_episodes") or 0)
    stride = max(1, math.ceil(expected / limits.points))
    own, elsewhere = (
        _Pooling(pool_width(course, metric.name), iterations)
        for metric in (m.ENV_NUM_TRAJECTORIES, m.CURRICULUM_NUM_TRAJECTORIES)
    )
    newest: deque[Mapping[str, Any]] = deque(maxlen=limits.last)
    failures: deque[Mapping[str, Any]] = deque(maxlen=limits.failures)
    points, tasks = [], Counter[str]()
    total = chosen = judged = successes = failures_total = 0
    for row in read_jsonl(file) if file.is_file() else ():
        if row["iteration"] > iterations:
            break
        if row.get("chosen"):
            chosen += 1
            elsewhere.add(row)
        else:
            own.add(row)
            judged += row["success_once"] is not None
            successes += bool(row["success_once"])
        if len(newest) == limits.last and newest[0]["success_once"] is False:
            failures.append(newest[0])
        newest.append(row)
        if total % stride == 0:
            points.append(_shown(row))
        total += 1
        failures_total += row["success_once"] is False
        if row.get("task") is not None:
            tasks[row["task"]] += 1
    own.close()
    elsewhere.close()
    if not total:
        return None
    listed = [_shown(row) for row in (*failures, *newest)]
    return Ledger(
        total, chosen, judged, successes, own.found, elsewhere.found, listed, points, stride, len(failures),
        failures_total, dict(tasks),
    )  # fmt: skip


def pool_width(course: Course, count: str) -> int:
    """Returns the number of iterations in a pool: more where few episodes end in each.

    Args:
        course: of the run
        count: metric with the number of episodes of an iteration
    """
    series, iterations = course.series.get(count), course.rows
    episodes = math.fsum(series.values) if series else 0.0
    full = iterations * FEW_EPISODES / max(1.0, episodes)
    return max(1, math.ceil(iterations / BINS), math.ceil(min(full, iterations / LEAST_BINS)))


def _shown(row: Mapping[str, Any]) -> dict[str, Any]:
    return {key: row.get(key) for key in SHOWN}


@dataclass(frozen=True)
class EvaluationEpisodes:
    """Episodes of the evaluations during training.

    Attributes:
        iterations: those after which evaluations ran, the oldest first
        left_out: number of older evaluations that are not in it
        rows: fields of each episode that are shown, by evaluation
    """

    iterations: list[int]
    left_out: int
    rows: list[list[dict[str, Any]]]


MOST_EVALUATIONS = 40
"""Newest evaluations whose episodes are shown."""


def read_evaluations(directory: Path, course: Course) -> EvaluationEpisodes | None:
    """Reads ``eval_episodes.jsonl``; None without an evaluation.

    Raises:
        ConfigError: the file is damaged.
    """
    file = directory / "eval_episodes.jsonl"
    iterations = int(course.axes["iteration"][-1]) if course.rows else 0
    found: deque[tuple[int, list[dict[str, Any]]]] = deque(maxlen=MOST_EVALUATIONS)
    evaluations = 0
    for row in read_jsonl(file) if file.is_file() else ():
        if row["iteration"] > iterations:
            break
        if not found or found[-1][0] != row["iteration"]:
            found.append((row["iteration"], []))
            evaluations += 1
        found[-1][1].append(_shown(row))
    if not found:
        return None
    return EvaluationEpisodes([one for one, _ in found], evaluations - len(found), [rows for _, rows in found])
