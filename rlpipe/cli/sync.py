"""``rlpipe sync RUN --to BACKEND``"""

from __future__ import annotations

import os
import time
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape

from rlpipe.cli import arguments
from rlpipe.cli.streams import progress_of_files
from rlpipe.errors import Fault

POLL_SECONDS = 0.5
PATIENCE_SECONDS = 20.0


def sync(
    run: arguments.Run,
    to: Annotated[str, typer.Option("--to", help="Backend, such as tensorboard or wandb, or package.module:Class.")],
    options: Annotated[
        list[str] | None, typer.Argument(help="Options of the backend.", metavar="[key=value]...")
    ] = None,
    watch: Annotated[bool, typer.Option("--watch", help="Follow a run in progress until it ends.")] = False,
    parent: Annotated[int | None, typer.Option(hidden=True, help="End when this process has ended.")] = None,
) -> None:
    """Copy a run from its directory to a backend. Repeating the command duplicates nothing."""
    from omegaconf import OmegaConf

    from rlpipe.config.tree import container, overridden
    from rlpipe.errors import ConfigError, RunError
    from rlpipe.plugins import resolve
    from rlpipe.run.directory import RunDirectory
    from rlpipe.run.follower import Follower

    if parent is not None:
        os.nice(10)  # the run comes first
    directory = RunDirectory.existing(run)
    schema = resolve("backends", to, "--to").Config
    replaced = {
        str(key): value
        for key, value in container(overridden(OmegaConf.create({}), options or [], schema=schema)).items()
    }
    if not watch and "view" not in directory.read_json():
        raise ConfigError(
            f"{run} cannot be copied to {to}: the run has not begun to write yet. Wait, or follow it with --watch."
        )
    # the backend process of a run that was killed and is resumed at once may take a moment to notice
    with progress_of_files():
        follower = Follower(directory, to, replaced, patience=0.0 if parent is None else PATIENCE_SECONDS)
    try:
        with progress_of_files():
            while not follower.catch_up() and watch:
                if parent is not None and os.getppid() != parent:
                    break
                time.sleep(POLL_SECONDS)
    except ConfigError:
        raise
    except Exception as error:  # a library, a service or a plug-in may raise anything
        if parent is not None:  # the traceback is for the log of a run's own process
            raise
        raise RunError(_failure(to, error, follower.mark.iteration)) from error
    console = Console(highlight=False, soft_wrap=True)
    console.print(f"{to} shows {run} up to iteration {follower.mark.iteration}")
    if follower.withheld:
        console.print(
            f"  [dim]{follower.withheld} later iterations are not in a checkpoint yet: a resume would replay them, and "
            f"{to} could not delete them[/]"
        )
    if command := follower.view_command():
        console.print(f"  [dim]open with:[/] {escape(command)}")
    for remark in follower.mark.remarks:
        console.print(f"  {escape(remark)}")


def _failure(name: str, error: Exception, iteration: int) -> Fault:
    message = " ".join(str(error).split()).rstrip(".")
    advice = f"It shows the run up to iteration {iteration}; nothing is lost. Remove the cause and repeat the command."
    return Fault(
        f"the backend {name}", f"raised {type(error).__name__}{f': {message}' if message else ''}", advice=advice
    )
