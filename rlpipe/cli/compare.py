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
from rlpipe.cli import arguments
from rlpipe.cli.evaluate import interval, protocol_lines
from rlpipe.cli.streams import console_for_results, print_json, table_of_results
from rlpipe.report import formats


def compare(
    runs: Annotated[
        list[Path],
        typer.Argument(
            parser=arguments.path,
            help="Run directories, or folders of runs; runs that differ only in seed form a group.",
            metavar="RUN...",
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
    """Compare runs: final value, difference, probability of improvement, and steps to reach a level.

    For each run, uses the newest rlpipe evaluate record of its last iteration. If there is none, uses the last
    evaluation made during training. Baselines of the same protocol (rlpipe evaluate --policy) stand beside the runs.

    The exit code is 2 if a run has not ended, or if the runs were evaluated under different protocols.
    """
    comparison = compare_runs(arguments.all_runs(runs), metric=metric, level=level, anyway=anyway)
    if as_json:
        print_json(comparison.as_json())
        return
    stderr = Console(stderr=True, highlight=False, soft_wrap=True)
    for warning in comparison.warnings:
        stderr.print(f"[yellow]warning:[/] {escape(warning)}")
    console_for_results().print(screen(comparison))


def screen(comparison: Comparison) -> RenderableType:
    """Lays out a comparison, or the results of a single group, for the terminal."""
    name = comparison.metric.partition("/")[2]
    parts: list[RenderableType] = [Text(name, style="bold"), _values(comparison)]
    if comparison.differences:
        first = Text(comparison.groups[0].label, style="bold cyan")
        parts += ["", Text.assemble((f"{name}, difference from ", "bold"), first), _differences(comparison)]
    if comparison.tasks:
        parts += ["", Text(f"{name} by task", style="bold"), _tasks(comparison)]
    if comparison.level is not None:
        parts += ["", Text(f"{name} of {comparison.level:g} or more", style="bold"), _levels(comparison)]
    facts = Table.grid(padding=(0, 2))
    facts.add_column(style="dim", no_wrap=True)
    facts.add_column(style="dim")
    facts.add_row("protocol", escape("\n".join(protocol_lines(comparison.protocol))))
    facts.add_row("reading", "\n".join(_notes(comparison)))
    for warning in comparison.warnings:
        facts.add_row("[yellow]warning[/]", escape(warning))
    return Group(*parts, "", facts)


def _table(comparison: Comparison, *columns: str) -> Table:
    """Table with a row for each group: its label, equally wide in every table, and numbers."""
    table = table_of_results()
    labels = [*(group.label for group in comparison.groups), *(baseline.label for baseline in comparison.baselines)]
    widest = max(map(len, labels))
    table.add_column("", min_width=min(max(widest, 16), 36), max_width=36, style="cyan", overflow="fold")
    for column in columns:
        table.add_column(column, justify="right", no_wrap=True)
    return table


def _values(comparison: Comparison) -> Table:
    table = _table(comparison, "mean", "95 % interval", "episodes", "seeds", "lowest", "highest")
    best = max(group.pooled.value for group in comparison.groups)
    several = len(comparison.groups) > 1
    for group in comparison.groups:
        values = [value for _, value in group.by_seed]
        style = "bold green" if several and group.pooled.value == best else "bold"
        table.add_row(
            escape(group.label),
            Text(formats.result(group.pooled.value), style=style),
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
    table = _table(comparison, "difference", "95 % interval", "P(better)", "95 % interval")
    for difference in comparison.differences:
        chance = [Text("-"), Text("one seed", style="dim")]
        if difference.probability is not None:
            value, low, high = difference.probability
            bounds = "-" if low is None or high is None else f"[{low:.2f}, {high:.2f}]"
            chance = [Text(f"{value:.2f}"), Text(bounds)]
        style = "bold" if difference.low > 0 or difference.high < 0 else ""
        table.add_row(
            escape(difference.label),
            Text(formats.result(difference.value, signed=True), style=style),
            interval(difference.low, difference.high, signed=True),
            *chance,
        )
    return table


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
    if any(len(group.runs) > 1 for group in comparison.groups):
        notes.append("several seeds: the interval also contains the bootstrap interval over seeds and episodes")
    if any(task.differences for task in comparison.tasks):
        notes.append("by task, in parentheses: difference from the first, where its 95 % interval leaves out 0")
    if any(difference.over_seeds for difference in comparison.differences):
        notes.append("difference: bootstrap over seeds and episodes; never narrower than over the episodes alone")
        notes.append("P(better): how likely a run beats one of the others; ties count half (Agarwal et al. 2021)")
    probabilities = [difference.probability for difference in comparison.differences]
    if any(probability is not None and probability[1] is None for probability in probabilities):
        notes.append("P(better) without an interval: all pairs of runs agree, so a bootstrap over seeds cannot vary")
    if not all(difference.over_seeds for difference in comparison.differences):
        notes.append("one seed: the interval of the difference does not include the variation between seeds")
    reached = [group.reached for group in comparison.groups if group.reached is not None]
    if any(level.runs for level in reached):
        notes.append("steps, wall clock: median over seeds, up to the first evaluation at that level")
    if any(level.at_the_latest for level in reached):
        notes.append("<=: evaluated only at the end; runner.val_check_interval shows when the level was reached")
    runs = [run for group in comparison.groups for run in group.runs]
    notes += [f"{key}: {note}" for key, note in ORIGINS.items() if any(run.config.get(key) for run in runs)]
    return notes
