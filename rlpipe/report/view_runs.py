"""Section on several runs: results, differences, protocol."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rlpipe.analysis.comparison import Comparison
from rlpipe.analysis.evaluated_run import ORIGINS
from rlpipe.report import formats
from rlpipe.report.curves import short_label
from rlpipe.report.forest import Line, forest
from rlpipe.report.run_content import RunContent
from rlpipe.report.several import Together
from rlpipe.report.view_lead import STATUS_KINDS, VERDICTS, is_share
from rlpipe.report.web.page import Section, render


def runs_section(contents: Sequence[RunContent], found: Together) -> Section:
    """Table of the runs, and their comparison where there is one."""
    values: dict[str, Any] = {
        "note": f"These runs are not compared. {found.reason}", "forest": None, "warnings": [], "differences": [],
        "first": "", "difference_forest": None, "reached": [], "reached_title": "", "tasks": [],
        "groups": found.groups, "reading": [],
    }  # fmt: skip
    if found.comparison is not None:
        values |= _comparison(found.comparison)
    html = render(
        "report/runs.html",
        runs=[_run(content, found.groups[group]) for content, group in zip(contents, found.group_of, strict=True)],
        differing=found.differing,
        names=[short_label(content, contents) for content in contents],
        **values,
    )
    return Section("runs", "Runs", html)


def _run(content: RunContent, group: str) -> dict[str, Any]:
    headline, course = content.headline, content.course
    status = content.record.get("status", "log")
    seconds, steps = course.axes.get("seconds"), course.axes.get("steps")
    return {
        "name": content.label,
        "group": group,
        "status": status,
        "status_kind": STATUS_KINDS.get(status, ""),
        "metric": "" if headline is None else headline.metric,
        "value": formats.ABSENT if headline is None else formats.result(headline.value),
        "bounds": formats.ABSENT if headline is None else formats.bounds(headline.low, headline.high) or formats.ABSENT,
        "episodes": formats.ABSENT if headline is None or headline.episodes is None else f"{headline.episodes:,}",
        "steps": f"{steps[-1]:,.0f}" if steps else formats.ABSENT,
        "seconds": formats.duration(seconds[-1]) if seconds else formats.ABSENT,
        "health": formats.ABSENT if content.diagnosis is None else VERDICTS[content.diagnosis.verdict],
    }


def _comparison(comparison: Comparison) -> dict[str, Any]:
    share, lines = is_share(comparison.metric), []
    for number, group in enumerate(comparison.groups):
        pooled, colour = group.pooled, f"series-{number % 8 + 1}"
        seeds = f"n {pooled.episodes:,}, {len(group.runs)} seed{'s' if len(group.runs) > 1 else ''}"
        lines.append(Line(group.label, pooled.value, pooled.low, pooled.high, colour, seeds))
        if len(group.by_seed) > 1:
            labelled = zip(group.run_labels, group.by_seed, strict=True)
            lines += [Line(label, value, None, None, colour, minor=True) for label, (_, value) in labelled]
    for baseline in comparison.baselines:
        one = baseline.result
        lines.append(Line(baseline.label, one.value, one.low, one.high, "muted", f"n {one.episodes:,}", minor=True))
    differences = [
        Line(one.label, one.value, one.low, one.high, f"series-{number % 8 + 1}")
        for number, one in enumerate(comparison.differences, 1)
    ]
    return {
        "note": f"{comparison.metric} over the episodes of the last evaluation of each run, as rlpipe compare pools "
        "them. A group holds runs that differ only in their seed.",
        "forest": forest(lines, is_share=share),
        "warnings": comparison.warnings,
        "first": comparison.groups[0].label,
        "differences": [_difference(one) for one in comparison.differences],
        "difference_forest": forest(differences, is_share=share, signed=True) if differences else None,
        "reached": [_reached(group) for group in comparison.groups if group.reached is not None],
        "reached_title": f"{comparison.metric} of {comparison.level:g} or more" if comparison.level is not None else "",
        "groups": [group.label for group in comparison.groups],
        "tasks": [
            [task.task, *(f"{formats.result(one.value)} {formats.bounds(one.low, one.high)}" for one in task.pooled)]
            for task in comparison.tasks
        ],
        "reading": _reading(comparison),
    }


def _difference(one: Any) -> list[str]:
    plus = "+" if one.value > 0 else ""
    chance = [formats.ABSENT, "one seed"]
    if one.probability is not None:
        value, low, high = one.probability
        chance = [f"{value:.2f}", formats.ABSENT if low is None or high is None else f"[{low:.2f}, {high:.2f}]"]
    return [one.label, plus + formats.result(one.value), formats.bounds(one.low, one.high, signed=True), *chance]


def _reached(group: Any) -> list[str]:
    found, bound = group.reached, "<= " if group.reached.at_the_latest else ""
    return [
        group.label,
        f"{found.runs} of {found.of}",
        formats.ABSENT if found.steps is None else f"{bound}{found.steps:,.0f}",
        formats.ABSENT if found.seconds is None else f"{bound}{formats.duration(found.seconds)}",
    ]


def _reading(comparison: Comparison) -> list[str]:
    """Notes that a reader needs to understand the numbers."""
    notes = []
    if any(len(group.runs) > 1 for group in comparison.groups):
        notes.append("Intervals of several seeds also contain the bootstrap interval over seeds and episodes.")
    if comparison.differences and not all(one.over_seeds for one in comparison.differences):
        notes.append("With one seed, the interval of a difference does not include the variation between seeds.")
    if any(one.probability is not None for one in comparison.differences):
        notes.append("P(better): how likely a run beats one of the first group; ties count half (Agarwal et al. 2021).")
    if any(group.reached is not None and group.reached.at_the_latest for group in comparison.groups):
        notes.append("<=: evaluated only at the end, so the level may have been reached before.")
    runs = [run for group in comparison.groups for run in group.runs]
    notes += [f"{key}: {note}." for key, note in ORIGINS.items() if any(run.config.get(key) for run in runs)]
    return notes
