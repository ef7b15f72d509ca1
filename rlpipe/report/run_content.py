"""Content of a report on one run, collected from its files: plain numbers and texts, nothing of how they look."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

from rlpipe import files
from rlpipe.analysis import logs
from rlpipe.analysis.baselines import BaselineResult, baselines_of
from rlpipe.analysis.diagnosis import Diagnosis, diagnose_log
from rlpipe.analysis.evaluated_run import EvaluatedRun, policy_label
from rlpipe.analysis.evaluation_report import EVALUATIONS, Estimate, estimate, estimates, records_in
from rlpipe.analysis.stress import STRESS
from rlpipe.analysis.timeline import Timeline
from rlpipe.analysis.timeline import read as read_timeline
from rlpipe.analysis.watching import latest
from rlpipe.config.defaults import changed, completed
from rlpipe.config.protocol import comparable
from rlpipe.errors import ConfigError
from rlpipe.functional.intervals import wilson_interval
from rlpipe.metrics import CATALOGUE
from rlpipe.metrics import catalogue as m
from rlpipe.metrics.declaration import Metric
from rlpipe.report.course import Course, course_of_log, read_course
from rlpipe.report.ledger import Ledger, read_evaluations, read_ledger
from rlpipe.run import shapes
from rlpipe.run.directory import EVENTS, RunDirectory, read_jsonl
from rlpipe.trajectory import Episode

PHASES = (
    m.GENERATE_ROLLOUTS, m.CAL_ADVANTAGES, m.ACTOR_TRAINING, m.SYNC_WEIGHTS, m.EVAL_TIME, m.CHECKPOINT_TIME,
    m.LOG_TIME, m.OTHER_TIME,
)  # fmt: skip
"""Phases of the driver's clock, which add up to ``time/step`` (docs/exactness.md#time-accounting)."""


@dataclass(frozen=True)
class Headline:
    """Result of a run in one number.

    Attributes:
        metric: metric that it is
        value: its value
        low: lower 95 % bound; None where there is none
        high: upper 95 % bound
        episodes: number of episodes; None where the log does not say
        source: sentence on where it was measured
    """

    metric: str
    value: float
    low: float | None
    high: float | None
    episodes: int | None
    source: str


class Populations(NamedTuple):
    """Words for training episodes as the task draws them, and as a curriculum chose them.

    Attributes:
        own: how the task's own began, as the end of a sentence.
        chosen: how those of the curriculum began.
        of_own: a phrase that says the same.
        of_chosen: likewise.
        all_alike: a phrase for all of both.
        column: heading of the column that tells them apart.
    """

    own: str
    chosen: str
    of_own: str
    of_chosen: str
    all_alike: str
    column: str


STARTS = Populations(
    "began as the task begins", "began where the curriculum chose", "from the task's own starts",
    "from the curriculum's starts", "wherever they began", "began",
)  # fmt: skip
RANGES = Populations(
    "varied over the widest ranges", "varied within the present ranges", "over the widest ranges",
    "within the present ranges", "however they varied", "varied",
)  # fmt: skip


@dataclass(frozen=True)
class RunContent:
    """Everything that a report says about one run; what a run does not have is empty or None.

    Attributes:
        path: directory or file that was read
        label: name of the run in legends
        record: ``run.json``; empty for another system's log
        dialect: system that wrote the log
        course: metrics over the run
        metrics: declared metrics by name
        headline: result in one number
        baselines: policies that have learnt nothing, in the same episodes
        events: lines of ``events.jsonl``
        diagnosis: judgement of all rows
        ledger: training episodes
        evaluations: newest evaluation episodes, by the iteration after which they ran
        evaluations_left_out: number of older evaluations
        recorded: (file, policy, record, estimates) of each ``rlpipe evaluate``, the newest first
        stress: file and record of the newest ``rlpipe stress``
        timeline: newest iteration by actor
        phases: seconds of each phase of the driver over the run
        settings: all configuration keys, dotted; those that came after the run have their defaults
        changed: keys whose value is not their default, with it: (value, default); None if the defaults are unknown,
            because a plug-in is not installed here
        missing: sentences on what could not be read, and why
    """

    path: Path
    label: str
    record: Mapping[str, Any]
    dialect: str
    course: Course
    metrics: Mapping[str, Metric]
    headline: Headline | None = None
    baselines: list[BaselineResult] = field(default_factory=list)
    events: list[dict[str, Any]] = field(default_factory=list)
    diagnosis: Diagnosis | None = None
    ledger: Ledger | None = None
    evaluations: Mapping[int, list[dict[str, Any]]] = field(default_factory=dict)
    evaluations_left_out: int = 0
    recorded: list[tuple[str, str, shapes.EvaluationRecord, list[Estimate]]] = field(default_factory=list)
    stress: tuple[str, shapes.StressRecord] | None = None
    timeline: Timeline | None = None
    phases: dict[str, float] = field(default_factory=dict)
    settings: dict[str, Any] | None = None
    changed: dict[str, tuple[Any, Any]] | None = None
    missing: list[str] = field(default_factory=list)

    @property
    def is_ours(self) -> bool:
        """True for a run of rlpipe."""
        return self.dialect == logs.OURS

    @property
    def populations(self) -> Populations:
        """Words for the episodes that a curriculum tells apart."""
        return RANGES if m.CURRICULUM_WIDTH.name in self.course.series else STARTS

    def metric(self, name: str) -> Metric | None:
        """Returns the declaration of a metric, also of a family's member or of one worker's."""
        bare = name.split("/", 2)[2] if name.startswith("workers/") else name
        metric = self.metrics.get(bare)
        if metric is None:
            families = (family for family in self.metrics.values() if family.is_family)
            match = next(((family, hit) for family in families if (hit := family.pattern.fullmatch(bare))), None)
            metric = match[0].member(match[1][1]) if match else None
        return metric


def collect(path: Path) -> RunContent:
    """Collects the content of a run directory, or of another system's log."""
    if (path / "run.json").is_file() or (path / "config.yaml").is_file():
        return _of_run(RunDirectory.existing(path))
    log = logs.read(path)
    diagnosis = diagnose_log(path, log)
    content = RunContent(
        path=path, label=path.name, record={}, dialect=log.dialect, course=course_of_log(log), metrics=log.metrics,
        diagnosis=diagnosis,
    )  # fmt: skip
    return replace(content, headline=_while_training(content))


def _of_run(directory: RunDirectory) -> RunContent:
    path, record = directory.path, directory.read_json()
    course = read_course(path)
    evaluations, left_out = read_evaluations(path, course)
    tree = directory.read_config()
    differing, missing = None, []
    try:
        differing = changed(tree)
    except (ConfigError, ImportError) as error:
        missing.append(f"Which keys differ from their defaults is unknown: {error}")
    content = RunContent(
        path=path,
        label=directory.run_id,
        record=record,
        dialect=logs.OURS,
        course=course,
        metrics=CATALOGUE,
        events=list(read_jsonl(path / EVENTS)) if (path / EVENTS).is_file() else [],
        ledger=read_ledger(path, course),
        evaluations=evaluations,
        evaluations_left_out=left_out,
        recorded=[_recorded(file) for file in records_in(path / EVALUATIONS)],
        stress=_newest_stress(path),
        phases=_phases(course),
        settings=completed(tree),
        changed=differing,
        missing=missing,
    )
    if not course.rows:
        return content
    log = logs.read(path)
    content = replace(content, metrics=log.metrics, diagnosis=diagnose_log(path, log))
    try:
        content = replace(content, timeline=read_timeline(directory))
    except ConfigError as error:
        missing.append(f"No timeline of single actors: {error}")
    return _with_result(content)


def _recorded(file: Path) -> tuple[str, str, shapes.EvaluationRecord, list[Estimate]]:
    record = files.read(file, shapes.EvaluationRecord)
    policy, episodes = record.get("policy"), [Episode.from_row(row) for row in record["episodes"]]
    label = policy_label(policy, record["protocol"]) if policy else f"iteration {record['iteration']}"
    return f"{EVALUATIONS}/{file.name}", label, record, estimates(episodes)


def _newest_stress(path: Path) -> tuple[str, shapes.StressRecord] | None:
    file = next(iter(records_in(path / STRESS)), None)
    return None if file is None else (f"{STRESS}/{file.name}", files.read(file, shapes.StressRecord))


def _phases(course: Course) -> dict[str, float]:
    """Returns the seconds of each phase of the driver, the first to happen first; they add up to ``time/step``.

    Version 0.1 left out the gradient steps of a learner that computes no advantages, so these are the rest.
    """
    seconds_of = {phase.name: _total(course, phase) for phase in PHASES}
    seconds_of[m.ACTOR_TRAINING.name] += max(0.0, _total(course, m.STEP) - math.fsum(seconds_of.values()))
    return {name: seconds for name, seconds in seconds_of.items() if seconds}


def _total(course: Course, metric: Metric) -> float:
    """Returns the sum of a metric over the rows; 0 without any."""
    series = course.series.get(metric.name)
    return math.fsum(series.values) if series else 0.0


def _with_result(content: RunContent) -> RunContent:
    """Adds the result: that which ``rlpipe compare`` would use, else the newest one while training."""
    try:
        run = EvaluatedRun.read(content.path)
    except ConfigError:  # it has not completed, or its last iteration was not evaluated
        return replace(content, headline=_while_training(content))
    for metric in (m.EVAL_SUCCESS_ONCE, m.EVAL_EPISODE_RETURN):
        if (result := estimate(metric, run.episodes)) is not None:
            break
    else:
        return content
    source = "held-out episodes after the last iteration"
    if run.source.parent.name == EVALUATIONS:
        source += f", by rlpipe evaluate ({EVALUATIONS}/{run.source.name})"
        now, before = comparable(run.protocol), comparable(run.while_training)
        others = sorted(key for key in now if now[key] != before.get(key) and key != "evaluation.episodes")
        if others:
            source += f", which differs from the evaluations while training in {', '.join(others)}"
    headline = Headline(result.metric, result.value, result.low, result.high, result.episodes, source)
    return replace(content, headline=headline, baselines=baselines_of([run], metric))


def _while_training(content: RunContent) -> Headline | None:
    """Returns the newest success in evaluations, else in training episodes, else the newest return."""
    course = content.course
    axis = "iteration" if "iteration" in course.axes else "steps"
    for metric, count, kind in (
        (m.EVAL_SUCCESS_ONCE, m.EVAL_NUM_TRAJECTORIES, "held-out episodes"),
        (m.ENV_SUCCESS_ONCE, m.ENV_NUM_TRAJECTORIES, "training episodes"),
        (m.EVAL_EPISODE_RETURN, m.EVAL_NUM_TRAJECTORIES, "held-out episodes"),
        (m.ENV_EPISODE_RETURN, m.ENV_NUM_TRAJECTORIES, "training episodes"),
        (m.ENV_RETURN_MA100, None, "the latest 100 training episodes"),
    ):
        series = course.series.get(metric.name)
        if not series:
            continue
        at, value = series.at[-1], series.values[-1]
        counts = course.series.get(count.name) if count else None
        episodes, of = None, "of"
        if counts and at in counts.at:
            number = dict(zip(counts.at, counts.values, strict=True))
            values = zip(series.at, series.values, strict=True)
            counted = [(value, number[place]) for place, value in values if place in number]
            trained = count is m.ENV_NUM_TRAJECTORIES
            value, episodes = latest(counted if trained else counted[-1:])
            of = "up to" if trained else "of"
        low = high = None
        if episodes and metric in (m.EVAL_SUCCESS_ONCE, m.ENV_SUCCESS_ONCE):
            low, high = wilson_interval(round(value * episodes), episodes)
        where = f"{kind} {of} {axis if axis == 'iteration' else 'step'} {course.axes[axis][at]:,.0f}"
        return Headline(metric.name, value, low, high, episodes, where)
    return None
