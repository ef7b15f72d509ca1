"""``rlpipe runs [FOLDER]``: the runs that there are, with status and result."""

from __future__ import annotations

import time
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table
from rich.text import Text

from rlpipe.cli import arguments
from rlpipe.cli.evaluate import relative
from rlpipe.cli.streams import PIPED_WIDTH, console_for_results, print_json, table_of_list
from rlpipe.errors import ConfigError
from rlpipe.report import formats

STYLES = {"running": "cyan", "completed": "green"}


def runs(
    folder: Annotated[
        Path, typer.Argument(parser=arguments.path, help="Folder of runs, of one experiment or of several.")
    ] = Path("runs"),
    as_json: Annotated[bool, typer.Option("--json", help="Print the list as JSON.")] = False,
) -> None:
    """List runs with status, progress and result, the newest first."""
    from rlpipe.run.directory import runs_in

    if not folder.is_dir():
        raise ConfigError(f"there is no folder {folder}; name the folder of runs (runner.logger.log_path).")
    rows = [_row(path) for path in runs_in(folder)]
    if as_json:
        print_json(rows)
        return
    console = console_for_results(PIPED_WIDTH)
    console.print(_table(rows, boxed=console.is_terminal) if rows else Text(f"there are no runs in {folder}"))


def _row(path: Path) -> dict[str, Any]:
    """Returns what is shown of a run; of a damaged one, why."""
    from rlpipe.analysis.watching import glance

    name = str(relative(path.absolute()))
    try:
        state = glance(path)
    except ConfigError as error:
        return {"run": name, "status": "damaged", "cause": str(error)}
    last, total = state.rows[-1] if state.rows else None, state.run.get("view", {}).get("total_iterations", 0)
    status = "silent" if state.silence(time.time()) is not None else state.status
    metric, value, episodes = state.result or (None, None, None)
    return {
        "run": name,
        "status": status,
        "steps": 0 if last is None else last.total_timesteps,
        "progress": 0.0 if last is None or not total else last.iteration / total,
        "metric": None if metric is None else metric.name,
        "value": value,
        "episodes": episodes,
        "started": state.run["created"],
    }


def _table(rows: list[dict[str, Any]], *, boxed: bool) -> Table:
    """One row for each run; in a box, what it is and what it measures stand below the numbers."""
    table = table_of_list(boxed=boxed)
    table.add_column("run", overflow="fold", min_width=30)
    for name in ("status", "progress", "result") if boxed else ("status", "progress", "steps", "result", "", "started"):
        table.add_column(name, no_wrap=True, justify="right" if name in ("progress", "steps", "result") else "left")
    for row in rows:
        run, status = Text(row["run"], "cyan"), Text(row["status"], STYLES.get(row["status"], "yellow"))
        if "cause" in row:
            table.add_row(run, status)
            continue
        progress, steps = f"{row['progress']:.0%}", f"{row['steps']:,} steps"
        value = Text("-" if row["metric"] is None else formats.result(row["value"]), "bold")
        measured = "" if row["metric"] is None else f"{row['metric']}, n {row['episodes']:,}"
        started = f"{datetime.fromisoformat(row['started']).astimezone():%Y-%m-%d %H:%M}"
        if boxed:
            facts = ((run, started), (progress, steps), (value, measured))
            cells = [Text.assemble(first, "\n", (second, "dim")) for first, second in facts]
            table.add_row(cells[0], status, *cells[1:])
        else:
            table.add_row(run, status, progress, steps, value, measured, started)
    return table
