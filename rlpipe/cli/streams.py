"""Standard output and standard error: for terminals and pipes of any encoding, for tables, and for JSON."""

from __future__ import annotations

import codecs
import io
import json
import math
import os
import sys
import time
import unicodedata
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TextIO

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from rlpipe import files

_SIMILAR = {"·": "-", "━": "-", "╌": "-", "→": ">", "✓": "+", "✔": "+", "✗": "x", "✖": "x", "▲": "!", "…": "."}
"""Replacements of one column each, so that tables stay aligned; signs of a good and a bad result stay different."""
PIPED_WIDTH = 400
"""Columns of a list for a program that reads it: each entry stays on one line."""
PATIENCE_SECONDS = 2.0
"""Time that reading a file may take before it is shown how far it is."""
_for_json: TextIO | None = None
"""Standard output of a command with ``--json``, which nothing else can reach."""


def set_up_streams() -> None:
    """Lets output replace what its encoding lacks, such as ``✓`` in ASCII, and gives a closed stream the null device.

    Otherwise it would be None, and the next file to be opened would take its number.
    """
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, Path(os.devnull).open(mode, encoding="utf-8"))  # noqa: SIM115 - open until the end
    codecs.register_error("rlpipe", _replaced)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # a test or a notebook has others
            stream.reconfigure(errors="rlpipe")


@contextmanager
def stdout_for_json(*, reserve: bool) -> Iterator[None]:
    """Sends to standard error what simulators, libraries and their processes print, so that JSON stands alone.

    C code may hold back what it prints until the process ends, so the file descriptor is not set back.

    Args:
        reserve: False to leave standard output to everybody.
    """
    global _for_json
    stdout = sys.stdout
    if reserve:
        stdout.flush()
        _for_json, sys.stdout = stdout, sys.stderr
        with suppress(OSError):  # that of a test has no number
            number = stdout.fileno()
            _for_json = os.fdopen(os.dup(number), "w", encoding="ascii")
            os.dup2(sys.stderr.fileno(), number)
    try:
        yield
    finally:
        _for_json, sys.stdout = None, stdout


def console_for_results(piped_width: int = 100) -> Console:
    """Returns a console on standard output, as wide as the terminal; a file or a pipe has no width of its own."""
    return Console(highlight=False, width=None if sys.stdout.isatty() else piped_width)


@contextmanager
def progress_of_files() -> Iterator[None]:
    """Shows on a terminal how far a file of lines is read, once that has taken ``PATIENCE_SECONDS``."""
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

    console = Console(stderr=True)
    if not console.is_interactive:
        yield
        return
    columns = TextColumn("reading {task.description}"), BarColumn(), DownloadColumn(), TimeRemainingColumn()
    progress = Progress(*columns, console=console, transient=True)
    began: dict[Path, float] = {}

    def show(path: Path, offset: int, size: int) -> None:
        now = time.monotonic()
        if offset >= size:
            began.pop(path, None)
            progress.stop()
            for task in progress.task_ids:
                progress.remove_task(task)
        elif now - began.setdefault(path, now) >= PATIENCE_SECONDS:
            if not progress.task_ids:
                progress.add_task(path.name, total=size)
                progress.start()
            progress.update(progress.task_ids[0], completed=offset, total=size)

    try:
        with files.watched(show):
            yield
    finally:
        progress.stop()


def table_of_results() -> Table:
    """Returns a table without lines, for results on a terminal or in a file."""
    return Table(box=None, padding=(0, 2, 0, 0), header_style="dim", pad_edge=False)


def table_of_list(title: Text | None = None, *, boxed: bool) -> Table:
    """Returns the table of a list: in a box for a terminal, without one for a program that reads it."""
    edge = box.ROUNDED if boxed else None
    return Table(title=title, title_justify="left", box=edge, header_style="bold", border_style="dim", pad_edge=boxed)


def print_json(data: Any) -> None:
    """Prints a result as JSON, in ASCII; numbers that are not finite, which JSON does not have, are null."""
    print(json.dumps(_finite(data), indent=2, allow_nan=False), file=_for_json, flush=True)


def _finite(data: Any) -> Any:
    if isinstance(data, dict):
        return {key: _finite(value) for key, value in data.items()}
    if isinstance(data, list | tuple):
        return [_finite(value) for value in data]
    return None if isinstance(data, float) and not math.isfinite(data) else data


def _replaced(error: UnicodeError) -> tuple[str | bytes, int]:
    """Replaces a character by a similar one, a letter without its accent, or a question mark.

    A byte of a path that is no text in the system's encoding is written as it is.
    """
    if not isinstance(error, UnicodeEncodeError):
        raise error
    character = error.object[error.start]
    if "\udc80" <= character <= "\udcff":  # PEP 383
        return bytes([ord(character) - 0xDC00]), error.start + 1
    plain = _SIMILAR.get(character) or unicodedata.normalize("NFKD", character)[0]
    return plain if plain.isascii() else "?", error.start + 1
