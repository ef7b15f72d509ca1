"""``rlpipe curriculum RUN``: how far a curriculum has come, as a table and as a picture."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Group, RenderableType
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from rlpipe.cli import arguments
from rlpipe.cli.evaluate import interval
from rlpipe.cli.streams import console_for_results, print_json, progress_of_files, table_of_results
from rlpipe.functional.curricula import REACH
from rlpipe.report.curriculum import (
    LAST,
    LAST_LEFT,
    STUCK,
    AxisProgress,
    CurriculumProgress,
    DemonstrationProgress,
    read_progress,
)

MOST_SHOWN = 20
"""Demonstrations in the table."""
STRIP = 20
"""Characters of the line that stands for a widest range."""


def curriculum(
    run: arguments.Run,
    out: Annotated[
        Path | None,
        typer.Option(
            parser=arguments.path,
            help="Also draw a picture to this file: .png, .svg or .pdf.",
            metavar="FILE",
            show_default=False,
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the progress as JSON.")] = False,
) -> None:
    """Show how far a curriculum has come: the start of each demonstration or the range of each axis of variations, and
    the success there."""
    from rlpipe.report.pictures import check_picture, draw_curriculum, save
    from rlpipe.run.directory import RunDirectory

    if out is not None:
        check_picture(out)
    with progress_of_files():
        progress = read_progress(RunDirectory.existing(run))
    if out is not None:
        save(draw_curriculum(progress), out)
    if as_json:
        print_json(progress.as_json())
        return
    console = console_for_results()
    console.print(screen(progress))
    if out is not None:
        console.print(f"[dim]picture[/]  {escape(str(out))}", soft_wrap=True)


def screen(progress: CurriculumProgress) -> RenderableType:
    """Lays out the progress of a curriculum for the terminal."""
    head = Text.assemble((progress.run, "bold"), f"  {progress.name}", (f"  {progress.total_steps:,} steps", "dim"))
    parts: list[RenderableType] = [head, _success(progress)]
    parts += ["", _axes(progress.axes)] if progress.axes else []
    parts += ["", _within(progress)] if progress.within else []
    behind = sorted(progress.demonstrations, key=lambda demo: (-demo.start / demo.length, demo.number))
    if behind:
        parts += ["", _demonstrations(behind[:MOST_SHOWN])]
    if rest := len(behind) - MOST_SHOWN:
        parts += [Text(f"and {rest} more that are further, which --json lists", style="dim")] if rest > 0 else []
    parts += ["", Text(_notes(progress), style="dim")]
    return Group(*parts)


def _success(progress: CurriculumProgress) -> Table:
    """Success of the latest episodes with chosen and with own starts, and of the last evaluation."""
    table = Table.grid(padding=(0, 2))
    for label, curve in zip(progress.populations, (progress.chosen_starts, progress.own_starts), strict=True):
        if curve:
            last, total = curve[-1], sum(rate.episodes for rate in curve)
            of = Text(f"last {last.episodes} of {total:,} episodes", style="dim")
            table.add_row(Text(label, style="dim"), f"{last.value:.2f}", interval(last.low, last.high), of)
    if progress.evaluations:
        step, value, low, high = progress.evaluations[-1]
        after = Text(f"after {step:,.0f} steps", style="dim")
        table.add_row(Text("evaluation", style="dim"), f"{value:.2f}", interval(low, high), after)
    if (lengths := progress.lengths) is not None:
        slow = f"9 of 10 within {lengths.slow_success:.0f}; of a failure: {lengths.failure:.0f}"
        table.add_row(Text("lengths", style="dim"), f"{lengths.success:.0f}", "steps of a success", slow)
    if progress.seeds:
        _, mastered, unsolved = progress.seeds[-1]
        table.add_row(Text("seeds", style="dim"), f"{mastered:.2f}", "mastered", f"{unsolved:.2f} without any success")
    if progress.blend_demonstrations and not progress.blend:
        share = f"{progress.blend_demonstrations[-1][1]:.2f}"
        table.add_row(Text("spread", style="dim"), share, "of the way to other demonstrations' beginnings")
    if progress.blend:
        table.add_row(Text("spread", style="dim"), f"{progress.blend[-1][1]:.2f}", "of the way to own starts")
    if progress.width:
        _, width, entropy = progress.width[-1]
        nats = Text(f"{entropy:.2f} nats per axis", style="dim")
        table.add_row(Text("width", style="dim"), f"{width:.2f}", "of the widest ranges", nats)
    return table


def _axes(axes: Sequence[AxisProgress]) -> Table:
    """Range of each axis, where it lies in the widest one, and the success at its edges."""
    table = table_of_results()
    table.add_column("axis", no_wrap=True)
    for column in ("range", "within", "of the widest", "at low", "at high", "episodes there"):
        table.add_column(column, justify="left" if column == "of the widest" else "right", no_wrap=True)
    for axis in axes:
        edges = (axis.low, axis.high)
        there = ["" if edge is None else "-" if edge.last is None else f"{edge.last.value:.2f}" for edge in edges]
        low, high = axis.range
        table.add_row(
            axis.name, f"{low:.3g} to {high:.3g}", f"{axis.widest[0]:g} to {axis.widest[1]:g}",
            _strip(axis.place(low), axis.place(high)), *there, f"{sum(edge.episodes for edge in edges if edge):,}",
        )  # fmt: skip
    return table


def _strip(low: float, high: float) -> Text:
    """Part of a line from 0 to 1, at least a mark long."""
    first = min(round(low * STRIP), STRIP - 1)
    last = max(round(high * STRIP), first + 1)
    parts = (("╌" * first, "bright_black"), ("━" * (last - first), "green"), ("╌" * (STRIP - last), "bright_black"))
    return Text.assemble(*parts)


def _within(progress: CurriculumProgress) -> Table:
    """Success by the steps that were left of a demonstration, side by side."""
    table = table_of_results()
    table.add_column("steps left")
    for success in progress.within:
        table.add_column(f"{success.least}-{success.most}", justify="right")
    rates = [success.rate for success in progress.within]
    table.add_row(Text("success", style="dim"), *(f"{rate.value:.2f}" for rate in rates))
    table.add_row(Text("episodes", style="dim"), *(Text(f"{rate.episodes}", "dim") for rate in rates))
    return table


def _demonstrations(demonstrations: Sequence[DemonstrationProgress]) -> Table:
    table = table_of_results()
    columns = ("demonstration", "seed", "length", "start", "covered", "episodes", f"last {LAST}", "there", "since step")
    for column in columns:
        table.add_column(column, justify="right", no_wrap=True)
    for demo in demonstrations:
        since = demo.steps[-1] if demo.solved_at is None else demo.solved_at
        table.add_row(
            str(demo.number), str(demo.seed), str(demo.length), str(demo.start), _covered(1 - demo.start / demo.length),
            f"{demo.episodes:,}", f"{demo.last.value:.2f}", _there(demo), f"{since:,}",
        )  # fmt: skip
    return table


def _covered(share: float) -> Text:
    """Part of a demonstration that its start has moved back over, which is at its end."""
    done = round(share * 10)
    return Text.assemble(("╌" * (10 - done), "bright_black"), ("━" * done, "green"), f" {share:>5.0%}")


def _there(demo: DemonstrationProgress) -> Text:
    """Returns how many of the episodes from the present start succeeded, or that the demonstration is solved."""
    if demo.solved_at is not None:
        return Text("solved", style="green")
    succeeded = round(demo.at_start.value * demo.at_start.episodes)
    return Text(f"{succeeded} of {demo.at_start.episodes}", style="yellow" if demo.stuck else "")


def _notes(progress: CurriculumProgress) -> str:
    notes = []
    if progress.demonstrations:
        notes = [
            f"steps left: success of the last {LAST_LEFT} episodes begun so many steps before a demonstration's end",
            "start: earliest step of the demonstration in which an episode has begun; 0 is its beginning",
            f"last {LAST}: success of the last episodes in it, begun there or up to {REACH - 1} steps later",
            "there: successes of those begun in it; since step: environment step of coming there, or solved",
        ]
    if any(demo.stuck for demo in progress.demonstrations):
        notes.append(f"yellow: {STUCK} or more episodes began there and it has not moved; see docs/demonstrations.md")
    if progress.lengths is not None and progress.lengths.wasteful:
        notes.append(
            "lengths, from beginnings: failures go on long after nearly every success, so shorter episodes would be "
            "tried more often; see docs/sparse.md#the-length-of-episodes"
        )
    if progress.axes:
        notes.append(f"at low, at high: success of the last {LAST} episodes with the axis at this edge of its range")
        notes.append("widest ranges: as env.train.variations says; only these count in env/success_once")
    else:
        notes.append("own starts: as the task draws them; only these count in env/success_once")
    return "\n".join(notes)
