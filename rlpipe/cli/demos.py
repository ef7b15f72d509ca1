"""``rlpipe demos TASK -n 200``"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from rlpipe.cli.exit_codes import ExitCode


def add_to(app: typer.Typer) -> None:
    """Adds the command."""
    app.command(name="demos")(demos)


def demos(
    task: Annotated[str, typer.Argument(help="ManiSkill task, such as PickCube-v1.")],
    count: Annotated[int, typer.Option("-n", "--count", help="Number of successful demonstrations.")] = 200,
    control_mode: Annotated[str, typer.Option(help="Control mode of the recorded actions.")] = "pd_ee_delta_pos",
    out: Annotated[Path, typer.Option(help="Folder for TASK.h5 and TASK.json.")] = Path("demonstrations"),
    seed_from: Annotated[int, typer.Option(help="Seed of the first episode; each further attempt adds 1.")] = 0,
    python: Annotated[
        str | None,
        typer.Option(help="Python interpreter with the planner installed.", show_default="this one", metavar="PATH"),
    ] = None,
) -> None:
    """Generate demonstrations with ManiSkill's motion planner.

    The planner runs in a process of its own and needs numpy below 2; --python names another environment for it.
    """
    from rlpipe.demonstrations.planner import FIRST_EVALUATION_SEED, make_demonstrations
    from rlpipe.demonstrations.planner_process import PlannerError

    stderr = Console(stderr=True, highlight=False)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=stderr, transient=True) as progress:
        bar = progress.add_task("starting", total=count)
        try:
            made = make_demonstrations(
                task, count, control_mode, out,
                python=python or sys.executable,
                first_seed=seed_from,
                progress=lambda doing, done, total: progress.update(
                    bar, description=doing, completed=done, total=total
                ),
            )  # fmt: skip
        except PlannerError as error:
            stderr.print(f"[bold red]failed:[/] {escape(str(error))}", soft_wrap=True)
            raise typer.Exit(ExitCode.FAILED) from error
    console = Console(highlight=False, soft_wrap=True)
    console.print(f"[bold]{made.trajectories} demonstrations[/] of {task} in {escape(str(made.file))}")
    for label, text in {
        "steps": f"{made.steps:,} until success, {made.longest} in the longest",
        "control mode": control_mode,
        "seeds": f"{made.seeds[0]} to {made.seeds[-1]}; evaluation begins at {FIRST_EVALUATION_SEED:,}",
        "size": f"{made.file.stat().st_size / 1e3:,.0f} kB",
        "use": f"rlpipe train CONFIG demos={made.file}",
    }.items():
        console.print(f"  [dim]{label:<14}[/]{escape(text)}")
