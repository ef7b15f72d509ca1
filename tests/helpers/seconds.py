"""Seconds that tests take, by file and by test: written by ``make test-all``, and printed by ``make slowest``."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path

from rich.console import Console
from rich.table import Table

FILE = Path(__file__).parent.parent / "seconds.json"
SLOWEST = 40
"""Tests that are kept by name."""


def file_of(test: str) -> str:
    """Returns the file of a test: tests/run/test_locks.py::test_one[a] -> tests/run/test_locks.py."""
    return test.partition("::")[0]


def write(seconds_of_tests: Mapping[str, float], file: Path = FILE) -> None:
    """Writes the seconds of every file, and of the slowest tests.

    Args:
        seconds_of_tests: s, with set-up and clean-up, by test.
        file: JSON file to write.
    """
    files: Counter[str] = Counter()
    for test, seconds in seconds_of_tests.items():
        files[file_of(test)] += seconds
    tests = Counter(seconds_of_tests).most_common(SLOWEST)
    contents = {"files": rounded(files.most_common()), "tests": rounded(tests)}
    file.write_text(json.dumps(contents, indent=1) + "\n")


def rounded(seconds: Iterable[tuple[str, float]]) -> dict[str, float]:
    return {name: round(value, 1) for name, value in seconds}


def read(file: Path = FILE) -> dict[str, dict[str, float]]:
    """Returns ``files`` and ``tests``, each s by name, the longest first; empty if nothing has been measured yet."""
    contents: dict[str, dict[str, float]] = {"files": {}, "tests": {}}
    return contents | (json.loads(file.read_text()) if file.is_file() else {})


def longest_first(files: Iterable[str], measured: Mapping[str, float]) -> list[str]:
    """Orders files of tests so that processes which take one after the other end together.

    A file that has never been measured comes first, because it may be long.
    """
    return sorted(files, key=lambda file: -measured.get(file, float("inf")))


def main() -> None:
    """Prints the slowest files and tests of the last ``make test-all``."""
    for kind, seconds in read().items():
        table = Table(title=f"Slowest {kind}", title_justify="left")
        table.add_column("s", justify="right")
        table.add_column(kind.removesuffix("s"), overflow="fold")
        for name, value in list(seconds.items())[:SLOWEST]:
            table.add_row(f"{value:.1f}", name.removeprefix("tests/"))
        Console().print(table)


if __name__ == "__main__":
    main()
