"""The command line: ``rlpipe COMMAND``. One file a command; each parses, calls, prints and chooses the exit code.

Exit codes: 0 done, 1 failed, 2 wrong usage or configuration, 3 something critical is wrong with the run,
130 interrupted (after a clean save).
Results go to stdout, progress to stderr.
"""

from __future__ import annotations

import logging
import os
import sys
import traceback
import warnings

import typer
from rich.console import Console
from rich.logging import RichHandler

from rlpipe.cli import compare, demos, diagnose, evaluate, export, metrics, pretrain, sync, train
from rlpipe.plugins import ConfigError
from rlpipe.secrets import redacted

app = typer.Typer(
    help="Reinforcement learning for manipulation on Ray, with metrics that can be trusted.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
)
train.add_to(app)
pretrain.add_to(app)
demos.add_to(app)
evaluate.add_to(app)
compare.add_to(app)
diagnose.add_to(app)
metrics.add_to(app)
sync.add_to(app)
export.add_to(app)


def main() -> None:
    """Runs the command line and exits."""
    stderr = Console(stderr=True, highlight=False)
    logging.basicConfig(
        level=logging.WARNING,
        format="%(message)s",
        handlers=[RichHandler(console=stderr, show_time=False, show_path=False, show_level=False)],
    )
    logging.getLogger("rlpipe").setLevel(logging.INFO)
    warnings.filterwarnings("ignore", message="The pynvml package is deprecated")  # SwanLab brings it; torch minds
    try:
        app()
    except ConfigError as error:
        stderr.print(f"[bold red]error:[/] {_escaped(error)}", soft_wrap=True)
        sys.exit(2)
    except KeyboardInterrupt:
        stderr.print("[yellow]interrupted[/]")
        sys.exit(130)
    except Exception as error:
        told = redacted("".join(traceback.format_exception(error)), os.environ)  # a service's error may quote its key
        stderr.print(told, markup=False, soft_wrap=True)
        stderr.print(f"[bold red]failed:[/] {type(error).__name__}: {_escaped(error)}", soft_wrap=True)
        sys.exit(1)


def _escaped(error: Exception) -> str:
    from rich.markup import escape

    return escape(redacted(str(error), os.environ))
