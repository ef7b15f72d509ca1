"""Command line: ``rlpipe COMMAND``. One file per command, which parses, calls, prints and chooses the exit code.

Results go to stdout, progress to stderr. ``exit_codes`` has the exit codes of all commands.
"""

from __future__ import annotations

import logging
import os
import sys
import traceback
import warnings
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

import typer
from rich.console import Console
from rich.logging import RichHandler
from typer.core import TyperGroup
from typer.exceptions import TyperException

from rlpipe.cli import (
    collect,
    compare,
    configs,
    curriculum,
    demos,
    diagnose,
    doctor,
    evaluate,
    export,
    metrics,
    plugins,
    pretrain,
    replay,
    report,
    resize,
    runs,
    serve,
    stress,
    submit,
    sync,
    tasks,
    timeline,
    train,
    verify,
    watch,
)
from rlpipe.cli.errors import print_failure, print_refusal
from rlpipe.cli.exit_codes import ExitCode
from rlpipe.cli.streams import set_up_streams, stdout_for_json
from rlpipe.config.other_systems import translation
from rlpipe.errors import ConfigError, Fault, RunError, how_it_failed
from rlpipe.learning.threads import passive_waiting
from rlpipe.plugins import find_modules_in


class _Commands(TyperGroup):
    """Commands. What they load, such as a simulator, does not choose their exit code."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except (SystemExit, EOFError) as error:
            last = traceback.extract_tb(error.__traceback__)[-1]
            raise RunError(Fault(f"{last.filename}, line {last.lineno},", how_it_failed(error))) from error
        except TyperException as error:
            unknown = hasattr(error, "possibilities")  # Typer keeps the class of this error to itself
            option = getattr(error, "option_name", "") if unknown else ""
            ours = translation(option.lstrip("-"))
            if not ours and "." not in option:
                raise
            example = f", such as {option.lstrip('-')}=..." if not ours else ""
            raise ConfigError(
                f"{option} is no option{ours or '.'} Keys of the configuration are written key=value{example}."
            ) from error


app = typer.Typer(
    cls=_Commands,
    help="Train manipulation policies by reinforcement learning on Ray, with exact metrics.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
)
_COMMANDS: tuple[Callable[..., None], ...] = (
    train.train, configs.configs, tasks.tasks, plugins.plugins, pretrain.pretrain, submit.submit,
    evaluate.evaluate, stress.stress, collect.collect, verify.verify, replay.replay, compare.compare, diagnose.diagnose,
    doctor.doctor, sync.sync, export.export, serve.serve, timeline.timeline, report.report, curriculum.curriculum,
    watch.watch, runs.runs, resize.resize,
)  # fmt: skip
"""In the order of the help."""
for _command in _COMMANDS:
    app.command()(_command)
app.add_typer(demos.commands, name="demos")
app.add_typer(metrics.commands, name="metrics")


@cache
def _program() -> Callable[..., Any]:
    """Builds all commands, once for a process that runs several."""
    return typer.main.get_command(app)


def main() -> None:
    """Runs the command line and exits."""
    set_up_streams()
    os.environ.update(passive_waiting())  # before any command imports torch
    stderr = Console(stderr=True, highlight=False)
    logging.basicConfig(
        level=logging.WARNING,
        format="%(message)s",
        handlers=[RichHandler(console=stderr, show_time=False, show_path=False, show_level=False)],
    )
    logging.getLogger("rlpipe").setLevel(logging.INFO)
    warnings.filterwarnings("ignore", message="The pynvml package is deprecated")  # SwanLab installs it; torch warns
    with suppress(FileNotFoundError):  # the present folder may be gone
        find_modules_in(Path.cwd())
    try:
        with stdout_for_json(reserve="--json" in sys.argv):
            _program()()
    except ConfigError as error:
        print_refusal(stderr, error)
        sys.exit(ExitCode.REFUSED)
    except KeyboardInterrupt:
        stderr.print("[yellow]interrupted[/]")
        sys.exit(ExitCode.INTERRUPTED)
    except Exception as error:
        print_failure(stderr, error)
        sys.exit(ExitCode.FAILED)
