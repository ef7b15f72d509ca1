"""``rlpipe export RUN``: writes a run directory as tables, for notebooks; with ``--format onnx``, its policy.

Reads each file twice, once for its columns and once for its rows, so the memory needed does not grow with the run.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from types import NoneType
from typing import Annotated, Any, BinaryIO, get_args, get_origin, get_type_hints

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from rlpipe import files
from rlpipe.analysis.log_files import flat
from rlpipe.cli import arguments
from rlpipe.cli.export_policy import export_onnx
from rlpipe.cli.streams import progress_of_files
from rlpipe.errors import ConfigError
from rlpipe.plugins import nearest, require
from rlpipe.run import shapes

VALUES_AT_ONCE = 200_000
"""Cells kept in memory at a time."""

Cells = dict[str, Any]
"""One line of a file: value by column. None, or no entry, means an absent value."""
Write = Callable[[Sequence[Cells]], None]


def export(
    run: arguments.Run,
    form: Annotated[
        str,
        typer.Option("--format", help="Of the tables: parquet, which keeps the types, or csv; onnx writes the policy."),
    ] = "parquet",
    out: Annotated[
        Path | None,
        typer.Option(
            parser=arguments.path, help="Folder for the tables; with onnx, a new one.", show_default="RUN/export"
        ),
    ] = None,
    best: Annotated[
        bool, typer.Option("--best", help="With onnx: the checkpoint with the best evaluation, not the newest.")
    ] = False,
    deterministic: Annotated[
        bool | None,
        typer.Option(
            "--deterministic/--sampled",
            help="With onnx: its most likely actions, or sampled ones.",
            show_default="as evaluated",
        ),
    ] = None,
) -> None:
    """Write a run as tables for notebooks: metrics, episodes, eval_episodes and events. Or, with --format onnx, write
    the policy of a run or of a checkpoint file as a graph with a card and a runner.
    """
    from rlpipe.run.directory import RunDirectory

    if form == "onnx":
        export_onnx(run, out, best=best, deterministic=deterministic)
        return
    if form not in _FORMATS:
        legal = [*_FORMATS, "onnx"]
        raise ConfigError(f"--format is {form!r}; legal are {', '.join(legal)}{nearest(form, legal)}")
    if best or deterministic is not None:
        raise ConfigError(
            f"--best, --deterministic and --sampled choose a policy: leave them out with --format {form}."
        )
    if form == "parquet":
        require("pyarrow", "parquet", "--format parquet")
    directory = RunDirectory.existing(run)
    folder = out or run / "export"
    with progress_of_files(), ExitStack() as opened:
        sources = _sources(directory.path)
        for source in sources:
            if source.path.is_file():
                source.file = opened.enter_context(source.path.open("rb"))
        _write([(source, source.columns()) for source in sources], folder, form, directory.run_id)  # reads all first


def _write(tables: Sequence[tuple[_Source, dict[str, type]]], folder: Path, form: str, run_id: str) -> None:
    """Writes the tables and prints a summary."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"--out: cannot create the folder {folder}: {error}.") from error
    console = Console(highlight=False, soft_wrap=True)
    summary = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    for column in ("table", "rows", "columns", "size"):
        summary.add_column(column, justify="left" if column == "table" else "right")
    for source, columns in tables:
        file = folder / f"{source.path.stem}.{form}"
        with files.replacing(file) as out, _FORMATS[form](out, columns) as write:
            rows, rest = 0, iter(source)
            while batch := list(islice(rest, max(1, VALUES_AT_ONCE // len(columns)))):
                write([{name: _as(columns[name], value) for name, value in cells.items()} for cells in batch])
                rows += len(batch)
        size = file.stat().st_size
        megabytes = f"{size / 1e6:,.1f} MB" if size >= 1e6 else f"{size / 1e3:,.1f} kB"
        summary.add_row(file.name, f"{rows:,}", f"{len(columns):,}", megabytes)
    console.print(f"[bold]{escape(run_id)}[/] in {escape(str(folder))}")
    console.print(summary)
    exactly = {"parquet": 'dtype_backend="pyarrow"', "csv": 'float_precision="round_trip"'}[form]
    reading = f"import pandas; metrics = pandas.read_{form}({str(folder / f'metrics.{form}')!r}, {exactly})"
    console.print(f"[dim]in pandas:[/] {escape(reading)}")


# --- lines as rows of a table


@dataclass
class _Source:
    """Complete lines of a file of the run directory; every pass ends where the first did, even if the run still writes.

    Attributes:
        path: of the file.
        cells: turns a line into cells.
        declared: types of the columns that are always there.
        rest: type of all other columns; None to infer it from their values.
        file: open, as long as it is read; None if there is none.
    """

    path: Path
    cells: Callable[[Mapping[str, Any]], Cells]
    declared: Mapping[str, type]
    rest: type | None
    file: BinaryIO | None = None
    _end: int | None = None

    def columns(self) -> dict[str, type]:
        """Type of each column, in the order in which the lines name them."""
        kinds_of: dict[str, set[type]] = {name: {kind} for name, kind in self.declared.items()}
        for cells in self:
            for name, value in cells.items():
                if name not in self.declared:
                    kinds_of.setdefault(name, set()).add(self.rest or _kind(value))
        return {name: _common(kinds - {NoneType}) for name, kinds in kinds_of.items()}

    def __iter__(self) -> Iterator[Cells]:
        if self.file is None:
            return
        self.file.seek(0)
        offset, check = 0, shapes.Lines(self.path)
        for line in files.lines(self.file, self.path):
            if offset == self._end:
                break
            if not line.endswith(b"\n"):
                from rlpipe.run.directory import warn_of_torn_line

                warn_of_torn_line(self.path)
                break
            offset += len(line)
            yield self.cells(check.record(line))
        self._end = offset


def _kind(value: Any) -> type:
    """Type of a value; text for an integer of more than 64 bits."""
    return str if type(value) is int and not -(2**63) <= value < 2**63 else type(value)


def _common(kinds: set[type]) -> type:
    """Type that can hold values of all these types; if none can, text, with other values as JSON."""
    if kinds == {int, float}:
        return float
    return kinds.pop() if len(kinds) == 1 and kinds <= {bool, int, float} else str


def _sources(run: Path) -> list[_Source]:
    from rlpipe.metrics.row import Row
    from rlpipe.trajectory import Episode
    from rlpipe.trajectory.episode import OF_EVALUATIONS

    def numbers(line: Mapping[str, Any]) -> Cells:
        row = Row.from_json(line)
        return {"iteration": row.iteration, "total_timesteps": row.total_timesteps, "time": row.time, **row.series}

    def leaves(line: Mapping[str, Any]) -> Cells:
        return dict(flat(line))

    hints = {"iteration": int, **get_type_hints(Episode), "return": float}
    episode = {
        name: next((kind for kind in get_args(hint) if kind is not NoneType), hint)
        for name, hint in hints.items()
        if name != "episode_return" and get_origin(hint) is not dict  # whose leaves are columns
    }
    of_training = {name: kind for name, kind in episode.items() if name not in OF_EVALUATIONS}
    return [
        _Source(run / "metrics.jsonl", numbers, {"iteration": int, "total_timesteps": int, "time": float}, float),
        _Source(run / "episodes.jsonl", leaves, of_training, float),
        _Source(run / "eval_episodes.jsonl", leaves, episode, float),
        _Source(run / "events.jsonl", leaves, {"kind": str, "message": str, "iteration": int, "time": float}, None),
    ]


def _as(kind: type, value: Any) -> Any:
    """Converts a value to the type of its column."""
    if kind is str and not isinstance(value, str | None):
        return json.dumps(value)
    return float(value) if kind is float and type(value) is int else value  # Arrow does not convert integers by itself


# --- writing


@contextmanager
def _csv(out: BinaryIO, columns: Mapping[str, type]) -> Iterator[Write]:
    with io.TextIOWrapper(out, encoding="utf-8", newline="") as text:
        writer = csv.DictWriter(text, list(columns))
        writer.writeheader()
        yield writer.writerows


@contextmanager
def _parquet(out: BinaryIO, columns: Mapping[str, type]) -> Iterator[Write]:
    import pyarrow as pa
    from pyarrow import parquet

    kinds = {bool: pa.bool_(), int: pa.int64(), float: pa.float64(), str: pa.string()}
    schema = pa.schema([(name, kinds[kind]) for name, kind in columns.items()])
    with parquet.ParquetWriter(out, schema) as writer:
        yield lambda rows: writer.write_batch(pa.RecordBatch.from_pylist(list(rows), schema=schema))


_FORMATS = {"parquet": _parquet, "csv": _csv}
