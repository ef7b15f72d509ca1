"""``rlpipe doctor [CONFIG] [key=value ...]``"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    from rlpipe.doctor.checks import Finding, Report

STYLES = {"fail": "bold red", "warn": "yellow", "ok": "green"}
SIGNS = {"fail": "✗", "warn": "!", "ok": "✓"}
SHOWN_NODES = 3
"""Nodes that are named one by one; the others are counted."""


def add_to(app: typer.Typer) -> None:
    """Adds the command."""
    app.command(name="doctor")(doctor)


def doctor(
    config: Annotated[str | None, typer.Argument(help="YAML file of the run that is planned.")] = None,
    overrides: Annotated[
        list[str] | None, typer.Argument(help="Changes, such as runner.seed=1.", metavar="[key=value]...")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the findings as JSON.")] = False,
    ray_address: Annotated[
        str | None, typer.Option(help="Ray cluster to join; else RAY_ADDRESS, else one is started.")
    ] = None,
    timeout: Annotated[float, typer.Option(min=1.0, help="Seconds within which each node must have answered.")] = 45.0,
) -> None:
    """Check that this machine and every node of the cluster can carry a run, and say what to do where not.

    With CONFIG also what that run needs, down to ten steps of its simulator on each node that may get a rollout worker.

    Exit code 1 when something must be fixed.
    """
    import rlpipe
    from rlpipe.distributed.node_checks import examine

    loaded = rlpipe.load_config(config, overrides or []) if config is not None else None
    stderr = Console(stderr=True, highlight=False)
    with stderr.status("Looking ..."):
        report = examine(loaded, ray_address, timeout)
    if as_json:
        print(json.dumps(report.as_json(), indent=2))
    else:
        Console(highlight=False, width=None if sys.stdout.isatty() else 120).print(screen(report))
    if report.status == "fail":
        raise typer.Exit(1)


def screen(report: Report) -> RenderableType:
    """The findings as they are shown: each check once, its nodes together."""
    checks: dict[str, list[Finding]] = {}
    for found in report.findings:
        checks.setdefault(found.name, []).append(found)
    table = Table.grid(padding=(0, 2))
    table.add_column()
    table.add_column(no_wrap=True)
    table.add_column()
    table.add_column(style="dim")
    for name, findings in checks.items():
        for index, row in enumerate(_rows(findings, len(report.nodes))):
            sign, told, where = row
            table.add_row(sign, Text("" if index else name), told, where)  # Text: a name may hold brackets
    return Group(table, "", _summary(report))


def _rows(findings: Sequence[Finding], nodes: int) -> list[tuple[Text, Text, str]]:
    """A line for each thing that was found, worst first, and the nodes where it was, unless on all."""
    groups: dict[tuple[str, str, str], list[str]] = {}
    for found in sorted(findings, key=lambda found: list(SIGNS).index(found.status)):
        groups.setdefault((found.status, found.found, found.remedy), []).append(found.node)
    rows, fine = [], 0
    for (status, told, remedy), where in groups.items():
        fine += status == "ok"
        if fine > SHOWN_NODES:
            continue  # numbers that differ and are all in order
        text = Text.assemble(told, (f"\n→ {remedy}" if remedy else "", "bold"))
        everywhere = len(where) >= nodes or not any(where)
        rows.append((Text(SIGNS[status], style=STYLES[status]), text, "" if everywhere else _several(where)))
    if fine > SHOWN_NODES:
        rows.append((Text(SIGNS["ok"], style=STYLES["ok"]), Text(f"and {fine - SHOWN_NODES} more", style="dim"), ""))
    return rows


def _several(nodes: Sequence[str]) -> str:
    more = len(nodes) - SHOWN_NODES
    return ", ".join(nodes[:SHOWN_NODES]) + (f" and {more} more" if more > 0 else "")


def _summary(report: Report) -> Text:
    broken, weak = report.count("fail"), report.count("warn")
    many = f", {_times(len(report.nodes), 'node')}" if len(report.nodes) > 1 else ""
    return Text.assemble(
        (f"Not ready: {_times(broken, 'thing')} must be fixed" if broken else "Ready", STYLES[report.status]),
        (f"{', ' if broken else ', but '}{weak} could be better" if weak else "", STYLES["warn"]),
        (f"  {_times(len(report.findings), 'check')} in {report.seconds:.0f} s{many}", "dim"),
    )


def _times(count: int, what: str) -> str:
    return f"{count} {what}{'s' * (count != 1)}"
