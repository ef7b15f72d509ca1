"""Sections on the health of a run: alerts over time, and what to try next."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from rlpipe.analysis.diagnosis import Diagnosis
from rlpipe.errors import command_line
from rlpipe.metrics.alerts import ToldAlerts
from rlpipe.metrics.row import Event
from rlpipe.metrics.rules import LEVELS
from rlpipe.report import formats
from rlpipe.report.run_content import RunContent
from rlpipe.report.web.page import Section, render

MOST_ALERTS = 300
STYLES = {"critical": "bad", "warn": "warn", "info": "info"}


@dataclass
class Violation:
    """Time during which a rule was not met.

    Attributes:
        metric: judged metric
        rule: name of its rule
        level: level of the alert
        value: value that raised it
        demanded: demand of the rule
        cause: likely cause
        remedy: what to try
        since: position at which it began
        until: position at which it was over; None if it was not
    """

    metric: str
    rule: str
    level: str
    value: float | None
    demanded: str
    cause: str
    remedy: str
    since: int
    until: int | None


def violations(content: RunContent) -> list[Violation]:
    """Lists what the run reported while it trained; of another system's log, what the diagnosis found."""
    if not content.is_ours:
        diagnosis = content.diagnosis
        found = [] if diagnosis is None else [*diagnosis.standing, *diagnosis.past]
        return [
            Violation(
                one.metric, one.rule, one.level, one.value, one.demanded, one.cause, one.remedy, one.since, one.until
            )
            for one in found
        ]  # fmt: skip
    open_ones: dict[tuple[str, str], Violation] = {}
    found_here: list[Violation] = []
    told = ToldAlerts()
    for event in content.events:
        told.add(Event(**event))
    for alert in told.events:
        data = alert.data
        key = (str(data.get("metric", "")), str(data.get("rule", "")))
        if data.get("cleared"):
            if key in open_ones:
                open_ones.pop(key).until = alert.iteration
        elif key not in open_ones:
            demanded, cause, remedy = (str(data.get(name, "")) for name in ("demanded", "cause", "remedy"))
            level, since = str(data.get("level", "info")), int(data.get("since", alert.iteration))
            open_ones[key] = Violation(*key, level, data.get("value"), demanded, cause, remedy, since, None)
            found_here.append(open_ones[key])
    return found_here


def health_section(content: RunContent) -> Section | None:
    """Alerts as lanes over the run and as a table; None for a run without rows."""
    diagnosis = content.diagnosis
    if diagnosis is None:
        return None
    every = sorted(violations(content), key=lambda one: (-LEVELS.index(one.level), one.since))
    found = every[:MOST_ALERTS]
    unit = "iteration" if diagnosis.axis == "iteration" else "step"
    note = (
        f"Each metric is judged by the rules it is declared with. A bar reaches from the {unit} in which a rule was "
        "first violated to that in which it was met again."
        if found
        else "Each metric is judged by the rules it is declared with; none was violated."
    )
    if len(every) > len(found):
        note += f" These are the gravest {len(found):,} of {len(every):,} alerts; events.jsonl has all of them."
    return Section(
        "health",
        "Health",
        render(
            "report/health.html",
            note=note,
            lanes=_lanes(found, diagnosis),
            low=f"{unit} {diagnosis.first:,}",
            high=f"{diagnosis.last:,}",
            table=[_row(one) for one in found],
            healthy=[
                (one.metric, formats.digits(one.value), one.demanded if one.usual else f"usually {one.demanded}")
                for one in diagnosis.healthy
            ],
            nonfinite=", ".join(f"{name} {count:,}" for name, count in content.course.nonfinite.items()),
        ),
    )


def _lanes(found: list[Violation], diagnosis: Diagnosis) -> list[dict[str, Any]]:
    first, length = diagnosis.first, max(1, diagnosis.last - diagnosis.first)
    lanes: dict[str, list[Violation]] = {}
    for one in found:
        lanes.setdefault(one.metric, []).append(one)
    return [
        {
            "name": metric,
            "summary": ", ".join(f"{one.level} {_span(one)}" for one in ones),
            "bars": [
                {
                    "style": one.level,
                    "left": round(100 * max(0, one.since - first) / length, 2),
                    "width": round(100 * max(0, (one.until or diagnosis.last) - max(one.since, first)) / length, 2),
                    "title": f"{one.level}: {formats.digits(one.value)}, healthy {one.demanded}, {_span(one)}",
                }
                for one in sorted(ones, key=lambda one: LEVELS.index(one.level))
            ],
        }
        for metric, ones in lanes.items()
    ]


def _span(one: Violation) -> str:
    return f"from {one.since:,} to the end" if one.until is None else f"from {one.since:,} to {one.until:,}"


def _row(one: Violation) -> dict[str, Any]:
    return {
        "metric": one.metric, "level": one.level, "style": STYLES.get(one.level, ""), "since": f"{one.since:,}",
        "until": "end" if one.until is None else f"{one.until:,}", "value": formats.digits(one.value),
        "demanded": one.demanded, "cause": one.cause, "remedy": one.remedy,
    }  # fmt: skip


def next_section(content: RunContent) -> Section | None:
    """Findings of ``rlpipe diagnose`` at the end of the run, and commands that continue it."""
    diagnosis = content.diagnosis
    if diagnosis is None:
        return None
    findings = [
        {
            "metric": one.metric,
            "level": one.level,
            "style": STYLES.get(one.level, ""),
            "value": formats.digits(one.value),
            "demanded": one.demanded,
            "since": f"{diagnosis.axis} {one.since:,}",
            "cause": one.cause,
            "remedy": one.remedy,
        }
        for one in diagnosis.standing
    ]
    note = "No rule is violated at the end of the run." if not findings else (
        "Rules that are violated at the end of the run, the gravest first, as rlpipe diagnose has them.")  # fmt: skip
    return Section("next", "What to try next", render(
        "report/next.html", note=note, findings=findings, commands=_commands(content)))  # fmt: skip


def _commands(content: RunContent) -> list[str]:
    if not content.is_ours:
        return []
    status = content.record.get("status")
    found = [] if status == "completed" else [command_line("train", "--resume", content.path)]
    return [*found, command_line("evaluate", content.path, "--episodes", 400), command_line("diagnose", content.path)]
