"""Reads the log of a run, whoever made it, and translates its names into the catalogue's.

Knows files and dialects, and nothing of what is healthy.
"""

from __future__ import annotations

import contextlib
import csv
import io
import math
from bisect import bisect_left
from collections import Counter, deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

from pydantic_core import from_json

from rlpipe import files
from rlpipe.config.loading import load_config
from rlpipe.config.selection import declared_metrics
from rlpipe.errors import ConfigError
from rlpipe.metrics import CATALOGUE
from rlpipe.metrics import catalogue as m
from rlpipe.metrics.declaration import RELATIONS, Metric
from rlpipe.metrics.dialects import DIALECTS, translate
from rlpipe.metrics.health import Monitor
from rlpipe.plugins import nearest
from rlpipe.run import shapes

OURS = "rlpipe"
READABLE = (*DIALECTS, "rlinf", OURS)
"""Systems whose logs can be judged."""
_AXES = ("iteration", "global_step", "step", "time/total_timesteps", "total_timesteps", "episode")
"""Columns that may hold the position of a line in the run."""
_EPISODE_RETURN = "charts/episodic_return"
"""CleanRL's key with one point for every episode, at the step where it ended."""
_COUNTED = (m.ENV_NUM_TRAJECTORIES.name, m.ENV_RETURN_MA100.name)
"""Metrics that follow from CleanRL's points, so its log need not hold them."""
_ENTROPIES = (m.ENTROPY.name, m.ENTROPY_LAST_MINIBATCH.name)


@dataclass(frozen=True)
class LogEntry:
    """Metrics of a run at one position, under the catalogue's names.

    Attributes:
        at: iteration or step
        progress: share of the run that was done, 0 to 1
        values: number by metric
        percentiles: percentiles of distributions by metric
        nonfinite: number of observations by metric that were not finite
    """

    at: int
    progress: float
    values: dict[str, float]
    percentiles: dict[str, dict[str, float]] = field(default_factory=dict)
    nonfinite: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Log:
    """Log of a run.

    Attributes:
        dialect: system whose names it uses
        axis: unit of ``LogEntry.at``
        entries: entries in order
        unknown: keys that no metric is known for
        names: its own name of a metric, by the catalogue's
        stages: variables and tags for the health rules, by stage; a single one if stages are unknown
        metrics: declared metrics by name
    """

    dialect: str
    axis: str
    entries: list[LogEntry]
    unknown: list[str] = field(default_factory=list)
    names: dict[str, str] = field(default_factory=dict)
    stages: list[tuple[dict[str, float], frozenset[str]]] = field(default_factory=lambda: [({}, frozenset())])
    metrics: dict[str, Metric] = field(default_factory=lambda: dict(CATALOGUE))

    def stage(self, entry: LogEntry) -> tuple[dict[str, float], frozenset[str]]:
        """Returns the variables and tags that apply to an entry."""
        return self.stages[max(0, min(int(entry.values.get(m.STAGE.name, 0)), len(self.stages) - 1))]


def read(path: Path, dialect: str | None = None) -> Log:
    """Reads a log of any supported kind.

    Args:
        path: run directory, ``metrics.jsonl`` or other JSON lines, CSV, or TensorBoard event files or their folder
        dialect: system whose names it uses, one of ``READABLE``; None detects it
    Raises:
        ConfigError: the log cannot be read, or holds nothing that is known.
    """
    kind = files.kind_of(path)
    if not kind:
        beside = path.parent if path.parent.is_dir() else Path()
        raise ConfigError(f"there is no {path}{nearest(path.name, [other.name for other in beside.iterdir()])}")
    if kind == "directory":
        if (path / "metrics.jsonl").is_file():
            return _read_lines(path / "metrics.jsonl", dialect)
        if (path / "progress.csv").is_file():
            return _read_csv(path / "progress.csv", dialect)
        return _read_events(path, dialect)
    if "tfevents" in path.name:
        return _read_events(path, dialect)
    return _read_csv(path, dialect) if path.suffix == ".csv" else _read_lines(path, dialect)


def _read_lines(path: Path, dialect: str | None) -> Log:
    """Reads JSON lines, our own or flat ones, or one JSON object with a ``log_history``, as TRL's trainer saves it."""
    text = files.content(path)
    try:
        whole = from_json(text)
    except ValueError:
        whole = None
    if isinstance(whole, dict) and isinstance(whole.get("log_history"), list):
        return _translated(path, _checked_rows(path, whole["log_history"]), dialect)
    if isinstance(whole, list):
        return _translated(path, _checked_rows(path, whole), dialect)
    lines = text.splitlines(keepends=True)
    if lines and _is_ours(path, lines[0]):
        return _ours(path, lines)
    rows: list[Any] = []
    for number, line in enumerate(lines, 1):
        try:
            rows.append(from_json(line))
        except ValueError as error:
            if number == len(lines) and rows:
                continue  # the run was killed while it wrote this line, or is writing it
            raise ConfigError(f"{path} is not JSON lines: line {number} is not JSON ({error}).") from error
    return _translated(path, _checked_rows(path, rows), dialect)


def _checked_rows(path: Path, rows: Sequence[Any]) -> Sequence[Mapping[str, Any]]:
    if not rows or not all(isinstance(row, dict) for row in rows):
        raise ConfigError(f"{path} holds no reports: it must hold one JSON object per line.")
    return rows


def _is_ours(path: Path, line: bytes) -> bool:
    """True if the first line shows that a run of our own wrote the file."""
    try:
        first = from_json(line)
    except ValueError:
        return path.name == "metrics.jsonl" and (path.parent / "run.json").is_file()
    return isinstance(first, dict) and "iteration" in first and "metrics" in first


def _ours(path: Path, lines: Sequence[bytes]) -> Log:
    """Reads the log of a run of our own, with the facts that ``config.yaml`` and ``run.json`` beside it hold."""
    directory, parser = path.parent, shapes.Lines(path, "metrics.jsonl")
    rows = [parser.record(line) for line in lines if line.endswith(b"\n")]
    if not rows:
        raise ConfigError(f"{path} holds no report yet: the run has not completed its first iteration.")
    declared = dict(CATALOGUE)
    if (directory / "config.yaml").is_file():
        with contextlib.suppress(ConfigError):  # without a plug-in that is not installed here, its metrics are unknown
            declared = declared_metrics(load_config(directory / "config.yaml"))
    record: shapes.HealthRecord = {}
    if (directory / "run.json").is_file():
        record = files.read(directory / "run.json", shapes.HealthRecord)
    total = record["view"]["total_iterations"] if "view" in record else rows[-1]["iteration"]
    entries = [
        LogEntry(
            row["iteration"],
            row["iteration"] / total,
            row["metrics"],
            {name: histogram["percentiles"] for name, histogram in row.get("histograms", {}).items()},
            row.get("nonfinite", {}),
        )
        for row in rows
    ]
    # a run of version 0.1 does not say that a curriculum chooses its starts
    chosen = {"chosen_starts"} if any(m.CURRICULUM_NUM_TRAJECTORIES.name in row["metrics"] for row in rows) else set()
    stages = [(stage["variables"], frozenset(stage["tags"]) | chosen) for stage in record.get("health", [])] or [
        ({}, _tags(entries) | chosen)
    ]
    return Log(OURS, "iteration", entries, _unknown(rows, declared), {}, stages, declared)


def _unknown(rows: Iterable[Mapping[str, Any]], declared: Mapping[str, Metric]) -> list[str]:
    """Lists the names in our own rows that are not declared: those of a plug-in that is not installed here."""
    monitor = Monitor(declared, {})
    return sorted({name for row in rows for name in row["metrics"] if monitor.metric(name) is None})


def _read_csv(path: Path, dialect: str | None) -> Log:
    """Reads a table with a header, such as Stable-Baselines3's ``progress.csv``; empty fields are absent numbers."""
    with io.StringIO(files.content(path).decode(errors="replace"), newline="") as file:
        try:
            rows = [{key: number for key, text in row.items() if (number := _number(text)) is not None}
                    for row in csv.DictReader(file)]  # fmt: skip
        except csv.Error as error:
            raise ConfigError(f"{path} is not readable as CSV: {error}.") from error
    return _translated(path, rows, dialect)


def _number(text: Any) -> float | None:
    try:
        return float(text)
    except (TypeError, ValueError, OverflowError):
        return None


def _read_events(path: Path, dialect: str | None) -> Log:
    """Reads the scalars of TensorBoard event files as rows, one for each step at which the learner wrote its numbers.

    Other points, such as those of episodes that ended in between, belong to the next such step. If one step has several
    points of a key, their mean counts.
    """
    event_files = [path] if path.is_file() else sorted(path.rglob("*tfevents*"))
    folders = sorted({file.parent for file in event_files})
    if not event_files:
        raise ConfigError(
            f"{path} holds no log: no metrics.jsonl, progress.csv or TensorBoard event file (*tfevents*)."
        )
    if len(folders) > 1:
        raise ConfigError(f"{path} holds the event files of {len(folders)} runs; name one, such as {folders[0]}.")
    points: list[tuple[int, str, float]] = []
    for file in event_files:
        points += _scalars(file)
    if not points:
        raise ConfigError(f"{path} holds no scalars.")
    keys_at = Counter(step for step, _ in {(step, key) for step, key, _ in points})
    anchors = sorted(step for step, keys in keys_at.items() if 2 * keys >= max(keys_at.values()))
    gathered: list[dict[str, list[float]]] = [{} for _ in anchors]
    for step, key, value in points:
        place = min(bisect_left(anchors, step), len(anchors) - 1)
        gathered[place].setdefault(key, []).append(value)
    rows = [
        {"step": step, **{key: sum(values) / len(values) for key, values in at.items()}}
        for step, at in zip(anchors, gathered, strict=True)
    ]
    recent: deque[float] = deque(maxlen=100)
    for row, at in zip(rows, gathered, strict=True):
        if _EPISODE_RETURN in at:
            recent.extend(at[_EPISODE_RETURN])
            row.update(zip(_COUNTED, (float(len(at[_EPISODE_RETURN])), sum(recent) / len(recent)), strict=True))
    return _translated(path, rows, dialect)


def _scalars(file: Path) -> list[tuple[int, str, float]]:
    """Returns (step, key, value) of every scalar in an event file."""
    from tensorboard.backend.event_processing.event_file_loader import EventFileLoader
    from tensorboard.util import tensor_util

    found = []
    scalars = set()
    try:
        for event in EventFileLoader(str(file)).Load():
            for value in event.summary.value:
                if value.metadata.plugin_data.plugin_name == "scalars":
                    scalars.add(value.tag)
                if value.tag in scalars:
                    number = float(tensor_util.make_ndarray(value.tensor).reshape(-1)[0])
                    found.append((int(event.step), value.tag, number))
    except Exception as error:  # the reader documents no base class of its errors
        raise ConfigError(f"{file} is not readable as a TensorBoard event file: {error}") from error
    return found


def _translated(path: Path, rows: Sequence[Mapping[str, Any]], dialect: str | None) -> Log:
    """Translates the rows of another system into entries under the catalogue's names."""
    keys = {key for row in rows for key, value in row.items() if _number(value) is not None}
    dialect = dialect or _detected(path, keys)
    words = {key: found for key in keys if (found := _words(dialect, key))}
    if not words:
        raise ConfigError(f"{path} holds no number that {dialect} is known to write; name another --dialect.")
    axis, places = _places(rows)
    by_trust = sorted(words.items(), key=lambda word: -max(rank for _, _, rank in word[1]))
    entries = []
    for row, place in zip(rows, places, strict=True):
        entry = LogEntry(int(place), place / (places[-1] or 1.0), {})
        for key, meanings in by_trust:  # if two keys mean one metric, the more trustworthy one comes last
            if (number := _number(row.get(key))) is None:
                continue
            for name, factor, _ in meanings:
                if math.isfinite(number):
                    entry.values[name] = number * factor
                else:
                    entry.nonfinite[name] = 1
        if entry.values or entry.nonfinite:
            entries.append(entry)
    names = {name: key for key, meanings in by_trust for name, _, _ in meanings if name != key}
    return Log(dialect, axis, entries, sorted(keys - words.keys() - {*_AXES}), names, [({}, _tags(entries))])


def _places(rows: Sequence[Mapping[str, Any]]) -> tuple[str, list[float]]:
    """Returns the column that holds positions in the run, and the position of each row; counts rows without one."""
    for axis in _AXES:
        places = [number for row in rows if (number := _number(row.get(axis))) is not None]
        rising = len(places) == len(rows) and all(before <= after for before, after in pairwise(places))
        if rising and 0 < places[-1] < math.inf and places[0] > -math.inf:
            return axis, places
    return "line", [float(number) for number in range(1, len(rows) + 1)]


def _detected(path: Path, keys: set[str]) -> str:
    """Returns the system that knows the most keys; the first one in ``READABLE`` of those that know equally many."""
    known = {system: sum(bool(_words(system, key)) for key in keys) for system in READABLE}
    best = max(READABLE, key=lambda system: known[system])
    if not known[best]:
        shown = ", ".join(sorted(keys)[:5]) or "no numbers at all"
        raise ConfigError(
            f"{path} holds {shown}, which none of {', '.join(READABLE)} writes; if one of them did, name it "
            "with --dialect."
        )
    return best


def _words(dialect: str, key: str) -> list[tuple[str, float, int]]:
    """Translates a key: metrics, the factor of each, and a rank that is lower the more trustworthy the relation is."""
    if key in CATALOGUE and (dialect == OURS or key in _COUNTED):
        return [(key, 1.0, 0)]
    found = translate(dialect, key, 1.0)
    return [(use.metric.name, factor, RELATIONS.index(use.name.relation)) for use, factor in found]


def _tags(entries: Sequence[LogEntry]) -> frozenset[str]:
    """Infers from the numbers whether actions are discrete: only a Gaussian has a deviation, or negative entropy."""
    gaussian = any(
        m.ACTION_STD.name in entry.values or any(entry.values.get(name, 0.0) < 0 for name in _ENTROPIES)
        for entry in entries
    )
    return frozenset({"gaussian_policy" if gaussian else "discrete_policy"})
