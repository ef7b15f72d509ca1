"""``rlpipe timeline RUN``: traces what each actor did in one iteration."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape

from rlpipe.cli import arguments
from rlpipe.errors import ConfigError


def timeline(
    run: arguments.Run,
    iteration: Annotated[
        int | None, typer.Option(parser=arguments.integer, help="Iteration to trace.", show_default="the newest")
    ] = None,
    out: Annotated[
        Path | None, typer.Option(parser=arguments.path, help="File to write.", show_default="RUN/timeline-K.json")
    ] = None,
) -> None:
    """Write a trace of one iteration for Perfetto: when each actor worked, and where it waited."""
    from rlpipe.analysis.timeline import chrome_trace, read
    from rlpipe.run.directory import RunDirectory

    directory = RunDirectory.existing(run)
    trace = read(directory, iteration)
    file = out or run / f"timeline-{trace.iteration:06d}.json"
    try:
        file.write_text(json.dumps(chrome_trace(directory, trace)), encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"--out: cannot write {file}: {error}.") from error
    console = Console(highlight=False, soft_wrap=True)
    console.print(
        f"[bold]iteration {trace.iteration}[/] of {escape(directory.run_id)} took {trace.ended - trace.began:.3g} s"
    )
    for actor in trace.actors:
        shares = [(name, f"{share:.0%}") for name, share in trace.shares(actor).items()]
        activities = ", ".join(f"{name} {share}" for name, share in shares if share != "0%")
        console.print(f"  [dim]{escape(actor):<15}[/]{activities or 'nothing'}")
    console.print(f"[dim]open in https://ui.perfetto.dev or chrome://tracing:[/] {escape(str(file))}")
