"""Which run is meant: an exact one, the newest of a folder, or ``latest``; and the list of all."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

import rlpipe
from rlpipe.errors import ConfigError
from rlpipe.run.directory import RunDirectory, find_run, find_runs, runs_in
from tests.helpers.commands import command
from tests.helpers.runs import scripted


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    return rlpipe.train(scripted(tmp_path_factory.mktemp("trained"), "runner.report=false"), local=True).directory


@pytest.fixture
def folder(tmp_path, monkeypatch, trained):
    """A folder of runs: ``new`` began after ``old``, whose name comes later, and ``nested`` between them."""
    for day, name in enumerate(["a/old", "b/deep/nested", "a/new"], start=1):
        run = shutil.copytree(trained, tmp_path / "runs" / name)
        record = json.loads((run / "run.json").read_text())
        (run / "run.json").write_text(json.dumps({**record, "created": f"2026-01-0{day}T00:00:00+00:00"}))
    monkeypatch.chdir(tmp_path)
    return Path("runs")


def test_runs_are_listed_from_the_newest_to_the_oldest(folder):
    assert [run.name for run in runs_in(folder)] == ["new", "nested", "old"]
    assert [run.name for run in runs_in(folder / "b")] == ["nested"]


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("runs", "runs/a/new"),
        ("runs/b", "runs/b/deep/nested"),
        ("latest", "runs/a/new"),
        ("runs/b/latest", "runs/b/deep/nested"),
        ("runs/a/old", "runs/a/old"),
        ("runs/nothing", "runs/nothing"),
        (".", "runs/a/new"),
    ],
)
def test_a_folder_of_runs_and_latest_stand_for_the_newest(folder, typed, meant):
    assert find_run(Path(typed)) == Path(meant)


def test_latest_without_runs_is_named_as_such(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match=r"^latest stands for the newest run in runs, where there is none: "):
        find_run(Path("latest"))


def test_a_folder_that_is_called_latest_is_itself(folder):
    (folder.parent / "latest").mkdir()
    assert find_run(Path("latest")) == Path("latest")
    assert find_run(folder / "latest") == folder / "a/new"


def test_from_python_too_the_newest_run_is_meant(folder):
    assert RunDirectory.existing(folder).path == (folder / "a/new").resolve()


def test_a_run_whose_record_is_damaged_counts_by_its_file(folder):
    (folder / "a/old/run.json").write_text("{")
    assert find_run(folder).name == "old"  # written just now


@pytest.mark.parametrize(
    "arguments",
    [
        ["watch", "runs", "--once"],
        ["evaluate", "latest", "--local", "--episodes", "2e0"],
        ["diagnose", "runs/a"],
        ["compare", "latest"],
        ["export", "runs", "--format", "csv", "--out", "tables"],
        ["timeline", "latest"],
        ["sync", "runs", "--to", "csv"],
        ["report", "latest", "--out", "report.html"],
        ["train", "--resume", "runs", "--local"],
    ],
)
def test_every_command_says_once_which_run_it_took(folder, caplog, arguments):
    answer = command(*arguments)
    assert answer.code == 0, answer.err
    assert caplog.text.count("the newest run is runs/a/new") == 1


def test_commands_on_several_runs_take_all_of_a_folder(folder, caplog):
    compared = json.loads(command("compare", "runs", "--json").out)
    assert len(compared["groups"][0]["runs"]) == 3
    assert caplog.text.count("runs: its runs are runs/a/old, runs/b/deep/nested, runs/a/new") == 1
    assert command("report", "runs/a", "--out", "report.html").code == 0
    assert "<title>2 runs - rlpipe report" in Path("report.html").read_text()


def test_a_run_and_latest_are_one_run_also_where_there_may_be_several(folder):
    assert find_runs(folder / "a/old") == [folder / "a/old"]
    assert find_runs(Path("latest")) == [folder / "a/new"]
    assert find_runs(folder / "nothing") == [folder / "nothing"]


def test_runs_are_shown_with_status_and_result(folder):
    answer = command("runs")
    first = answer.out.splitlines()[1].split()
    assert first[:2] == ["runs/a/new", "completed"]
    assert "100%" in first
    listed = json.loads(command("runs", "runs/a", "--json").out)
    assert [run["run"] for run in listed] == ["runs/a/new", "runs/a/old"]
    assert {run["metric"] for run in listed} == {"eval/success_once"}


def test_a_later_evaluation_of_the_last_iteration_is_the_result(folder):
    assert command("evaluate", "runs/a/new", "--local", "--episodes", "3").code == 0
    assert command("evaluate", "runs/a/new", "--local", "--episodes", "2", "--policy", "random").code == 0
    newest = json.loads(command("runs", "runs/a", "--json").out)[0]
    assert (newest["metric"], newest["episodes"]) == ("eval/success_once", 3)


def test_a_damaged_run_is_listed_as_such(folder):
    (folder / "a/new/run.json").write_text("{")
    assert {"runs/a/new": "damaged"}.items() <= {
        run["run"]: run["status"] for run in json.loads(command("runs", "--json").out)
    }.items()


def test_without_runs_the_list_says_so(tmp_path):
    folder = tmp_path / "[dim]"  # as it is, not as markup
    folder.mkdir()
    assert command("runs", str(folder)).out == f"there are no runs in {folder}\n"
    assert command("runs", str(tmp_path / "nothing")).code == 2
