"""The tables of ``benchmarks/gpu.py``, and the goals that its rows reach or miss."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

Row = Mapping[str, Any]
MODES = ("cpu", "eager", "graphs")
FLOOR = ("add", "item", "pageable copy", "pinned copy", "mask", "graph of 100", "graph of 1,000", "graph", "node")
BOUND = 1e-6
"""Difference of weights to which minibatches of unequal sizes, padded to be recorded, may lead."""
PLACES = 3
"""Number of places that a row of host reads names."""
GOALS = {
    "per_second": ("gradient steps a second with graphs", "{:,.0f}"),
    "gain": ("graphs / eager", "{:.1f}"),
    "kernel_share": ("time in kernels with graphs", "{:.0%}"),
}
"""Words of a goal, and how its numbers are written."""


PARTS = {
    "reads": (
        "Waits of the host for the device in an update",
        {
            "update": "{name}", "mode": "{mode}", "gradient steps": "{gradient_steps:,}", "waits": "{reads:,}",
            "in each step": "{reads_per_step:.1f}", "most": "{most}",
        },
    ),
    "act": (
        "Acting on observations from the host",
        {
            "policy": "{name}", "M param.": "{millions:.2f}", "rows": "{count:,}", "ms": "{ms:.2f}",
            "rows/s": "{per_second:,.0f}",
        },
    ),
    "run": (
        "A run on Ray",
        {
            "simulators": "{name}", "workers": "{workers}", "samples": "{count:,}", "iteration, ms": "{ms:,.0f}",
            "update, ms": "{update_ms:,.0f}", "samples/s": "{per_second:,.0f}",
        },
    ),
}  # fmt: skip
"""Title and columns of a part, with how their cells are written."""


class Table(NamedTuple):
    """A table to print.

    Attributes:
        title: of the whole.
        columns: titles of the columns.
        lines: cells of each line.
    """

    title: str
    columns: tuple[str, ...]
    lines: list[list[str]]


def reason(row: Row) -> str | None:
    """Why a row has no numbers; None if it has them."""
    return next((f"{kind}: {row[kind]}" for kind in ("failed", "skipped") if kind in row), None)


def label(row: Row) -> str:
    """Columns that tell a row from others."""
    return " ".join(row[key] for key in ("part", "name", "precision", "mode") if key in row)


def _by_update(rows: Sequence[Row]) -> dict[tuple[str, str], dict[str, Row]]:
    """Rows of updates by mode, for each name and precision; those of a name side by side."""
    grouped: dict[tuple[str, str], dict[str, Row]] = {}
    for row in rows:
        if row["part"] == "update":
            grouped.setdefault((row["name"], row["precision"]), {})[row["mode"]] = row
    names = list(dict.fromkeys(name for name, _ in grouped))
    return dict(sorted(grouped.items(), key=lambda item: names.index(item[0][0])))


def ratio(modes: Mapping[str, Row], mode: str, other: str) -> float | None:
    """How many times as fast an update is in a mode as in another; None if one of them was not measured."""
    rates = [modes.get(name, {}).get("per_second") for name in (mode, other)]
    return rates[0] / rates[1] if all(rates) else None


def _each(modes: Mapping[str, Row], key: str, form: str) -> str:
    """A measurement of the eager update and of that with graphs; of the CPU in a rehearsal."""
    measured = [modes[mode][key] for mode in MODES if key in modes.get(mode, {}) and (mode != "cpu" or len(modes) == 2)]
    return " → ".join(form.format(number) for number in measured)


def _weights(row: Row) -> str:
    if "equal" not in row:
        return ""
    if row["equal"]:
        return "equal"
    return f"{row['largest_difference']:.0e}{'' if row['eager_repeats_itself'] else ', eager too'}"


def update_table(rows: Sequence[Row]) -> Table:
    """Table of the updates that were measured in any mode."""
    lines, last = [], ""
    for (name, precision), modes in _by_update(rows).items():
        if all(reason(row) for row in modes.values()):
            continue
        ratios = [ratio(modes, "graphs", "eager"), ratio(modes, "graphs", "cpu") or ratio(modes, "eager", "cpu")]
        lines.append([
            "" if name == last else name,
            precision,
            next(f"{row['parameters'] / 1e6:.2f}" for row in modes.values() if "parameters" in row),
            *(f"{modes[mode]['per_second']:,.0f}" if "per_second" in modes.get(mode, {}) else "" for mode in MODES),
            *("" if number is None else f"{number:.1f}" for number in ratios),
            _each(modes, "kernel_share", "{:.0%}"),
            _each(modes, "launches", "{:,}"),
            _each(modes, "peak_mib", "{:,.0f}"),
            _weights(modes.get("graphs", {})),
        ])  # fmt: skip
        last = name
    columns = (
        "update", "precision", "M param.", "CPU/s", "eager/s", "graphs/s", "graphs / eager", "GPU / CPU", "in kernels",
        "launches", "MiB", "weights",
    )  # fmt: skip
    return Table("Updates: samples or gradient steps a second", columns, lines)


def _cells(row: Row) -> dict[str, Any]:
    """A row with what tables show in other units."""
    places = [*row.get("places", {}).items()][:PLACES]
    return {
        **row,
        "ms": 1e3 * row.get("seconds", 0),
        "update_ms": 1e3 * row.get("update_seconds", 0),
        "millions": row.get("parameters", 0) / 1e6,
        "most": ", ".join(f"{place} x {number}" for place, number in places),
    }


def tables(rows: Sequence[Row]) -> Iterator[Table]:
    """Yields the tables of all parts."""
    yield update_table(rows)
    measured = [_cells(row) for row in rows if reason(row) is None]
    floor = {name: spent for row in measured if row["part"] == "floor" for name, spent in row.items()}
    cells = [f"{floor[name]:,.2f}" if name in floor else "" for name in FLOOR]
    yield Table("Microseconds of a call, and of replaying a CUDA graph (graph + nodes x node)", FLOOR, [cells])
    for part, (title, columns) in PARTS.items():
        lines = [[form.format_map(row) for form in columns.values()] for row in measured if row["part"] == part]
        yield Table(title, tuple(columns), lines)


def goal_table(rows: Sequence[Row]) -> Table:
    """Goals, the numbers that decide, and whether they are reached."""
    lines, compared = [], []
    for (name, _), modes in _by_update(rows).items():
        graphs = modes.get("graphs", {})
        compared += [graphs] if "equal" in graphs else []
        for key, least in graphs.get("goals", {}).items():
            words, form = GOALS[key]
            number = ratio(modes, "graphs", "eager") if key == "gain" else graphs.get(key)
            verdict = "not measured" if number is None else "reached" if number >= least else "NOT reached"
            written = "" if number is None else form.format(number)
            lines.append([f"{name}: {words}", form.format(least), written, verdict])
    unlike = [row for row in compared if row["largest_difference"] > BOUND and row["eager_repeats_itself"]]
    verdict = "not measured" if not compared else "NOT reached" if unlike else "reached"
    equal = f"{sum(row['equal'] for row in compared)} of {len(compared)}" if compared else ""
    words = f"graphs that end with the bits of eager, or with weights within {BOUND:.0e} where eager repeats itself"
    lines.append([words, "all", equal, verdict])
    return Table("Goals", ("goal", "at least", "measured", ""), lines)


def show(rows: Sequence[Row], markdown: bool = False) -> None:
    """Prints the tables, what is missing and why, and the goals; with rich where it is installed."""
    for table in tables(rows):
        _print(table, markdown)
    missing: dict[str, list[str]] = {}
    for row in rows:
        unprofiled = f"not profiled: {row['unprofiled']}" if "unprofiled" in row else None
        if why := reason(row) or unprofiled:
            missing.setdefault(why, []).append(label(row))
    for why, labels in missing.items():
        print(f"{why}\n  {labels[0]}{f' and {len(labels) - 1} others' * (len(labels) > 1)}")
    _print(goal_table(rows), markdown)


def _print(table: Table, markdown: bool) -> None:
    """Prints a table without the columns that are empty; nothing if it has no lines."""
    filled = [index for index in range(len(table.columns)) if any(line[index] for line in table.lines)]
    columns, *lines = ([line[index] for index in filled] for line in (table.columns, *table.lines))
    if not columns or not lines:
        return
    if importlib.util.find_spec("rich") is None:
        widths = [max(map(len, column)) for column in zip(columns, *lines, strict=True)]
        print(f"\n{table.title}")
        for line in (columns, *lines):
            print("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip())
        return
    from rich import box
    from rich.console import Console
    from rich.table import Table as RichTable

    drawn = RichTable(box=box.MARKDOWN if markdown else box.SIMPLE_HEAD)
    for index, column in enumerate(columns):
        numbers = all(line[index][:1].isdigit() for line in lines if line[index])
        drawn.add_column(column, justify="right" if numbers else "left", no_wrap=True)
    for line in lines:
        drawn.add_row(*line)
    console = Console(width=200, highlight=False)
    console.print(f"\n{table.title}", style="bold")
    console.print(drawn)
