"""Section on single episodes: a scatter over the run, a table, and evaluations by start."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rlpipe.report.formats import significant
from rlpipe.report.ledger import EvaluationEpisodes, Ledger
from rlpipe.report.run_content import RunContent
from rlpipe.report.view_curves import scripts, style
from rlpipe.report.web.page import Section, render

MOST_FAILED = 12
"""Seeds of failed starts that a line names."""


def episodes_section(content: RunContent, most: int) -> Section | None:
    """Builds the section; None without any episode.

    Args:
        content: of the run
        most: most episodes of the table, and of the scatter
    """
    ledger, evaluations = content.ledger, content.evaluations
    if ledger is None and evaluations is None:
        return None
    values: dict[str, Any] = {"total": 0}
    data: dict[str, Any] = {}
    if ledger is not None:
        listed, points = ledger.listed[-most:], _evenly(ledger.points, most)
        values = _of_training(ledger, listed, points)
        keys = ["iteration", "steps", *values["keys"]]
        data = {
            "listed": _columns(content, listed, keys),
            "points": _columns(content, points, ["steps", "success_once", "length", "return"]),
        }
    grid = None if evaluations is None else _grid(evaluations)
    if grid is not None:
        data["evaluations"] = grid.pop("data")
    html = render("report/episodes.html", **values, grid=grid)
    return Section("episodes", "Episodes", html, style(), scripts("scripts/episodes.js"), data)


def left_out(content: RunContent, most: int) -> list[str]:
    """Says which episodes are not shown one by one."""
    ledger, found = content.ledger, []
    if ledger is not None and (shown := min(len(ledger.listed), most)) < ledger.total:
        found.append(
            f"{ledger.total - shown:,} of {ledger.total:,} training episodes are not in the table; all of them"
            f"{' that began as the task begins' if ledger.chosen else ''} are in the pooled success, return and length."
        )
    if content.evaluations is not None and content.evaluations.left_out:
        found.append(f"Episodes of the oldest {content.evaluations.left_out:,} evaluations, by start.")
    return found


def _evenly(rows: Sequence[Mapping[str, Any]], most: int) -> Sequence[Mapping[str, Any]]:
    return rows if len(rows) <= most else rows[:: -(-len(rows) // most)]


def _of_training(ledger: Ledger, listed: Sequence[Any], points: Sequence[Any]) -> dict[str, Any]:
    keys = [
        ("seed", "seed", True), ("task", "task", False), ("success_once", "outcome", False),
        ("first_success", "first success", True), ("length", "length", True), ("return", "return", True),
        ("began", "began", False),
    ]  # fmt: skip
    has = {key: any(row.get(key) is not None for row in listed) for key in ("task", "success_once", "first_success")}
    has["began"] = any(row["chosen"] for row in listed)
    kept = [one for one in keys if has.get(one[0], True)]
    stride = "Every episode" if len(points) == ledger.total else f"{len(points):,} of {ledger.total:,} episodes, evenly"
    chosen = f" {ledger.chosen:,} of them began where the curriculum chose." if ledger.chosen else ""
    others = " others" if ledger.chosen else ""
    rate = f"{chosen} {ledger.successes:,} of {ledger.judged:,}{others} succeeded." if ledger.judged else chosen
    if len(listed) == ledger.total:
        shown = f"All {ledger.total:,} episodes."
    else:
        newest = min(len(listed), len(ledger.listed) - ledger.failures_listed)
        failures = len(listed) - newest
        shown = f"{len(listed):,} of {ledger.total:,} episodes: the newest {newest:,}"
        shown += f", and the newest {failures:,} failures before them." if failures else "."
        if ledger.failures_total:
            shown += f" All in all, {ledger.failures_total:,} failed{', wherever they began' if ledger.chosen else ''}."
    return {
        "total": ledger.total,
        "note": f"{ledger.total:,} training episodes ended.{rate}",
        "has_returns": any(row["return"] is not None for row in points),
        "has_success": any(row["success_once"] is not None for row in (*listed, *points)),
        "scatter_summary": f"Scatter of training episodes over environment steps. {ledger.total:,} episodes.{rate} "
        "The table below has single episodes.",
        "scatter_note": f"{stride}, each at the environment steps after the iteration in which it ended.",
        "tasks": [(task, f"{count:,}") for task, count in sorted(ledger.tasks.items())],
        "table_note": f"{shown} Click a heading to sort.",
        "columns": [("iteration", "iteration", True), ("steps", "steps", True), *kept],
        "keys": [key for key, _, _ in kept],
    }


def _columns(content: RunContent, rows: Sequence[Mapping[str, Any]], keys: Sequence[str]) -> dict[str, list[Any]]:
    """Writes episodes as columns."""
    made = {"steps": lambda row: content.course.steps_after(row["iteration"]), "began": _began}
    found: dict[str, list[Any]] = {}
    for key in keys:
        values = [made[key](row) if key in made else row.get(key) for row in rows]
        found[key] = [significant(value) if isinstance(value, float) and key != "steps" else value for value in values]
    return found


def _began(row: Mapping[str, Any]) -> str:
    """Says where an episode began."""
    if row["demonstration"] is not None:
        length = f" of {row['demonstration_length']}" if row["demonstration_length"] is not None else ""
        towards = f" towards demonstration {row['towards']}" if row["towards"] is not None else ""
        blend = f", blend {row['blend']:.2f}{towards}" if row["blend"] else ""
        return f"demonstration {row['demonstration']}, step {row['demonstration_step']}{length}{blend}"
    return "chosen start" if row["chosen"] else "as the task begins"


def _grid(evaluations: EvaluationEpisodes) -> dict[str, Any] | None:
    """Success of each start in each evaluation; None for a simulator without success."""
    if all(row["success_once"] is None for rows in evaluations.rows for row in rows):
        return None
    found = [{_start(n, row): row["success_once"] for n, row in enumerate(rows)} for rows in evaluations.rows]
    starts = sorted({start for one in found for start in one}, key=lambda start: (isinstance(start, str), start))
    signs = {True: "1", False: "0", None: "-"}
    table = []
    for iteration, one in zip(evaluations.iterations, found, strict=True):
        failed = [str(start) for start in starts if one.get(start) is False]
        named = ", ".join(failed[:MOST_FAILED])
        named += f" and {len(failed) - MOST_FAILED} more" if len(failed) > MOST_FAILED else ""
        table.append((f"{iteration:,}", f"{sum(v is True for v in one.values())} of {len(one)}", named or "none"))
    never = [start for start in starts if not any(one.get(start) for one in found)]
    solved = f"{len(never)} starts never succeeded." if never else "Every start succeeded at least once."
    return {
        "note": f"Each column is a start (its seed), each row an evaluation, the newest at the bottom. {solved}",
        "summary": f"Grid of {len(starts)} starts by {len(found)} evaluations; the table below says which failed.",
        "rest": "Move over the grid to read a start.",
        "rows": table,
        "data": {
            "seeds": starts,
            "evaluations": [
                {"iteration": iteration, "outcomes": "".join(signs[one.get(start)] for start in starts)}
                for iteration, one in zip(evaluations.iterations, found, strict=True)
            ],
        },
    }  # fmt: skip


def _start(number: int, row: Mapping[str, Any]) -> int | str:
    """Names a start by its seed, with its task where there are several; by its order where no seed is known."""
    if row["seed"] is None:
        return number
    return row["seed"] if row["task"] is None else f"{row['task']}, {row['seed']}"
