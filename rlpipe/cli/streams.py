"""Standard output and standard error for terminals and pipes of any encoding."""

from __future__ import annotations

import codecs
import io
import os
import sys
import unicodedata
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TextIO

_SIMILAR = {"·": "-", "━": "-", "╌": "-", "→": ">", "✓": "+", "✔": "+", "✗": "x", "✖": "x", "▲": "!", "…": "."}
"""Replacements of one column each, so that tables stay aligned; signs of a good and a bad result stay different."""


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
def reserved_stdout() -> Iterator[TextIO]:
    """Reserves standard output for the stream that it gives; all other output goes to standard error.

    That includes what a simulator prints, also from C code, which may hold it back until the process ends: the file
    descriptor is not set back.
    """
    stdout = reserved = sys.stdout
    stdout.flush()
    with suppress(OSError):  # a test or a notebook has no file
        if stdout.fileno() == 1:
            reserved = os.fdopen(os.dup(1), "w", encoding=stdout.encoding, errors=stdout.errors)
            os.dup2(2, 1)
    sys.stdout = sys.stderr
    try:
        yield reserved
    finally:
        reserved.flush()
        sys.stdout = stdout


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
