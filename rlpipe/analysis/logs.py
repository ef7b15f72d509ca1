"""Reads the log of a run, whoever made it, and translates its names into the catalogue's.

Knows files and dialects, and nothing of what is healthy.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from itertools import islice
from pathlib import Path

from pydantic_core import from_json

from rlpipe import files
from rlpipe.analysis import log_files
from rlpipe.analysis.log_files import Table, number
from rlpipe.config.loading import load_config
from rlpipe.config.selection import declared_metrics
from rlpipe.errors import ConfigError
from rlpipe.metrics import CATALOGUE
from rlpipe.metrics import catalogue as m
from rlpipe.metrics.declaration import RELATIONS, Metric
from rlpipe.metrics.descriptions import SYSTEM_TITLES
from rlpipe.metrics.dialects import DIALECTS, bare, is_mark, knows, translate
from rlpipe.metrics.health import Monitor
from rlpipe.plugins import nearest
from rlpipe.run import shapes
from rlpipe.run.directory import read_jsonl

OURS = "rlpipe"
READABLE = (*DIALECTS, "rlinf", "rsl_rl", "rllib", OURS)
"""Systems whose logs can be judged."""
_MANY = 4
"""Keys of one system alone that show who wrote a log, however many more keys the user added."""
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
        seen: metrics of which an entry has a number
        unknown: keys that no metric is known for
        names: its own name of a metric, by the catalogue's
        stages: variables and tags for the health rules, by stage; a single one if stages are unknown
        metrics: declared metrics by name
        notes: what a reader of the judgement must know
    """

    dialect: str
    axis: str
    entries: Collection[LogEntry]
    seen: frozenset[str]
    unknown: list[str] = field(default_factory=list)
    names: dict[str, str] = field(default_factory=dict)
    stages: list[tuple[dict[str, float], frozenset[str]]] = field(default_factory=lambda: [({}, frozenset())])
    metrics: dict[str, Metric] = field(default_factory=lambda: dict(CATALOGUE))
    notes: list[str] = field(default_factory=list)

    def stage(self, entry: LogEntry) -> tuple[dict[str, float], frozenset[str]]:
        """Returns the variables and tags that apply to an entry."""
        return self.stages[max(0, min(int(entry.values.get(m.STAGE.name, 0)), len(self.stages) - 1))]


@dataclass(frozen=True)
class _OurEntries(Collection[LogEntry]):
    """Entries of a log of our own, read from its file each time: one of some 50,000 rows would fill a gigabyte.

    Attributes:
        path: path of the log
        count: number of entries, however many more the run writes meanwhile
        total: iterations of the whole run
    """

    path: Path
    count: int
    total: int

    def __len__(self) -> int:
        return self.count

    def __contains__(self, entry: object) -> bool:
        return any(entry == other for other in self)

    def __iter__(self) -> Iterator[LogEntry]:
        for row in islice(read_jsonl(self.path, log_files.OURS), self.count):
            yield LogEntry(
                row["iteration"],
                row["iteration"] / self.total,
                row["metrics"],
                {name: histogram["percentiles"] for name, histogram in row.get("histograms", {}).items()},
                row.get("nonfinite", {}),
            )


def read(path: Path, dialect: str | None = None) -> Log:
    """Reads a log of any supported kind.

    Args:
        path: run directory, ``metrics.jsonl`` or other JSON lines, CSV, or TensorBoard event files, or a folder that
            holds one of them
        dialect: system whose names it uses, one of ``READABLE``; None recognises it
    Raises:
        ConfigError: the log cannot be read, holds nothing that is known, or may be of several systems.
    """
    if not files.kind_of(path):
        beside = path.parent if path.parent.is_dir() else Path()
        raise ConfigError(f"there is no {path}{nearest(path.name, [other.name for other in beside.iterdir()])}")
    log, notes = log_files.find_log(path)
    if log.is_dir() or fnmatchcase(log.name, log_files.EVENTS):
        table = log_files.table_of_events(log)
    elif log.suffix == ".csv":
        table = log_files.table_of_csv(log)
    else:
        if _is_ours(log, files.first_line(log)):
            return replace(_ours(log), notes=notes)
        table = log_files.table_of_rows(log_files.rows_of_json(log, files.content(log)))
    return _translated(log, replace(table, notes=[*notes, *table.notes]), dialect)


def _is_ours(path: Path, line: bytes) -> bool:
    """True if the first line shows that a run of our own wrote the file."""
    try:
        first = from_json(line)
    except ValueError:
        return bool(line) and path.name == log_files.OURS and (path.parent / "run.json").is_file()
    return isinstance(first, dict) and "iteration" in first and "metrics" in first


def _ours(path: Path) -> Log:
    """Reads the log of a run of our own, with the facts that ``config.yaml`` and ``run.json`` beside it hold."""
    directory, seen, count, last = path.parent, set[str](), 0, 0
    for row in read_jsonl(path, log_files.OURS):
        count, last = count + 1, row["iteration"]
        seen.update(row["metrics"])
    if not count:
        raise ConfigError(f"{path} holds no report yet: the run has not completed its first iteration.")
    declared = dict(CATALOGUE)
    if (directory / "config.yaml").is_file():
        with contextlib.suppress(ConfigError):  # without a plug-in that is not installed here, its metrics are unknown
            declared = declared_metrics(load_config(directory / "config.yaml"))
    record: shapes.HealthRecord = {}
    if (directory / "run.json").is_file():
        record = files.read(directory / "run.json", shapes.HealthRecord)
    entries = _OurEntries(path, count, record["view"]["total_iterations"] if "view" in record else last)
    # a run of version 0.1 does not say that a curriculum chooses its starts
    implied = {"chosen_starts"} if m.CURRICULUM_NUM_TRAJECTORIES.name in seen else set()
    stages = [(stage["variables"], frozenset(stage["tags"]) | implied) for stage in record.get("health", [])]
    stages = stages or [({}, _tags(entries) | implied)]
    return Log(OURS, "iteration", entries, frozenset(seen), _unknown(seen, declared), {}, stages, declared)


def _unknown(seen: Iterable[str], declared: Mapping[str, Metric]) -> list[str]:
    """Lists the names in our own rows that are not declared: those of a plug-in that is not installed here."""
    monitor = Monitor(declared, {})
    return sorted(name for name in seen if monitor.metric(name) is None)


def _translated(path: Path, table: Table, dialect: str | None) -> Log:
    """Translates the rows of another system into entries under the catalogue's names."""
    keys = {key for row in table.rows for key, value in row.items() if number(value) is not None}
    if not keys:
        raise ConfigError(f"{path} holds no number; give a log to which the run has written some.")
    dialect = dialect or _recognised(path, keys)
    words = {key: meanings for key in keys if (meanings := _words(dialect, key))}
    if not words:
        raise ConfigError(f"{path} holds no number that {dialect} is known to write; name another --dialect.")
    by_trust = sorted(words.items(), key=lambda word: -max(rank for _, _, rank in word[1]))
    entries = []
    # Beside this share, TRL's trainer always writes the reward, but nothing if it is NaN. Exports may lack columns.
    complete = path.is_dir() or path.name == log_files.TRAINER_STATE or fnmatchcase(path.name, log_files.EVENTS)
    shows_nan = (
        dialect == "trl"
        and complete
        and m.FRAC_REWARD_ZERO_STD.name in {name for meanings in words.values() for name, _, _ in meanings}
    )
    for row, place in zip(table.rows, table.places, strict=True):
        entry = LogEntry(int(place), place / (table.places[-1] or 1.0), {})
        for key, meanings in by_trust:  # if two keys mean one metric, the more trustworthy one comes last
            if (value := number(row.get(key))) is None:
                continue
            for name, factor, _ in meanings:
                if math.isfinite(value):
                    entry.values[name] = value * factor
                else:
                    entry.nonfinite[name] = 1
        if shows_nan and m.FRAC_REWARD_ZERO_STD.name in entry.values and m.SCORE.name not in entry.values:
            entry.nonfinite[m.SCORE.name] = 1
        if entry.values or entry.nonfinite:
            entries.append(entry)
    names = {name: key for key, meanings in by_trust for name, _, _ in meanings if name != key}
    if shows_nan:
        names.setdefault(m.SCORE.name, names[m.FRAC_REWARD_ZERO_STD.name].replace("frac_reward_zero_std", "reward"))
    unknown = sorted(keys - words.keys() - {*log_files.AXES})
    seen = frozenset(name for entry in entries for name in entry.values)
    return Log(dialect, table.axis, entries, seen, unknown, names, [({}, _tags(entries))], notes=table.notes)


def _recognised(path: Path, keys: set[str]) -> str:
    """Returns the system that wrote the keys: it knows half of them, or wrote some that only it writes."""
    telling = sorted(keys - {*log_files.AXES, *log_files.COUNTED})
    keys_of = {system: [key for key in telling if knows(system, key)] for system in READABLE}
    marks = {system: [key for key in keys_of[system] if is_mark(system, key, READABLE)] for system in READABLE}
    best, second = sorted(READABLE, key=lambda system: (-len(keys_of[system]), -len(marks[system])))[:2]
    if not keys_of[best]:
        raise ConfigError(
            f"{path} holds {', '.join(sorted(keys)[:5])}, which none of {', '.join(READABLE)} writes; if one of them "
            "did, name it with --dialect."
        )
    enough = 2 * len(keys_of[best]) >= len(telling) or len(marks[best]) >= _MANY
    if marks[best] and enough and len(keys_of[best]) > len(keys_of[second]):
        return best
    examples = ", ".join(keys_of[best][:3]) + (", ..." if len(keys_of[best]) > 3 else "")
    shared = "" if marks[best] else ", which others write too"
    raise ConfigError(
        f"{path} is not judged, because the system that wrote it is a guess: {len(keys_of[best])} of its "
        f"{len(telling)} keys are names of {SYSTEM_TITLES[best]} ({examples}){shared}; name the system with --dialect "
        f"({', '.join(READABLE)})."
    )


def _words(dialect: str, key: str) -> list[tuple[str, float, int]]:
    """Translates a key: metrics, the factor of each, and a rank that is lower the more trustworthy the relation is."""
    if key in CATALOGUE and (dialect == OURS or key in log_files.COUNTED):
        return [(key, 1.0, 0)]
    translations = translate(dialect, bare(dialect, key), 1.0)
    return [(use.metric.name, factor, RELATIONS.index(use.name.relation)) for use, factor in translations]


def _tags(entries: Iterable[LogEntry]) -> frozenset[str]:
    """Infers from the numbers whether actions are discrete: only a Gaussian has a deviation, or negative entropy."""
    gaussian = any(
        m.ACTION_STD.name in entry.values or any(entry.values.get(name, 0.0) < 0 for name in _ENTROPIES)
        for entry in entries
    )
    return frozenset({"gaussian_policy" if gaussian else "discrete_policy"})
