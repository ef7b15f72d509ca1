"""Judges a whole run after the fact, whoever made it: the monitor that watches live runs sees every entry of its log.

How a metric is judged is declared with the metric.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from rlpipe.analysis.logs import OURS, READABLE, Log, read
from rlpipe.errors import ConfigError
from rlpipe.metrics import catalogue as m
from rlpipe.metrics.declaration import Metric
from rlpipe.metrics.descriptions import SYSTEM_TITLES
from rlpipe.metrics.health import Alert, Monitor
from rlpipe.metrics.rules import LEVELS, Band, Finite, Rule, View
from rlpipe.plugins import nearest

_STAND_INS = (
    (m.APPROX_KL_K1, m.APPROX_KL, ("high", "very_high")),
    (m.EXPLAINED_VARIANCE_POST, m.EXPLAINED_VARIANCE, ("good", "useless")),
    (m.R2, m.EXPLAINED_VARIANCE, ("good", "useless")),
    (m.ENV_RETURN_MA100, m.ENV_EPISODE_RETURN, ("finite",)),
    (m.SCORE, m.ENV_EPISODE_RETURN, ("finite",)),
)
"""Metrics that are also judged by rules of another metric, in a log without the other: (metric, other, rules)."""
_FINITE = Rule("finite", "warn", Finite(), quiet=20)
"""Rule of every metric that is judged at all: what is not finite would else be left out, and the rest look healthy."""


@dataclass(frozen=True)
class Problem:
    """Rule that a run violated.

    Attributes:
        metric: name of the metric
        rule: name of the rule
        level: level of the alert
        value: value that raised the last alert; None if none was finite
        final: last value of the metric; None if none was finite
        demanded: demand of the rule
        cause: likely cause
        remedy: remedy to try
        since: position of the first entry that violated the rule
        until: position at which it was over; None if it is still active
        times: number of alerts
    """

    metric: str
    rule: str
    level: str
    value: float | None
    final: float | None
    demanded: str
    cause: str
    remedy: str
    since: int
    until: int | None
    times: int


@dataclass(frozen=True)
class Healthy:
    """Metric with rules, all of which are met at the end.

    Attributes:
        metric: name of the metric
        value: its last value
        demanded: usual range, or another demand
        usual: True if the value is in the usual range; one outside of it is no reason for an alert
    """

    metric: str
    value: float
    demanded: str
    usual: bool


@dataclass(frozen=True)
class Diagnosis:
    """Judgement of a run.

    Attributes:
        path: path of the log
        dialect: as in ``Log``
        axis: as in ``Log``
        reports: number of log entries
        first: position of the first entry
        last: position of the last entry
        standing: problems at the end, the gravest first
        past: problems that were over by the end
        healthy: metrics that are in order
        unknown: keys that could not be judged
        names: the log's own name of a metric, if it differs from the catalogue's
        notes: how the log was read, where that is not plain
    """

    path: str
    dialect: str
    axis: str
    reports: int
    first: int
    last: int
    standing: list[Problem]
    past: list[Problem]
    healthy: list[Healthy]
    unknown: list[str]
    names: dict[str, str]
    notes: list[str]

    @property
    def verdict(self) -> str:
        """``healthy``, or the gravest level at the end."""
        return self.standing[0].level if self.standing else "healthy"

    def as_json(self) -> dict[str, Any]:
        """Returns all fields, and the verdict."""
        return {"verdict": self.verdict, **asdict(self)}


def diagnose(path: Path, dialect: str | None = None) -> Diagnosis:
    """Judges a run.

    Args:
        path: run directory, ``metrics.jsonl`` or other JSON lines, CSV, or TensorBoard event files or their folder
        dialect: system whose names it uses, one of ``READABLE``; None detects it
    Raises:
        ConfigError: the log cannot be judged.
    """
    if dialect is not None and dialect not in READABLE:
        raise ConfigError(f"--dialect is {dialect!r}; legal are {', '.join(READABLE)}{nearest(dialect, READABLE)}")
    diagnosis = diagnose_log(path, read(path, dialect))
    if diagnosis.dialect != OURS and not (diagnosis.standing or diagnosis.past or diagnosis.healthy):
        raise ConfigError(
            f"{path} holds no number of {SYSTEM_TITLES[diagnosis.dialect]} that a rule could judge, only "
            f"{', '.join([*diagnosis.names.values(), *diagnosis.unknown][:5])}; give the log of the learner, or name "
            "another --dialect."
        )
    return diagnosis


def diagnose_log(path: Path, log: Log) -> Diagnosis:
    """Judges the log of a run that has been read from a path."""
    metrics = _judged_by(log)
    monitor = Monitor(metrics, *log.stages[0])
    changes: list[Alert] = []
    series: dict[str, array[float]] = {}
    first = last = 0
    for number, entry in enumerate(log.entries):
        first, last = entry.at if number == 0 else first, entry.at
        monitor.variables, monitor.tags = log.stage(entry)
        changes += monitor.judge(
            entry.at,
            entry.values,
            percentiles=entry.percentiles,
            nonfinite=entry.nonfinite,
            progress=entry.progress,
        )
        for name, value in entry.values.items():
            series.setdefault(name, array("d")).append(value)
    problems = _problems(changes, {name: values[-1] for name, values in series.items()}, log.names)
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
        len(log.entries),
        first,
        last,
        [problem for problem in problems if problem.until is None],
        [problem for problem in problems if problem.until is not None],
        healthy,
        log.unknown,
        log.names,
        log.notes,
    )


def _healthy(metric: Metric, values: Sequence[float], tags: frozenset[str]) -> Healthy:
    """Describes a metric by its usual range, or by the first demand other than being finite."""
    view = View(values, values[0], [{metric.name: values[-1]}], {})
    for rule in metric.rules:
        if rule.level == "ok" and rule.applies(view, tags):
            return Healthy(metric.name, view.value, str(rule.check), not rule.check.violated(view))
    checks = [rule.check for rule in metric.rules]
    check = next((check for check in checks if not isinstance(check, Finite)), checks[0])
    usual = not (isinstance(check, Band) and check.violated(view))  # which raises no alert where its rule waits
    return Healthy(metric.name, view.value, str(check), usual)


def _problems(changes: Sequence[Alert], last: Mapping[str, float], names: Mapping[str, str]) -> list[Problem]:
    """Lists the violated rules, the gravest and earliest first; a graver one covers another of the same cause."""
    problems: dict[tuple[str, str], Problem] = {}
    for alert in changes:
        key = (alert.metric, alert.rule)
        if alert.cleared:
            problems[key] = replace(problems[key], until=alert.iteration)
            continue
        before = problems.get(key)
        problems[key] = Problem(
            *(alert.metric, alert.rule, alert.level, alert.value, last.get(alert.metric)),
            *(alert.demanded, alert.cause, alert.remedy),
            since=before.since if before else alert.since,
            until=None,
            times=before.times + 1 if before else 1,
        )
    graver_first = sorted(problems.values(), key=lambda problem: (-LEVELS.index(problem.level), problem.since))
    covered: dict[tuple[str, str, bool], Problem] = {}
    for problem in graver_first:
        called = names.get(problem.metric, problem.metric)
        covered.setdefault((called, problem.cause or problem.rule, problem.until is None), problem)
    return list(covered.values())


def _judged_by(log: Log) -> dict[str, Metric]:
    """Returns the metrics with the rules that apply to this log."""
    metrics = dict(log.metrics)
    for stand_in, other, rules in _STAND_INS:
        if other.name not in log.seen:
            borrowed = [rule for rule in other.rules if rule.name in rules]
            declared = [rule for rule in stand_in.rules if rule.name not in rules]
            signs = {**other.signs, **stand_in.signs}
            metrics[stand_in.name] = replace(stand_in, rules=(*borrowed, *declared), signs=signs)
    return {name: _demanding_finite(metric) for name, metric in metrics.items()}


def _demanding_finite(metric: Metric) -> Metric:
    """Returns a metric with rules with one more, that it is finite, unless it has that already."""
    declared = any(isinstance(rule.check, Finite) for rule in metric.rules)
    return metric if declared or not metric.rules else replace(metric, rules=(*metric.rules, _FINITE))
