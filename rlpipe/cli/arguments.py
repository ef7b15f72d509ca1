"""Arguments that several commands share, and their parsers. The help shows a parser's name."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from rlpipe import files
from rlpipe.errors import ConfigError


def integer(text: str) -> int:
    """Parses a whole number by its value: 1e3 and 1000.0 are 1000."""
    from rlpipe.config.fields import whole_number

    try:
        return whole_number(text, "")
    except ConfigError as error:
        raise typer.BadParameter(f"{text!r} is not a valid integer.") from error


def path(text: str) -> Path:
    """Parses a path, in which ``~`` is the home folder also where the shell leaves it, as in ``--out=~/x``."""
    try:
        return files.user_path(str(text), "the path")
    except ConfigError as error:
        raise typer.BadParameter(str(error)) from error


def all_runs(paths: list[Path]) -> list[Path]:
    """Returns the runs of a command that takes several; a folder of runs stands for all in it, ``latest`` for one."""
    from rlpipe.run.directory import find_runs

    return [directory for path in paths for directory in find_runs(path)]


def run(text: str) -> Path:
    """Parses the path of a run; a folder of runs, and ``latest``, stand for the newest."""
    from rlpipe.run.directory import find_run

    return find_run(path(text))


Run = Annotated[Path, typer.Argument(parser=run, help="Run directory; the run may still be in progress.")]
RunOrConfiguration = Annotated[
    Path,
    typer.Argument(
        help="Run directory (its newest checkpoint) or checkpoint file; with --policy a run directory or a "
        "configuration.",
        metavar="PATH|CONFIG",
    ),
]
Overrides = Annotated[
    list[str] | None,
    typer.Argument(help="Changes, such as evaluation.deterministic=false.", metavar="[key=value]..."),
]
Policy = Annotated[
    str | None,
    typer.Option(
        help="Take something else instead of a checkpoint: random (uniform actions within their bounds), zero (actions "
        "of zeros; the first of discrete actions), replay (the actions of a demonstration for each episode, then "
        "zeros), or a policy from elsewhere: ws://HOST:PORT, model.onnx, model.zip of Stable-Baselines3, "
        "package.module:function or class (evaluation.external says what it is shown).",
        metavar="POLICY",
    ),
]
Best = Annotated[
    bool, typer.Option("--best", help="Take the checkpoint with the best evaluation instead of the newest.")
]
Local = Annotated[bool, typer.Option("--local", help="Run everything in this process, without Ray.")]
RayAddress = Annotated[
    str | None, typer.Option(help="Ray cluster to join.", show_default="RAY_ADDRESS, or a new one here")
]
