"""``rlpipe report RUN [RUN ...]``: one or several runs as one HTML file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape

from rlpipe.cli import arguments
from rlpipe.cli.streams import progress_of_files


def report(
    runs: Annotated[
        list[Path],
        typer.Argument(
            parser=arguments.path,
            help="Run directories, folders of runs, or logs of other systems, as rlpipe diagnose reads them.",
            metavar="RUN...",
        ),
    ],
    out: Annotated[
        Path | None,
        typer.Option(
            parser=arguments.path,
            help="File to write.",
            show_default="RUN/report.html; of several runs, report.html here",
        ),
    ] = None,
) -> None:
    """Write a report: curves, health, time, episodes and settings as one HTML file that needs nothing else.

    Several runs are compared; those that differ only in their seed form a group.
    """
    from rlpipe.report.pages import write

    with progress_of_files():
        file = write(arguments.all_runs(runs), out)
    Console(highlight=False, soft_wrap=True).print(f"[dim]report[/]  {escape(str(file))}")
