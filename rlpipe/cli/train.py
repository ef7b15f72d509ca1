"""``rlpipe train CONFIG [key=value ...]``"""

from __future__ import annotations

import signal
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.text import Text

from rlpipe.cli import arguments
from rlpipe.cli.errors import print_failure
from rlpipe.cli.evaluate import headline, relative
from rlpipe.cli.exit_codes import ExitCode
from rlpipe.cli.streams import console_for_results, progress_of_files
from rlpipe.errors import ConfigError, UserInterrupt, command_line
from rlpipe.metrics.row import Status

if TYPE_CHECKING:
    from rlpipe.config.plan import Plan
    from rlpipe.training.interruption import Interruption
    from rlpipe.training.recovery import TrainResult

EXIT_CODES = {
    Status.COMPLETED: ExitCode.DONE,
    Status.STOPPED: ExitCode.CRITICAL,
    Status.FAILED: ExitCode.FAILED,
    Status.INTERRUPTED: ExitCode.INTERRUPTED,
}
"""Exit code of each way a run can end, from the best to the worst."""


def train(
    config: Annotated[str | None, typer.Argument(help="YAML file, or a name that rlpipe configs lists.")] = None,
    overrides: Annotated[
        list[str] | None, typer.Argument(help="Changes, such as runner.seed=1.", metavar="[key=value]...")
    ] = None,
    local: arguments.Local = False,
    resume: Annotated[
        Path | None, typer.Option(parser=arguments.run, help="Run directory to resume; replaces CONFIG.")
    ] = None,
    seeds: Annotated[
        str | None, typer.Option(help="Seeds, such as 0,1,2: trains one run for each, one after the other.")
    ] = None,
    ray_address: arguments.RayAddress = None,
) -> None:
    """Train a policy, or resume a run.

    Ctrl-C stops after the current iteration and saves a checkpoint; a second Ctrl-C stops at once.
    """
    import rlpipe
    from rlpipe.distributed import process_template
    from rlpipe.run.directory import RunDirectory

    if not local:
        process_template.start_early(ray_address)  # before anything else, because it takes longest
    changes = [*([config] if resume is not None and config is not None else []), *(overrides or [])]
    if resume is not None:
        config = str(RunDirectory.existing(resume).path / "config.yaml")
    elif config is None:
        raise ConfigError(
            "name a configuration (a YAML file, or a name that rlpipe configs lists), or --resume a run directory."
        )
    if seeds is not None:
        _run_seeds(config, changes, _seeds(seeds, changes, resume), local=local, ray_address=ray_address)
        return
    run(rlpipe.load_config(config, changes), local=local, ray_address=ray_address, resume=resume)


def run(loaded: Plan, *, local: bool, ray_address: str | None, resume: Path | None = None) -> None:
    """Trains, prints a summary, and exits with the code of the outcome."""
    if code := EXIT_CODES[_run(loaded, _listen(), local, ray_address, resume).status]:
        raise typer.Exit(code)


def _run(
    loaded: Plan, interruption: Interruption, local: bool, ray_address: str | None, resume: Path | None = None
) -> TrainResult:
    """Trains, and prints a summary."""
    import rlpipe

    with progress_of_files():  # a resume reads the run
        result = rlpipe.train(loaded, local=local, ray_address=ray_address, resume=resume, interruption=interruption)
    _summarize(result, loaded)
    return result


def _seeds(text: str, changes: Sequence[str], resume: Path | None) -> list[int]:
    """Parses ``--seeds``, which no other option may contradict."""
    from rlpipe.config.fields import whole_number

    try:
        seeds = [whole_number(seed, "--seeds") for seed in text.split(",")]
    except ConfigError as error:
        raise ConfigError(
            f"--seeds is {text!r}; write whole numbers with commas between them, such as 0,1,2."
        ) from error
    if len({*seeds}) < len(seeds):
        raise ConfigError(f"--seeds is {text!r}, which names a seed twice; the two runs would be the same.")
    if resume is not None:
        raise ConfigError("--seeds begins new runs; resume the runs of its seeds one by one, each with --resume.")
    if any(change.startswith("runner.seed=") for change in changes):
        raise ConfigError("--seeds and runner.seed=... both set the seed: leave one out.")
    return seeds


def _run_seeds(
    source: str, changes: Sequence[str], seeds: Sequence[int], *, local: bool, ray_address: str | None
) -> None:
    """Trains one run for each seed, then prints a table of all completed runs.

    Exits with the worst of their codes; if an interruption kept a seed from starting, with that of an interruption.
    """
    import rlpipe
    from rlpipe.run import resume
    from rlpipe.training.first_weights import with_base_policy

    plan = [
        with_base_policy(rlpipe.load_config(source, [*changes, f"runner.seed={seed}"])) for seed in seeds
    ]  # checks all before the first run
    stderr = Console(stderr=True, highlight=False)
    outcomes: dict[int, tuple[Status, Path | None]] = {}
    interruption = _listen()  # shared: a request during the last iteration of a run ends the next run
    for number, (seed, loaded) in enumerate(zip(seeds, plan, strict=True), start=1):
        stderr.rule(f"seed {seed}, run {number} of {len(seeds)}", align="left")
        others, path = _directories(loaded), None
        if loaded.runner.auto_resume and (path := resume.completed(loaded)) is not None:
            stderr.print(f"{relative(path)} has completed (runner.auto_resume).", markup=False, soft_wrap=True)
            outcomes[seed] = Status.COMPLETED, path
            continue
        try:
            interruption.polled = False  # until the loop of this run begins
            result = _run(loaded, interruption, local, ray_address)
            status, path = result.status, result.directory
        except KeyboardInterrupt:
            status = Status.INTERRUPTED
        except Exception as error:
            if isinstance(error, ConfigError) and number == 1:
                raise  # the other seeds would be refused for the same reason
            print_failure(stderr, error)
            status = Status.FAILED
        outcomes[seed] = status, path or next(iter(_directories(loaded) - others), None)
        if status == Status.INTERRUPTED or interruption.reason is not None:
            break
    _print_seeds(seeds, outcomes)
    ends = [status for status, _ in outcomes.values()]
    if len(outcomes) < len(seeds):
        ends.append(Status.INTERRUPTED)
    if code := EXIT_CODES[max(ends, key=list(EXIT_CODES).index)]:
        raise typer.Exit(code)


def _directories(config: Plan) -> set[Path]:
    """Run directories of the experiment and seed."""
    folder = Path(config.runner.logger.log_path, config.runner.logger.experiment_name)
    return {file.parent.resolve() for file in folder.glob(f"*-seed{config.runner.seed}/run.json")}


def _print_seeds(seeds: Sequence[int], outcomes: Mapping[int, tuple[Status, Path | None]]) -> None:
    """Prints how each run ended, and the pooled results of the completed ones."""
    from rlpipe.analysis.comparison import compare
    from rlpipe.cli.compare import screen

    console = console_for_results()
    console.rule(f"{len(seeds)} seeds", align="left", style="dim")
    lines = [Text(f"seed  {'ended':<11}  exit code  run", style="dim")]
    for seed in seeds:
        status, path = outcomes.get(seed, (None, None))
        colour = "green" if status == Status.COMPLETED else "yellow"
        code = "-" if status is None else str(EXIT_CODES[status])
        run = "-" if path is None else str(relative(path))
        lines.append(Text.assemble(f"{seed:>4}  ", (f"{status or 'not begun':<11}", colour), f"  {code:>9}  {run}"))
    console.print(*lines, sep="\n", soft_wrap=True)  # a path stays whole
    if ended := [path for status, path in outcomes.values() if status == Status.COMPLETED and path is not None]:
        console.print("", screen(compare(ended)), sep="\n")


def _listen() -> Interruption:
    """Handles SIGINT and SIGTERM: the first one ends the run cleanly; before the run begins, or the second, at once."""
    from rlpipe.training.interruption import Interruption

    interruption = Interruption()

    def handle(number: int, _: Any) -> None:
        at_once = not interruption.polled or interruption.reason is not None
        interruption.request("Ctrl-C" if number == signal.SIGINT else "SIGTERM")
        if at_once:
            raise UserInterrupt

    signal.signal(signal.SIGINT, handle)
    signal.signal(signal.SIGTERM, handle)
    return interruption


def _summarize(result: TrainResult, config: Plan) -> None:
    from rlpipe.config.sections import options_of
    from rlpipe.report.pages import REPORT

    console = Console(highlight=False, soft_wrap=True)
    run = relative(result.directory)
    lines: list[tuple[str, object]] = [("evaluation", headline(result.metrics)), ("run", run)]
    if result.checkpoint is not None:
        lines.append(("checkpoint", relative(result.checkpoint)))
        if not result.is_trained:
            lines.append(("resume", command_line("train", "--resume", run)))
        lines.append(("evaluate", command_line("evaluate", run, "--episodes", 400)))
    if (result.directory / REPORT).is_file():
        lines.append(("report", run / REPORT))
    logger = config.runner.logger
    for name, backend in config.backend_classes.items():
        options = options_of(name, backend.Config, logger.options.get(name, {}))
        lines.append(("curves", backend.view_command(options, run, logger.project_name)))
    console.print(f"[bold]{result.status}[/] after {result.seconds:,.0f} s of training")
    for label, text in lines:
        if text:
            style = "[bold green]" if label == "evaluation" else "[default]"
            console.print(f"  [dim]{label:<11}[/]{style}{escape(str(text))}[/]")
