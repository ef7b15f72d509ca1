"""Sections on the health of a run: alerts over time, and what to try next."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from rlpipe.analysis.diagnosis import Diagnosis, Problem
from rlpipe.errors import command_line
from rlpipe.metrics.alerts import ToldAlerts
from rlpipe.metrics.row import Event
from rlpipe.metrics.rules import LEVELS
from rlpipe.report import formats
from rlpipe.report.run_content import RunContent
from rlpipe.report.web.page import Section, render

MOST_ALERTS = 300
STYLES = {"critical": "bad", "warn": "warn", "info": "info"}


def violations(content: RunContent) -> list[Problem]:
    """Lists what the run reported while it trained; of another system's log, what the diagnosis found."""
    if not content.is_ours:
        return [] if content.diagnosis is None else [*content.diagnosis.standing, *content.diagnosis.past]
    alerts = ToldAlerts()
    for event in content.events:
        alerts.add(Event(**event))
    problems: list[Problem] = []
    places: dict[tuple[str, str], int] = {}  # of the problems that are not over
    for alert in alerts.events:
        data = alert.data
        metric, rule = str(data.get("metric", "")), str(data.get("rule", ""))
        if data.get("cleared"):
            if (place := places.pop((metric, rule), None)) is not None:
                problems[place] = replace(problems[place], until=alert.iteration)
        elif (metric, rule) not in places:
            demanded, cause, remedy = (str(data.get(name, "")) for name in ("demanded", "cause", "remedy"))
            places[metric, rule] = len(problems)
            problems.append(Problem(
                metric, rule, str(data.get("level", "info")), data.get("value"), None, demanded, cause, remedy,
                since=int(data.get("since", alert.iteration)), until=None, times=1,
            ))  # fmt: skip
    return problems


def health_section(content: RunContent) -> Section | None:
    """Alerts as lanes over the run and as a table; None for a run without rows."""
    diagnosis = content.diagnosis
    if diagnosis is None:
        return None
    every = sorted(violations(content), key=lambda problem: (-LEVELS.index(problem.level), problem.since))
    gravest = every[:MOST_ALERTS]
    unit = "iteration" if diagnosis.axis == "iteration" else "step"
    note = (
        f"Each metric is judged by the rules it is declared with. A bar reaches from the {unit} in which a rule was "
        "first violated to that in which it was met again."
        if gravest
        else "Each metric is judged by the rules it is declared with; none was violated."
    )
    if len(every) > len(gravest):
        note += f" These are the gravest {len(gravest):,} of {len(every):,} alerts; events.jsonl has all of them."
    return Section(
        "health",
        "Health",
        render(
            "report/health.html",
            note=note,
            lanes=_lanes(gravest, diagnosis),
            low=f"{unit} {diagnosis.first:,}",
            high=f"{diagnosis.last:,}",
            table=gravest,
            styles=STYLES,
            healthy=diagnosis.healthy,
            nonfinite=", ".join(f"{name} {count:,}" for name, count in content.course.nonfinite.items()),
        ),
    )


def _lanes(problems: Sequence[Problem], diagnosis: Diagnosis) -> list[dict[str, Any]]:
    first, length = diagnosis.first, max(1, diagnosis.last - diagnosis.first)
    lanes: dict[str, list[Problem]] = {}
    for problem in problems:
        lanes.setdefault(problem.metric, []).append(problem)
    return [
        {
            "name": metric,
            "summary": ", ".join(f"{problem.level} {_span(problem)}" for problem in lane),
            "bars": [
                {
                    "style": bar.level,
                    "left": round(100 * max(0, bar.since - first) / length, 2),
                    "width": round(100 * max(0, (bar.until or diagnosis.last) - max(bar.since, first)) / length, 2),
                    "title": f"{bar.level}: {formats.digits(bar.value)}, healthy {bar.demanded}, {_span(bar)}",
                }
                for bar in sorted(lane, key=lambda problem: LEVELS.index(problem.level))
            ],
        }
        for metric, lane in lanes.items()
    ]


def _span(problem: Problem) -> str:
    return f"from {problem.since:,} to " + ("the end" if problem.until is None else f"{problem.until:,}")


def next_section(content: RunContent) -> Section | None:
    """Findings of ``rlpipe diagnose`` at the end of the run, and commands that continue it."""
    diagnosis = content.diagnosis
    if diagnosis is None:
        return None
    note = "No rule is violated at the end of the run." if not diagnosis.standing else (
        "Rules that are violated at the end of the run, the gravest first, as rlpipe diagnose has them.")  # fmt: skip
    commands = []
    if content.is_ours:
        commands = [command_line("evaluate", content.path, "--episodes", 400), command_line("diagnose", content.path)]
        if content.record.get("status") != "completed":
            commands.insert(0, command_line("train", "--resume", content.path))
    html = render("report/next.html", note=note, diagnosis=diagnosis, styles=STYLES, commands=commands)
    return Section("next", "What to try next", html)
