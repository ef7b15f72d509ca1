"""Judges a whole run after the fact, whoever made it: reads its log, translates the names, and lets the same monitor
that watches over our own runs look at every report in turn.

Knows files and dialects; how a metric is judged stands beside the metric.
"""

from __future__ import annotations

import contextlib
import csv
import io
import math
from bisect import bisect_left
from collections import Counter, deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
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
from rlpipe.metrics.health import Alert, Monitor
from rlpipe.metrics.rules import LEVELS, Finite, View
from rlpipe.plugins import nearest
from rlpipe.run import shapes

OURS = "rlpipe"
READABLE = (*DIALECTS, "rlinf", OURS)
"""Systems whose logs can be judged."""
_AXES = ("iteration", "global_step", "step", "time/total_timesteps", "total_timesteps", "episode")
"""Columns that may say where in the run a line stands."""
_EPISODE_RETURN = "charts/episodic_return"
"""CleanRL's: one point for every episode, at the step where it ended."""
_COUNTED = (m.ENV_NUM_TRAJECTORIES.name, m.ENV_RETURN_MA100.name)
"""What follows from CleanRL's points, so that its log need not hold them."""
_ENTROPIES = (m.ENTROPY.name, m.ENTROPY_LAST_MINIBATCH.name)
_STAND_INS = (
    (m.APPROX_KL_K1, m.APPROX_KL, ("high", "very_high")),
    (m.EXPLAINED_VARIANCE_POST, m.EXPLAINED_VARIANCE, ("good", "useless")),
    (m.R2, m.EXPLAINED_VARIANCE, ("good", "useless")),
)
"""Metrics that are judged by rules of another, in a log that does not have the other."""


@dataclass(frozen=True)
class Report:
    """What a run said of itself at one place, in our words.

    Attributes:
        at: iteration or step.  progress: share of the run that was done, 0 to 1.
        values, percentiles, nonfinite: as a monitor takes them.
    """

    at: int
    progress: float
    values: dict[str, float]
    percentiles: dict[str, dict[str, float]] = field(default_factory=dict)
    nonfinite: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Log:
    """A run's reports, and what else is known about it.

    Attributes:
        dialect: whose names it was written with.  axis: what ``Report.at`` counts.
        reports: in order.  unknown: keys that mean nothing to us.  names: what it calls our metrics.
        stages: variables and tags of each stage, for the rules; one where nothing is known of stages.
        metrics: that were declared, by name.
    """

    dialect: str
    axis: str
    reports: list[Report]
    unknown: list[str] = field(default_factory=list)
    names: dict[str, str] = field(default_factory=dict)
    stages: list[tuple[dict[str, float], frozenset[str]]] = field(default_factory=lambda: [({}, frozenset())])
    metrics: dict[str, Metric] = field(default_factory=lambda: dict(CATALOGUE))

    def stage(self, report: Report) -> tuple[dict[str, float], frozenset[str]]:
        """Variables and tags that hold for a report."""
        return self.stages[max(0, min(int(report.values.get(m.STAGE.name, 0)), len(self.stages) - 1))]


@dataclass(frozen=True)
class Finding:
    """Something that was not healthy.

    Attributes:
        metric, rule, level, value, demanded, cause, remedy: as in an alert; the value is the last that raised one.
        final: the metric's last value; None if all were not finite.
        since: place of the first report that violated the rule.  until: where it was over; None if it still stands.
        times: how often it was raised.
    """

    metric: str
    rule: str
    level: str
    value: float
    final: float | None
    demanded: str
    cause: str
    remedy: str
    since: int
    until: int | None
    times: int


@dataclass(frozen=True)
class Healthy:
    """A metric that has rules, all of which are met at the end.

    Attributes:
        metric, value: its name and last value.  demanded: what is usual, or what else is asked of it.
        usual: whether it is as usual; that it is not is no reason for an alert.
    """

    metric: str
    value: float
    demanded: str
    usual: bool


@dataclass(frozen=True)
class Diagnosis:
    """The judgement of a run.

    Attributes:
        path: of the log.  dialect, axis: as in ``Log``.  reports: their number.  first, last: places on the axis.
        standing: what is wrong at the end, gravest first.  past: what was wrong and is over.
        healthy: metrics that are in order.  unknown: keys that could not be judged.
        names: what the log calls our metrics, where it has other names.
    """

    path: str
    dialect: str
    axis: str
    reports: int
    first: int
    last: int
    standing: list[Finding]
    past: list[Finding]
    healthy: list[Healthy]
    unknown: list[str]
    names: dict[str, str]

    @property
    def verdict(self) -> str:
        """``healthy``, or the gravest level that stands."""
        return self.standing[0].level if self.standing else "healthy"

    def as_json(self) -> dict[str, Any]:
        """All of it."""
        return {"verdict": self.verdict, **asdict(self)}


def diagnose(path: Path, dialect: str | None = None) -> Diagnosis:
    """Judges a run.

    Args:
        path: run directory, ``metrics.jsonl`` or other JSON lines, CSV, or TensorBoard event files or their folder.
        dialect: whose names it uses, one of ``READABLE``; None finds out.
    Raises:
        ConfigError: there is nothing that can be judged.
    """
    if dialect is not None and dialect not in READABLE:
        raise ConfigError(f"--dialect is {dialect!r}; legal are {', '.join(READABLE)}{nearest(dialect, READABLE)}")
    log = read(path, dialect)
    metrics = _judged_by(log)
    monitor = Monitor(metrics, *log.stages[0])
    changes: list[Alert] = []
    for report in log.reports:
        monitor.variables, monitor.tags = log.stage(report)
        changes += monitor.judge(
            report.at,
            report.values,
            percentiles=report.percentiles,
            nonfinite=report.nonfinite,
            progress=report.progress,
        )
    series: dict[str, list[float]] = {}
    for report in log.reports:
        for name, value in report.values.items():
            series.setdefault(name, []).append(value)
    findings = _findings(changes, {name: values[-1] for name, values in series.items()}, log.names)
    troubled = {alert.metric for alert in monitor.standing}
    healthy = [
        _healthy(metric, series[name], log.stages[-1][1])
        for name, metric in metrics.items()
        if name in series and name not in troubled and metric.rules
    ]
    return Diagnosis(
        str(path),
        log.dialect,
        log.axis,
        len(log.reports),
        log.reports[0].at,
        log.reports[-1].at,
        [finding for finding in findings if finding.until is None],
        [finding for finding in findings if finding.until is not None],
        healthy,
        log.unknown,
        log.names,
    )


def _healthy(metric: Metric, values: Sequence[float], tags: frozenset[str]) -> Healthy:
    """A metric with what is usual for it, or with the first demand that says more than that it is finite."""
    view = View(values, values[0], [{metric.name: values[-1]}], {})
    for rule in metric.rules:
        if rule.level == "ok" and rule.applies(view, tags):
            return Healthy(metric.name, view.value, str(rule.check), not rule.check.violated(view))
    checks = [rule.check for rule in metric.rules]
    chosen = next((check for check in checks if not isinstance(check, Finite)), checks[0])
    return Healthy(metric.name, view.value, str(chosen), usual=True)


def _findings(changes: Sequence[Alert], last: Mapping[str, float], names: Mapping[str, str]) -> list[Finding]:
    """One for each rule ever violated, gravest and earliest first; a graver one covers one of the same cause."""
    found: dict[tuple[str, str], Finding] = {}
    for alert in changes:
        key = (alert.metric, alert.rule)
        if alert.cleared:
            found[key] = replace(found[key], until=alert.iteration)
            continue
        before = found.get(key)
        found[key] = Finding(
            *(alert.metric, alert.rule, alert.level, alert.value, last.get(alert.metric)),
            *(alert.demanded, alert.cause, alert.remedy),
            since=before.since if before else alert.since,
            until=None,
            times=before.times + 1 if before else 1,
        )
    graver_first = sorted(found.values(), key=lambda finding: (-LEVELS.index(finding.level), finding.since))
    covered: dict[tuple[str, str, bool], Finding] = {}
    for finding in graver_first:
        called = names.get(finding.metric, finding.metric)
        covered.setdefault((called, finding.cause or finding.rule, finding.until is None), finding)
    return list(covered.values())


def _judged_by(log: Log) -> dict[str, Metric]:
    """The metrics with the rules that this log is judged by."""
    found = dict(log.metrics)
    seen = {name for report in log.reports for name in report.values}
    for stand_in, other, rules in _STAND_INS:
        if other.name not in seen:
            chosen = tuple(rule for rule in other.rules if rule.name in rules)
            found[stand_in.name] = replace(stand_in, rules=chosen, signs=other.signs)
    return found


def read(path: Path, dialect: str | None = None) -> Log:
    """Reads a log, whatever it is.

    Raises:
        ConfigError: it is nothing that can be read, or holds nothing that is known.
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
    """JSON lines, ours or flat ones; or one JSON object with a ``log_history``, as TRL's trainer saves it."""
    text = files.content(path)
    try:
        whole = from_json(text)
    except ValueError:
        whole = None
    if isinstance(whole, dict) and isinstance(whole.get("log_history"), list):
        return _translated(path, _reports(path, whole["log_history"]), dialect)
    if isinstance(whole, list):
        return _translated(path, _reports(path, whole), dialect)
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
    return _translated(path, _reports(path, rows), dialect)


def _reports(path: Path, rows: Sequence[Any]) -> Sequence[Mapping[str, Any]]:
    if not rows or not all(isinstance(row, dict) for row in rows):
        raise ConfigError(f"{path} holds no reports: it must hold one JSON object a line.")
    return rows


def _is_ours(path: Path, line: bytes) -> bool:
    """Whether a run of our own wrote a file that begins so."""
    try:
        first = from_json(line)
    except ValueError:
        return path.name == "metrics.jsonl" and (path.parent / "run.json").is_file()
    return isinstance(first, dict) and "iteration" in first and "metrics" in first


def _ours(path: Path, lines: Sequence[bytes]) -> Log:
    """A run of our own; its configuration beside it says how long the run was to be, and what it was made from."""
    directory, check = path.parent, shapes.Lines(path, "metrics.jsonl")
    rows = [check.record(line) for line in lines if line.endswith(b"\n")]
    if not rows:
        raise ConfigError(f"{path} holds no report yet: the run has not ended its first iteration.")
    declared = dict(CATALOGUE)
    if (directory / "config.yaml").is_file():
        with contextlib.suppress(
            ConfigError
        ):  # a plug-in or simulator that is not installed here: its metrics are unknown
            declared = declared_metrics(load_config(directory / "config.yaml"))
    said: shapes.HealthRecord = {}
    if (directory / "run.json").is_file():
        said = files.read(directory / "run.json", shapes.HealthRecord)
    known = said.get("health", [])
    total = said["view"]["total_iterations"] if "view" in said else rows[-1]["iteration"]
    reports = [
        Report(
            row["iteration"],
            row["iteration"] / total,
            row["metrics"],
            {name: view["percentiles"] for name, view in row.get("histograms", {}).items()},
            row.get("nonfinite", {}),
        )
        for row in rows
    ]
    stages = [(stage["variables"], frozenset(stage["tags"])) for stage in known] or [({}, _tags(reports))]
    return Log(OURS, "iteration", reports, _unknown(rows, declared), {}, stages, declared)


def _unknown(rows: Iterable[Mapping[str, Any]], declared: Mapping[str, Metric]) -> list[str]:
    """Names in our own rows that nobody declares: those of a plug-in that is not installed here."""
    monitor = Monitor(declared, {})
    return sorted({name for row in rows for name in row["metrics"] if monitor.metric(name) is None})


def _read_csv(path: Path, dialect: str | None) -> Log:
    """A table with a header, such as Stable-Baselines3's ``progress.csv``; an empty field is an absent number."""
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
    """Scalars of TensorBoard event files, as rows: one for each step at which the learner wrote its numbers.

    Other points, such as those of episodes that ended in between, belong to the next such step; where one step has
    several points of a key, their mean counts.
    """
    files = [path] if path.is_file() else sorted(path.rglob("*tfevents*"))
    folders = sorted({file.parent for file in files})
    if not files:
        raise ConfigError(
            f"{path} holds no log: no metrics.jsonl, progress.csv or TensorBoard event file (*tfevents*)."
        )
    if len(folders) > 1:
        raise ConfigError(f"{path} holds the event files of {len(folders)} runs; name one, such as {folders[0]}.")
    points: list[tuple[int, str, float]] = []
    for file in files:
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
    """(step, key, value) of every scalar in an event file."""
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
    except Exception as error:  # the reader promises no base class
        raise ConfigError(f"{file} is not readable as a TensorBoard event file: {error}") from error
    return found


def _translated(path: Path, rows: Sequence[Mapping[str, Any]], dialect: str | None) -> Log:
    """Rows of another system in our words."""
    keys = {key for row in rows for key, value in row.items() if _number(value) is not None}
    dialect = dialect or _detected(path, keys)
    words = {key: found for key in keys if (found := _words(dialect, key))}
    if not words:
        raise ConfigError(f"{path} holds no number that {dialect} is known to write; name another --dialect.")
    axis, places = _places(rows)
    by_trust = sorted(words.items(), key=lambda word: -max(rank for _, _, rank in word[1]))
    reports = []
    for row, place in zip(rows, places, strict=True):
        report = Report(int(place), place / (places[-1] or 1.0), {})
        for key, meanings in by_trust:  # where two keys mean one metric, the more trustworthy comes last
            if (number := _number(row.get(key))) is None:
                continue
            for name, factor, _ in meanings:
                if math.isfinite(number):
                    report.values[name] = number * factor
                else:
                    report.nonfinite[name] = 1
        if report.values or report.nonfinite:
            reports.append(report)
    names = {name: key for key, meanings in by_trust for name, _, _ in meanings if name != key}
    return Log(dialect, axis, reports, sorted(keys - words.keys() - {*_AXES}), names, [({}, _tags(reports))])


def _places(rows: Sequence[Mapping[str, Any]]) -> tuple[str, list[float]]:
    """The column that says where in the run a line stands, and where each does; without one, lines are counted."""
    for axis in _AXES:
        places = [number for row in rows if (number := _number(row.get(axis))) is not None]
        rising = len(places) == len(rows) and all(before <= after for before, after in pairwise(places))
        if rising and 0 < places[-1] < math.inf and places[0] > -math.inf:
            return axis, places
    return "line", [float(number) for number in range(1, len(rows) + 1)]


def _detected(path: Path, keys: set[str]) -> str:
    """The system that knows most of the keys; of two that know as many, the more particular."""
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
    """What a key means in our words: metric, factor to multiply with, and how little it can be trusted."""
    if key in CATALOGUE and (dialect == OURS or key in _COUNTED):
        return [(key, 1.0, 0)]
    found = translate(dialect, key, 1.0)
    return [(use.metric.name, factor, RELATIONS.index(use.name.relation)) for use, factor in found]


def _tags(reports: Sequence[Report]) -> frozenset[str]:
    """Whether actions are discrete, as far as numbers tell: only a Gaussian has a deviation, or negative entropy."""
    gaussian = any(
        m.ACTION_STD.name in report.values or any(report.values.get(name, 0.0) < 0 for name in _ENTROPIES)
        for report in reports
    )
    return frozenset({"gaussian_policy" if gaussian else "discrete_policy"})
