"""What a command prints when it fails."""

from __future__ import annotations

import errno
import io

import pytest
from rich.console import Console

from rlpipe.cli.errors import print_failure
from rlpipe.errors import LostRowsError


def printed(error):
    output = io.StringIO()
    print_failure(Console(file=output), error)
    return output.getvalue()


@pytest.mark.parametrize(
    ("number", "remedy"), [(errno.ENOSPC, "make room"), (errno.EROFS, "can be written"), (errno.EMFILE, "ulimit -n")]
)
def test_what_the_machine_does_not_allow_is_one_sentence_with_a_remedy(number, remedy):
    shown = printed(OSError(number, "Not here", "/disk/file"))
    assert shown.startswith("failed: Not here for /disk/file: ")
    assert remedy in shown
    assert shown.count("\n") == 1


def test_a_machine_without_memory_is_one_sentence():
    assert printed(MemoryError("Unable to allocate 9 GiB")) == (
        "failed: Unable to allocate 9 GiB: ask for fewer environments, a shorter rollout.horizon or a smaller buffer.\n"
    )


def test_any_other_error_comes_with_its_traceback():
    assert printed(ValueError("no")) == "ValueError: no\n\nfailed: ValueError: no\n"
    assert printed(OSError(errno.EBADF, "Bad", "f")).startswith("OSError: ")
    assert printed(OSError("libGL.so.1: no such file")).endswith("failed: OSError: libGL.so.1: no such file\n")
    assert printed(OSError("libGL.so.1: no such file")).startswith("OSError: ")


def test_lost_rows_are_one_sentence():
    assert printed(LostRowsError("The last 2 iterations are lost.")) == "failed: The last 2 iterations are lost.\n"
