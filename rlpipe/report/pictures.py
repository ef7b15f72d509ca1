"""Pictures of runs: data in, figure out. matplotlib (``rlpipe[plots]``) is imported when one is drawn."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from rlpipe.errors import ConfigError
from rlpipe.plugins import require
from rlpipe.report.curriculum import AxisProgress, CurriculumProgress, SuccessRate

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLOURS = ("#1b6ca8", "#d1603d", "#4a8f4f", "#8a5aa8")
GREY = "0.45"
MOST_NAMED = 10
"""Demonstrations that have a colour and a name each; of more, each is a thin line."""
ENDINGS = (".png", ".svg", ".pdf")


def check_picture(file: Path) -> None:
    """Checks that a picture can be drawn and written to the file that ``--out`` names; its ending says the format."""
    if file.suffix.lower() not in ENDINGS:
        raise ConfigError(f"--out is {file}; its name must end in one of {', '.join(ENDINGS)}.")
    if not file.parent.is_dir():
        raise ConfigError(f"--out is {file}, but there is no folder {file.parent}.")
    require("matplotlib", "plots", "--out")


def save(figure: Figure, file: Path) -> None:
    """Writes a figure."""
    try:
        figure.savefig(file, dpi=130)
    except OSError as error:
        raise ConfigError(f"--out: cannot write {file}: {error}.") from error


def draw_curriculum(progress: CurriculumProgress) -> Figure:
    """Draws how far starts have moved back or ranges have widened, and the success there beside that of the task."""
    from matplotlib.figure import Figure

    spreads = bool(progress.blend or progress.blend_demonstrations)
    panels = [bool(progress.demonstrations), True, bool(progress.seeds), spreads]
    heights = [1.1] * len(progress.axes)
    heights += [height for height, there in zip((3.0, 2.2, 1.6, 1.6), panels, strict=True) if there]
    figure = Figure(figsize=(8.0, 1.0 + sum(heights)), constrained_layout=True)
    axes = list(figure.subplots(len(heights), 1, sharex=True, squeeze=False, height_ratios=heights)[:, 0])
    left = iter(axes)
    for axis in progress.axes:
        _draw_range(next(left), axis, progress.total_steps)
    if progress.axes:
        axes[0].set_title("Ranges of the axes, within the widest", fontsize=10, loc="left")
    if progress.demonstrations:
        _draw_starts(next(left), progress)
    _draw_success(next(left), progress)
    if progress.seeds:
        _draw_seeds(next(left), progress)
    if spreads:
        _draw_blend(next(left), progress)
    for panel in axes:
        panel.grid(alpha=0.25)
        panel.spines[["top", "right"]].set_visible(False)
    figure.align_ylabels(axes)
    axes[-1].set(xlabel="environment steps", xlim=(0, progress.total_steps))
    axes[-1].xaxis.set_major_formatter("{x:,.0f}")
    return figure


def _draw_range(axes: Axes, axis: AxisProgress, total_steps: int) -> None:
    """Draws the range of an axis of variations between its widest ends."""
    steps = sorted({step for edge in (axis.low, axis.high) if edge is not None for step in edge.steps} | {total_steps})
    ends = []
    for edge, end in zip((axis.low, axis.high), axis.widest, strict=True):
        places = [0] * len(steps) if edge is None else np.searchsorted(edge.steps, steps, side="right") - 1
        ends.append([end if edge is None else edge.levels[max(place, 0)] for place in places])
    axes.fill_between(steps, ends[0], ends[1], step="post", color=COLOURS[0], alpha=0.2, linewidth=0)
    for levels in ends:
        axes.step(steps, levels, where="post", color=COLOURS[0], linewidth=1.6)
    if axis.logarithmic:
        axes.set_yscale("log")
    for end in axis.widest:
        axes.axhline(end, color=GREY, linewidth=1.0, linestyle=":")
    axes.set_yticks(axis.widest, [f"{end:g}" for end in axis.widest])
    axes.minorticks_off()
    axes.set_ylabel(axis.name.replace("_", "\n", 1), fontsize=8)


def _draw_starts(axes: Axes, progress: CurriculumProgress) -> None:
    """Draws a line for each demonstration, which falls from its end to its beginning."""
    import matplotlib as mpl

    demonstrations = progress.demonstrations
    named = len(demonstrations) <= MOST_NAMED
    colours = [COLOURS[0]] * len(demonstrations)
    if named:
        colours = [
            mpl.colors.to_hex(mpl.colormaps["viridis"](place)) for place in np.linspace(0, 0.85, len(demonstrations))
        ]
    names: list[tuple[str, float, str]] = []
    for demonstration, colour in zip(demonstrations, colours, strict=True):
        shares = [start / demonstration.length for start in demonstration.starts]
        axes.step(
            [*demonstration.steps, progress.total_steps], [*shares, shares[-1]], where="post", color=colour,
            linewidth=1.6 if named else 0.7, alpha=1.0 if named else 0.35,
        )  # fmt: skip
        if demonstration.solved_at is not None:
            axes.plot(demonstration.solved_at, 0.0, "o", markersize=5, color=colour, clip_on=False, zorder=4)
        if named:
            names.append((f"demonstration {demonstration.number}", shares[-1], colour))
    if progress.mean_start and not named:
        steps, means = zip(*progress.mean_start, strict=True)
        axes.plot(steps, means, color="0.15", linewidth=2.2)
        names.append(("mean", means[-1], "0.15"))
    for (name, _, colour), height in zip(names, spread([height for _, height, _ in names], 0.075), strict=True):
        axes.annotate(
            name, (1.0, height), xytext=(6, 0), xycoords=("axes fraction", "data"), textcoords="offset points",
            va="center", fontsize=8, color=colour, annotation_clip=False,
        )  # fmt: skip
    axes.set(ylim=(-0.03, 1.03), ylabel="earliest start so far")
    axes.set_yticks([0, 0.25, 0.5, 0.75, 1], ["beginning", "25 %", "50 %", "75 %", "end"])
    solved = sum(demonstration.solved_at is not None for demonstration in demonstrations)
    those, some = (
        ("1 demonstration", "")
        if len(demonstrations) == 1
        else (f"{len(demonstrations)} demonstrations", f"{solved} of them ")
    )
    which = f", {some}solved (dot)" if solved else ""
    axes.set_title(f"Where episodes begin in {those}{which}", fontsize=10, loc="left")


def _draw_success(axes: Axes, progress: CurriculumProgress) -> None:
    """Draws the success of episodes with chosen and with own starts, with 95 % intervals, and that of evaluations."""
    chosen_label, own_label = progress.populations
    _draw_curve(axes, progress.chosen_starts, COLOURS[1], chosen_label)
    _draw_curve(axes, progress.own_starts, COLOURS[0], own_label)
    for number, (step, value, low, high) in enumerate(progress.evaluations):
        axes.errorbar(
            step, value, yerr=[[max(0.0, value - low)], [max(0.0, high - value)]], fmt="o", color=COLOURS[2],
            markersize=5, capsize=3, clip_on=False, zorder=4, label=None if number else "evaluation",
        )  # fmt: skip
    axes.set(ylim=(-0.03, 1.03), ylabel="success_once")
    axes.set_title("Success of consecutive episodes, with 95 % intervals", fontsize=10, loc="left")
    axes.legend(frameon=False, fontsize=8, loc="best", ncols=3)


def _draw_curve(axes: Axes, curve: Sequence[SuccessRate], colour: str, label: str) -> None:
    if not curve:
        return
    steps = [rate.step for rate in curve]
    axes.fill_between(
        steps, [rate.low for rate in curve], [rate.high for rate in curve], color=colour, alpha=0.15, linewidth=0
    )
    axes.plot(steps, [rate.value for rate in curve], color=colour, linewidth=1.8, marker=".", label=label)


def _draw_seeds(axes: Axes, progress: CurriculumProgress) -> None:
    """Draws how the forward curriculum goes on."""
    steps, mastered, unsolved = zip(*progress.seeds, strict=True)
    axes.plot(steps, mastered, color=COLOURS[2], linewidth=1.8, label="mastered")
    axes.plot(steps, unsolved, color=GREY, linewidth=1.8, label="without any success")
    axes.set(ylim=(-0.03, 1.03), ylabel="share of seeds")
    axes.set_title("Seeds of the forward curriculum", fontsize=10, loc="left")
    axes.legend(frameon=False, fontsize=8, loc="best")


def _draw_blend(axes: Axes, progress: CurriculumProgress) -> None:
    """Draws how far starts have spread from the demonstrations' beginnings to others' and to the task's own."""
    kinds = (
        ("other demonstrations", progress.blend_demonstrations, GREY),
        ("own starts", progress.blend, COLOURS[3]),
    )
    drawn = [kind for kind in kinds if kind[1]]
    for label, points, colour in drawn:
        axes.step(*zip(*points, strict=True), where="post", color=colour, linewidth=1.8, label=f"towards {label}")
    if len(drawn) > 1:
        axes.legend(frameon=False, fontsize=8, loc="best")
    axes.set(ylim=(-0.03, 1.03))
    axes.set_yticks([0, 0.5, 1], ["beginnings", "50 %", drawn[0][0] if len(drawn) == 1 else "all the way"])
    axes.set_title("Where starts have spread to", fontsize=10, loc="left")


def spread(heights: Sequence[float], gap: float, *, within: tuple[float, float] = (0.0, 1.0)) -> list[float]:
    """Moves heights apart, as little as their order allows, so that neighbours are a gap apart.

    Args:
        heights: where each label belongs
        gap: smallest distance
        within: bounds between which they stay where there is room for all of them
    """
    groups: list[list[int]] = []
    for n in sorted(range(len(heights)), key=lambda n: heights[n]):
        groups.append([n])
        while len(groups) > 1:
            below, above = groups[-2:]
            if _lowest(above, heights, gap, within) >= _lowest(below, heights, gap, within) + gap * len(below):
                break
            groups[-2:] = [below + above]
    moved = list(heights)
    for group in groups:
        for place, n in enumerate(group):
            moved[n] = _lowest(group, heights, gap, within) + gap * place
    return moved


def _lowest(group: Sequence[int], heights: Sequence[float], gap: float, within: tuple[float, float]) -> float:
    """Height of the lowest of some that lie a gap apart, around their mean."""
    size = gap * (len(group) - 1)
    mean = sum(heights[n] for n in group) / len(group)
    return max(within[0], min(mean - size / 2, within[1] - size))
