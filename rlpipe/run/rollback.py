"""Takes a run directory back to a checkpoint."""

from __future__ import annotations

import json
import math
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic_core import from_json

from rlpipe import files
from rlpipe.run.checkpoint import set_aside
from rlpipe.run.directory import EVENTS, LINE_FILES

_COPIED_BYTES = 2**20
"""Bytes copied at a time."""


@dataclass(frozen=True)
class Rollback:
    """Result of taking a run directory back.

    Attributes:
        iterations: number of iterations that were discarded and will be repeated
        torn: files whose last line a crash had left incomplete
        damaged: names of damaged checkpoints after the one that the run continues from; they are set aside
    """

    iterations: int
    torn: tuple[str, ...]
    damaged: tuple[str, ...] = ()


def roll_back(directory: Path, iteration: int, newest: int) -> Rollback:
    """Discards everything after an iteration; discarded lines are kept in ``discarded-<n>-<file>``.

    Args:
        iteration: last one whose lines stay
        newest: iteration of the newest whole checkpoint

    Events stay, because what happened has happened; they only lose a last line that a crash left incomplete. A file may
    be larger than the memory: it is read line by line.
    """
    discarded, torn = 0, []
    number = len({file.name.split("-")[1] for file in directory.glob("discarded-*")}) + 1
    for name in LINE_FILES:
        file = directory / name
        if not file.is_file():
            continue
        last = sys.maxsize if name == EVENTS else iteration
        if (start := _first_after(file, last)) is None:
            continue
        count, is_torn = _cut(file, start, last, directory / f"discarded-{number}-{name}")
        if is_torn:
            torn.append(name)
        discarded += count if name == "metrics.jsonl" else 0
    return Rollback(discarded, tuple(torn), set_aside(directory, newest))


def _first_after(file: Path, last: int) -> int | None:
    """Returns the offset, in bytes, of the first line of a later iteration; None without one."""
    offset = 0
    with file.open("rb") as source:
        for line in files.lines(source, file):
            if _iteration_of(line) > last:
                return offset
            offset += len(line)
    return None


def _cut(file: Path, start: int, last: int, discarded: Path) -> tuple[int, bool]:
    """Moves the lines of later iterations, the first of which begins at ``start``, to another file.

    Returns:
        Number of these lines, and True if the last of them was left incomplete.
    """
    count, iteration = 0, 0.0
    with files.replacing(file, sync=True) as out, file.open("rb") as source, discarded.open("wb") as cut:
        for size in [_COPIED_BYTES] * (start // _COPIED_BYTES) + [start % _COPIED_BYTES]:
            out.write(source.read(size))
        for line in source:
            if (iteration_of_line := _iteration_of(line)) > last:
                count, iteration = count + 1, iteration_of_line
                cut.write(line)
            else:
                out.write(line)
    return count, math.isinf(iteration)


def _iteration_of(line: bytes) -> float:
    """Returns the iteration of a line; infinite for a line that a crash left incomplete."""
    try:
        return float(_parsed(line)["iteration"]) if line.endswith(b"\n") else math.inf
    except (ValueError, KeyError, TypeError):
        return math.inf


def _parsed(line: bytes) -> Any:
    try:
        return from_json(line)  # in a third of the time
    except ValueError:  # it refuses half a surrogate pair, with which Python writes the bytes of a path that is no text
        return json.loads(line)
