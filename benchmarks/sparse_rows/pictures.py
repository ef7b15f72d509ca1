"""The pictures of docs/benchmarks.md, made from the results alone."""

from __future__ import annotations

import io
import itertools
import math
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from numpy.typing import NDArray

from benchmarks.sparse_rows.page import current, interval
from benchmarks.sparse_rows.results import Result, Results
from benchmarks.sparse_rows.rows import Row, Table
from rlpipe.report.pictures import spread

TASKS = ("#0072b2", "#d55e00", "#009e73", "#aa4499", "#333333", "#b8860b", "#56b4e9")
"""Colours of the tasks: Okabe and Ito's, which those who cannot tell red from green can tell apart, some darker."""
INK, FAINT = "#222222", "#8a8a8a"
_LABEL_SIZE = 9.5
_STYLE = {
    "font.size": 10,
    "font.sans-serif": ["DejaVu Sans"],
    "text.color": INK,
    "axes.edgecolor": "#b0b0b0",
    "axes.labelcolor": "#555555",
    "axes.linewidth": 0.8,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "grid.color": "#e6e6e6",
    "grid.linewidth": 0.8,
    "xtick.color": "#b0b0b0",
    "ytick.color": "#b0b0b0",
    "xtick.labelcolor": "#555555",
    "ytick.labelcolor": "#555555",
    "figure.facecolor": "white",
    "savefig.facecolor": "white",
}
_SMOOTHED_OVER = 60
"""Fewest episodes of a seed that a point of a drawn curve pools, once there have been so many."""


@dataclass(frozen=True)
class Curve:
    """Learning curves of a row.

    Attributes:
        row: the row
        results: of each seed
    """

    row: Row
    results: Sequence[Result]

    @property
    def final(self) -> tuple[float, float, float]:
        """Success rate of the evaluation at the end, with its interval."""
        return interval(tuple(result["success_once"] for result in self.results))

    def pooled(self, axis: str) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Steps or seconds, mean over the seeds, and the success rate over the episodes of all seeds."""
        return smoothed([result["curve"] for result in self.results], axis)

    def each(self, axis: str) -> Iterator[tuple[NDArray[np.float64], NDArray[np.float64]]]:
        """The same of each seed by itself."""
        for result in self.results:
            yield smoothed([result["curve"]], axis)


def smoothed(curves: Sequence[Mapping[str, Any]], axis: str) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Returns a success rate over steps or seconds. Each point pools the latest episodes up to there: until it has
    enough, or all of them. So no point shows a success that came later; before the first episode, it is nan.

    Args:
        curves: curves of seeds, of which the shortest decides how many points there are
        axis: ``steps`` or ``seconds``
    """
    length = min(len(curve[axis]) for curve in curves)
    positions = np.mean([curve[axis][:length] for curve in curves], axis=0)
    episodes = np.sum([curve["episodes"][:length] for curve in curves], axis=0, dtype=float)
    rates = [[rate or 0.0 for rate in curve["success"][:length]] for curve in curves]
    successes = np.sum(
        [np.multiply(rate, curve["episodes"][:length]) for rate, curve in zip(rates, curves, strict=True)], axis=0
    )
    values = np.full(length, np.nan)
    for point in range(length):
        for first in range(point, -1, -1):
            total = episodes[first : point + 1].sum()
            if total >= _SMOOTHED_OVER * len(curves):
                break
        if total:
            values[point] = successes[first : point + 1].sum() / total
    return positions, values


def draw_demonstrations(curves: Sequence[Curve]) -> Figure:
    """Draws success against the number of demonstrations: a colour for each task, squares for groups but the first."""
    figure = _figure(7.6, 4.2)
    axes = figure.subplots()
    lines: dict[tuple[str, str], list[Curve]] = {}
    for curve in curves:
        lines.setdefault((curve.row.task, curve.row.group), []).append(curve)
    numbers = sorted({curve.row.demonstrations for curve in curves})
    ends, colours = [], []
    of_task = dict(zip(dict.fromkeys(task for task, _ in lines), itertools.cycle(TASKS), strict=False))
    for place, ((task, group), members) in enumerate(lines.items()):
        colour, mark = of_task[task], "o-" if group == curves[0].row.group else "s--"
        members.sort(key=lambda curve: curve.row.demonstrations)
        shift = 1.02 ** (place - (len(lines) - 1) / 2)  # so that intervals do not hide each other
        x = [curve.row.demonstrations * shift for curve in members]
        values, low, high = zip(*(curve.final for curve in members), strict=True)
        axes.vlines(x, low, high, color=colour, linewidth=1.4, alpha=0.55)
        axes.plot(x, values, mark, color=colour, linewidth=2.0, markersize=6, markeredgecolor="white", clip_on=False)
        ends.append((x[-1], values[-1]))
        colours.append(colour)
    axes.set_xscale("log")
    axes.set_xlim(min(numbers) * 0.8, max(numbers) * 1.15)
    axes.set_xticks(numbers, [f"{number}" for number in numbers])
    axes.minorticks_off()
    _success_axis(axes)
    axes.set_xlabel("demonstrations")
    names = [f"{task}{_group(group, curves)}" for task, group in lines]
    _label(axes, ends, names, colours)
    _title(
        figure,
        "Success against the number of demonstrations",
        "held-out episodes; 95 % intervals over seeds and episodes",
    )
    return figure


def draw_curves(curves: Sequence[Curve], axis: str) -> Figure:
    """Draws success against steps or seconds: a panel for each task, a line for each of its rows.

    Args:
        curves: of all rows
        axis: ``steps`` or ``seconds``
    """
    panels: dict[str, list[Curve]] = {}
    for curve in curves:
        panels.setdefault(curve.row.task, []).append(curve)
    columns = min(len(panels), 3)
    rows = -(-len(panels) // columns)
    figure = _figure(3.9 * columns + 0.4, 2.9 * rows + 0.8)
    grid = figure.subplots(rows, columns, squeeze=False)
    for place, (axes, panel) in enumerate(itertools.zip_longest(grid.flat, panels.items())):
        if panel is None:
            axes.set_axis_off()
            continue
        task, members = panel
        _draw_panel(axes, members, axis, curves)
        axes.set_title(task, loc="left", fontsize=11, fontweight="bold", color=INK)
        if place % columns:
            axes.set_yticklabels([])
            axes.set_ylabel("")
    what = {"steps": "environment steps", "seconds": "wall clock"}[axis]
    _title(
        figure, f"Success against {what}",
        f"line: the latest {_SMOOTHED_OVER} or more training episodes of each seed that began as the task draws them, "
        "or evaluations, all seeds together; thin: each seed; dot: held-out episodes, 95 %",
    )  # fmt: skip
    return figure


def _draw_panel(axes: Axes, members: Sequence[Curve], axis: str, curves: Sequence[Curve]) -> None:
    """Draws the rows of a task."""
    members = sorted(members, key=lambda curve: (curve.row.group, curve.row.demonstrations))
    colours = [_shade(curve, curves) for curve in members]
    longest = max(float(result["curve"][axis][-1]) for curve in members for result in curve.results)
    scale, unit = _unit(axis, longest)
    ends = []
    for curve, colour in zip(members, colours, strict=True):
        for x, values in curve.each(axis) if len(curve.results) > 1 else ():
            axes.plot(x / scale, values, color=colour, linewidth=0.7, alpha=0.35)
        x, values = curve.pooled(axis)
        axes.plot(x / scale, values, color=colour, linewidth=2.0)
        value, low, high = curve.final
        axes.vlines(x[-1] / scale, low, high, color=colour, linewidth=1.4, alpha=0.55)
        axes.plot(
            x[-1] / scale, value, "o", color=colour, markersize=6, markeredgecolor="white", clip_on=False, zorder=5
        )
        ends.append((x[-1] / scale, value))
    axes.set_xlim(0, longest / scale * 1.02)
    axes.xaxis.set_major_locator(mpl.ticker.MaxNLocator(4))
    _success_axis(axes)
    axes.set_xlabel(unit)
    most = max(range(len(members)), key=lambda index: members[index].final[0])
    names = [_name(curve, curves, whole=index == most) for index, curve in enumerate(members)]
    _label(axes, ends, names, colours)


def draw_choices(curves: Sequence[Curve]) -> Figure:
    """Draws the success of rows that differ in one thing from the one that they are compared with: a line for each."""
    rows = sorted(curves, key=lambda curve: (curve.row.name != curve.row.against, -curve.final[0]))
    figure = _figure(8.4, 0.34 * len(rows) + 1.3)
    axes = figure.subplots()
    for place, curve in enumerate(rows):
        value, low, high = curve.final
        reference = curve.row.name == curve.row.against
        colour = TASKS[1] if reference else TASKS[0]
        if reference:
            axes.axvline(value, color=colour, linewidth=1.0, alpha=0.4)
        axes.hlines(place, low, high, color=colour, linewidth=1.6, alpha=0.55)
        each = [interval((result["success_once"],))[0] for result in curve.results]
        axes.plot(each, [place] * len(each), "|", color=colour, markersize=7, alpha=0.6, clip_on=False)
        axes.plot(value, place, "o", color=colour, markersize=7, markeredgecolor="white", clip_on=False, zorder=5)
    axes.set_yticks(range(len(rows)), [textwrap.fill(curve.row.about, 52) for curve in rows])
    axes.tick_params(axis="y", length=0, labelcolor=INK)
    axes.set_ylim(len(rows) - 0.5, -0.5)
    axes.set_xlim(-0.02, 1.02)
    axes.set_xticks([0, 0.25, 0.5, 0.75, 1], ["0", "0.25", "0.5", "0.75", "1"])
    axes.set_xlabel("success_once")
    axes.grid(axis="x")
    axes.spines["left"].set_visible(False)
    _title(
        figure,
        f"One thing changed: {rows[0].row.task}",
        "dot: held-out episodes of all seeds, with 95 % interval; strokes: each seed",
    )
    return figure


def _name(curve: Curve, curves: Sequence[Curve], *, whole: bool) -> str:
    """Label of a row in its panel: how many demonstrations, with the word if it is the topmost, or which algorithm."""
    count, group = curve.row.demonstrations, _group(curve.row.group, curves)
    if not count:
        return str(curve.results[0]["algorithm"]).split()[-1].upper()  # of "ppo, then grpo", the last one
    word = (" demo" if count == 1 else " demos") if whole else ""
    return f"{count}{word}{group}"


def _shade(curve: Curve, curves: Sequence[Curve]) -> Any:
    """Colour of a row in its panel: the same number of demonstrations has the same one in each, and more are darker."""
    if not curve.row.demonstrations:
        return TASKS[1]
    counts = sorted({one.row.demonstrations for one in curves} - {0})
    return mpl.colormaps["viridis_r"](np.linspace(0.2, 0.97, len(counts))[counts.index(curve.row.demonstrations)])


def _group(group: str, curves: Sequence[Curve]) -> str:
    """Mention of a group that is not the first one."""
    return "" if group == curves[0].row.group else f", {group}"


def _unit(axis: str, longest: float) -> tuple[float, str]:
    """Scale and label of an axis."""
    if axis == "steps":
        return (1e6, "million environment steps") if longest >= 2e6 else (1e3, "thousand environment steps")
    return (3600, "hours") if longest >= 7200 else (60, "minutes") if longest >= 120 else (1, "seconds")


def _success_axis(axes: Axes) -> None:
    axes.set_ylim(-0.02, 1.02)
    axes.set_yticks([0, 0.25, 0.5, 0.75, 1], ["0", "", "0.5", "", "1"])
    axes.set_ylabel("success_once")
    axes.grid(axis="y")
    axes.tick_params(length=3)


def _label(axes: Axes, ends: Sequence[tuple[float, float]], names: Sequence[str], colours: Sequence[Any]) -> None:
    """Writes names to the right of the axes, each beside where its line ends; a thin line leads to one that is not."""
    figure = axes.get_figure(root=True)
    assert figure is not None
    line = {"arrowstyle": "-", "linewidth": 0.9, "alpha": 0.6, "linestyle": ":", "shrinkB": 4, "relpos": (0, 0.5)}
    figure.draw_without_rendering()  # so that the layout is known
    height = axes.get_window_extent().height / figure.dpi * 72
    places = spread([value for _, value in ends], 1.04 * 1.25 * _LABEL_SIZE / height, within=(-math.inf, math.inf))
    for (x, value), place, name, colour in zip(ends, places, names, colours, strict=True):
        reached = axes.transAxes.inverted().transform(axes.transData.transform((x, value)))[0]
        apart = abs(place - value) > 0.02 or reached < 0.93
        axes.annotate(
            name, (x, value), (1.035, place), textcoords=axes.get_yaxis_transform(), color=colour, va="center",
            fontsize=_LABEL_SIZE, fontweight="bold", annotation_clip=False,
            arrowprops=line | {"color": colour} if apart else None,
        )  # fmt: skip


def _title(figure: Figure, title: str, note: str) -> None:
    figure.suptitle(title, x=0.01, ha="left", fontsize=13, fontweight="bold", color=INK)
    lines = textwrap.wrap(note, int(15 * figure.get_figwidth()))  # letters in an inch
    figure.supxlabel("\n".join(lines), x=0.01, ha="left", fontsize=8.5, color=FAINT)


def _figure(width: float, height: float) -> Figure:
    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def draw(table: Table, results: Results) -> dict[str, bytes]:
    """Draws what there are results for; returns PNG files by name."""
    curves = [Curve(row, list(found.values())) for row in table.results if (found := current(row, results))]
    choices = [Curve(row, list(found.values())) for row in table.choices if (found := current(row, results))]
    with mpl.rc_context(_STYLE):
        drawn = {}
        if choices:
            drawn["sparse_choices.png"] = _png(draw_choices(choices))
        if shown := [curve for curve in curves if curve.row.demonstrations]:
            drawn["sparse_demonstrations.png"] = _png(draw_demonstrations(shown))
        if curves:
            drawn["sparse_steps.png"] = _png(draw_curves(curves, "steps"))
            drawn["sparse_wall_clock.png"] = _png(draw_curves(curves, "seconds"))
    return drawn


def _png(figure: Figure) -> bytes:
    out = io.BytesIO()
    figure.savefig(out, format="png", dpi=160)
    return out.getvalue()


def write(folder: Path, drawn: Mapping[str, bytes]) -> None:
    """Writes pictures, each whole or not at all."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, contents in drawn.items():
        partial = folder / f".{name}.partial"
        partial.write_bytes(contents)
        partial.replace(folder / name)
