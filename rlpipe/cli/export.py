"""``rlpipe export RUN``: writes a run directory as tables, for notebooks.

Reads each file twice, once for its columns and once for its rows, so the memory needed does not grow with the run.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import NoneType
from typing import IO, Annotated, Any, get_args, get_type_hints

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from rlpipe.cli import arguments
from rlpipe.errors import ConfigError
from rlpipe.plugins import nearest, require
from rlpipe.run import shapes

VALUES_AT_ONCE = 200_000
"""Cells kept in memory at a time."""

Cells = dict[str, Any]
"""One line of a file: value by column. None, or no entry, means an absent value."""
Write = Callable[[Sequence[Cells]], None]


def add_to(app: typer.Typer) -> None:
    """Adds the command."""
    app.command(name="export")(export)


def export(
    run: Annotated[Path, typer.Argument(parser=arguments.run, help="Run directory; the run may still be in progress.")],
    form: Annotated[str, typer.Option("--format", help="parquet, which keeps the types, or csv.")] = "parquet",
    out: Annotated[
        Path | None, typer.Option(parser=arguments.path, help="Folder for the tables.", show_default="RUN/export")
    ] = None,
) -> None:
    """Write a run as tables for notebooks: metrics, episodes, eval_episodes and events."""
    from rlpipe.run.directory import RunDirectory

    if form not in _FORMATS:
        raise ConfigError(f"--format is {form!r}; legal are {', '.join(_FORMATS)}{nearest(form, _FORMATS)}")
    if form == "parquet":
        require("pyarrow", "parquet", "--format parquet")
    directory = RunDirectory.existing(run)
    folder = out or run / "export"
    with ExitStack() as opened:
        sources = [
            (source, opened.enter_context(_Lines(directory.path / f"{source.name}.jsonl", source.cells)))
            for source in _sources()
        ]
        tables = [(source.name, lines, source.columns(lines)) for source, lines in sources]  # reads all first
        _write(tables, folder, form, directory.run_id)


def _write(tables: Sequence[tuple[str, _Lines, dict[str, type]]], folder: Path, form: str, run_id: str) -> None:
    """Writes the tables and prints a summary."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"--out: cannot create the folder {folder}: {error}.") from error
    console = Console(highlight=False, soft_wrap=True)
    summary = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    for column in ("table", "rows", "columns", "size"):
        summary.add_column(column, justify="left" if column == "table" else "right")
    for name, lines, columns in tables:
        file = folder / f"{name}.{form}"
        with _whole(file) as partial, _FORMATS[form](partial, columns) as write:
            rows = 0
            for batch in _batches(lines, max(1, VALUES_AT_ONCE // len(columns))):
                write([_fitting(cells, columns) for cells in batch])
                rows += len(batch)
        summary.add_row(file.name, f"{rows:,}", f"{len(columns):,}", _size(file.stat().st_size))
    console.print(f"[bold]{escape(run_id)}[/] in {escape(str(folder))}")
    console.print(summary)
    console.print(f"[dim]in pandas:[/] {escape(_reading(folder / f'metrics.{form}', form))}")


def _reading(file: Path, form: str) -> str:
    """Line of Python that reads a table exactly as it was written."""
    exactly = {"parquet": 'dtype_backend="pyarrow"', "csv": 'float_precision="round_trip"'}[form]
    return f"import pandas; metrics = pandas.read_{form}({str(file)!r}, {exactly})"


def _size(count: int) -> str:
    return f"{count / 1e6:,.1f} MB" if count >= 1e6 else f"{count / 1e3:,.1f} kB"


# --- lines as rows of a table


@dataclass(frozen=True)
class _Source:
    """File of the run directory.

    Attributes:
        name: of the file, without its ending.
        cells: turns a line into cells.
        declared: types of the columns that are always there.
        rest: type of all other columns; None to infer it from their values.
    """

    name: str
    cells: Callable[[Mapping[str, Any]], Cells]
    declared: Mapping[str, type]
    rest: type | None

    def columns(self, lines: _Lines) -> dict[str, type]:
        """Type of each column, in the order in which the lines name them."""
        found: dict[str, set[type]] = {name: {kind} for name, kind in self.declared.items()}
        for cells in lines:
            for name, value in cells.items():
                if name not in self.declared:
                    found.setdefault(name, set()).add(self.rest or _kind(value))
        return {name: _common(kinds - {NoneType}) for name, kinds in found.items()}


def _kind(value: Any) -> type:
    """Type of a value; text for an integer of more than 64 bits."""
    return str if type(value) is int and not -(2**63) <= value < 2**63 else type(value)


def _common(kinds: set[type]) -> type:
    """Type that can hold values of all these types; if none can, text, with other values as JSON."""
    if kinds == {int, float}:
        return float
    return kinds.pop() if len(kinds) == 1 and kinds <= {bool, int, float} else str


def _sources() -> list[_Source]:
    from rlpipe.metrics.row import Row
    from rlpipe.trajectory import Episode

    def numbers(line: Mapping[str, Any]) -> Cells:
        row = Row.from_json(line)
        return {"iteration": row.iteration, "total_timesteps": row.total_timesteps, "time": row.time, **row.series}

    hints = {"iteration": int, **get_type_hints(Episode), "return": float}
    episode = {
        name: next((kind for kind in get_args(hint) if kind is not NoneType), hint)
        for name, hint in hints.items()
        if name not in ("episode_return", "reward_terms", "metrics")
    }
    return [
        _Source("metrics", numbers, {"iteration": int, "total_timesteps": int, "time": float}, float),
        _Source("episodes", _flat, episode, float),
        _Source("eval_episodes", _flat, episode, float),
        _Source("events", _flat, {"kind": str, "message": str, "iteration": int, "time": float}, None),
    ]


def _flat(tree: Mapping[str, Any], prefix: str = "") -> Cells:
    """Leaves of a nested object, by path."""
    found: Cells = {}
    for name, value in tree.items():
        found |= _flat(value, f"{prefix}{name}/") if isinstance(value, Mapping) else {f"{prefix}{name}": value}
    return found


def _fitting(cells: Cells, columns: Mapping[str, type]) -> Cells:
    """Converts values to the types of their columns."""
    return {name: _as(columns[name], value) for name, value in cells.items()}


def _as(kind: type, value: Any) -> Any:
    if kind is str and not isinstance(value, str | None):
        return json.dumps(value)
    return float(value) if kind is float and type(value) is int else value  # Arrow does not convert integers by itself


# --- reading


class _Lines:
    """Cells of a file's complete lines; every pass ends where the first did, even if the run still writes."""

    def __init__(self, file: Path, cells: Callable[[Mapping[str, Any]], Cells]) -> None:
        self._cells = cells
        self._path = file
        self._file: IO[bytes] | None = file.open("rb") if file.is_file() else None
        self._end: int | None = None

    def __enter__(self) -> _Lines:
        return self

    def __exit__(self, *_: object) -> None:
        if self._file is not None:
            self._file.close()

    def __iter__(self) -> Iterator[Cells]:
        if self._file is None:
            return
        self._file.seek(0)
        offset, check = 0, shapes.Lines(self._path)
        for line in self._file:
            offset += len(line)
            if not line.endswith(b"\n") or (self._end is not None and offset > self._end):
                offset -= len(line)
                if not line.endswith(b"\n"):
                    from rlpipe.run.directory import warn_of_torn_line

                    warn_of_torn_line(self._path)
                break
            yield self._cells(check.record(line))
        self._end = offset


def _batches(lines: _Lines, size: int) -> Iterator[list[Cells]]:
    batch: list[Cells] = []
    for cells in lines:
        batch.append(cells)
        if len(batch) == size:
            yield batch
            batch = []
    if batch:
        yield batch


# --- writing


@contextmanager
def _whole(file: Path) -> Iterator[Path]:
    """Yields a path to write to, so that the file appears whole or not at all."""
    partial = file.with_name(f".{file.name}.partial")
    try:
        yield partial
        partial.replace(file)
    finally:
        partial.unlink(missing_ok=True)


@contextmanager
def _csv(file: Path, columns: Mapping[str, type]) -> Iterator[Write]:
    with file.open("w", encoding="utf-8", newline="") as out:
        writer = csv.DictWriter(out, list(columns))
        writer.writeheader()
        yield writer.writerows


@contextmanager
def _parquet(file: Path, columns: Mapping[str, type]) -> Iterator[Write]:
    import pyarrow as pa
    from pyarrow import parquet

    kinds = {bool: pa.bool_(), int: pa.int64(), float: pa.float64(), str: pa.string()}
    schema = pa.schema([(name, kinds[kind]) for name, kind in columns.items()])
    with parquet.ParquetWriter(file, schema) as out:
        yield lambda rows: out.write_batch(pa.RecordBatch.from_pylist(list(rows), schema=schema))


_FORMATS = {"parquet": _parquet, "csv": _csv}
