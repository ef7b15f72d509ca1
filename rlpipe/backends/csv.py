"""CSV table: one line per iteration, one column per metric."""

from __future__ import annotations

import csv
from pathlib import Path

from rlpipe.backends.base import Backend, NameRules, RunInfo
from rlpipe.metrics.row import Row, Status

__all__ = ["CSV"]

_FIRST = ("iteration", "total_timesteps", "time")


class CSV(Backend):
    """Writes ``metrics.csv`` in the run directory. An empty field means an absent number."""

    names = NameRules(reserved=_FIRST)

    def __init__(self, run: RunInfo) -> None:
        """Keeps the lines before the run's next iteration."""
        self._path = run.directory / "metrics.csv"
        rows = _read(self._path)
        self._columns = list(rows[0]) if rows else list(_FIRST)
        self._rewrite([row for row in rows if int(row["iteration"]) < run.first_iteration])

    def write(self, row: Row) -> None:
        first = {"iteration": row.iteration, "total_timesteps": row.total_timesteps, "time": row.time}
        line = first | {self.fitted(name): value for name, value in row.series.items()}
        if new := [name for name in line if name not in self._columns]:
            self._columns += new
            self._rewrite(_read(self._path))
        with self._path.open("a", encoding="utf-8", newline="") as file:
            csv.DictWriter(file, self._columns).writerow(line)

    def _rewrite(self, rows: list[dict[str, str]]) -> None:
        """Replaces the table, whole or not at all."""
        partial = self._path.with_name(f".{self._path.name}.partial")
        with partial.open("w", encoding="utf-8", newline="") as file:
            writer = csv.DictWriter(file, self._columns)
            writer.writeheader()
            writer.writerows(rows)
        partial.replace(self._path)

    def close(self, status: Status) -> None:
        """Every line is written already."""


def _read(path: Path) -> list[dict[str, str]]:
    """Reads complete lines; a crash can leave the last one torn."""
    if not path.is_file():
        return []
    text = path.read_text(encoding="utf-8")
    whole = text[: text.rfind("\n") + 1]
    return list(csv.DictReader(whole.splitlines()))
