"""Commands in the process of the test, which start a hundred times sooner than in one of their own."""

from __future__ import annotations

import contextlib
import io
import signal
import sys
from dataclasses import dataclass

from rlpipe.cli import main


@dataclass(frozen=True)
class Answer:
    """Exit code and output of a command."""

    code: int
    out: str
    err: str


def command(*arguments: str, encoding: str = "utf-8") -> Answer:
    """Runs ``rlpipe`` with these arguments, in this process, on a terminal of this encoding."""
    out, err = (io.TextIOWrapper(io.BytesIO(), encoding, newline="\n", write_through=True) for _ in range(2))
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    argv, sys.argv = sys.argv, ["rlpipe", *arguments]
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            main()
        code = 0
    except SystemExit as end:
        code = int(end.code or 0)
    finally:
        sys.argv = argv
        for number, handler in handlers.items():
            signal.signal(number, handler)
    return Answer(code, *(stream.buffer.getvalue().decode(encoding) for stream in (out, err)))
