"""``rlpipe diagnose PATH``"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich import box
from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from rlpipe.analysis.diagnosis import Diagnosis, Healthy, Problem
from rlpipe.analysis.diagnosis import diagnose as diagnose_run
from rlpipe.analysis.logs import OURS, READABLE
from rlpipe.cli import arguments
from rlpipe.cli.exit_codes import ExitCode
from rlpipe.cli.streams import console_for_results, print_json, progress_of_files
from rlpipe.metrics import CATALOGUE
from rlpipe.metrics.descriptions import SYSTEM_TITLES
from rlpipe.metrics.rules import Finite

STYLES = {"critical": "bold red", "warn": "yellow", "info": "cyan", "healthy": "green"}
VERDICTS = {
    "critical": "This run is broken",
    "warn": "This run has problems",
    "info": "This run is healthy, with remarks",
    "healthy": "This run is healthy",
}
SIGNS = {"critical": "✗", "warn": "!", "info": "·"}


def diagnose(
    path: Annotated[
        Path,
        typer.Argument(
            parser=arguments.run,
            help="Run directory, metrics.jsonl or other JSON lines, CSV, TensorBoard event files, or their folder.",
        ),
    ],
    dialect: Annotated[
        str | None,
        typer.Option(
            help=f"System that named the metrics: {', '.join(READABLE)}.", show_default="recognised from the keys"
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the diagnosis as JSON.")] = False,
) -> None:
    """Diagnose a run: what is healthy, what is not, since when, why, and what to try.

    The exit code is 3 if a critical finding remains at the end of the run.
    """
    with progress_of_files():
        diagnosis = diagnose_run(path, dialect)
    if as_json:
        print_json(diagnosis.as_json())
    else:
        console_for_results().print(screen(diagnosis))
    if diagnosis.verdict == "critical":
        raise typer.Exit(ExitCode.CRITICAL)


def screen(diagnosis: Diagnosis) -> RenderableType:
    """Lays out a diagnosis for the terminal."""
    parts: list[RenderableType] = [_header(diagnosis)]
    parts += [_standing(problem, diagnosis) for problem in diagnosis.standing]
    if diagnosis.past:
        parts += ["", Text("Resolved before the end", style="bold"), _past(diagnosis.past)]
    if diagnosis.healthy:
        core = [metric for metric in diagnosis.healthy if CATALOGUE[metric.metric].tier == "core"]
        listed = core or diagnosis.healthy
        parts += ["", Text("Healthy", style="bold"), _healthy(listed)]
        if rest := len(diagnosis.healthy) - len(listed):
            parts.append(Text(f"  and {rest} more, which --json lists", style="dim"))
    if diagnosis.unknown:
        names = ", ".join(diagnosis.unknown[:4]) + (", ..." if len(diagnosis.unknown) > 4 else "")
        parts += ["", Text(f"{len(diagnosis.unknown)} keys could not be judged: {names}", style="dim")]
    return Group(*parts)


def _header(diagnosis: Diagnosis) -> Panel:
    verdict = diagnosis.verdict
    written = "" if diagnosis.dialect == OURS else f", with the names of {SYSTEM_TITLES[diagnosis.dialect]}"
    broke = [problem for problem in diagnosis.past if problem.level == "critical"]
    once = "; an earlier critical finding is resolved" if broke and verdict != "critical" else ""
    body = Text.assemble(
        (VERDICTS[verdict] + once, STYLES[verdict]),
        (f"\n{diagnosis.path}", "bold"),
        (f"\n{diagnosis.reports} reports, {diagnosis.axis} {diagnosis.first:,} to {diagnosis.last:,}{written}", "dim"),
        ("".join(f"\n{note}" for note in diagnosis.notes), "dim"),
    )
    return Panel(body, box=box.ROUNDED, border_style=STYLES[verdict], padding=(0, 1))


def _standing(problem: Problem, diagnosis: Diagnosis) -> RenderableType:
    style = STYLES[problem.level]
    times = f", raised {problem.times} times" if problem.times > 1 else ""
    changed = problem.final is not None and problem.final != problem.value
    final = f", {_number(problem.final)} at the end" if changed else ""
    value = "NaN or infinite" if problem.demanded == str(Finite()) else _number(problem.value)
    head = Text.assemble(
        (f"{SIGNS[problem.level]} {problem.metric} {value}", style),
        (f"  {problem.level} since {diagnosis.axis} {problem.since:,}{times}{final}", "dim"),
    )
    facts = Table.grid(padding=(0, 2))
    facts.add_column(style="dim", no_wrap=True)
    facts.add_column()
    if problem.metric in diagnosis.names:
        facts.add_row("called", diagnosis.names[problem.metric])
    facts.add_row("healthy", problem.demanded)
    if problem.cause:
        facts.add_row("why", problem.cause)
    if problem.remedy:
        facts.add_row("try", Text(problem.remedy, style="bold"))
    return Group("", head, Padding(facts, (0, 0, 0, 2)))


def _past(problems: Sequence[Problem]) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim", pad_edge=True)
    for column in ("", "metric", "was", "healthy", "from", "to", "times"):
        table.add_column(column, justify="right" if column in ("was", "from", "to", "times") else "left")
    for problem in problems:
        table.add_row(
            Text(SIGNS[problem.level], style=STYLES[problem.level]),
            problem.metric,
            _number(problem.value),
            Text(problem.demanded, style="dim"),
            f"{problem.since:,}",
            f"{problem.until:,}",
            str(problem.times),
        )
    return table


def _healthy(metrics: Sequence[Healthy]) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), show_header=False, pad_edge=True)
    table.add_column()
    table.add_column()
    table.add_column(justify="right")
    table.add_column(style="dim")
    for metric in metrics:
        sign = Text("✓", style="green") if metric.usual else Text("~", style="dim")
        demanded = metric.demanded if metric.usual else f"usually {metric.demanded}"
        table.add_row(sign, metric.metric, _number(metric.value), demanded)
    return table


def _number(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"
