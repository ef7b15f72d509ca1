"""The table in docs/testing.md against the README, the commands and the tests, and how tests are ordered."""

from __future__ import annotations

import ast
import re

import pytest
import typer

from rlpipe.cli import app
from tests.helpers import REPOSITORY, seconds

README = " ".join((REPOSITORY / "README.md").read_text(encoding="utf-8").split())
README_TEXT = re.sub(r"\[([^\]]+)\]\([^)]+\)", r"\1", README)
"""The README on one line, without the targets of its links."""
COMMANDS = {f"`rlpipe {name}`" for name in typer.main.get_command(app).commands}
PAGE = (REPOSITORY / "docs" / "testing.md").read_text(encoding="utf-8")
WITNESSES = {
    promise: re.findall(r"`([^`]+)`", tests)
    for promise, tests in re.findall(r"^\| (.+) \| (`(?:\w+/)?test_.+`) \|$", PAGE, re.MULTILINE)
}


def section(start: str, end: str) -> str:
    return README.partition(start)[2].partition(end)[0]


def promises() -> set[str]:
    """The README's list under the promise, the heads of what you get, and every command."""
    listed = {line.strip() for line in section("It keeps one promise", "## Start").split(" - ")[1:]}
    heads = set(re.findall(r"- \*\*(.+?)\*\*", section("## What you get", "## Documentation")))
    return listed | heads | COMMANDS


def test_every_promise_of_the_readme_and_every_command_has_a_witness():
    assert promises() - WITNESSES.keys() == set()
    assert len(promises()) > 20


@pytest.mark.parametrize("promise", WITNESSES)
def test_what_has_a_witness_is_a_command_or_stands_in_the_readme(promise):
    assert promise in COMMANDS or promise.strip("`") in README_TEXT


def markers_of(file: str) -> dict[str, str]:
    """Tests and classes of tests in a file by name, each with the source of its markers and those of its file."""
    tree = ast.parse((REPOSITORY / "tests" / file).read_text(encoding="utf-8"))
    marks = "".join(
        ast.unparse(node.value)
        for node in tree.body
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "pytestmark"
    )
    return {
        node.name: marks
        + "".join(ast.unparse(mark) for mark in node.decorator_list if "parametrize" not in ast.unparse(mark))
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.ClassDef)
    }


@pytest.mark.parametrize("witness", sorted({test for tests in WITNESSES.values() for test in tests}))
def test_a_witness_is_part_of_make_test(witness):
    file, name = witness.split("::")
    found = markers_of(file)
    assert name in found
    assert not re.search(r"soak|extras", found[name])


# --- the order in which files run


def test_the_longest_file_starts_first_and_one_that_was_never_measured_before_it():
    measured = {"short": 1.0, "long": 60.0}
    assert seconds.longest_first(["short", "new", "long"], measured) == ["new", "long", "short"]


def test_seconds_of_a_file_are_those_of_its_tests(tmp_path):
    file = tmp_path / "seconds.json"
    seconds.write({"tests/a.py::one": 2.0, "tests/a.py::two[x]": 0.5, "tests/b.py::three": 4.0}, file)
    assert seconds.read(file)["files"] == {"tests/b.py": 4.0, "tests/a.py": 2.5}
    assert [*seconds.read(file)["tests"]] == ["tests/b.py::three", "tests/a.py::one", "tests/a.py::two[x]"]


def test_before_anything_was_measured_there_are_no_seconds(tmp_path):
    assert seconds.read(tmp_path / "none.json") == {"files": {}, "tests": {}}
