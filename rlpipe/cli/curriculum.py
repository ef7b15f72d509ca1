"""``rlpipe curriculum RUN``: how far a curriculum has come, as a table and as a picture."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console, Group, RenderableType
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from rlpipe.cli import arguments
from rlpipe.cli.evaluate import interval
from rlpipe.cli.streams import print_json
from rlpipe.functional.curricula import REACH
from rlpipe.report.curriculum import (
    LAST,
    LAST_LEFT,
    STUCK,
    CurriculumProgress,
    DemonstrationProgress,
    SuccessRate,
    read_progress,
)

MOST_SHOWN = 20
"""Demonstrations in the table."""


def add_to(app: typer.Typer) -> None:
    """Adds the command."""
    app.command(name="curriculum")(curriculum)


def curriculum(
    run: Annotated[Path, typer.Argument(parser=arguments.run, help="Run directory; the run may still be in progress.")],
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
    """Show how far a curriculum has come: the start of each demonstration, and the success from there."""
    from rlpipe.report.pictures import check_picture, draw_curriculum, save
    from rlpipe.run.directory import RunDirectory

    if out is not None:
        check_picture(out, "--out")
    progress = read_progress(RunDirectory.existing(run))
    if out is not None:
        save(draw_curriculum(progress), out, "--out")
    if as_json:
        print_json(progress.as_json())
        return
    piped = not sys.stdout.isatty()  # a file or a pipe has no width
    console = Console(highlight=False, width=100 if piped else None)
    console.print(screen(progress))
    if out is not None:
        console.print(f"[dim]picture[/]  {escape(str(out))}", soft_wrap=True)


def screen(progress: CurriculumProgress) -> RenderableType:
    """Lays out the progress of a curriculum for the terminal."""
    head = Text.assemble((progress.run, "bold"), f"  {progress.name}", (f"  {progress.total_steps:,} steps", "dim"))
    parts: list[RenderableType] = [head, _success(progress)]
    parts += ["", _within(progress)] if progress.within else []
    behind = sorted(progress.demonstrations, key=lambda one: (-one.start / one.length, one.number))
    if behind:
        parts += ["", _demonstrations(behind[:MOST_SHOWN])]
    if rest := len(behind) - MOST_SHOWN:
        parts += [Text(f"and {rest} more that are further, which --json lists", style="dim")] if rest > 0 else []
    parts += ["", Text(_notes(progress), style="dim")]
    return Group(*parts)


def _success(progress: CurriculumProgress) -> Table:
    """Success of the latest episodes with chosen and with own starts, and of the last evaluation."""
    table = Table.grid(padding=(0, 2))
    for label, curve in (("chosen starts", progress.chosen), ("own starts", progress.own)):
        if curve:
            of = f"last {curve[-1].episodes} of {sum(rate.episodes for rate in curve):,} episodes"
            table.add_row(Text(label, style="dim"), *_rate(curve[-1]), Text(of, style="dim"))
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
    return table


def _within(progress: CurriculumProgress) -> Table:
    """Success by the steps that were left of a demonstration, side by side."""
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim", pad_edge=False)
    table.add_column("steps left")
    for one in progress.within:
        table.add_column(f"{one.least}-{one.most}", justify="right")
    table.add_row(Text("success", style="dim"), *(f"{one.rate.value:.2f}" for one in progress.within))
    table.add_row(Text("episodes", style="dim"), *(Text(f"{one.rate.episodes}", "dim") for one in progress.within))
    return table


def _rate(rate: SuccessRate) -> tuple[str, str]:
    return f"{rate.value:.2f}", interval(rate.low, rate.high)


def _demonstrations(shown: Sequence[DemonstrationProgress]) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim", pad_edge=False)
    columns = ("demonstration", "seed", "length", "start", "covered", "episodes", f"last {LAST}", "there", "since step")
    for column in columns:
        table.add_column(column, justify="right", no_wrap=True)
    for one in shown:
        since = one.steps[-1] if one.solved_at is None else one.solved_at
        table.add_row(
            str(one.number), str(one.seed), str(one.length), str(one.start), _covered(1 - one.start / one.length),
            f"{one.episodes:,}", f"{one.last.value:.2f}", _there(one), f"{since:,}",
        )  # fmt: skip
    return table


def _covered(share: float, width: int = 10) -> Text:
    """Part of a demonstration that its start has moved back over, which is at its end."""
    done = round(share * width)
    return Text.assemble(("╌" * (width - done), "bright_black"), ("━" * done, "green"), f" {share:>5.0%}")


def _there(one: DemonstrationProgress) -> Text:
    """Returns how many of the episodes from the present start succeeded, or that the demonstration is solved."""
    if one.solved_at is not None:
        return Text("solved", style="green")
    succeeded = round(one.at_start.value * one.at_start.episodes)
    return Text(f"{succeeded} of {one.at_start.episodes}", style="yellow" if one.stuck else "")


def _notes(progress: CurriculumProgress) -> str:
    notes = []
    if progress.demonstrations:
        notes = [
            f"steps left: success of the last {LAST_LEFT} episodes begun so many steps before a demonstration's end",
            "start: earliest step of the demonstration in which an episode has begun; 0 is its beginning",
            f"last {LAST}: success of the last episodes in it, begun there or up to {REACH - 1} steps later",
            "there: successes of those begun in it; since step: environment step of coming there, or solved",
        ]
    if any(one.stuck for one in progress.demonstrations):
        notes.append(f"yellow: {STUCK} or more episodes began there and it has not moved; see docs/demonstrations.md")
    if progress.lengths is not None and progress.lengths.wasteful:
        notes.append(
            "lengths, from beginnings: failures go on long after nearly every success, so shorter episodes would be "
            "tried more often; see docs/sparse.md#the-length-of-episodes"
        )
    notes.append("own starts: as the task draws them; only these count in env/success_once")
    return "\n".join(notes)
