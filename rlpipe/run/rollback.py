"""Takes a run directory back to a checkpoint."""

from __future__ import annotations

import json
import os
import sys
from dataclasses import dataclass
from pathlib import Path

from rlpipe.run.checkpoint import set_aside
from rlpipe.run.directory import EVENTS, LINE_FILES


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
        directory: run directory
        iteration: last one whose lines stay
        newest: iteration of the newest whole checkpoint

    Events stay, because what happened has happened; they only lose a last line that a crash left incomplete.
    """
    discarded, torn = 0, []
    number = len({file.name.split("-")[1] for file in directory.glob("discarded-*")}) + 1
    for name in LINE_FILES:
        file = directory / name
        if not file.is_file():
            continue
        lines = file.read_bytes().splitlines(keepends=True)
        last = sys.maxsize if name == EVENTS else iteration
        cut = [line for line in lines if _iteration_of(line) > last]
        if not cut:
            continue
        if _iteration_of(cut[-1]) == float("inf"):
            torn.append(name)
        discarded += len(cut) if name == "metrics.jsonl" else 0
        (directory / f"discarded-{number}-{name}").write_bytes(b"".join(cut))
        _replace(file, [line for line in lines if _iteration_of(line) <= last])
    return Rollback(discarded, tuple(torn), set_aside(directory, newest))


def _replace(file: Path, lines: list[bytes]) -> None:
    """Replaces a file by these lines as a whole, after they have reached the disk."""
    partial = file.with_name(f".{file.name}.partial")
    with partial.open("wb") as out:
        out.writelines(lines)
        out.flush()
        os.fsync(out.fileno())
    partial.replace(file)


def _iteration_of(line: bytes) -> float:
    """Returns the iteration of a line; infinite for a line that a crash left incomplete."""
    try:
        return float(json.loads(line)["iteration"]) if line.endswith(b"\n") else float("inf")
    except (ValueError, KeyError, TypeError):
        return float("inf")
