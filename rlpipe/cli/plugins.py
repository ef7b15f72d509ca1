"""``rlpipe plugins``: plug-ins that a configuration can name."""

from __future__ import annotations

from typing import Annotated, Any

import typer
from rich import box
from rich.table import Table
from rich.text import Text

from rlpipe.cli.streams import PIPED_WIDTH, console_for_results, print_json
from rlpipe.errors import ConfigError
from rlpipe.plugins import KINDS, InstalledPlugin, installed, shipped


def plugins(as_json: Annotated[bool, typer.Option("--json", help="Print the list as JSON.")] = False) -> None:
    """List simulators, policies, encoders, algorithms, curricula and backends, with version and origin.

    Those of installed packages are imported, to see whether they can be used.
    """
    rows = [row for kind in KINDS for row in _rows(kind)]
    rows += [_row(plugin, plugin.problem) for plugin in installed("")]
    if as_json:
        print_json(rows)
        return
    console = console_for_results(PIPED_WIDTH)
    console.print(_table(rows, boxed=console.is_terminal))
    for row in rows:
        if row["problem"]:
            console.print(Text.assemble((f"{row['name'] or row['distribution']}: ", "yellow"), row["problem"]))


def _rows(kind: str) -> list[dict[str, Any]]:
    """Returns the plug-ins of a kind, those of this package first."""
    from rlpipe.run.provenance import installed_version

    version, names, others = installed_version("rlpipe"), shipped(kind), installed(kind)
    package = InstalledPlugin(kind, "", "", "rlpipe", version or "", "")
    rows = [{**_row(package, ""), "name": name, "target": None} for name in names]
    for plugin in sorted(others, key=lambda plugin: plugin.name):
        rivals = [rival.origin for rival in others if rival.name == plugin.name and rival is not plugin]
        if plugin.name in names:
            problem = f"{plugin.name} means rlpipe's own; write {plugin.target} for that of {plugin.origin}."
        elif rivals:
            problem = f"{' and '.join(rivals)} provides it, too; write {plugin.target} for that of {plugin.origin}."
        else:
            problem = _problem(plugin)
        rows.append(_row(plugin, problem))
    return rows


def _problem(plugin: InstalledPlugin) -> str:
    """Returns why a plug-in cannot be used; empty if it can."""
    try:
        plugin.load()
    except ConfigError as error:
        return str(error)
    return ""


def _row(plugin: InstalledPlugin, problem: str) -> dict[str, Any]:
    return {
        "kind": plugin.kind,
        "name": plugin.name,
        "version": plugin.version,
        "distribution": plugin.distribution,
        "folder": plugin.folder or None,
        "target": plugin.target,
        "problem": problem or None,
    }


def _table(rows: list[dict[str, Any]], *, boxed: bool) -> Table:
    table = Table(box=box.ROUNDED if boxed else None, header_style="bold", border_style="dim", pad_edge=boxed)
    for column in ("kind", "name", "version", "origin"):
        table.add_column(column, overflow="fold")
    for before, row in zip([None, *rows], rows, strict=False):
        if before is not None and before["kind"] != row["kind"]:
            table.add_section()
        folder = f" in {row['folder']}" if row["folder"] else ""
        origin = "this package" if row["distribution"] == "rlpipe" else f"{row['distribution']}{folder}"
        style = "yellow" if row["problem"] else "cyan"
        table.add_row(row["kind"], Text(row["name"], style), row["version"], Text(origin))
    return table
