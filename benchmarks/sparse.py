"""Success under sparse reward: runs the rows of the table in docs/benchmarks.md, and makes the table and its pictures.

    python benchmarks/sparse.py --list                      # rows, with what is done and what is missing
    python benchmarks/sparse.py pick_cube_5 stack_cube_5    # what these rows miss; without a name, what any row misses
    python benchmarks/sparse.py pick_cube_5 --seeds 0,1 --local
    python benchmarks/sparse.py --report                    # docs/benchmarks.md and docs/images, from the results

benchmarks/sparse_rows/rows.yaml declares the rows. A result is a file in benchmarks/results/sparse that belongs to the
repository; runs lie in runs/sparse. A seed that has a result is skipped, and one that was interrupted is continued, so
the same command goes on until nothing is missing. Ctrl-C saves the run that is going on. Several such commands may run
side by side, with --local each on one core: each takes a seed that no other one has.

Exit codes: 0, nothing is missing; 1, a run failed, or another command is at it; 2, bad usage; 130, interrupted.
"""

from __future__ import annotations

import argparse
import contextlib
import sys
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table as Screen

sys.path.insert(0, str(Path(__file__).parent.parent))
from benchmarks.machine import ROOT
from benchmarks.sparse_rows import page, running
from benchmarks.sparse_rows.results import FOLDER, Results
from benchmarks.sparse_rows.rows import DECLARED, Row, Table
from benchmarks.sparse_rows.running import CommandError, Runner
from rlpipe.errors import ConfigError
from rlpipe.plugins import nearest


def show(rows: Sequence[Row], results: Results, runner: Runner, console: Console) -> None:
    """Prints the rows, with what is done and what is missing."""
    screen, unreadable = Screen(box=None, padding=(0, 2, 0, 0), header_style="dim"), []
    for column in ("row", "done", "begun", "missing", "success_once, 95 %"):
        screen.add_column(column, no_wrap=True)
    for row in rows:
        try:
            running.check([row])
            found, stored = results.of(row), results.stored(row)
        except ConfigError as error:
            screen.add_row(row.name, "", "", "cannot be read, see below")
            unreadable.append(str(error))
            continue
        begun = {part: how for part in row.parts if part not in found and (how := runner.unfinished(row, part))}
        missing = [
            f"{part} (of other settings)" if part in stored else part
            for part in row.parts
            if part not in found and part not in begun
        ]
        outcomes = [] if row.policies else [result["success_once"] for result in found.values()]
        rate = "{:.3f} [{:.3f}, {:.3f}]".format(*page.interval(tuple(outcomes))) if outcomes else ""
        how_far = "; ".join(f"{part}: {how}" for part, how in begun.items())
        screen.add_row(row.name, ", ".join(found), how_far, ", ".join(missing), rate)
    console.print(screen, *unreadable, sep="\n", markup=False)


def run(rows: Sequence[Row], seeds: Sequence[str] | None, results: Results, runner: Runner, console: Console) -> int:
    """Runs what is missing; returns the exit code."""
    running.check(rows)
    code = 0
    due = [(row, part) for row in rows for part in row.parts if not seeds or part in seeds or row.policies]
    for row, part in due:
        name = f"{row.name}, {part if row.policies else f'seed {part}'}"
        try:
            if part in results.of(row):
                continue
            with runner.claimed(row, part):
                if part in results.of(row):  # another command has just finished it
                    continue
                console.print(f"{name}: {runner.unfinished(row, part) or 'begins'}")
                result = runner.make(row, part)
                if row.trained:  # whose result is then of the very policies that were evaluated
                    results.add(row.trained, part, runner.make(row.trained, part))
                results.add(row, part, result)
        except (CommandError, ConfigError) as error:
            console.print(f"{name}: {error}", style="yellow", markup=False)
            code = 1
        else:
            rate = "success_once {:.3f} [{:.3f}, {:.3f}]".format(*page.interval((result["success_once"],)))
            console.print(f"{name}: {rate}")
    return code


def report(table: Table, results: Results, docs: Path) -> None:
    """Writes tables and pictures."""
    from benchmarks.sparse_rows import pictures

    drawn = pictures.draw(table, results)
    page.write(docs / "benchmarks.md", page.tables(table, results, list(drawn)))
    pictures.write(docs / "images", drawn)


def _path(text: str) -> Path:
    return Path(text).absolute()


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Parses the command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="ROW", help="rows to run; all if none is named")
    parser.add_argument("--list", action="store_true", help="print the rows, with what is done and what is missing")
    parser.add_argument("--report", action="store_true", help="write tables and pictures from the results")
    parser.add_argument("--seeds", type=lambda text: text.split(","), metavar="0,1", help="run only these seeds")
    parser.add_argument("--local", action="store_true", help="run in one process with one thread, without Ray")
    parser.add_argument("--rows", type=_path, default=DECLARED, metavar="FILE", help="declared rows")
    parser.add_argument("--results", type=_path, default=FOLDER, metavar="FOLDER", help="results of all rows")
    parser.add_argument("--runs", type=_path, default=running.RUNS, metavar="FOLDER", help="run directories")
    parser.add_argument("--docs", type=_path, default=ROOT / "docs", metavar="FOLDER",
                        help="folder of benchmarks.md and images")  # fmt: skip
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> int:
    """Does what is asked, and returns the exit code."""
    options = parse(arguments)
    console = Console(highlight=False, soft_wrap=True, width=None if sys.stdout.isatty() else 160)
    try:
        with contextlib.chdir(ROOT):  # configurations and demonstrations are named as in the checkout
            table = Table.read(options.rows)
            for name in options.names:
                if name not in table.rows:
                    raise ConfigError(f"there is no row {name!r} in {options.rows}{nearest(name, table.rows)}")
            rows = [table.rows[name] for name in options.names] or list(table.rows.values())
            for seed in options.seeds or ():
                if not any(seed in row.parts for row in rows):
                    raise ConfigError(f"--seeds names {seed}, but no row has it: write such as 0,1.")
            results, runner = Results(options.results), Runner(options.runs, options.local)
            if options.list:
                show(rows, results, runner, console)
            elif options.report:
                report(table, results, options.docs)
            else:
                return run(rows, options.seeds, results, runner, console)
    except ConfigError as error:
        console.print(f"error: {error}", style="red", markup=False)
        return 2
    except KeyboardInterrupt:
        console.print("interrupted; the same command continues.")
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
