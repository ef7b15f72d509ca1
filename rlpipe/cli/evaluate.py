"""``rlpipe evaluate RUN_OR_CHECKPOINT``, and ``rlpipe evaluate CONFIG --policy random``"""

from __future__ import annotations

import signal
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from rlpipe.cli import arguments
from rlpipe.cli.exit_codes import ExitCode
from rlpipe.cli.streams import print_json, table_of_results
from rlpipe.errors import ConfigError, UserInterrupt, command_line
from rlpipe.report import formats

if TYPE_CHECKING:
    from rlpipe.analysis.evaluation_report import Estimate, EvaluationReport
    from rlpipe.training.until_decided import Decision

ESTIMATE_COLUMNS = ("mean", "95 % interval", "episodes")


def evaluate(
    path: arguments.RunOrConfiguration,
    overrides: arguments.Overrides = None,
    policy: arguments.Policy = None,
    best: arguments.Best = False,
    episodes: Annotated[
        int | None,
        typer.Option(
            parser=arguments.integer, help="Whole episodes to run, with held-out seeds.", show_default="as configured"
        ),
    ] = None,
    replays: Annotated[
        int | None,
        typer.Option(
            parser=arguments.integer,
            help="Keep replays of so many first episodes, of so many failures, and of the best and the worst, for "
            "rlpipe replay.",
            show_default="none",
        ),
    ] = None,
    against: Annotated[
        str | None,
        typer.Option(
            help="With --until-decided: the policy to compare with, in the same episodes: a run directory, a "
            "checkpoint file, or a policy as for --policy but replay.",
            metavar="PATH|POLICY",
            show_default="none",
        ),
    ] = None,
    until_decided: Annotated[
        bool,
        typer.Option(
            "--until-decided",
            help="With --against: end as soon as it is decided which policy succeeds more often; --episodes is the "
            "most of each.",
        ),
    ] = False,
    margin: Annotated[
        float | None,
        typer.Option(
            help="With --until-decided: also end once the success rates are shown to differ by no more than this.",
            show_default="none",
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the report as JSON.")] = False,
    local: arguments.Local = False,
    ray_address: arguments.RayAddress = None,
) -> None:
    """Evaluate a policy on whole episodes with held-out seeds.

    Writes evaluations/<n>.json in the run directory, for rlpipe compare. With --policy and a configuration, writes
    floors/<n>.json in runner.logger.log_path.

    With --against, two policies run the same episodes until it is decided which is better. The exit code is 4 if that
    cannot be told after all episodes.
    """
    import rlpipe
    from rlpipe.backends.console import EvaluationProgress

    _check_against(against, until_decided, margin, policy)
    progress = EvaluationProgress(Console(stderr=True, highlight=False))
    common: dict[str, Any] = {
        "best": best, "episodes": episodes, "replays": replays, "overrides": overrides or [], "local": local,
        "ray_address": ray_address, "progress": interruptible(progress),
    }  # fmt: skip
    try:
        if against is not None:
            _decide(rlpipe.evaluate_until_decided(path, against, margin=margin, **common), as_json)
            return
        report = rlpipe.evaluate(path, policy=policy, **common)
    except KeyboardInterrupt:  # typer would end without a word
        progress.interrupted()
        raise typer.Exit(ExitCode.INTERRUPTED) from None
    if as_json:
        print_json(report.as_json())
    else:
        _show(report, Console(highlight=False, soft_wrap=True))


def _check_against(against: str | None, until_decided: bool, margin: float | None, policy: str | None) -> None:
    """Checks that the options of a comparison come together."""
    if against is not None and not until_decided:
        raise ConfigError(
            "--against needs --until-decided. For a fixed number of episodes, evaluate each policy by itself, and "
            "compare the runs or the records with rlpipe compare."
        )
    if against is None and (until_decided or margin is not None):
        option = "--until-decided" if until_decided else "--margin"
        raise ConfigError(f"{option} needs --against: the run, the checkpoint or the baseline to compare with.")
    if against is not None and policy is not None:
        raise ConfigError(
            "--policy evaluates a policy in place of a checkpoint, but --against compares a checkpoint: write "
            f"--against {policy} instead of --policy {policy}, or leave one of them out."
        )


def _decide(decision: Decision, as_json: bool) -> None:
    """Prints which of two policies is better, and exits with a code of its own if it cannot be told."""
    if as_json:
        print_json(decision.as_json())
    else:
        _show_decision(decision, Console(highlight=False, soft_wrap=True))
    if decision.tally.verdict == "undecided":
        raise typer.Exit(ExitCode.UNDECIDED)


def _show_decision(decision: Decision, console: Console) -> None:
    """Prints the verdict, what it rests on, and where the records are."""
    tally = decision.tally
    better = {"first": (decision.first, decision.second), "second": (decision.second, decision.first)}
    if tally.verdict in better:
        winner, other = map(escape, better[tally.verdict])
        console.print(f"[bold green]{winner}[/] is better than {other}: decided after {tally.pairs:,} pairs.")
    elif tally.verdict == "equal":
        console.print(
            f"{escape(decision.first)} and {escape(decision.second)} are equal within {tally.margin:g}: decided after "
            f"{tally.pairs:,} pairs."
        )
    else:
        console.print(f"[yellow]It cannot be told after {tally.pairs:,} pairs.[/]")
    console.print()
    difference = (tally.wins - tally.losses) / tally.pairs
    bounds = interval(tally.low, tally.high, signed=True)
    facts = {
        "difference": [
            f"{'+' if difference > 0 else ''}{formats.result(difference)}  95 % {bounds}, however often one looks"
        ],
        "success": [
            f"only {decision.first} in {tally.wins:,} episodes",
            f"only {decision.second} in {tally.losses:,}",
            f"both or neither in {tally.pairs - tally.wins - tally.losses:,}",
        ],
        "protocol": protocol_lines(decision.reports[0].protocol),
    }
    facts["records"] = [str(relative(Path(report.record))) for report in decision.reports if report.record]
    facts["reading"] = [
        "between equal policies, at most 5 % of such comparisons decide for one",
        "other training seeds are not covered: these are two policies, not two methods",
    ]
    if tally.pairs < len(decision.reports[0].episodes):
        facts["reading"].append("the records also hold the rest of the last block, which ran side by side")
    for label, lines in facts.items():
        for index, line in enumerate(lines):
            console.print(f"[dim]{'' if index else label:<12}[/]{escape(line)}")


def interruptible(progress: Callable[[int, int, float], None]) -> Callable[[int, int, float], None]:
    """Lets SIGINT and SIGTERM end the evaluation at once; returns the progress, which also ends it if they are lost."""
    from rlpipe.training.interruption import Interruption

    interruption = Interruption()

    def interrupt(*_: object) -> None:
        interruption.request("a signal")
        raise UserInterrupt

    def show(ended: int, episodes: int, seconds: float) -> None:
        if interruption.reason is not None:  # Python loses what a signal handler raises while Ray forks
            raise UserInterrupt
        progress(ended, episodes, seconds)

    for number in (signal.SIGINT, signal.SIGTERM):  # each closes what was started, also where a shell ignores it
        signal.signal(number, interrupt)
    return show


def _show(report: EvaluationReport, console: Console) -> None:
    """Prints the estimates, and below them what they depend on and where they are kept."""
    table = _table("", *ESTIMATE_COLUMNS)
    for index, result in enumerate(report.estimates):
        table.add_row(result.metric.partition("/")[2], *_cells(result), style="" if index else "bold green")
    console.print(table, "", sep="\n")
    if (numbers := _numbers(report)).rows:
        console.print(numbers, "", sep="\n")
    if report.tasks:
        console.print(_by_task(report), "", sep="\n")
    facts = {"protocol": protocol_lines(report.protocol, report.policy)}
    if report.checkpoint:
        facts["checkpoint"] = [str(relative(Path(report.checkpoint)))]
    if report.record:
        facts["record"] = [str(relative(Path(report.record)))]
    if report.replay_file and report.replays:
        count = len(report.replays.replays)
        where = Path(report.replay_file).parent.parent
        facts["replays"] = [f"{count} in {relative(Path(report.replay_file))}", command_line("replay", relative(where))]
    if report.changes:
        changed = ", ".join(f"{key}={value}" for key, value in report.changes.items())
        facts["changed"] = [f"{changed}; rlpipe compare ignores such a record"]
    if report.notes:
        facts["note"] = report.notes
    for label, lines in facts.items():
        for index, line in enumerate(lines):
            console.print(f"[dim]{'' if index else label:<12}[/]{escape(line)}")


def _numbers(report: EvaluationReport) -> Table:
    """Table of the numbers that the simulator observes, each summarised over the steps of an episode."""
    summaries: dict[str, dict[str, float]] = {}
    for full, value in report.metrics.items():
        if full.startswith("eval/metrics/"):
            name, _, summary = full.removeprefix("eval/metrics/").rpartition("/")
            summaries.setdefault(name, {})[summary] = value
    columns = dict.fromkeys(summary for values in summaries.values() for summary in values)
    table = _table("metrics", *columns, style="cyan")
    for name, values in summaries.items():
        table.add_row(
            escape(name), *(formats.result(values[column]) if column in values else "-" for column in columns)
        )
    return table


def _by_task(report: EvaluationReport) -> Table:
    """Table of the first estimate of each task."""
    metric = report.estimates[0].metric
    table = _table(f"{metric.partition('/')[2]} by task", *ESTIMATE_COLUMNS, style="cyan")
    for task, estimates in report.tasks.items():
        for result in estimates:
            if result.metric == metric:
                table.add_row(escape(task), *_cells(result))
    return table


def _table(label: str, *columns: str, style: str = "") -> Table:
    """Table of labels, in a style, and numbers."""
    table = table_of_results()
    table.add_column(label, no_wrap=True, style=style)
    for column in columns:
        table.add_column(column, justify="right", no_wrap=True)
    return table


def _cells(result: Estimate) -> tuple[str, str, str]:
    return formats.result(result.value), interval(result.low, result.high), f"{result.episodes:,}"


def interval(low: float | None, high: float | None, *, signed: bool = False) -> str:
    """Formats bounds in brackets, or a dash if there are none."""
    return formats.bounds(low, high, signed=signed, absent="-")


def protocol_lines(protocol: Mapping[str, Any], policy: str | None = None) -> list[str]:
    """Describes a protocol in two or three lines; ``policy`` names a baseline or a policy from elsewhere."""
    from rlpipe.config.protocol import WHERE_IT_RUNS, option_defaults

    options = dict(protocol["eval_env"])
    defaults = option_defaults(options["name"])
    task = f"{options.pop('name')} {options.pop('id', '')}".rstrip()
    for key in WHERE_IT_RUNS:
        options.pop(key, None)
    if tasks := options.pop("tasks", []):
        names = [entry if isinstance(entry, str) else entry.get("label", entry.get("id", "")) for entry in tasks]
        task = f"{task} {', '.join(map(str, names))}"
    settings = ", ".join(f"{key}={value}" for key, value in options.items() if value != defaults.get(key))
    first, episodes = protocol["evaluation_first_seed"], protocol["evaluation_episodes"]
    learnt = "most likely actions" if protocol["deterministic_actions"] else "sampled actions"
    demonstrations = relative(Path(protocol.get("demonstrations") or ""))
    baselines = {"random": "uniform actions", "zero": "actions of zeros", "replay": f"actions of {demonstrations}"}
    actions = learnt if policy is None else baselines.get(policy, f"actions of {policy}")
    each = episodes // max(1, len(tasks))
    of_each = f", {each:,} of each task" if tasks else ""
    run = f"{episodes:,} whole episodes{of_each}, seeds {first} to {first + each - 1}, {actions}"
    if len(settings) >= 200:
        settings = f"{settings[:200]} ..."
    return [task, *([settings] if settings else []), run]


def relative(path: Path) -> Path:
    """Path relative to the present folder, if it lies below."""
    try:
        return path.relative_to(Path.cwd())
    except ValueError:
        return path


def headline(metrics: Mapping[str, float]) -> str:
    """One line for an evaluation: success with its interval, or else the return; empty without an evaluation."""
    if "eval/num_trajectories" not in metrics:
        return ""
    episodes = f"over {metrics['eval/num_trajectories']:.0f} held-out episodes"
    if "eval/success_once" in metrics:
        low, high = metrics["eval/success_once_ci_low"], metrics["eval/success_once_ci_high"]
        return f"success_once {metrics['eval/success_once']:.3f}  95 % [{low:.3f}, {high:.3f}]  {episodes}"
    if "eval/return" not in metrics:
        return f"no return was finite  {episodes}"
    return f"return {metrics['eval/return']:.1f} +- {metrics['eval/return_std']:.1f}  {episodes}"
