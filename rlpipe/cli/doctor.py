"""``rlpipe doctor [CONFIG] [key=value ...]``"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from rlpipe.cli import arguments
from rlpipe.cli.exit_codes import ExitCode
from rlpipe.cli.streams import console_for_results, print_json
from rlpipe.doctor.memory import in_units
from rlpipe.doctor.results import CheckStatus

if TYPE_CHECKING:
    from rlpipe.doctor.results import CheckReport, CheckResult

STYLES = {CheckStatus.FAIL: "bold red", CheckStatus.WARN: "yellow", CheckStatus.OK: "green"}
SIGNS = {CheckStatus.FAIL: "✗", CheckStatus.WARN: "!", CheckStatus.OK: "✓"}
"""Sign of each status, the worst first."""
BAR = 24
"""Characters of a bar for a whole."""
SMALL_SHARE = 0.01
"""Share of a sum below which its parts are shown together."""
SHOWN_NODES = 3
"""Nodes that are named one by one; the others are counted."""


def doctor(
    config: Annotated[str | None, typer.Argument(help="YAML file of the planned run.")] = None,
    overrides: Annotated[
        list[str] | None, typer.Argument(help="Changes, such as runner.seed=1.", metavar="[key=value]...")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the findings as JSON.")] = False,
    ray_address: arguments.RayAddress = None,
    timeout: Annotated[float, typer.Option(min=1.0, help="Seconds within which each node must have answered.")] = 45.0,
) -> None:
    """Check that this machine and every node of the cluster can carry a run, and say what to fix.

    With CONFIG, also check what the planned run needs. This includes running its simulator for ten steps on each node
    that may host a rollout worker.

    Exit code 1 when something must be fixed.
    """
    import rlpipe
    from rlpipe.distributed.node_checks import examine
    from rlpipe.training.first_weights import with_base_policy

    loaded = with_base_policy(rlpipe.load_config(config, overrides or [])) if config is not None else None
    stderr = Console(stderr=True, highlight=False)
    with stderr.status("Checking ..."):
        report = examine(loaded, ray_address, timeout)
    if as_json:
        print_json(report.as_json())
    else:
        console_for_results(120).print(screen(report))
    if report.status == CheckStatus.FAIL:
        raise typer.Exit(ExitCode.FAILED)


def screen(report: CheckReport) -> RenderableType:
    """Returns the report as it is shown: each check once, its nodes together."""
    checks: dict[str, list[CheckResult]] = {}
    for result in report.findings:
        checks.setdefault(result.name, []).append(result)
    table = Table.grid(padding=(0, 2))
    table.add_column()
    table.add_column(no_wrap=True)
    table.add_column()
    table.add_column(style="dim")
    for name, results in checks.items():
        for index, (sign, finding, where) in enumerate(_rows(results, len(report.nodes))):
            table.add_row(sign, Text("" if index else name), finding, where)  # Text: a name may hold brackets
    return Group(table, "", _summary(report))


def _rows(results: Sequence[CheckResult], nodes: int) -> list[tuple[Text, RenderableType, str]]:
    """Returns a line for each different finding, the worst first, with its nodes unless it concerns all."""
    groups: dict[tuple[CheckStatus, str, str], list[str]] = {}
    parts: dict[str, Mapping[str, int]] = {}
    for result in sorted(results, key=lambda result: list(SIGNS).index(result.status)):
        groups.setdefault((result.status, result.message, result.remedy), []).append(result.node)
        parts[result.message] = result.parts
    rows: list[tuple[Text, RenderableType, str]] = []
    in_order = 0
    for (status, finding, remedy), where in groups.items():
        in_order += status == CheckStatus.OK
        if in_order > SHOWN_NODES:
            continue  # numbers that differ from node to node and are all in order
        text = Text.assemble(finding, (f"\n→ {remedy}" if remedy else "", "bold"))
        everywhere = len(where) >= nodes or not any(where)
        shown_finding = Group(text, _table_of(parts[finding])) if parts[finding] else text
        rows.append((Text(SIGNS[status], style=STYLES[status]), shown_finding, "" if everywhere else _names(where)))
    if in_order > SHOWN_NODES:
        more = Text(f"and {in_order - SHOWN_NODES} more", style="dim")
        rows.append((Text(SIGNS[CheckStatus.OK], style=STYLES[CheckStatus.OK]), more, ""))
    return rows


def _table_of(parts: Mapping[str, int]) -> Table:
    """Returns bytes by what they are for, the largest first, each with a bar for its share; below 1 % together."""
    table, total = Table.grid(padding=(0, 2)), sum(parts.values())
    table.add_column(style="dim")
    table.add_column(justify="right")
    table.add_column(style="cyan", no_wrap=True)
    by_size = sorted(parts.items(), key=lambda part: -part[1])
    rows = [(name, size) for name, size in by_size if size >= SMALL_SHARE * total]
    if others := by_size[len(rows) :]:
        rows.append((", ".join(name.partition(",")[0] for name, _ in others), sum(size for _, size in others)))
    for name, size in rows:
        table.add_row(name, in_units(size), _bar(size / total))
    return table


def _bar(share: float) -> str:
    """Returns a line of ``BAR`` characters for the whole, in steps of half a character."""
    halves = max(1, round(2 * BAR * share))
    return "━" * (halves // 2) + "╸" * (halves % 2)


def _names(nodes: Sequence[str]) -> str:
    more = len(nodes) - SHOWN_NODES
    return ", ".join(nodes[:SHOWN_NODES]) + (f" and {more} more" if more > 0 else "")


def _summary(report: CheckReport) -> Text:
    broken, weak = report.count(CheckStatus.FAIL), report.count(CheckStatus.WARN)
    nodes = f", {_counted(len(report.nodes), 'node')}" if len(report.nodes) > 1 else ""
    return Text.assemble(
        (f"Not ready: {_counted(broken, 'thing')} must be fixed" if broken else "Ready", STYLES[report.status]),
        (f"{', ' if broken else ', but '}{weak} could be better" if weak else "", STYLES[CheckStatus.WARN]),
        (f"  {_counted(len(report.findings), 'check')} in {report.seconds:.0f} s{nodes}", "dim"),
    )


def _counted(count: int, noun: str) -> str:
    return f"{count} {noun}{'s' * (count != 1)}"
