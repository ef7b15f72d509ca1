"""Copy of ``metrics.jsonl`` in a second place, such as a disk that other machines can read."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from rlpipe.backends.base import Backend, RunInfo
from rlpipe.config.fields import check_path, option
from rlpipe.errors import ConfigError
from rlpipe.metrics.row import Row, Status

__all__ = ["JSONL"]

_KEY = "runner.logger.options.jsonl.path"


@dataclass(frozen=True)
class JsonlOptions:
    """Options."""

    path: str | None = option(None, checks=(check_path,))
    """File to copy the lines to, such as ``/shared/{experiment}/{run}.jsonl``, with the name of the experiment and the
    id of the run. None copies nothing: ``metrics.jsonl`` of the run directory is always written."""

    def __post_init__(self) -> None:
        """Checks the path, as far as it can be without a run."""
        if self.path is not None and "{run}" not in self.path:
            raise ConfigError(f"{_KEY} is {self.path!r}; write {{run}} for the run id, or runs overwrite each other.")
        if self.path is not None and not Path(self.path).is_absolute():
            raise ConfigError(f"{_KEY} is {self.path!r}; write it from the root on, since it is used in many places.")


class JSONL(Backend):
    """Writes each line exactly as in ``metrics.jsonl``."""

    Config: ClassVar[type[JsonlOptions]] = JsonlOptions

    @classmethod
    def reached(cls, run: RunInfo) -> int | None:
        """Number of lines, from the first on, that are equal to the run's, even if others were lost or added."""
        copy = _copy(run)
        return None if copy is None else len(list(_same_lines(copy, run)))

    def __init__(self, run: RunInfo) -> None:
        """Truncates the copy to the lines before the run's next iteration; a crash can have torn the last one."""
        self._copy = _copy(run)
        if self._copy is not None:
            self._copy.parent.mkdir(parents=True, exist_ok=True)
            lengths = list(_same_lines(self._copy, run))[: run.first_iteration - 1]
            with self._copy.open("ab") as file:
                file.truncate(sum(lengths))

    def write(self, row: Row) -> None:
        if self._copy is not None:
            with self._copy.open("a", encoding="utf-8") as file:
                file.write(json.dumps(row.as_json(), allow_nan=False) + "\n")
                file.flush()
                os.fsync(file.fileno())  # a shared disk may notice only now that it is full

    def close(self, status: Status) -> None:
        """Every line is written already."""


def _copy(run: RunInfo) -> Path | None:
    """Path of the copy; None if none is configured. It must not lie in the run directory itself."""
    if run.options.path is None:
        return None
    named = run.options.path.replace("{experiment}", run.experiment).replace("{run}", run.run_id)
    path = Path(named).resolve()
    if path.is_relative_to(run.directory.resolve()):
        raise ConfigError(f"{_KEY} is {path}, which lies in the run directory: choose a path outside it.")
    return path


def _same_lines(copy: Path, run: RunInfo) -> Iterator[int]:
    """Yields the length in bytes of each line, from the first on, that the copy shares with the run."""
    original = run.directory / "metrics.jsonl"
    if not copy.is_file() or not original.is_file():
        return
    with copy.open("rb") as copied_lines, original.open("rb") as lines:
        for copied, line in zip(copied_lines, lines, strict=False):
            if copied != line:
                return
            yield len(line)
