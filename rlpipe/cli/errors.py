"""Prints what went wrong in a command, without credentials, which a service's error may quote."""

from __future__ import annotations

import errno
import os
import re
import traceback

from rich.console import Console
from rich.markup import escape

from rlpipe.errors import LostRowsError, RunError
from rlpipe.secrets import redacted

_REMEDIES = {
    **dict.fromkeys((errno.ENOSPC, errno.EDQUOT, errno.EFBIG), "make room, or choose a folder with more"),
    **dict.fromkeys((errno.EACCES, errno.EPERM, errno.EROFS), "choose a folder that can be written and read"),
    **dict.fromkeys((errno.EMFILE, errno.ENFILE), "allow more open files, ulimit -n 65536"),
    **dict.fromkeys((errno.ENOMEM, errno.EAGAIN), "free memory and processes, or ask for fewer workers"),
}
"""Remedies for faults of the machine."""


def print_refusal(stderr: Console, error: Exception) -> None:
    """Prints the message alone, because it says what to do."""
    # what is too long for a word, such as the name of a simulator in a damaged file, is cut
    message = re.sub(r"(\S{80})\S{320,}", r"\1...", redacted(str(error), os.environ))
    stderr.print(f"[bold red]error:[/] {escape(message)}", soft_wrap=True)


def print_failure(stderr: Console, error: Exception) -> None:
    """Prints the traceback and the error; for a fault of the run or of the machine only what it says."""
    message = str(error) if isinstance(error, RunError | LostRowsError) else _fault_of_machine(error)
    if message:
        stderr.print(f"[bold red]failed:[/] {escape(redacted(message, os.environ))}", soft_wrap=True)
        return
    stderr.print(redacted("".join(traceback.format_exception(error)), os.environ), markup=False, soft_wrap=True)
    message = escape(redacted(f"{type(error).__name__}: {error}", os.environ))
    stderr.print(f"[bold red]failed:[/] {message}", soft_wrap=True)


def _fault_of_machine(error: Exception) -> str:
    """Returns what the machine does not allow, and what to do; empty for any other error."""
    if isinstance(error, MemoryError):
        what = str(error).strip(" .") or "this process was given no more memory"
        return f"{what}: ask for fewer environments, a shorter rollout.horizon or a smaller buffer."
    if not isinstance(error, OSError) or error.errno is None:  # what a library raises without a number is its own
        return ""
    where = f" for {error.filename}" if error.filename else ""
    remedy = _REMEDIES.get(error.errno)
    return f"{error.strerror}{where}: {remedy}." if remedy else ""
