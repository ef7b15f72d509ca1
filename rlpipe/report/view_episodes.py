"""Section on single episodes: a scatter over the run, a table, and evaluations by start."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from rlpipe.report.formats import significant
from rlpipe.report.ledger import LEVEL, Ledger
from rlpipe.report.run_content import RANGES, Populations, RunContent
from rlpipe.report.view_curves import scripts, style
from rlpipe.report.web.page import Section, render

MOST_FAILED = 12
"""Seeds of failed starts that a line names."""


def episodes_section(content: RunContent, most: int) -> Section | None:
    """Builds the section, with at most so many episodes in its table and its scatter; None without any episode."""
    ledger, evaluations = content.ledger, content.evaluations
    if ledger is None and not evaluations:
        return None
    values: dict[str, Any] = {"total": 0}
    data: dict[str, Any] = {}
    if ledger is not None:
        listed, points = ledger.listed[-most:], ledger.points[:: max(1, -(-len(ledger.points) // most))]
        values = _of_training(ledger, content.populations, listed, points)
        keys = ["iteration", "steps", *values["keys"]]
        data = {
            "listed": _columns(content, listed, keys),
            "points": _columns(content, points, ["steps", "success_once", "length", "return"]),
        }
    grid = _grid(evaluations)
    if grid is not None:
        data["evaluations"] = grid.pop("data")
    html = render("report/episodes.html", **values, grid=grid)
    return Section("episodes", "Episodes", html, style(), scripts("scripts/episodes.js"), data)


def left_out(content: RunContent, most: int) -> list[str]:
    """Says which episodes are not shown one by one."""
    ledger, sentences = content.ledger, []
    if ledger is not None and (listed := min(len(ledger.listed), most)) < ledger.total:
        pooled = f"all of them that {content.populations.own}" if ledger.chosen_starts else "all of them"
        sentences.append(
            f"{ledger.total - listed:,} of {ledger.total:,} training episodes are not in the table; {pooled} are in "
            "the pooled success, return and length."
        )
    if content.evaluations_left_out:
        sentences.append(f"Episodes of the oldest {content.evaluations_left_out:,} evaluations, by start.")
    return sentences


def _of_training(ledger: Ledger, words: Populations, listed: Sequence[Any], points: Sequence[Any]) -> dict[str, Any]:
    columns = [
        ("seed", "seed", True), ("task", "task", False), ("success_once", "outcome", False),
        ("first_success", "first success", True), ("length", "length", True), ("return", "return", True),
        ("began", words.column, False),
    ]  # fmt: skip
    has = {key: any(row.get(key) is not None for row in listed) for key in ("task", "success_once", "first_success")}
    has["began"] = any(row["chosen"] for row in listed)
    columns = [column for column in columns if has.get(column[0], True)]
    levels = dict.fromkeys(key for row in listed for key in row if key.startswith(LEVEL))
    columns += [(key, key.removeprefix(LEVEL).replace("_", " "), True) for key in levels]
    stride = "Every episode" if len(points) == ledger.total else f"{len(points):,} of {ledger.total:,} episodes, evenly"
    rate, others, wherever = "", "", ""
    if ledger.chosen_starts:
        rate, others = f" {ledger.chosen_starts:,} of them {words.chosen}.", " others"
        wherever = f", {words.all_alike}"
    if ledger.judged:
        rate += f" {ledger.successes:,} of {ledger.judged:,}{others} succeeded."
    if len(listed) == ledger.total:
        extent = f"All {ledger.total:,} episodes."
    else:
        newest = min(len(listed), len(ledger.listed) - ledger.failures_listed)
        failures = len(listed) - newest
        extent = f"{len(listed):,} of {ledger.total:,} episodes: the newest {newest:,}"
        extent += f", and the newest {failures:,} failures before them." if failures else "."
        if ledger.failures_total:
            extent += f" All in all, {ledger.failures_total:,} failed{wherever}."
    return {
        "total": ledger.total,
        "note": f"{ledger.total:,} training episodes ended.{rate}",
        "has_returns": any(row["return"] is not None for row in points),
        "has_success": any(row["success_once"] is not None for row in (*listed, *points)),
        "scatter_summary": f"Scatter of training episodes over environment steps. {ledger.total:,} episodes.{rate} "
        "The table below has single episodes.",
        "scatter_note": f"{stride}, each at the environment steps after the iteration in which it ended.",
        "tasks": [(task, f"{count:,}") for task, count in sorted(ledger.tasks.items())],
        "table_note": f"{extent} Click a heading to sort.",
        "columns": [("iteration", "iteration", True), ("steps", "steps", True), *columns],
        "keys": [key for key, _, _ in columns],
    }


def _columns(content: RunContent, rows: Sequence[Mapping[str, Any]], keys: Sequence[str]) -> dict[str, list[Any]]:
    """Writes episodes as columns."""
    computed: dict[str, Callable[[Mapping[str, Any]], Any]] = {
        "steps": lambda row: content.course.steps_after(row["iteration"]),
        "began": lambda row: _began(row, content.populations),
    }
    columns: dict[str, list[Any]] = {}
    for key in keys:
        values = [computed[key](row) if key in computed else row.get(key) for row in rows]
        columns[key] = [
            significant(value) if isinstance(value, float) and key != "steps" else value for value in values
        ]
    return columns


def _began(row: Mapping[str, Any], words: Populations) -> str:
    """Says how an episode began."""
    if row["edge"] is not None:
        axis, _, side = row["edge"].rpartition("_")
        return f"{axis.replace('_', ' ')} at its {side} edge"
    if words is RANGES:
        return words.of_chosen if row["chosen"] else words.of_own
    if row["demonstration"] is not None:
        length = f" of {row['demonstration_length']}" if row["demonstration_length"] is not None else ""
        towards = f" towards demonstration {row['towards']}" if row["towards"] is not None else ""
        blend = f", blend {row['blend']:.2f}{towards}" if row["blend"] else ""
        return f"demonstration {row['demonstration']}, step {row['demonstration_step']}{length}{blend}"
    return "chosen start" if row["chosen"] else "as the task begins"


def _grid(evaluations: Mapping[int, Sequence[Mapping[str, Any]]]) -> dict[str, Any] | None:
    """Success of each start in each evaluation; None without success or an evaluation."""
    if all(row["success_once"] is None for rows in evaluations.values() for row in rows):
        return None
    outcomes = {
        iteration: {_start(n, row): row["success_once"] for n, row in enumerate(rows)}
        for iteration, rows in evaluations.items()
    }
    starts = sorted(
        {start for line in outcomes.values() for start in line}, key=lambda key: (isinstance(key, str), key)
    )
    signs = {True: "1", False: "0", None: "-"}
    table = []
    for iteration, line in outcomes.items():
        failed = [str(start) for start in starts if line.get(start) is False]
        named = ", ".join(failed[:MOST_FAILED])
        named += f" and {len(failed) - MOST_FAILED} more" if len(failed) > MOST_FAILED else ""
        succeeded = sum(success is True for success in line.values())
        table.append((f"{iteration:,}", f"{succeeded} of {len(line)}", named or "none"))
    never = [start for start in starts if not any(line.get(start) for line in outcomes.values())]
    solved = f"{len(never)} starts never succeeded." if never else "Every start succeeded at least once."
    return {
        "note": f"Each column is a start (its seed), each row an evaluation, the newest at the bottom. {solved}",
        "summary": f"Grid of {len(starts)} starts by {len(outcomes)} evaluations; the table below says which failed.",
        "rest": "Move over the grid to read a start.",
        "rows": table,
        "data": {
            "seeds": starts,
            "evaluations": [
                {"iteration": iteration, "outcomes": "".join(signs[line.get(start)] for start in starts)}
                for iteration, line in outcomes.items()
            ],
        },
    }


def _start(number: int, row: Mapping[str, Any]) -> int | str:
    """Names a start by its seed, with its task where there are several; by its order where no seed is known."""
    if row["seed"] is None:
        return number
    return row["seed"] if row["task"] is None else f"{row['task']}, {row['seed']}"
