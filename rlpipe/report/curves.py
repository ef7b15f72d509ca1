"""Data of the curves of a page: which metrics, with how many points, and what marks their axis."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rlpipe.metrics import catalogue as m
from rlpipe.metrics.declaration import Metric
from rlpipe.metrics.panels import GROUPS, shown
from rlpipe.metrics.row import EventKind
from rlpipe.report.course import Course, Series
from rlpipe.report.formats import significant
from rlpipe.report.ledger import Pool
from rlpipe.report.run_content import RunContent

OWN_CHART = (m.ENV_SUCCESS_ONCE.name, m.EVAL_SUCCESS_ONCE.name)
"""Metrics that need no small chart, because success has one of its own."""
MOST_SMALL = 16
MOST_PLACES = 1000
KEPT_FIRST = frozenset(
    name for group in GROUPS for panel in group.panels for name in (*panel.metrics, *panel.band)
)  # fmt: skip
"""Metrics that stay where the others have to go."""


@dataclass(frozen=True)
class Mark:
    """Kinds of events that are marked on the axis of a chart.

    Attributes:
        label: name in the legend
        colour: variable of the stylesheet
        small: True for a triangle at the axis instead of a line over the whole height
        dash: True for a dashed line
    """

    label: str
    colour: str
    small: bool = False
    dash: bool = False


_STAGE = Mark("stage", "muted", dash=True)
_RESUME = Mark("resume or recovery", "series-4")
_FAULT = Mark("fault", "bad")
MARKS = {
    EventKind.STAGE: _STAGE, EventKind.RESUMED: _RESUME, EventKind.RECOVERED: _RESUME, EventKind.RESTARTED: _FAULT,
    EventKind.SIMULATOR: _FAULT, EventKind.FAILED: _FAULT, EventKind.NONFINITE: _FAULT, EventKind.DISK: _FAULT,
    EventKind.STOPPED: _FAULT, EventKind.INTERRUPTED: Mark("interrupted", "series-8"),
    EventKind.LEAVING: Mark("node draining", "series-4", dash=True),
}  # fmt: skip
ALERTS = {"critical": Mark("critical alert", "bad", small=True), "warn": Mark("warning", "warn", small=True)}


def mark_of(event: Mapping[str, Any]) -> Mark | None:
    """Returns how an event is marked; None if it is not, such as an alert that is cleared or only informs."""
    if event["kind"] == EventKind.ALERT:
        data = event["data"]
        return None if data.get("cleared") else ALERTS.get(data.get("level", ""))
    return MARKS.get(event["kind"])


def small_multiples(contents: Sequence[RunContent]) -> list[str]:
    """Lists the metrics that are shown at once: the first curve of each panel, or without any, the first of the log."""
    names = _names(contents)
    first = [panel.metrics[0] for group in shown(names) for panel in group.panels]
    charted = [name for name in first if name not in OWN_CHART]
    return charted[:MOST_SMALL] or list(names)[:6]


def _names(contents: Sequence[RunContent]) -> dict[str, None]:
    return dict.fromkeys(name for content in contents for name in content.course.series)


@dataclass(frozen=True)
class CurveDetail:
    """Metrics and points that a page has room for.

    Attributes:
        points: most points of a curve
        workers: True if the metrics of single workers are kept
        all_metrics: True if metrics are kept that are neither core nor shown at once
    """

    points: int = 1200
    workers: bool = True
    all_metrics: bool = True

    def names(self, contents: Sequence[RunContent]) -> list[str]:
        """Lists the metrics that are kept, those of single workers last."""
        names = [name for name in _names(contents) if self._keeps(name, contents)]
        return sorted(names, key=lambda name: name.startswith("workers/"))

    def _keeps(self, name: str, contents: Sequence[RunContent]) -> bool:
        if name.startswith("workers/"):
            return self.workers
        if self.all_metrics or name in KEPT_FIRST:
            return True
        metric = _declared(name, contents)
        return metric is not None and metric.tier == "core"


def curves_data(
    contents: Sequence[RunContent], groups: Sequence[str], group_of: Sequence[int], detail: CurveDetail
) -> dict[str, Any]:
    """Builds the data that the scripts draw, of the runs and their groups."""
    names, axes = detail.names(contents), axes_of(contents)
    longest = max((content.course.rows for content in contents), default=0)
    stride = -(-longest // detail.points)  # the same for all runs, so that they keep the same iterations
    long = {
        name for name in names for content in contents
        if name in content.course.series and len(content.course.series[name]) > detail.points
    }  # fmt: skip
    runs = []
    for content, group in zip(contents, group_of, strict=True):
        course = content.course
        series = {name: course.series[name] for name in names if name in course.series}
        thin = {
            name: curve.thinned(detail.points) if len(contents) == 1 else curve.every(stride) if name in long else curve
            for name, curve in series.items()
        }
        runs.append(
            {
                "short": short_label(content, contents),
                "group": group,
                "rows": course.rows,
                "axes": {axis: _whole(places) for axis, places in course.axes.items()}
                | ({"row": list(range(1, course.rows + 1))} if axes == ["row"] else {}),
                "series": {name: _packed(curve, course.rows) for name, curve in thin.items()},
                "marks": _marks(content),
                "pools": [] if content.ledger is None else _pools(content.ledger.pools),
                "elsewhere": [] if content.ledger is None else _pools(content.ledger.elsewhere),
            }
        )
    return {
        "axes": axes,
        "groups": list(groups),
        "runs": runs,
        "metrics": {name: about(metric) for name in names if (metric := _declared(name, contents)) is not None},
        "headline": headline_curves(contents),
    }


def axes_of(contents: Sequence[RunContent]) -> list[str]:
    """Lists the axes that all runs with rows have, and along which they go on; ``row`` where there is none."""
    courses = [content.course for content in contents if content.course.rows]
    axes = [axis for axis in ("steps", "seconds", "iteration") if all(_goes_on(course, axis) for course in courses)]
    return axes or ["row"]


def _goes_on(course: Course, axis: str) -> bool:
    """True if a run has an axis, and its rows do not all stand in one place, as those of cloning after 0 steps."""
    places = course.axes.get(axis)
    return places is not None and (course.rows < 2 or places[0] < places[-1])


def headline_curves(contents: Sequence[RunContent]) -> dict[str, str] | None:
    """Names the metrics of the first chart: success, or else the return; None without either.

    ``start`` says where episodes of a curriculum begin; a run without one has no such curve.
    """
    names = _names(contents)
    if m.ENV_SUCCESS_ONCE.name in names or m.EVAL_SUCCESS_ONCE.name in names:
        return {
            "training": m.ENV_SUCCESS_ONCE.name, "evaluation": m.EVAL_SUCCESS_ONCE.name, "low": m.EVAL_CI_LOW.name,
            "high": m.EVAL_CI_HIGH.name, "label": "success", "start": m.CURRICULUM_START.name,
        }  # fmt: skip
    for training in (m.ENV_EPISODE_RETURN.name, m.ENV_RETURN_MA100.name, m.EVAL_EPISODE_RETURN.name):
        if training in names:
            return {
                "training": training, "evaluation": m.EVAL_EPISODE_RETURN.name, "low": "", "high": "",
                "start": "", "label": "return",
            }  # fmt: skip
    return None


def about(metric: Metric) -> dict[str, str]:
    """Describes a metric for the chooser."""
    healthy = "" if metric.healthy is None else str(metric.healthy)
    return {"unit": metric.unit, "meaning": metric.meaning, "formula": metric.formula, "healthy": healthy}


def _declared(name: str, contents: Sequence[RunContent]) -> Metric | None:
    return next((metric for content in contents if (metric := content.metric(name)) is not None), None)


def short_label(content: RunContent, contents: Sequence[RunContent]) -> str:
    """Names a run by its seed where that is enough to tell it from the others of its experiment."""
    seed = content.record.get("seeds", {}).get("seed")
    same = [other for other in contents if other.record.get("experiment") == content.record.get("experiment")]
    seeds = [other.record.get("seeds", {}).get("seed") for other in same]
    return f"seed {seed}" if seed is not None and seeds.count(seed) == 1 else content.label


def _packed(series: Series, rows: int) -> dict[str, Any]:
    """Writes a series; without positions where every row has a value."""
    values = [_whole_or(significant(value)) for value in series.values]
    return {"y": values} if len(series) == rows else {"at": list(series.at), "y": values}


def _whole(places: Iterable[float]) -> list[float]:
    return [_whole_or(round(place, 2)) for place in places]


def _whole_or(value: float) -> float:
    return int(value) if float(value).is_integer() and abs(value) < 2**53 else value


def _marks(content: RunContent) -> list[dict[str, Any]]:
    """Marks of events: at most one of each kind in each of ``MOST_PLACES`` bins, so that they stay readable."""
    marks: dict[tuple[Mark, int], dict[str, Any]] = {}
    for event in content.events:
        if (mark := mark_of(event)) is not None:
            place = event["iteration"] * MOST_PLACES // max(1, content.course.rows)
            drawn = {"iteration": event["iteration"], "colour": mark.colour, "small": mark.small, "dash": mark.dash}
            marks.setdefault((mark, place), drawn)
    return [*marks.values()]


def _pools(pools: Iterable[Pool]) -> list[dict[str, Any]]:
    """Pools of the success chart."""
    return [
        {
            "first": pool.first,
            "until": pool.until,
            "episodes": pool.episodes,
            "success": pool.success and [*map(significant, pool.success)],
        }
        for pool in pools
    ]
