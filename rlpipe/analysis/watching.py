"""Present state of a run, for ``rlpipe watch``: read from its directory again and again, never written to."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

from rlpipe import files
from rlpipe.analysis import timeline
from rlpipe.analysis.evaluation_report import results_of, values_of
from rlpipe.errors import ConfigError
from rlpipe.metrics import catalogue as m
from rlpipe.metrics.alerts import ToldAlerts
from rlpipe.metrics.declaration import Metric
from rlpipe.metrics.row import Event, Row, Status
from rlpipe.run import shapes
from rlpipe.run.directory import RunDirectory
from rlpipe.run.follower import Tail
from rlpipe.trajectory import Episode

KEPT_ROWS = 400
"""Newest rows of which curves are drawn."""
KEPT_EVENTS = 50
_GLANCED_ROWS = 20
"""Newest rows from which it is told how long an iteration takes."""
SILENT_FACTOR = 10.0
"""A run in progress is called silent after this many of its usual iterations without a row."""
LEAST_SILENT = 60.0
"""Seconds for which no run is called silent."""
_POOLED_EPISODES = 100
"""Training episodes that a result stands on, as far as there are so many: an iteration may end a single one."""


@dataclass
class Watched:
    """Present state of a run.

    Attributes:
        run: contents of ``run.json``
        rows: newest rows, at most ``KEPT_ROWS``
        events: newest events, at most ``KEPT_EVENTS``
        alerts: those that were raised and cleared
        evaluated: newest row with an evaluation; None before the first
        recorded: episodes of the newest ``rlpipe evaluate`` of the last iteration, in a glance
        work: share of the last iteration but one that each actor spent on each kind of work, the largest first
    """

    run: Mapping[str, Any]
    rows: deque[Row] = field(default_factory=lambda: deque(maxlen=KEPT_ROWS))
    events: deque[Event] = field(default_factory=lambda: deque(maxlen=KEPT_EVENTS))
    alerts: ToldAlerts = field(default_factory=ToldAlerts)
    evaluated: Row | None = None
    recorded: Sequence[Episode] = ()
    work: dict[str, dict[str, float]] = field(default_factory=dict)

    @property
    def status(self) -> str:
        """Status of the run, as in ``run.json``."""
        return str(self.run["status"])

    @property
    def running(self) -> bool:
        """True if the run says that it is in progress; a killed one still does."""
        return self.status == Status.RUNNING

    @property
    def rows_since_resume(self) -> list[Row]:
        """Kept rows since the run was last resumed or recovered, if it was: those before may be of another machine."""
        after = self.run.get("resumed_after") or [0]
        return [row for row in self.rows if row.iteration > after[-1]]

    def curve(self, name: str) -> list[float]:
        """Returns the values of a metric in the kept rows, the oldest first; rows without it are left out."""
        return [row.metrics[name] for row in self.rows if name in row.metrics]

    @property
    def result(self) -> tuple[Metric, float, int] | None:
        """Metric, value and number of episodes: success in the newest evaluation, else return, else in training."""
        for metric in (m.EVAL_SUCCESS_ONCE, m.EVAL_EPISODE_RETURN):
            if values := values_of(metric, self.recorded):
                return metric, math.fsum(values) / len(values), len(values)
        for rows, scope in (([self.evaluated] if self.evaluated else [], m.EVAL), (self.rows, m.ENV)):
            for metric in (scope.success_once, scope.episode_return):
                read = (row.metrics for row in rows if metric.name in row.metrics)
                count = scope.num_trajectories.name
                if counted := [(metrics[metric.name], metrics.get(count, 0.0)) for metrics in read]:
                    return metric, *latest(counted)
        return None

    def silence(self, now: float) -> float | None:
        """Seconds since the last row, if a run in progress has been quiet for unusually long; otherwise None."""
        if not self.running or not self.rows:
            return None
        usual = max(row.metrics.get(m.STEP.name, 0.0) for row in list(self.rows)[-_GLANCED_ROWS:])
        since = now - self.rows[-1].time
        return since if since > max(LEAST_SILENT, SILENT_FACTOR * usual) else None


def latest(counted: Sequence[tuple[float, float]]) -> tuple[float, int]:
    """Pools the newest iterations that end 100 training episodes, or all of them.

    ``counted`` has the mean over the episodes of each iteration, and their number, the oldest first.
    """
    total = episodes = 0.0
    for value, count in reversed(counted):
        if episodes >= _POOLED_EPISODES:
            break
        total, episodes = total + value * count, episodes + count
    return total / episodes if episodes else counted[-1][0], round(episodes)


def glance(path: Path) -> Watched:
    """Returns the state of a run as its last rows tell it, without reading those before."""
    directory = RunDirectory.existing(path)
    state, file = Watched(directory.read_json()), directory.path / "metrics.jsonl"
    lines = files.content(file).split(b"\n")[:-1] if file.is_file() else []  # the last may be half written
    evaluations = (line for line in reversed(lines) if f'"{m.EVAL.num_trajectories.name}"'.encode() in line)
    evaluated, last = (
        [Row.from_json(row) for row in map(shapes.Lines(file).record, some)]
        for some in (islice(evaluations, 1), lines[-_GLANCED_ROWS:])
    )
    state.rows.extend(last)
    state.evaluated = evaluated[0] if evaluated else None
    for _, record in islice(results_of(directory.path, last[-1].iteration if last else 0), 1):
        state.recorded = [Episode.from_row(row) for row in record["episodes"]]
    return state


class Watcher:
    """Follows a run directory, also one that another machine writes to."""

    def __init__(self, path: Path) -> None:
        """Opens the directory."""
        self._directory = RunDirectory.existing(path)
        self._state = Watched(self._directory.read_json())
        self._incarnation = -1

    def look(self) -> Watched:
        """Reads what was written since the last call."""
        run = self._directory.read_json()
        if run["incarnation"] != self._incarnation:  # a resume has cut rows off
            self._incarnation = run["incarnation"]
            self._state = Watched(run)
            self._rows, self._events = (Tail(self._directory.path / f"{name}.jsonl") for name in ("metrics", "events"))
        state = self._state
        state.run = run
        row: Row | None = None
        for row in map(Row.from_json, self._rows.read()):
            state.rows.append(row)
            if m.EVAL.num_trajectories.name in row.metrics:
                state.evaluated = row
        for event in (Event(**line) for line in self._events.read()):
            state.events.append(event)
            state.alerts.add(event)
        if row is not None:
            with suppress(ConfigError):  # no iteration is complete yet, or the file is being replaced
                # one back: what was collected during the newest iteration is written with the next one
                newest = timeline.read(self._directory, max(1, row.iteration - 1))
                state.work = {actor: newest.shares(actor) for actor in newest.actors}
        return state
