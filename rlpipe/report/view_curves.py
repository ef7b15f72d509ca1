"""Sections with curves: success over the run, small multiples, any metric."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from rlpipe.metrics import catalogue as m
from rlpipe.metrics.row import EventKind
from rlpipe.report import formats
from rlpipe.report.course import Course
from rlpipe.report.curves import CurveDetail, axes_of, curves_data, headline_curves, mark_of, small_multiples
from rlpipe.report.ledger import Ledger
from rlpipe.report.run_content import RunContent
from rlpipe.report.view_health import STYLES
from rlpipe.report.web.page import Section, asset, render

AXIS_NAMES = {"steps": "environment steps", "seconds": "training time", "iteration": "iteration", "row": "report"}
CHARTS = ("vendor/uplot/uPlot.iife.min.js", "scripts/charts.js")
REST = (
    "Move over the chart, or focus it and press the arrow keys, to read values. Drag to zoom, double-click to return."
)
MOST_EVENTS = 300
_MOST_OWN = 6
"""Columns of the simulator's own numbers in the table of evaluations."""


def style() -> str:
    """Stylesheet of everything in a report."""
    return asset("vendor/uplot/uPlot.min.css") + "\n" + asset("report.css")


def scripts(name: str) -> tuple[str, ...]:
    """Scripts that draw, and the one of a section."""
    return tuple(map(asset, (*CHARTS, name)))


def success_section(contents: Sequence[RunContent], groups: Sequence[str]) -> Section | None:
    """Success, or else the return, over the run, with everything that happened; None without any row."""
    headline = headline_curves(contents)
    if headline is None:
        return _events_alone(contents)
    single = contents[0] if len(contents) == 1 else None
    axes = axes_of(contents)
    values: dict[str, Any] = {
        "note": _note(contents, headline),
        "axes": axes,
        "axis_names": AXIS_NAMES,
        "summary": _summary(contents, headline),
        "rest": REST,
        "legend": _legend(contents, groups, headline),
        "footnotes": _footnotes(contents),
        "pools": [], "evaluations": [], "recorded": [], "tables": {},
    }  # fmt: skip
    if single is not None:
        values |= {"recorded": single.recorded, **_evaluations(single), **_events(single)}
        if single.ledger is not None:
            values |= {"pools": single.ledger.pools, "steps_after": single.course.steps_after}
    title = "Success" if headline["label"] == "success" else "Return"
    return Section("success", title, render("report/success.html", **values), style())


def _events_alone(contents: Sequence[RunContent]) -> Section | None:
    if len(contents) > 1 or not contents[0].events:
        return None
    text = render("report/events.html", **_events(contents[0]))
    return Section("events", "Events", text, style())


def _note(contents: Sequence[RunContent], headline: dict[str, str]) -> str:
    if len(contents) > 1:
        trained = any(headline["training"] in content.course.series for content in contents)
        which = headline["training"] if trained else headline["evaluation"]
        return (
            f"{which}. Of a group of several runs: the thick line is their mean and the band reaches from the lowest "
            "to the highest of them, at the positions that all of them have; each thin line is one run. Neither is an "
            "interval."
        )
    content = contents[0]
    if headline["label"] != "success":
        dots = "; dots are evaluations on held-out seeds" if headline["evaluation"] in content.course.series else ""
        return f"{headline['training']} of each {'iteration' if content.is_ours else 'report'}{dots}."
    if content.ledger is not None and any(pool.success for pool in content.ledger.pools):
        line = _lines_of(content, content.ledger, headline)
        dots = "Dots are evaluations on held-out seeds with their 95 % intervals."
        return f"Share of episodes that succeeded at least once. {line} {dots}"
    return f"{headline['training']} of single iterations; dots are evaluations with their 95 % intervals."


def _lines_of(content: RunContent, ledger: Ledger, headline: dict[str, str]) -> str:
    """Says which episodes the lines of the first chart pool."""
    each = ledger.pools[0].until - ledger.pools[0].first + 1
    if ledger.chosen_starts:
        pooled = "in each iteration" if each == 1 else f"in every {each} iterations together"
        begins = " Grey is where these begin: 1 at the end of a demonstration, 0 at its beginning."
        words = content.populations
        return (
            f"Blue is success of the training episodes that {words.own}, {pooled}; green is that of those that "
            f"{words.chosen}. Bands are 95 % intervals (Wilson)."
            + (begins if headline["start"] in content.course.series else "")
        )
    if each == 1:
        return f"The line is {headline['training']} of each iteration, with its 95 % interval (Wilson) as a band."
    return (
        f"The line pools all training episodes that ended within every {each} iterations, with the 95 % interval "
        f"(Wilson) as a band; the thin line is {headline['training']} of single iterations."
    )


def _summary(contents: Sequence[RunContent], headline: dict[str, str]) -> str:
    parts = []
    for content in contents:
        texts = [
            f"{name}: {summary_of(content.course, name)}"
            for name in (headline["training"], headline["evaluation"])
            if name in content.course.series
        ]
        parts.append(("" if len(contents) == 1 else f"{content.label}, ") + " ".join(texts))
    return " ".join(parts)


def summary_of(course: Course, name: str) -> str:
    """Describes a curve in words: first, last, lowest and highest value, each with its place."""
    series = course.series[name]
    axis = "iteration" if "iteration" in course.axes else "steps"
    word = "iteration" if axis == "iteration" else "step"

    def at(index: int) -> str:
        return f"{formats.digits(series.values[index])} ({word} {course.axes[axis][series.at[index]]:,.0f})"

    if len(series) == 1:
        return f"{at(0)}."
    low = min(range(len(series)), key=series.values.__getitem__)
    high = max(range(len(series)), key=series.values.__getitem__)
    return f"{at(0)} to {at(-1)}; lowest {at(low)}, highest {at(high)}."


def span_of(course: Course, name: str) -> str:
    """Describes a curve in a line: its first and its last value, and what it goes beyond them."""
    values = course.series[name].values
    text = f"{formats.digits(values[0])} to {formats.digits(values[-1])}"
    ends = values[0], values[-1]
    beyond = [f"lowest {formats.digits(min(values))}"] if min(values) < min(ends) else []
    beyond += [f"highest {formats.digits(max(values))}"] if max(values) > max(ends) else []
    return f"{', '.join([text, *beyond])}."


def last_values(courses: Sequence[Course], name: str) -> str:
    """Describes where a metric ends in several runs: the lowest and the highest of their last values."""
    last = [course.series[name].values[-1] for course in courses]
    low, high = formats.digits(min(last)), formats.digits(max(last))
    return f"Last values: {low}." if low == high else f"Last values: {low} to {high}."


def _legend(contents: Sequence[RunContent], groups: Sequence[str], headline: dict[str, str]) -> list[dict[str, Any]]:
    if len(contents) > 1:
        return [
            {"colour": f"series-{n % 8 + 1}", "shape": "", "text": group, "opacity": None}
            for n, group in enumerate(groups)
        ]
    content = contents[0]
    entries: list[dict[str, Any]] = []
    ledger = content.ledger
    pooled = ledger is not None and any(pool.success for pool in ledger.pools) and headline["label"] == "success"
    curriculum = ledger is not None and ledger.chosen_starts > 0
    alone = pooled and ledger is not None and all(pool.first == pool.until for pool in ledger.pools)
    is_training = headline["training"] != headline["evaluation"]  # while cloning there are only evaluations

    def add(colour: str, shape: str, text: str, opacity: float | None = None) -> None:
        entries.append({"colour": colour, "shape": shape, "text": text, "opacity": opacity})

    if pooled:
        add("series-1", "", f"training, {content.populations.of_own}" if curriculum else "training, with 95 % band")
    if curriculum and headline["label"] == "success":
        add("series-3", "", f"training, {content.populations.of_chosen}")
        if headline["start"] in content.course.series:
            add("muted", "", "where these begin")
    elif headline["training"] in content.course.series and is_training and not alone:
        add("series-1", "", "training, single iterations", 0.4 if pooled else None)
    if headline["evaluation"] in content.course.series:
        add("series-2", "dot", "evaluation, with 95 % interval")
    for mark, count in Counter(filter(None, map(mark_of, content.events))).items():
        add(mark.colour, "triangle" if mark.small else "mark", f"{mark.label} ({count})")
    return entries


def _footnotes(contents: Sequence[RunContent]) -> list[str]:
    notes = []
    for content in contents:
        of = "" if len(contents) == 1 else f"{content.label}: "
        if content.course.dead_seconds > 1.0 and content.record.get("incarnation"):
            dead = formats.duration(content.course.dead_seconds)
            notes.append(
                f"{of}Training time is time/time_elapsed, which stands still while nothing trains: {dead} between the "
                "end and the resume of the run, or of work that was taken back, are not in it."
            )
    return notes


def _evaluations(content: RunContent) -> dict[str, Any]:
    """Table of the evaluations while training, as the rows have them."""
    course, low, high = content.course, m.EVAL_CI_LOW.name, m.EVAL_CI_HIGH.name
    count = m.EVAL_NUM_TRAJECTORIES.name
    names = [
        metric.name
        for metric in (m.EVAL_SUCCESS_ONCE, m.EVAL_EPISODE_RETURN, m.EVAL_EPISODE_LEN, m.EVAL_NUM_TRAJECTORIES)
        if metric.name in course.series
    ]
    observed = [
        name for name in course.series if name.startswith("eval/metrics/") and name.endswith(("/mean", "/last"))
    ]
    names += observed if len(observed) <= _MOST_OWN else []  # else they would hide the others; "Any metric" has them
    values = {
        name: dict(zip(course.series[name].at, course.series[name].values, strict=True))
        for name in (*names, low, high)
        if name in course.series
    }
    rows = []
    for row in sorted({row for name in names for row in course.series[name].at}):
        cells = [(formats.whole if name == count else formats.result)(values[name].get(row)) for name in names]
        if low in values and names[0] == m.EVAL_SUCCESS_ONCE.name:
            cells.insert(1, formats.bounds(values[low].get(row), values[high].get(row), absent=formats.ABSENT))
        places = (course.axes[axis][row] if axis in course.axes else None for axis in ("iteration", "steps"))
        rows.append([*map(formats.whole, places), *cells])
    columns = ["episodes" if name == count else name.partition("/")[2] for name in names]
    if low in values and names[0] == m.EVAL_SUCCESS_ONCE.name:
        columns.insert(1, "95 % interval")
    left = f"The newest 100 of {len(rows)} evaluations." if len(rows) > 100 else ""
    return {"evaluations": rows[-100:], "evaluation_columns": columns, "evaluations_left": left}


ROUTINE = (EventKind.ALERT, EventKind.TARGET_KL)
"""Kinds of events that may happen in most iterations; they stand in a table of their own."""
_EVENT_STYLES: dict[str, str] = {
    EventKind.FAILED: "bad", EventKind.RESTARTED: "warn", EventKind.RECOVERED: "warn", EventKind.COMPLETED: "good",
    EventKind.STOPPED: "bad", EventKind.INTERRUPTED: "warn", EventKind.DISK: "warn", EventKind.SIMULATOR: "warn",
}  # fmt: skip


def _events(content: RunContent) -> dict[str, Any]:
    """Tables of the events: what happened to the run, and what may happen in any iteration."""
    tables = {}
    for key, routine in (("events", False), ("routine", True)):
        events = [event for event in content.events if (event["kind"] in ROUTINE) == routine]
        left = ""
        if len(events) > MOST_EVENTS:
            left = f"The newest {MOST_EVENTS} of {len(events):,}; events.jsonl has all."
        tables[key] = {"rows": [(event, *_badge(event)) for event in events[-MOST_EVENTS:]], "left": left}
    return {"tables": tables if content.events else {}}


def _badge(event: dict[str, Any]) -> tuple[str, str]:
    """Returns the text and the style of an event's badge."""
    if event["kind"] != EventKind.ALERT:
        return event["kind"].replace("_", " "), _EVENT_STYLES.get(event["kind"], "")
    level = str(event["data"].get("level", "alert"))
    return (f"{level} cleared", "good") if event["data"].get("cleared") else (level, STYLES.get(level, ""))


def curves_section(
    contents: Sequence[RunContent], groups: Sequence[str], group_of: Sequence[int], detail: CurveDetail
) -> Section | None:
    """Small multiples and the chooser; None without any number."""
    data = curves_data(contents, groups, group_of, detail)
    names = [name for name in detail.names(contents) if any(name in run["series"] for run in data["runs"])]
    if not names:
        return None
    constant, small = _constant(contents, [name for name in small_multiples(contents) if name in names])
    spaces: dict[str, list[str]] = {}
    for name in names:
        spaces.setdefault(_namespace(name), []).append(name)
    several = len(contents) > 1
    text = render(
        "report/curves.html",
        note="Values of each iteration, neither smoothed nor averaged." if not several else (
            "Strong lines and bands as above: mean, lowest and highest run at equal positions; thin lines are single "
            "runs. Nothing is smoothed."),
        small=[_small(name, contents, data["metrics"]) for name in small],
        constant=constant,
        namespaces=spaces,
        chosen=(small or names)[0],
        several=several,
    )  # fmt: skip
    return Section("curves", "Curves", text, style(), scripts("scripts/curves.js"), data)


def _constant(contents: Sequence[RunContent], names: Sequence[str]) -> tuple[list[str], list[str]]:
    """Divides metrics into those with one value in all runs, described in words, and the others."""
    constant, others = [], []
    for name in names:
        curves = [content.course.series[name] for content in contents if name in content.course.series]
        values = {value for curve in curves for value in curve.values}
        if len(values) == 1 and any(content.course.rows > 1 for content in contents):
            constant.append(f"{name} {formats.digits(values.pop())}")
        else:
            others.append(name)
    return constant, others


def _small(name: str, contents: Sequence[RunContent], metrics: dict[str, Any]) -> dict[str, str]:
    courses = [content.course for content in contents if name in content.course.series]
    about = metrics.get(name, {"unit": "", "meaning": ""})
    summary = summary_of(courses[0], name) if len(contents) == 1 else last_values(courses, name)
    rest = span_of(courses[0], name) if len(contents) == 1 else summary
    return {"name": name, "unit": about["unit"], "meaning": about["meaning"], "summary": summary, "rest": rest}


def _namespace(name: str) -> str:
    parts = name.split("/")
    return "/".join(parts[:-1][:2]) or "other"
