"""``rlpipe train CONFIG [key=value ...]``"""

from __future__ import annotations

import signal
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape

from rlpipe.plugins import ConfigError

if TYPE_CHECKING:
    from rlpipe.config import Config
    from rlpipe.training import Interruption, TrainResult


def add_to(app: typer.Typer) -> None:
    """Adds the command."""
    app.command(name="train")(train)


def train(
    config: Annotated[str | None, typer.Argument(help="YAML file, such as configs/ppo_push_cube.yaml.")] = None,
    overrides: Annotated[
        list[str] | None, typer.Argument(help="Changes, such as runner.seed=1.", metavar="[key=value]...")
    ] = None,
    local: Annotated[bool, typer.Option("--local", help="Run everything in this process, without Ray.")] = False,
    resume: Annotated[Path | None, typer.Option(help="Run directory to go on with; takes the place of CONFIG.")] = None,
    ray_address: Annotated[
        str | None, typer.Option(help="Ray cluster to join; else RAY_ADDRESS, else one is started.")
    ] = None,
) -> None:
    """Train a policy. Ctrl-C stops after the current iteration and saves; a second Ctrl-C stops at once."""
    import rlpipe
    from rlpipe.training import Interruption

    changes = [*([config] if resume is not None and config is not None else []), *(overrides or [])]
    if resume is not None:
        config = str(resume / "config.yaml")
        if not (resume / "run.json").is_file():
            raise ConfigError(f"--resume {resume}: not a run directory, because run.json is missing.")
    elif config is None:
        raise ConfigError("name a configuration, such as configs/ppo_push_cube.yaml, or --resume a run directory.")
    loaded = rlpipe.load_config(config, changes)
    interruption = Interruption()
    _listen(interruption)
    result = rlpipe.train(loaded, local=local, ray_address=ray_address, resume=resume, interruption=interruption)
    _summarize(result, loaded)
    if result.status == "interrupted":
        raise typer.Exit(130)
    if result.status == "stopped":
        raise typer.Exit(3)


def _listen(interruption: Interruption) -> None:
    """Lets a signal end the run cleanly; before it has begun, or the second time, at once."""

    def handle(number: int, _: Any) -> None:
        if not interruption.heeded or interruption.reason is not None:
            raise KeyboardInterrupt
        interruption.request("Ctrl-C" if number == signal.SIGINT else "SIGTERM")

    signal.signal(signal.SIGINT, handle)
    signal.signal(signal.SIGTERM, handle)


def _summarize(result: TrainResult, config: Config) -> None:
    from rlpipe.cli.evaluate import headline
    from rlpipe.config import options_of
    from rlpipe.plugins import resolve

    console = Console(highlight=False, soft_wrap=True)
    run = _relative(result.directory)
    lines: list[tuple[str, object]] = [("evaluation", headline(result.metrics)), ("run", run)]
    if result.checkpoint is not None:
        lines.append(("checkpoint", _relative(result.checkpoint)))
        if result.status != "completed":
            lines.append(("go on", f"rlpipe train --resume {run}"))
        lines.append(("evaluate", f"rlpipe evaluate {run} --episodes 400"))
    logger = config.runner.logger
    for name in logger.logger_backends:
        backend = resolve("backends", name, "logger_backends")
        options = options_of(name, backend.Config, logger.options.get(name, {}))
        lines.append(("curves", backend.how_to_look(options, run, logger.project_name)))
    console.print(f"[bold]{result.status}[/] after {result.seconds:,.0f} s of training")
    for label, text in lines:
        if text:
            style = "[bold green]" if label == "evaluation" else "[default]"
            console.print(f"  [dim]{label:<11}[/]{style}{escape(str(text))}[/]")


def _relative(path: Path) -> Path:
    try:
        return path.relative_to(Path.cwd())
    except ValueError:
        return path
