"""How a command says what went wrong: without credentials, which a service's error may quote."""

from __future__ import annotations

import os
import re
import traceback

from rich.console import Console
from rich.markup import escape

from rlpipe.errors import RunError
from rlpipe.secrets import redacted


def print_refusal(stderr: Console, error: Exception) -> None:
    """The message alone: it says what to do."""
    stderr.print(f"[bold red]error:[/] {escape(_cut(redacted(str(error), os.environ)))}", soft_wrap=True)


def _cut(text: str) -> str:
    """With the beginning of what is no word of a person, such as a damaged file's name for a simulator."""
    return re.sub(r"(\S{80})\S{320,}", r"\1...", text)


def print_failure(stderr: Console, error: Exception) -> None:
    """The traceback, and what it comes down to; of a fault that says all by itself, only that."""
    if isinstance(error, RunError):
        stderr.print(f"[bold red]failed:[/] {escape(redacted(str(error), os.environ))}", soft_wrap=True)
        return
    stderr.print(redacted("".join(traceback.format_exception(error)), os.environ), markup=False, soft_wrap=True)
    told = escape(redacted(f"{type(error).__name__}: {error}", os.environ))
    stderr.print(f"[bold red]failed:[/] {told}", soft_wrap=True)
