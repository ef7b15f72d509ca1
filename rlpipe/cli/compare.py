"""``rlpipe compare RUN RUN ...``"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console, Group, RenderableType
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from rlpipe.analysis.comparison import Comparison
from rlpipe.analysis.comparison import compare as compare_runs
from rlpipe.analysis.evaluated_run import ORIGINS
from rlpipe.analysis.pairs import FEWEST_DISCORDANT, LEAST_DIFFERENCE, Pair, number_of
from rlpipe.cli import arguments
from rlpipe.cli.evaluate import interval, protocol_lines
from rlpipe.cli.streams import console_for_results, print_json, progress_of_files, table_of_results
from rlpipe.report import formats


def compare(
    runs: Annotated[
        list[Path],
        typer.Argument(
            parser=arguments.path,
            help="Run directories, or folders of runs; runs that differ only in seed form a group. Also records of "
            "rlpipe evaluate, such as RUN/evaluations/3.json, each for itself.",
            metavar="RUN|RECORD...",
        ),
    ],
    metric: Annotated[
        str | None,
        typer.Option(
            help="Metric of the evaluation, such as eval/success_at_end.", show_default="success once, or the return"
        ),
    ] = None,
    level: Annotated[
        float | None, typer.Option(help="Value of the metric to reach.", show_default="0.9 for a success rate")
    ] = None,
    anyway: Annotated[bool, typer.Option("--anyway", help="Compare even if the protocols differ.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the comparison as JSON.")] = False,
) -> None:
    """Compare runs and records: values, differences, who solves which episodes, and steps to reach a level.

    For each run, uses the newest rlpipe evaluate record of its last iteration. If there is none, uses the last
    evaluation made during training. Baselines of the same protocol (rlpipe evaluate --policy) stand beside the runs.
    Where two policies ran the same episodes, they are compared episode by episode.

    The exit code is 2 if a run has not ended, or if the runs were evaluated under different protocols.
    """
    with progress_of_files():
        comparison = compare_runs(arguments.all_runs(runs), metric=metric, level=level, anyway=anyway)
    if as_json:
        print_json(comparison.as_json())
        return
    stderr = Console(stderr=True, highlight=False, soft_wrap=True)
    for warning in comparison.warnings:
        stderr.print(f"[yellow]warning:[/] {escape(warning)}")
    console_for_results().print(screen(comparison), crop=False)  # a command stays whole


def screen(comparison: Comparison) -> RenderableType:
    """Lays out a comparison, or the results of a single group, for the terminal."""
    name = comparison.metric.partition("/")[2]
    parts: list[RenderableType] = [Text(name, style="bold"), _values(comparison)]
    if not _only_pairs(comparison) or any(difference.over_seeds for difference in comparison.differences):
        first = Text(comparison.groups[0].label, style="bold cyan")
        what = "P(better) than" if _only_pairs(comparison) else "difference from"
        parts += ["", Text.assemble((f"{name}, {what} ", "bold"), first), _differences(comparison)]
    if comparison.pairs:
        parts += ["", Text(f"{name}, pair by pair in the same episodes", style="bold"), _pairs(comparison)]
        parts += _flips(comparison)
    if comparison.tasks:
        parts += ["", Text(f"{name} by task", style="bold"), _tasks(comparison)]
    if comparison.level is not None and any(group.reached for group in comparison.groups):
        parts += ["", Text(f"{name} of {comparison.level:g} or more", style="bold"), _levels(comparison)]
    facts = Table.grid(padding=(0, 2))
    facts.add_column(style="dim", no_wrap=True)
    facts.add_column(style="dim")
    is_trained = any(run.policy is None for group in comparison.groups for run in group.runs)
    lines = protocol_lines(comparison.protocol, None if is_trained else "each policy")
    facts.add_row("protocol", escape("\n".join(lines)))
    facts.add_row("reading", "\n".join(_notes(comparison)))
    for warning in comparison.warnings:
        facts.add_row("[yellow]warning[/]", escape(warning))
    return Group(*parts, "", facts)


def _table(comparison: Comparison, *columns: str) -> Table:
    """Table with a row for each group: its label, equally wide in every table, and numbers."""
    table = table_of_results()
    labels = [*(group.label for group in comparison.groups), *(baseline.label for baseline in comparison.baselines)]
    widest = max(map(len, labels))
    table.add_column("", min_width=min(max(widest, 16), 20), max_width=36, style="cyan", overflow="fold")
    for column in columns:
        table.add_column(column, justify="right", no_wrap=True)
    return table


def _values(comparison: Comparison) -> Table:
    table = _table(comparison, "mean", "95 % interval", "episodes", "seeds", "lowest", "highest")
    several = len(comparison.groups) > 1
    for group in comparison.groups:
        values = [value for _, value in group.by_seed]
        in_best_set = several and group.label in comparison.best_set
        mark = "" if not several else "*" if in_best_set else " "
        table.add_row(
            escape(group.label),
            Text(f"{formats.result(group.pooled.value)}{mark}", style="bold green" if in_best_set else "bold"),
            interval(group.pooled.low, group.pooled.high),
            f"{group.pooled.episodes:,}",
            str(len(values)),
            *([formats.result(min(values)), formats.result(max(values))] if len(values) > 1 else ["-", "-"]),
        )
        if not several and len(values) > 1:
            for label, value in zip(group.run_labels, values, strict=True):
                table.add_row(escape(f"  {label}"), formats.result(value), style="dim")
    for baseline in comparison.baselines:
        mean, bounds = formats.result(baseline.result.value), interval(baseline.result.low, baseline.result.high)
        table.add_row(escape(baseline.label), mean, bounds, f"{baseline.result.episodes:,}", "-", "-", "-", style="dim")
    return table


def _differences(comparison: Comparison) -> Table:
    """Table with a row for each group but the first; the differences themselves only where no pair holds them."""
    columns = [] if _only_pairs(comparison) else ["difference", "95 % interval"]
    table = _table(comparison, *columns, "P(better)", "95 % interval")
    for difference in comparison.differences:
        chance = [Text("-"), Text("one seed", style="dim")]
        if difference.probability is not None:
            value, low, high = difference.probability
            chance = [Text(f"{value:.2f}"), Text("-" if low is None or high is None else f"[{low:.2f}, {high:.2f}]")]
        style = "bold" if difference.low > 0 or difference.high < 0 else ""
        mean = Text(formats.result(difference.value, signed=True), style=style)
        bounds = Text(interval(difference.low, difference.high, signed=True))
        cells = [mean, bounds] if columns else []
        table.add_row(escape(difference.label), *cells, *chance)
    return table


def _only_pairs(comparison: Comparison) -> bool:
    """True if the pairs hold all differences, because every two groups ran the same episodes."""
    count = len(comparison.groups)
    return len(comparison.pairs) == count * (count - 1) / 2


SHOWN_FLIPS = 5
"""Episodes that are named of those in which only one of two policies succeeds."""


def _pairs(comparison: Comparison) -> Table:
    """Table with a row for every two groups that ran the same episodes."""
    table = table_of_results()
    table.add_column("", max_width=36, style="cyan", overflow="fold")
    for column in ("difference", "95 % interval", "only 1st", "only 2nd", "p (Holm)", "better", "more"):
        table.add_column(column, justify="right", no_wrap=True)
    for pair in comparison.pairs:
        plus = "+" if pair.difference > 0 else ""
        table.add_row(
            escape(f"{pair.first}\n- {pair.second}"),
            Text(f"{plus}{formats.result(pair.difference)}", style="bold" if pair.is_decided else ""),
            interval(pair.low, pair.high, signed=True),
            *("-" if pair.is_over_seeds else f"{len(only):,}" for only in (pair.first_only, pair.second_only)),
            f"{pair.p_adjusted:.3f}" if pair.p_adjusted >= 0.001 else "< 0.001",
            ("1st" if pair.difference > 0 else "2nd") if pair.is_decided else "?",
            "-" if pair.further_pairs is None else f"{pair.further_pairs:,}",
        )
    return table


def _flips(comparison: Comparison) -> list[RenderableType]:
    """Lines on each two policies of which one alone solves some episodes: which, and how to see one."""
    lines: list[RenderableType] = []
    for pair in comparison.pairs:
        if pair.first_only or pair.second_only:
            lines += ["", Text.assemble((pair.first, "cyan"), " - ", (pair.second, "cyan"))]
        for place, episodes in (("first", pair.first_only), ("second", pair.second_only)):
            if episodes:
                names = ", ".join(map(number_of, episodes[:SHOWN_FLIPS]))
                more = f" and {len(episodes) - SHOWN_FLIPS:,} more" if len(episodes) > SHOWN_FLIPS else ""
                lines.append(Text(f"  only the {place}: {names}{more}", style="dim"))
        lines += [Text(f"  {command}", style="dim", no_wrap=True, overflow="ignore") for command in pair.replays]
    return lines


def _notes_on_pairs(pairs: Sequence[Pair]) -> list[str]:
    """Notes on the table of pairs, one per line."""
    fewest, most = (function(pair.pairs for pair in pairs) for function in (min, max))
    count = f"{most:,}" if fewest == most else f"{fewest:,} to {most:,}"
    notes = [f"pairs: over {count} episodes that both ran; p is adjusted over all pairs (Holm 1979)"]
    if unpaired := max(pair.unpaired for pair in pairs):
        notes.append(f"pairs: up to {unpaired:,} episodes that only one of the two ran are left out")
    if not all(pair.is_over_seeds for pair in pairs):
        notes.append("pairs of one seed each: interval of Tango (1998), exact test of McNemar")
        notes.append("they compare these policies, not their methods: other training seeds are not covered")
        notes.append("only 1st, only 2nd: episodes that one of the two solves; --json names all of them")
    if any(pair.is_over_seeds for pair in pairs):
        notes.append(
            "pairs with several seeds: Student's t over seeds and over the episodes that they share (Hillis 2014)"
        )
        if any(1 in pair.runs for pair in pairs if pair.is_over_seeds):
            notes.append("where one of the two has one seed, its other seeds are not covered")
    if any(not pair.is_decided for pair in pairs):
        notes.append("?: which one is better cannot be told")
    if any(pair.is_too_alike for pair in pairs):
        notes.append(f"fewer than {FEWEST_DISCORDANT} episodes that only one solves can decide nothing")
    if any(pair.further_pairs is not None for pair in pairs):
        notes.append(f"more: episodes missing to show this difference, or {LEAST_DIFFERENCE} if smaller (power 0.8)")
    return notes


def _tasks(comparison: Comparison) -> Table:
    """Table with a row for each task: each group, and its difference from the first where its interval leaves out 0."""
    table = table_of_results()
    table.add_column("", style="cyan", no_wrap=True)
    for group in comparison.groups:
        table.add_column(escape(group.label), justify="right", overflow="fold")
    for task in comparison.tasks:
        cells = [f"{formats.result(result.value)} {interval(result.low, result.high)}" for result in task.pooled]
        for index, (value, low, high) in enumerate(task.differences, start=1):
            if low > 0 or high < 0:
                cells[index] += f" ({formats.result(value, signed=True)})"
        table.add_row(escape(task.task), *map(escape, cells))
    return table


def _levels(comparison: Comparison) -> Table:
    table = _table(comparison, "seeds that reached it", "environment steps", "wall clock")
    for group in comparison.groups:
        if (reached := group.reached) is not None:
            bound = "<= " if reached.at_the_latest else ""
            steps = "-" if reached.steps is None else f"{bound}{reached.steps:,.0f}"
            clock = "-" if reached.seconds is None else f"{bound}{timedelta(seconds=round(reached.seconds))}"
            table.add_row(escape(group.label), f"{reached.runs} of {reached.of}", steps, clock)
    return table


def _notes(comparison: Comparison) -> Sequence[str]:
    """Notes that a reader needs to understand the numbers, one per line."""
    kind = "Wilson" if comparison.metric.startswith("eval/success") else "bootstrap, BCa"
    notes = [f"mean, interval ({kind}): over the episodes of all seeds; lowest, highest: mean of one seed"]
    if comparison.baselines:
        same = all(run.repeats for group in comparison.groups for run in group.runs)
        episodes = "in the same episodes" if same else "under the same protocol"
        notes.append(f"floor: a policy that has learnt nothing, {episodes}; in no difference")
    if len(comparison.groups) > 1 and comparison.best_set:
        notes.append("*: none of the others is shown to be better (95 %): the best one is among them")
    if any(len(group.runs) > 1 for group in comparison.groups):
        notes.append("several seeds: the interval is never narrower than that over seeds and episodes (Student's t)")
    if comparison.pairs:
        notes += _notes_on_pairs(comparison.pairs)
    if any(task.differences for task in comparison.tasks):
        notes.append("by task, in parentheses: difference from the first, where its 95 % interval leaves out 0")
    if any(difference.over_seeds for difference in comparison.differences):
        if not _only_pairs(comparison):
            notes.append("difference: bootstrap over seeds and episodes; never narrower than over the episodes alone")
        notes.append("P(better): how likely a run beats one of the others; ties count half (Agarwal et al. 2021)")
    probabilities = [difference.probability for difference in comparison.differences]
    if any(probability is not None and probability[1] is None for probability in probabilities):
        notes.append("P(better) without an interval: all pairs of runs agree, so a bootstrap over seeds cannot vary")
    if not _only_pairs(comparison) and not all(difference.over_seeds for difference in comparison.differences):
        notes.append("one seed: the interval of the difference does not include the variation between seeds")
    reached = [group.reached for group in comparison.groups if group.reached is not None]
    if any(level.runs for level in reached):
        notes.append("steps, wall clock: median over seeds, up to the first evaluation at that level")
    if any(level.at_the_latest for level in reached):
        notes.append("<=: evaluated only at the end; runner.val_check_interval shows when the level was reached")
    runs = [run for group in comparison.groups for run in group.runs]
    notes += [f"{key}: {note}" for key, note in ORIGINS.items() if any(run.config.get(key) for run in runs)]
    return notes
