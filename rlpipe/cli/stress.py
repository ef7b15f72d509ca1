"""``rlpipe stress RUN_OR_CHECKPOINT``, and ``rlpipe stress CONFIG --policy random``"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console, Group, RenderableType
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from rlpipe.cli import arguments
from rlpipe.cli.evaluate import interruptible, interval, protocol_lines, relative
from rlpipe.cli.exit_codes import ExitCode
from rlpipe.cli.streams import console_for_results, print_json, table_of_results
from rlpipe.errors import ConfigError, command_line
from rlpipe.report import formats

if TYPE_CHECKING:
    from rlpipe.analysis.stress import ArmResult, AxisResult, StressReport

SHOWN_FLIPS = 5
"""Episodes that are named of those that an arm breaks."""


def stress(
    path: arguments.RunOrConfiguration,
    overrides: arguments.Overrides = None,
    policy: arguments.Policy = None,
    best: arguments.Best = False,
    axes: Annotated[
        str | None,
        typer.Option(
            help="Axes to vary, each perhaps with its range, such as mass=0.5:3,action_latency.",
            metavar="AXIS[=LOW:HIGH],...",
            show_default="all of the task",
        ),
    ] = None,
    levels: Annotated[
        int,
        typer.Option(parser=arguments.integer, help="Levels of each axis, the ends of its range among them."),
    ] = 5,
    episodes: Annotated[
        int, typer.Option(parser=arguments.integer, help="Whole episodes of each arm, with the same held-out seeds.")
    ] = 200,
    bound: Annotated[
        float | None,
        typer.Option(help="Success below which a level is too much.", show_default="half of that without variations"),
    ] = None,
    require: Annotated[
        float | None,
        typer.Option(help="Success that is required with all axes together.", show_default="none"),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the report as JSON.")] = False,
    local: arguments.Local = False,
    ray_address: arguments.RayAddress = None,
) -> None:
    """Show what a policy survives: its success as each axis varies alone, and as all vary together.

    All arms run the same episodes. Writes stress/<n>.json in the run directory, or with a configuration in
    runner.logger.log_path, which rlpipe report shows.

    With --require, the exit code is 3 if success with all axes together is shown to be lower, and 4 if that cannot be
    told.
    """
    import rlpipe
    from rlpipe.backends.console import EvaluationProgress

    if require is not None and not 0 < require <= 1:
        raise ConfigError(f"--require is {require}; it must be above 0 and at most 1: a success rate.")
    progress = EvaluationProgress(Console(stderr=True, highlight=False))
    try:
        report = rlpipe.stress(
            path, policy=policy, best=best, axes=axes, levels=levels, episodes=episodes, bound=bound,
            overrides=overrides or [], local=local, ray_address=ray_address, progress=interruptible(progress),
        )  # fmt: skip
    except KeyboardInterrupt:  # typer would end without a word
        progress.interrupted()
        raise typer.Exit(ExitCode.INTERRUPTED) from None
    if as_json:
        print_json(report.as_json())
    else:
        console_for_results().print(screen(report, require), crop=False)  # a command stays whole
    if require is not None and report.together.low < require:
        raise typer.Exit(ExitCode.NOT_SURVIVED if report.together.high < require else ExitCode.UNDECIDED)


def screen(report: StressReport, require: float | None = None) -> RenderableType:
    """Lays out a stress test for the terminal."""
    parts: list[RenderableType] = [Text("success in the same episodes", style="bold"), _arms(report)]
    parts += ["", Text("axes, the worst first", style="bold"), _axes(report.axes)]
    facts = Table.grid(padding=(0, 2))
    facts.add_column(style="dim", no_wrap=True)
    facts.add_column(style="dim")
    for label, lines in _facts(report, require).items():
        facts.add_row(label, escape("\n".join(lines)))
    return Group(*parts, "", facts)


def _arms(report: StressReport) -> Table:
    """Table with a row for each arm; axes are in the order of their table."""
    table = table_of_results()
    table.add_column("", style="cyan", no_wrap=True)
    for column in ("success", "95 % interval", "difference", "95 % together", "p", "flips"):
        table.add_column(column, justify="right", no_wrap=True)
    order = [axis.name for axis in report.axes]
    alone = sorted((arm for arm in report.arms if arm.axis), key=lambda arm: order.index(arm.axis))
    others = [arm for arm in report.arms if not arm.axis]
    for arm in (*others[:-1], *alone, others[-1]):
        table.add_row(escape(arm.label), *_cells(arm), style="bold" if arm in others else "")
    return table


def _cells(arm: ArmResult) -> list[Text | str]:
    cells: list[Text | str] = [formats.result(arm.value), interval(arm.low, arm.high)]
    if arm.difference is None or arm.p_adjusted is None:
        return cells
    lost = arm.difference_high is not None and arm.difference_high < 0
    difference = f"{'+' if arm.difference > 0 else ''}{formats.result(arm.difference)}"
    return [
        *cells,
        Text(difference, style="bold red" if lost else ""),
        interval(arm.difference_low, arm.difference_high, signed=True),
        f"{arm.p_adjusted:.3f}" if arm.p_adjusted >= 0.001 else "< 0.001",
        f"-{len(arm.broken):,} +{len(arm.mended):,}",
    ]


def _axes(axes: list[AxisResult]) -> Table:
    """Table with a row for each axis."""
    table = table_of_results()
    table.add_column("", style="cyan", no_wrap=True)
    for column in ("mean", "survives", "share alone", "share in all"):
        table.add_column(column, justify="right", no_wrap=column != "survives")
    for axis in axes:
        table.add_row(
            escape(axis.name), formats.result(axis.mean), survival(axis), share(axis.first_order), share(axis.total)
        )
    return table


def _facts(report: StressReport, require: float | None) -> dict[str, list[str]]:
    """Returns the protocol of the numbers and where they are, by label."""
    facts = {"protocol": protocol_lines(report.protocol, report.policy)}
    breaking = max((arm for arm in report.arms if arm.broken), key=lambda arm: len(arm.broken), default=None)
    if breaking is not None:
        names = ", ".join(" ".join(filter(None, (task, str(seed)))) for task, seed in breaking.broken[:SHOWN_FLIPS])
        more = len(breaking.broken) - SHOWN_FLIPS
        facts["breaks"] = [f"{breaking.label}: {names}{f' and {more:,} more, which --json lists' if more > 0 else ''}"]
    if report.record is not None:
        record = Path(report.record)
        facts["record"] = [str(relative(record))]
        if report.replay_set is not None:
            run = record.parent.parent
            folder = run if (run / "run.json").is_file() else record.parent
            facts["replays"] = [command_line("replay", relative(folder), "--set", report.replay_set)]
    if require is not None:
        low, high = report.together.low, report.together.high
        verdict = "is" if low >= require else "is not" if high < require else "cannot be told to be"
        facts["required"] = [f"success with all axes together {verdict} {require:g} or more"]
    facts["reading"] = [
        "95 % together: all these intervals hold with 0.95 (Tango 1998, Bonferroni); p likewise (Holm 1979)",
        "flips: - episodes that succeed clean and fail here, + the reverse",
        "mean: success over the range of an axis",
        f"survives: levels up to which success stays at {report.bound:.3g} or more, by interpolation",
        "shares: of the variance with all axes together: what an axis explains alone, or along with all else",
        *report.notes,
    ]
    return facts


def survival(axis: AxisResult) -> str:
    """Says which levels an axis may have."""
    if axis.survives is None:
        return "nothing"
    low, high = axis.survives
    if (low, high) == (axis.levels[0], axis.levels[-1]):
        return f"all of {low:g} to {high:g}"
    return f"{low:.3g} to {high:.3g} {axis.unit}".rstrip()


def share(result: dict[str, float] | None) -> str:
    """Formats a share of variance: its interval where that leaves out 0, else what it is below."""
    if result is None:
        return "-"
    if result["low"] <= 0:
        return f"below {result['high']:.2f}"
    return f"{min(1.0, result['value']):.2f} [{result['low']:.2f}, {result['high']:.2f}]"
