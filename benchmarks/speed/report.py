"""Summaries of a contender's measurements over the rounds, and the tables that show them."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from rich.table import Table

STOCK = "stock limit"
Rounds = Sequence[Mapping[str, Any]]
"""Measurements of a contender, one for each round: ``rate``, ``ratio``, and what else it has."""


def summary(values: Sequence[float]) -> dict[str, Any]:
    """Median and range of a measurement, with all its values."""
    return {"median": statistics.median(values), "range": [min(values), max(values)], "values": list(values)}


def summarize(rounds: Rounds) -> dict[str, Any]:
    """Summaries of everything that was measured in every round."""
    summaries: dict[str, Any] = {}
    for name in ("rate", "ratio", "first_step", "collection_in_training"):
        values = [measured[name] for measured in rounds if measured.get(name) is not None]
        if values:
            summaries[name] = summary(values)
    if times := [measured["time"] for measured in rounds if "time" in measured]:
        summaries["time"] = {
            name: statistics.median(each[name] for each in times) for name in times[0] if all(name in t for t in times)
        }
    if versions := {measured["version"] for measured in rounds if "version" in measured}:
        summaries["version"] = ", ".join(sorted(versions))
    return summaries


def shown(measured: Mapping[str, Any] | None, digits: int) -> str:
    """A median with its range, such as ``0.62 (0.62 to 0.79)``; nothing where nothing was measured."""
    if measured is None:
        return ""
    low, high = measured["range"]
    return f"{measured['median']:,.{digits}f} ({low:,.{digits}f} to {high:,.{digits}f})"


def speed_table(task: str, contenders: Mapping[str, Mapping[str, Any]]) -> Table:
    """Rates and their ratios to the stock limit."""
    table = Table("", "steps/s", "of the stock limit", "first step after, s", title=task)
    for name, measured in contenders.items():
        table.add_row(
            name, shown(measured["rate"], 0), shown(measured["ratio"], 2), shown(measured.get("first_step"), 1)
        )
    return table


def time_table(contenders: Mapping[str, Mapping[str, Any]]) -> Table | None:
    """Where the iterations of rlpipe's contenders go; None without any.

    Times overlap where a pipeline collects while it learns, so shares can add up to more than one.
    """
    timed = {name: measured["time"] for name, measured in contenders.items() if "time" in measured}
    if not timed:
        return None
    table = Table("where an iteration goes: seconds, share", *timed)
    for name in dict.fromkeys(name for times in timed.values() for name in times):
        cells = [
            f"{times[name]:.3f}  {times[name] / times['time/step']:4.0%}" if name in times else ""
            for times in timed.values()
        ]
        table.add_row(name, *cells)
    return table


def success_table(target: float, contenders: Mapping[str, Sequence[float | None]]) -> Table:
    """Seconds from the command to the target training success, of each run."""
    table = Table("", f"seconds to a training success of {target:g} over 100 episodes")
    for name, seconds in contenders.items():
        table.add_row(name, ", ".join("not reached" if each is None else f"{each:.0f}" for each in seconds))
    return table
