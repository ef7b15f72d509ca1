"""Top of a report: names, status, result, the fault of a failed run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from markupsafe import Markup

from rlpipe.analysis.baselines import BaselineResult
from rlpipe.analysis.diagnosis import Diagnosis
from rlpipe.metrics import CATALOGUE
from rlpipe.metrics import catalogue as m
from rlpipe.metrics.descriptions import SYSTEM_TITLES
from rlpipe.metrics.reductions import Mean
from rlpipe.metrics.row import Status
from rlpipe.report import formats
from rlpipe.report.forest import Line, forest
from rlpipe.report.run_content import Headline, RunContent
from rlpipe.report.several import Together
from rlpipe.report.web.page import render

STATUS_KINDS = {
    Status.COMPLETED: "good", Status.FAILED: "bad", Status.STOPPED: "bad", Status.INTERRUPTED: "warn",
    Status.RUNNING: "info",
}  # fmt: skip
VERDICTS = {"critical": "broken", "warn": "has problems", "info": "healthy", "healthy": "healthy"}


def is_share(metric: str) -> bool:
    """True if a metric is a share of episodes, which has a scale of its own."""
    declaration = CATALOGUE.get(metric)
    return declaration is not None and declaration.reduction is Mean


def lead_of_run(content: RunContent) -> Markup:
    """Renders the top of a report on one run."""
    record, course = content.record, content.course
    byline, notes = [], []
    if content.is_ours:
        title, status = record["experiment"], record["status"]
        byline += [content.label, f"started {formats.moment(record['created'])}"]
        eyebrow = _task(content)
    else:
        title, status = content.label, SYSTEM_TITLES.get(content.dialect, content.dialect)
        byline.append(f"{course.rows:,} reports, read with the names of {status}")
        eyebrow = "Log of another system"
        notes.append(
            {"kind": "", "text": "This log holds numbers over time and nothing else, so there are no episodes, no "
                                 "configuration, no events and no times: those sections are absent."}
        )  # fmt: skip
    if content.is_ours and not course.rows:
        notes.append({"kind": "warn", "text": "No iteration was completed, so there are no numbers to show."})
    if status == Status.RUNNING:
        notes.append({"kind": "", "text": "The run was in progress, or was killed, when this page was written."})
    notes += [{"kind": "warn", "text": text} for text in content.missing]
    return render(
        "report/lead.html",
        eyebrow=eyebrow,
        title=title,
        status=status,
        status_kind=STATUS_KINDS.get(status, "info"),
        byline=byline,
        hero=None if content.headline is None else _hero(content.headline, content.baselines),
        notes=notes,
        fault=_fault(content),
        cards=_cards(content),
    )


def _task(content: RunContent) -> str:
    values = content.settings or {}
    names = (values.get("env.train.name"), values.get("env.train.id"), values.get("algorithm.name"))
    return " · ".join(str(name) for name in names if name)


def _hero(headline: Headline, baselines: Sequence[BaselineResult]) -> dict[str, Any]:
    interval = formats.bounds(headline.low, headline.high)
    count = f"{headline.episodes:,} " if headline.episodes is not None else ""
    sentence = f"Over {count}{headline.source}." if headline.low is None else (
        f"95 % interval {interval} over {count}{headline.source}.")  # fmt: skip
    lines = [Line("this run", headline.value, headline.low, headline.high, detail=_episodes(headline.episodes))]
    for baseline in baselines:
        result = baseline.result
        lines.append(
            Line(baseline.label, result.value, result.low, result.high, "muted", _episodes(result.episodes), minor=True)
        )
    drawn = headline.low is not None and (is_share(headline.metric) or baselines)
    return {
        "value": formats.result(headline.value),
        "metric": headline.metric,
        "sentence": sentence,
        "forest": forest(lines, is_share=is_share(headline.metric)) if drawn else None,
    }


def _episodes(count: int | None) -> str:
    return "" if count is None else f"n {count:,}"


def _cards(content: RunContent) -> list[tuple[str, str, str]]:
    course, cards = content.course, []
    if steps := course.axes.get("steps"):
        cards.append(("environment steps", f"{steps[-1]:,.0f}", ""))
    if content.is_ours and (iterations := course.axes.get("iteration")):
        total = content.record.get("view", {}).get("total_iterations")
        cards.append(("iterations", f"{iterations[-1]:,.0f}", f"of {total:,}" if total else ""))
    if content.ledger is not None:
        rate = f"{content.ledger.successes:,} successful" if content.ledger.judged else ""
        if content.ledger.chosen_starts and rate:
            rate += f" of {content.ledger.judged:,} {content.populations.of_own}"
        cards.append(("training episodes", f"{content.ledger.total:,}", rate))
    if seconds := course.axes.get("seconds"):
        cards.append(("training time", formats.duration(seconds[-1]), "without start-up"))
    if (speed := course.last(m.FPS.name)) is not None:
        cards.append(("throughput", f"{formats.digits(speed)}", "steps/s over the run"))
    if content.diagnosis is not None:
        cards.append(("health", VERDICTS[content.diagnosis.verdict], _standing(content.diagnosis)))
    return cards


def _standing(diagnosis: Diagnosis) -> str:
    """Counts the alerts at the end of a run; those that only inform are remarks."""
    remarks = sum(problem.level == "info" for problem in diagnosis.standing)
    alerts = len(diagnosis.standing) - remarks
    counted = [
        f"{count} {word}{'s' if count > 1 else ''}" for count, word in ((alerts, "alert"), (remarks, "remark")) if count
    ]
    return f"{', '.join(counted) or 'no alert'} at the end"


def _fault(content: RunContent) -> dict[str, str] | None:
    """Describes what ended a failed run; where ``run.json`` does not say it, the last such event does."""
    cause = content.record.get("cause")
    event = next((event for event in reversed(content.events) if event["kind"] == "failed"), None)
    if content.record.get("status") != Status.FAILED or (cause is None and event is None):
        return None
    fault = cause or (event or {}).get("data", {})
    sentence = event["message"] if event else f"{fault.get('part', 'The run')} {fault.get('what', 'failed')}."
    return {
        "title": f"The run failed after iteration {0 if event is None else event['iteration']}.",
        "sentence": sentence,
        "advice": str(fault.get("advice", "")),
        "log": "\n".join(map(str, fault.get("log", []))),
    }


def lead_of_runs(contents: Sequence[RunContent], several: Together) -> Markup:
    """Renders the top of a report on several runs."""
    experiments = dict.fromkeys(str(content.record.get("experiment", content.label)) for content in contents)
    ended = [content.record.get("status") for content in contents if content.is_ours]
    done = ended.count(Status.COMPLETED)
    named = list(experiments)
    title = ", ".join(named[:3]) + (f" and {len(named) - 3} more" if len(named) > 3 else "")
    notes = [{"kind": "warn", "text": f"{content.label}: {text}"} for content in contents for text in content.missing]
    notes += [
        {"kind": "warn", "text": f"{content.label}: no iteration was completed."}
        for content in contents
        if not content.course.rows
    ]
    steps = sum(content.course.axes["steps"][-1] for content in contents if content.course.axes.get("steps"))
    cards = [
        ("runs", str(len(contents)), ""),
        ("groups", str(len(several.groups)), "runs that differ only in their seed"),
    ]
    if steps:
        cards.append(("environment steps", f"{steps:,.0f}", "of all runs"))
    everything = done == len(contents)
    return render(
        "report/lead.html",
        eyebrow=f"{len(contents)} runs",
        title=title,
        status=f"{done} of {len(contents)} completed" if ended else "logs of other systems",
        status_kind="good" if everything else "warn",
        byline=[],
        hero=None,
        notes=notes,
        fault=None,
        cards=cards,
    )
