"""Finds the log of a run in a folder, and reads files of other systems as rows of numbers under their own keys.

Knows formats, and nothing of what a key means. Where a resumed run wrote a step again, its later value counts.
"""

from __future__ import annotations

import csv
import io
import math
import os
import re
from bisect import bisect_left
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic_core import from_json

from rlpipe import files
from rlpipe.errors import ConfigError
from rlpipe.metrics import catalogue as m

if TYPE_CHECKING:
    from tensorboard.compat.proto.event_pb2 import Event
    from tensorboard.compat.proto.summary_pb2 import Summary

OURS = "metrics.jsonl"
EVENTS = "*tfevents*"
TRAINER_STATE = "trainer_state.json"
KNOWN = (OURS, "result.json", "progress.csv", "progress.json", TRAINER_STATE, EVENTS, "wandb_export_*.csv")
"""Names of logs, those that hold most first: ours, RLlib's, Stable-Baselines3's, TRL's, TensorBoard's, W&B's."""
MONITORS = ("monitor.csv", "*.monitor.csv")
"""Names of the episodes that Stable-Baselines3's Monitor writes."""
AXES = (
    *("iteration", "global_step", "step", "time/total_timesteps", "total_timesteps", "training_iteration", "_step"),
    *("Step", "train/global_step", "timesteps_total", "episode", "train/episode"),
)  # fmt: skip
"""Columns that may hold the position of a row in the run."""
_EPISODE_RETURN = "charts/episodic_return"
"""CleanRL's key with one point for every episode, at the step where it ended."""
COUNTED = (m.ENV_NUM_TRAJECTORIES.name, m.ENV_RETURN_MA100.name)
"""Metrics that follow from CleanRL's points, so its log need not hold them."""

_DEEPEST = 4
"""Folders below the given one in which a log is looked for, so that ``diagnose /`` does not read the whole disk."""

Row = Mapping[str, Any]
Point = tuple[int, float, str, float]
"""Part of the log, of which later ones replace earlier ones; position; key; value."""


@dataclass(frozen=True)
class Table:
    """Rows of a log, in the order of the run.

    Attributes:
        axis: column of their positions, or ``line``
        places: position of each row, rising
        rows: values by key
        notes: what a reader of the judgement must know
    """

    axis: str
    places: list[float]
    rows: list[Row]
    notes: list[str] = field(default_factory=list)


def find_log(path: Path) -> tuple[Path, list[str]]:
    """Finds the log in a folder: the one nearest to it, and the newest of several that are equally near.

    Args:
        path: file or folder
    Returns:
        A file, or the folder of event files; and a note if it is not plain which log that is.
    Raises:
        ConfigError: there is none.
    """
    if path.is_file():
        return path, []
    candidates, monitors = _candidates(path)
    for same in candidates:
        if runs := [log for log in same if log.is_file() or _holds_run(log)]:
            log, several = runs[0], f", the newest of {len(runs)}" if len(runs) > 1 else ""
            plain = path == (log if log.is_dir() else log.parent)
            return log, [] if plain and not several else [f"read from {log.relative_to(path)}{several}"]
    if monitors:
        raise ConfigError(_monitor(monitors[0]))
    names = ", ".join(KNOWN[:-2])
    raise ConfigError(f"{path} holds no log: no {names} or TensorBoard event file ({EVENTS}) with a number in it.")


def _candidates(path: Path) -> tuple[list[list[Path]], list[Path]]:
    """Returns the logs below a folder, those to prefer first, and the Monitor files.

    A file nearer to the folder comes first, then the order of ``KNOWN``. Logs that are equal in both are in one list,
    the newest first. Event files stand for their folder.
    """
    ranked: dict[tuple[int, int], dict[Path, tuple[float, ...]]] = {}
    monitors = []
    for folder, inside, names in os.walk(path):
        here = Path(folder)
        if len(here.relative_to(path).parts) == _DEEPEST:
            inside.clear()
        for name in names:
            kind = next((n for n, pattern in enumerate(KNOWN) if fnmatchcase(name, pattern)), None)
            if kind is not None:
                log = here if KNOWN[kind] == EVENTS else here / name
                held = ranked.setdefault((len(here.relative_to(path).parts), kind), {})
                held[log] = max(held.get(log, (0.0,)), _age(here / name))
            elif any(fnmatchcase(name, pattern) for pattern in MONITORS):
                monitors.append(here / name)
    return [sorted(held, key=lambda log: held[log], reverse=True) for _, held in sorted(ranked.items())], monitors


def _age(file: Path) -> tuple[float, ...]:
    """Sort key by age: the second or step that a name holds, which survives copying; otherwise the time of writing."""
    held = re.search(r"tfevents\.(\d+)", file.name) or re.search(r"checkpoint-(\d+)$", file.parent.name)
    return (float(held[1]) if held else 0.0, file.stat().st_mtime if file.exists() else 0.0)


def _holds_run(folder: Path) -> bool:
    """True if the event files of a folder hold numbers other than those that ``add_hparams`` repeats."""
    return any(not _is_summary(file) and any(True for _ in _points([file])) for file in folder.glob(EVENTS))


def _event_files(path: Path) -> list[Path]:
    """Returns the event files of a run, oldest first, without those that only hold hyperparameters."""
    event_files = [path] if path.is_file() else sorted(path.glob(EVENTS), key=_age)
    return [file for file in event_files if not _is_summary(file)] or event_files


def _is_summary(file: Path) -> bool:
    """True if ``add_hparams`` wrote the file: hyperparameters, and the last value of some metrics once."""
    tags: set[str] = set()
    for _, value in _values(file):
        if value.tag in tags:
            return False
        tags.add(value.tag)
    return any(tag.startswith("_hparams_/") for tag in tags)


def table_of_events(path: Path) -> Table:
    """Reads the scalars of TensorBoard event files."""
    table = _table("step", _points(_event_files(path)))
    if not table.rows:
        raise ConfigError(f"{path} holds no scalars.")
    return table


def _table(axis: str, points: Iterable[Point]) -> Table:
    """Gathers points into rows, one for each position at which the learner wrote its numbers.

    Other points, such as those of episodes that ended in between, belong to the next such position. If one row has
    several points of a key, their mean counts.
    """
    series, notes = _series(axis, points)
    keys_at = Counter(place for held in series.values() for place in {place for place, _ in held})
    anchors = sorted(place for place, keys in keys_at.items() if 2 * keys >= max(keys_at.values()))
    gathered: list[dict[str, list[float]]] = [{} for _ in anchors]
    for key, held in series.items():
        for place, value in held:
            gathered[min(bisect_left(anchors, place), len(anchors) - 1)].setdefault(key, []).append(value)
    recent: deque[float] = deque(maxlen=100)
    rows: list[Row] = []
    for place, at in zip(anchors, gathered, strict=True):
        row = {axis: place, **{key: sum(values) / len(values) for key, values in at.items()}}
        if _EPISODE_RETURN in at:
            recent.extend(at[_EPISODE_RETURN])
            row.update(zip(COUNTED, (float(len(at[_EPISODE_RETURN])), sum(recent) / len(recent)), strict=True))
        rows.append(row)
    return Table(axis, anchors, rows, notes)


def _series(axis: str, points: Iterable[Point]) -> tuple[dict[str, list[tuple[float, float]]], list[str]]:
    """Sorts points by key, as (place, value); a run that goes back to a place replaces what was there and after."""
    series: dict[str, list[tuple[int, float, float]]] = {}
    back: tuple[float, float] | None = None
    for part, place, key, value in points:
        held = series.setdefault(key, [])
        if held and held[-1][1] > place:
            back = held[-1][1], place
        while held and (held[-1][1] > place or (held[-1][1] == place and held[-1][0] < part)):
            held.pop()
        held.append((part, place, value))
    notes = (
        [f"{axis} goes back from {back[0]:,.0f} to {back[1]:,.0f}, as in a resumed run: the later numbers count"]
        if back
        else []
    )
    return {key: [(place, value) for _, place, value in held] for key, held in series.items()}, notes


def _points(event_files: Sequence[Path]) -> Iterator[Point]:
    """Yields every scalar in event files."""
    from tensorboard.util import tensor_util

    for part, file in enumerate(event_files):
        scalars = set()
        for event, value in _values(file):
            if value.metadata.plugin_data.plugin_name == "scalars":
                scalars.add(value.tag)
            if value.tag in scalars:
                held = tensor_util.make_ndarray(value.tensor).reshape(-1)[0]
                yield part, float(event.step), value.tag, float(str(held))  # of 32 bits: 1e-06, not 9.99999997e-07


def _values(file: Path) -> Iterator[tuple[Event, Summary.Value]]:
    from tensorboard.backend.event_processing.event_file_loader import EventFileLoader

    try:
        for event in EventFileLoader(str(file)).Load():
            for value in event.summary.value:
                yield event, value
    except Exception as error:  # the reader documents no base class of its errors
        raise ConfigError(f"{file} is not readable as a TensorBoard event file: {error}") from error


def table_of_csv(path: Path) -> Table:
    """Reads a table with a header, such as Stable-Baselines3's ``progress.csv``; empty fields are absent numbers.

    A line of names is a new header: of a run that was resumed, and appended its own.
    """
    text = files.content(path).decode("utf-8-sig", errors="replace")
    if re.match(r"#\s*\{", text) or any(fnmatchcase(path.name, pattern) for pattern in MONITORS):
        raise ConfigError(_monitor(path))
    rows: list[Row] = []
    header: list[str] = []
    try:
        for fields in filter(None, csv.reader(io.StringIO(text, newline=""))):  # without empty lines
            numbers = [number(field) for field in fields]
            numberless = all(value is None for value in numbers)
            if not header or (set(header).intersection(fields) - {""} and numberless):
                header = _columns(path, fields)
            else:
                pairs = zip(header, numbers, strict=False)
                rows.append({key: value for key, value in pairs if key and value is not None})
    except csv.Error as error:
        raise ConfigError(f"{path} is not readable as CSV: {error}.") from error
    return table_of_rows(rows)


def _columns(path: Path, header: Sequence[str]) -> list[str]:
    """Returns the keys of a header; W&B's export puts the name of the run before them, and adds extremes."""
    if numbers := [name for name in header if number(name) is not None]:
        raise ConfigError(
            f"{path} has no header: where names are expected, it holds {', '.join(numbers[:3])}; add one."
        )
    parts = [name.rpartition(" - ") for name in header]
    runs = {run for run, _, _ in parts if run}
    if header[0] != "Step" or not runs:
        return list(header)
    if len(runs) > 1:
        raise ConfigError(f"{path} holds {len(runs)} runs ({', '.join(sorted(runs))}); export one of them alone.")
    return ["" if key.endswith(("__MIN", "__MAX")) else key for _, _, key in parts]


def _monitor(path: Path) -> str:
    """Describes a file of Stable-Baselines3's Monitor."""
    text = files.content(path).decode(errors="replace")
    fields = (number(re.sub(r"^r,l,t", "", line).split(",")[0]) for line in text.splitlines())
    returns = [value for value in fields if value is not None]
    ends = f", with returns from {min(returns):g} to {max(returns):g}" if returns else ""
    return (
        f"{path} is a Monitor file of Stable-Baselines3: it holds {len(returns)} episodes{ends}, and no number of the "
        "learner, so there is nothing to diagnose; give the run's progress.csv, progress.json or TensorBoard folder, "
        "which model.set_logger or tensorboard_log write."
    )


def rows_of_json(path: Path, text: bytes) -> list[Row]:
    """Reads JSON lines, or an object with a ``log_history``, as TRL's trainer saves it; nested keys get a slash."""
    try:
        whole = from_json(text)
    except ValueError:
        whole = None
    if isinstance(whole, dict) and isinstance(whole.get("log_history"), list):
        return _checked(path, whole["log_history"])
    return _checked(path, whole if isinstance(whole, list) else _lines(path, text))


def _lines(path: Path, text: bytes) -> list[Any]:
    lines, rows = text.splitlines(), []
    for count, line in enumerate(lines, 1):
        try:
            rows.append(from_json(line))
        except ValueError as error:
            if count == len(lines) and rows:
                continue  # the run was killed while it wrote this line, or is writing it
            raise ConfigError(f"{path} is not JSON lines: line {count} is not JSON ({error}).") from error
    return rows


def _checked(path: Path, rows: Sequence[Any]) -> list[Row]:
    if not rows or not all(isinstance(row, dict) for row in rows):
        raise ConfigError(f"{path} holds no reports: it must hold one JSON object per line.")
    return [dict(flat(row)) for row in rows]


def flat(row: Row, before: str = "") -> Iterator[tuple[str, Any]]:
    """Yields the leaves of a nested object with their paths."""
    for key, value in row.items():
        if isinstance(value, dict):
            yield from flat(value, f"{before}{key}/")
        else:
            yield before + key, value


def table_of_rows(rows: Sequence[Row]) -> Table:
    """Sorts rows by their position in the run; those without one are counted."""
    for axis in AXES:
        places = [place for row in rows if (place := number(row.get(axis))) is not None]
        back = sum(after < before for before, after in pairwise(places))
        whole = len(places) == len(rows) and max(places, default=0.0) > 0 and all(map(math.isfinite, places))
        if whole and 2 * len(set(places)) >= len(places) and 4 * back <= len(places):
            points = (
                (part, place, key, value)
                for part, (place, row) in enumerate(zip(places, rows, strict=True))
                for key in row.keys() - {axis}
                if (value := number(row[key])) is not None
            )
            return _table(axis, points)
    return Table("line", [float(place) for place in range(1, len(rows) + 1)], list(rows))


def number(text: Any) -> float | None:
    """Returns a value as a number; None if it is none."""
    try:
        return float(text)
    except (TypeError, ValueError, OverflowError):
        return None
