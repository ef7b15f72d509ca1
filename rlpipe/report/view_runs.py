"""Section on several runs: results, differences, protocol."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rlpipe.analysis.comparison import Comparison
from rlpipe.analysis.evaluated_run import ORIGINS
from rlpipe.report.curves import short_label
from rlpipe.report.forest import Line, forest
from rlpipe.report.run_content import RunContent
from rlpipe.report.several import Together
from rlpipe.report.view_lead import STATUS_KINDS, VERDICTS, is_share
from rlpipe.report.web.page import Section, render


def runs_section(contents: Sequence[RunContent], several: Together) -> Section:
    """Table of the runs, and their comparison where there is one."""
    values: dict[str, Any] = {"note": f"These runs are not compared. {several.reason}", "comparison": None}
    if several.comparison is not None:
        values = _comparison(several.comparison)
    html = render(
        "report/runs.html",
        runs=[(content, several.groups[group]) for content, group in zip(contents, several.group_of, strict=True)],
        status_kinds=STATUS_KINDS,
        verdicts=VERDICTS,
        differing=several.differing,
        names=[short_label(content, contents) for content in contents],
        **values,
    )
    return Section("runs", "Runs", html)


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
        result = baseline.result
        lines.append(
            Line(baseline.label, result.value, result.low, result.high, "muted", f"n {result.episodes:,}", minor=True)
        )
    differences = [
        Line(difference.label, difference.value, difference.low, difference.high, f"series-{number % 8 + 1}")
        for number, difference in enumerate(comparison.differences, 1)
    ]
    return {
        "note": f"{comparison.metric} over the episodes of the last evaluation of each run, as rlpipe compare pools "
        "them. A group holds runs that differ only in their seed.",
        "comparison": comparison,
        "forest": forest(lines, is_share=share),
        "difference_forest": forest(differences, is_share=share, signed=True) if differences else None,
        "reached": [group for group in comparison.groups if group.reached is not None],
        "reading": _reading(comparison),
    }


def _reading(comparison: Comparison) -> list[str]:
    """Notes that a reader needs to understand the numbers."""
    notes = []
    if any(len(group.runs) > 1 for group in comparison.groups):
        notes.append("Intervals of several seeds are never narrower than those over seeds and episodes (Student's t).")
    if comparison.differences and not all(difference.over_seeds for difference in comparison.differences):
        notes.append("With one seed, the interval of a difference does not include the variation between seeds.")
    if any(difference.probability is not None for difference in comparison.differences):
        notes.append("P(better): how likely a run beats one of the first group; ties count half (Agarwal et al. 2021).")
    if any(group.reached is not None and group.reached.at_the_latest for group in comparison.groups):
        notes.append("<=: evaluated only at the end, so the level may have been reached before.")
    runs = [run for group in comparison.groups for run in group.runs]
    notes += [f"{key}: {note}." for key, note in ORIGINS.items() if any(run.config.get(key) for run in runs)]
    return notes
