"""The tables of docs/benchmarks.md, made from the results alone, between two comments of the page."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.sparse_rows.results import Result, Results
from benchmarks.sparse_rows.rows import Row, Table
from rlpipe.errors import ConfigError
from rlpipe.functional.intervals import difference_interval, widened_over_runs, wilson_interval

BEGIN, END = "<!-- made by benchmarks/sparse.py --report -->", "<!-- end of what benchmarks/sparse.py made -->"
PICTURES = {
    "sparse_demonstrations.png": "Success against the number of demonstrations",
    "sparse_steps.png": "Success against environment steps",
    "sparse_wall_clock.png": "Success against wall clock",
    "sparse_choices.png": "Success with one thing changed",
}
"""Files in docs/images, with what they show."""
_COLUMNS = (
    "row", "task", "demonstrations", "algorithm", "success_once, 95 %", "each seed", "baselines: random, zero, replay",
    "n", "environment steps", "gradient steps", "wall clock", "processor time", "cores",
)  # fmt: skip
_PUBLISHED_COLUMNS = (
    "row", "task", "demonstrations", "success in the last step, 95 %", "each seed", "success_once", "n",
    "environment steps", "gradient steps", "processor time", "published",
)  # fmt: skip
_CHOICE_COLUMNS = (
    "row", "changed", "success_once, 95 %", "difference, 95 %", "each seed", "n", "environment steps", "gradient steps",
    "processor time",
)  # fmt: skip
_PACKAGES = ("python", "rlpipe", "ray", "torch", "mani_skill", "gymnasium")
_NOTHING = "-"


@functools.cache
def interval(outcomes: tuple[str, ...]) -> tuple[float, float, float]:
    """Returns the success rate over the episodes of all seeds with its 95 % interval, as ``rlpipe compare`` does: it
    encloses Wilson's over episodes and, with several seeds, that over seeds and the episodes they share.

    Args:
        outcomes: a digit for each episode, of each seed
    """
    runs = [[int(digit) for digit in one] for one in outcomes]
    successes, episodes = sum(map(sum, runs)), sum(map(len, runs))
    bounds = wilson_interval(successes, episodes)
    return successes / episodes, *widened_over_runs(bounds, runs, shares=True, shared=_share_episodes(outcomes))


def difference(ours: Sequence[str], theirs: Sequence[str]) -> tuple[float, float, float]:
    """Returns how much higher the first success rate is, with its 95 % interval, as ``rlpipe compare`` does.

    Args:
        ours: a digit for each episode, of each seed
        theirs: likewise, of what it is compared with
    """
    first, second = ([[int(digit) for digit in one] for one in outcomes] for outcomes in (ours, theirs))
    rates = [sum(map(sum, runs)) / sum(map(len, runs)) for runs in (first, second)]
    shared = _share_episodes([*ours, *theirs])
    return rates[0] - rates[1], *difference_interval(first, second, shares=True, shared=shared)


def _share_episodes(outcomes: Sequence[str]) -> bool:
    """True if runs were evaluated in the same episodes: rows that stand together have one protocol but for its number
    of episodes, and outcomes are in the order of the seeds."""
    return len({len(one) for one in outcomes}) == 1


def tables(table: Table, results: Results, pictures: Sequence[str] = ()) -> str:
    """Returns the Markdown of all tables.

    Args:
        table: the declared rows
        results: their results
        pictures: names of the pictures that there are
    """
    found = {name: current(row, results) for name, row in table.rows.items()}
    baselines = [(row, found[row.name]) for row in table.baselines]
    blocks = []
    for group, title in table.groups.items():
        rows = [row for row in table.of_group(group) if found[row.name]]
        if not rows:
            continue
        blocks.append(f"**{title}**\n\n{_table(rows[0])([(row, found[row.name]) for row in rows], baselines)}")
    blocks += [f"![{title}](images/{name})" for name, title in PICTURES.items() if name in pictures]
    if ran := [row for row in table.rows.values() if found[row.name]]:
        blocks.append(_machines([result for row in ran for result in found[row.name].values()]))
    missing = [_missing(row, found[row.name]) for row in table.rows.values()]
    if any(missing):
        blocks.append(f"Not run yet: {', '.join(filter(None, missing))}.")
    return "\n\n".join(blocks)


def current(row: Row, results: Results) -> dict[str, Result]:
    """Returns the results of a row as it is declared; none if its configuration is not there."""
    try:
        return results.of(row)
    except ConfigError:
        if results.stored(row):
            raise
        return {}


def inserted(page: str, text: str) -> str:
    """Returns a page with a text between the two comments.

    Raises:
        ConfigError: the comments are not there, each once.
    """
    pattern = re.compile(f"(?<={re.escape(BEGIN)}\n).*?(?={re.escape(END)})", re.DOTALL)
    if len(pattern.findall(page)) != 1:
        raise ConfigError(f"the page must hold the two lines {BEGIN} and {END} once.")
    return pattern.sub(lambda _: f"\n{text}\n\n", page)


def write(page: Path, text: str) -> None:
    """Puts a text between the two comments of a page; the page is replaced whole.

    Raises:
        ConfigError: the comments are not there.
    """
    new = inserted(page.read_text(encoding="utf-8"), text)
    partial = page.with_name(f".{page.name}.partial")
    partial.write_text(new, encoding="utf-8")
    partial.replace(page)


Found = Sequence[tuple[Row, Mapping[str, Result]]]
"""Rows with their results by part."""


def _table(row: Row) -> Callable[[Found, Found], str]:
    """Returns what makes the table of a group, of which one row is given."""
    if row.policies:
        return _baseline_table
    return _choice_table if row.against else _published_table if row.published else _result_table


def _result_table(rows: Found, baselines: Found) -> str:
    lines = [_line(_COLUMNS), _line(["---"] * len(_COLUMNS))]
    for row, found in rows:
        each = list(found.values())
        cells = [
            f"`{row.name}`",
            row.task,
            str(row.demonstrations or "none"),
            "; ".join(dict.fromkeys(f"`{one['algorithm']}`".replace(", then ", "`, then `") for one in each)),
            f"{_estimate([one['success_once'] for one in each])}{_few(row, found)}",
            _seeds(row, found),
            ", ".join(_baseline(each[0], policy, baselines) for policy in ("random", "zero", "replay")),
            f"{sum(one['n'] for one in each):,}",
            _list(each, "environment_steps", "{:,}".format),
            _list(each, "gradient_steps", "{:,}".format),
            _durations([one["seconds"] for one in each]),
            _durations([one["processor_seconds"] for one in each]),
            _list(each, "cores", str),
        ]
        lines.append(_line(cells))
    return "\n".join(lines)


def _published_table(rows: Found, _: Found) -> str:
    lines = [_line(_PUBLISHED_COLUMNS), _line(["---"] * len(_PUBLISHED_COLUMNS))]
    for row, found in rows:
        each = list(found.values())
        cells = [
            f"`{row.name}`",
            row.task,
            str(row.demonstrations),
            f"{_estimate([one['success_at_end'] for one in each])}{_few(row, found)}",
            _seeds(row, found, "success_at_end"),
            f"{interval(tuple(one['success_once'] for one in each))[0]:.3f}",
            f"{sum(one['n'] for one in each):,}",
            _list(each, "environment_steps", "{:,}".format),
            _list(each, "gradient_steps", "{:,}".format),
            _durations([one["processor_seconds"] for one in each]),
            row.published,
        ]
        lines.append(_line(cells))
    return "\n".join(lines)


def _choice_table(rows: Found, _: Found) -> str:
    lines = [_line(_CHOICE_COLUMNS), _line(["---"] * len(_CHOICE_COLUMNS))]
    outcomes = {row.name: [one["success_once"] for one in found.values()] for row, found in rows}
    for row, found in rows:
        each, ours, reference = list(found.values()), outcomes[row.name], outcomes.get(row.against)
        compared = reference is not None and row.name != row.against
        apart = "{:+.3f} [{:+.3f}, {:+.3f}]".format(*difference(ours, reference or ())) if compared else _NOTHING
        cells = [
            f"`{row.name}`",
            row.about,
            f"{_estimate(ours)}{_few(row, found)}",
            apart,
            _seeds(row, found),
            f"{sum(one['n'] for one in each):,}",
            _list(each, "environment_steps", "{:,}".format),
            _list(each, "gradient_steps", "{:,}".format),
            _durations([one["processor_seconds"] for one in each]),
        ]
        lines.append(_line(cells))
    return "\n".join(lines)


def _baseline_table(rows: Found, _: Found) -> str:
    policies = list(dict.fromkeys(policy for row, _ in rows for policy in row.parts))
    columns = ["task", "episodes", *(f"`{policy}`" for policy in policies), "n"]
    lines = [_line(columns), _line(["---"] * len(columns))]
    for row, found in rows:
        shown = [_estimate([found[policy]["success_once"]]) if policy in found else _NOTHING for policy in policies]
        lines.append(_line([row.task, row.about, *shown, _list(list(found.values()), "n", "{:,} each".format)]))
    return "\n".join(lines)


def _baseline(result: Result, policy: str, baselines: Found) -> str:
    """Success rate of a baseline in the episodes of a result, whichever way learnt actions are drawn there."""

    def episodes(one: Result) -> dict[str, Any]:
        return {key: value for key, value in one["protocol"].items() if key != "evaluation.deterministic"}

    for _, found in baselines:
        if policy in found and episodes(found[policy]) == episodes(result):
            return _rate(found[policy])
    return _NOTHING


def _seeds(row: Row, found: Mapping[str, Result], outcomes: str = "success_once") -> str:
    rates = (_rate(found[seed], outcomes) if seed in found else _NOTHING for seed in row.parts)
    return f"{', '.join(row.parts)}: {', '.join(rates)}"


def _estimate(outcomes: Sequence[str]) -> str:
    rate, low, high = interval(tuple(outcomes))
    return f"{rate:.3f} [{low:.3f}, {high:.3f}]"


def _rate(result: Result, outcomes: str = "success_once") -> str:
    return f"{result[outcomes].count('1') / result['n']:.3f}"


def _few(row: Row, found: Mapping[str, Result]) -> str:
    return "" if len(found) == len(row.parts) else f", {len(found)} of {len(row.parts)} seeds"


def _list(results: Sequence[Result], key: str, shown: Callable[[Any], str]) -> str:
    """Writes a value once if all results share it, otherwise that of each."""
    values = [shown(result[key]) for result in results]
    return ", ".join(values if len({*values}) > 1 else values[:1])


def _durations(seconds: Sequence[float | None]) -> str:
    longest = max((one for one in seconds if one is not None), default=0.0)
    if not longest:
        return _NOTHING
    scale, unit = (3600, "h") if longest >= 7200 else (60, "min") if longest >= 120 else (1, "s")
    return f"{', '.join(_NOTHING if one is None else f'{one / scale:.1f}' for one in seconds)} {unit}"


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _machines(results: Sequence[Result]) -> str:
    """A sentence on where and with what the results were made."""

    def versions(one: Result) -> list[str]:
        return [f"{name} {one['versions'][name]}" for name in _PACKAGES if name in one["versions"]]

    kinds = dict.fromkeys(", ".join([one["processor"], *versions(one)]) for one in results)
    return f"Made on {'; and on '.join(kinds)}."


def _missing(row: Row, found: Mapping[str, Result]) -> str:
    """Name of a row with the parts that it misses; empty if it misses none."""
    left = [part for part in row.parts if part not in found]
    if not found:
        return f"`{row.name}`"
    kind = "" if row.policies else "seed " if len(left) == 1 else "seeds "
    return f"`{row.name}` ({kind}{', '.join(left)})" if left else ""
