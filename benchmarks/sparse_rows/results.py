"""The results of all rows: a JSON file for each row, with all that the table and the pictures need.

A file holds one result for each seed, or for each baseline. It is replaced whole, under a lock, so
that several commands may add results to it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.machine import ROOT
from benchmarks.sparse_rows.rows import Row
from rlpipe import files
from rlpipe.run.locks import TemporaryLock

FOLDER = ROOT / "benchmarks" / "results" / "sparse"
Result = Mapping[str, Any]
"""Result of a seed or a baseline; ``measured.py`` has its keys."""
_PATIENCE = 60.0
"""Seconds to wait for another command that writes the same file."""


@dataclass(frozen=True)
class Results:
    """A folder of results.

    Attributes:
        folder: with a file for each row
    """

    folder: Path = FOLDER

    def stored(self, row: Row) -> dict[str, Result]:
        """Returns every result of a row by its part, also those of other settings.

        Raises:
            ConfigError: the file is damaged.
        """
        file = self._file(row)
        return dict(files.read(file, dict[str, dict[str, Any]])) if file.is_file() else {}

    def of(self, row: Row) -> dict[str, Result]:
        """Returns the results of a row as it is declared now, by its part and in its order.

        Raises:
            ConfigError: the file is damaged, or a configuration of the row cannot be read.
        """
        stored = self.stored(row)
        found = {part: stored[part] for part in row.parts if part in stored}
        return {part: result for part, result in found.items() if result["settings"] == row.settings}

    def add(self, row: Row, part: str, result: Result) -> None:
        """Stores the result of a part, in place of an earlier one."""
        file = self._file(row)
        file.parent.mkdir(parents=True, exist_ok=True)
        with TemporaryLock(file.with_name(f".{file.name}.lock"), _PATIENCE, f"{file} is being written."):
            stored = self.stored(row) | {part: result}
            order = [*row.parts, *sorted(stored.keys() - {*row.parts})]
            partial = file.with_name(f".{file.name}.partial")
            partial.write_text(_text({name: stored[name] for name in order if name in stored}), encoding="utf-8")
            partial.replace(file)

    def _file(self, row: Row) -> Path:
        return self.folder / f"{row.name}.json"


def _text(results: Mapping[str, Result]) -> str:
    """Writes results as JSON with a line for each key, so that a change is a short difference."""
    parts = []
    for part, result in results.items():
        lines = [f"  {json.dumps(key)}: {json.dumps(value, allow_nan=False)}" for key, value in result.items()]
        parts.append(f" {json.dumps(part)}: {{\n" + ",\n".join(lines) + "\n }")
    return "{\n" + ",\n".join(parts) + "\n}\n"
