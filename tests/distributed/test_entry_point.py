"""``python -m rlpipe`` in a Python that lacks what rlpipe needs."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

REPOSITORY = Path(__file__).parents[2]


def test_a_python_that_lacks_what_rlpipe_needs_is_named_with_what_to_do():
    bare = [sys.executable, "-I", "-S", "-c"]  # -S: without the installed packages
    code = (
        f"import runpy, sys; sys.path.insert(0, {str(REPOSITORY)!r}); runpy.run_module('rlpipe', run_name='__main__')"
    )
    ended = subprocess.run([*bare, code], capture_output=True, text=True, check=False)
    assert ended.returncode == 1
    first, then = ended.stderr.splitlines()
    assert first == f"{sys.executable}: No module named typer"
    assert then.startswith("rlpipe needs it.")
