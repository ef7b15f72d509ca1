"""Takes a run directory back to a checkpoint."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from pathlib import Path

from rlpipe.files import replacing
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
        with replacing(file, sync=True) as out:
            out.writelines(line for line in lines if _iteration_of(line) <= last)
    return Rollback(discarded, tuple(torn), set_aside(directory, newest))


def _iteration_of(line: bytes) -> float:
    """Returns the iteration of a line; infinite for a line that a crash left incomplete."""
    try:
        return float(json.loads(line)["iteration"]) if line.endswith(b"\n") else float("inf")
    except (ValueError, KeyError, TypeError):
        return float("inf")
