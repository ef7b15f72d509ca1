"""Prints what went wrong in a command, without credentials, which a service's error may quote."""

from __future__ import annotations

import os
import re
import traceback

from rich.console import Console
from rich.markup import escape

from rlpipe.errors import RunError
from rlpipe.secrets import redacted


def print_refusal(stderr: Console, error: Exception) -> None:
    """Prints the message alone, because it says what to do."""
    stderr.print(f"[bold red]error:[/] {escape(_cut(redacted(str(error), os.environ)))}", soft_wrap=True)


def _cut(text: str) -> str:
    """Shortens anything too long for a word, such as the name of a simulator in a damaged file."""
    return re.sub(r"(\S{80})\S{320,}", r"\1...", text)


def print_failure(stderr: Console, error: Exception) -> None:
    """Prints the traceback and the error; for a fault of the run only the message, which is sufficient."""
    if isinstance(error, RunError):
        stderr.print(f"[bold red]failed:[/] {escape(redacted(str(error), os.environ))}", soft_wrap=True)
        return
    stderr.print(redacted("".join(traceback.format_exception(error)), os.environ), markup=False, soft_wrap=True)
    message = escape(redacted(f"{type(error).__name__}: {error}", os.environ))
    stderr.print(f"[bold red]failed:[/] {message}", soft_wrap=True)
