"""The copy of ``metrics.jsonl``; what every backend promises is in ``test_contract``."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

import rlpipe
from rlpipe.errors import ConfigError
from rlpipe.run.directory import RunDirectory
from rlpipe.run.follower import Follower, mark_file
from tests.helpers.runs import scripted


def trained(tmp_path, *overrides: str) -> RunDirectory:
    return RunDirectory(rlpipe.train(scripted(tmp_path / "runs", *overrides), local=True).directory)


@pytest.fixture(scope="module")
def finished(tmp_path_factory) -> RunDirectory:
    """A finished run, of which nothing was copied."""
    return trained(tmp_path_factory.mktemp("jsonl"))


@pytest.fixture
def run(finished, tmp_path) -> RunDirectory:
    """A copy of it."""
    return RunDirectory(Path(shutil.copytree(finished.path, tmp_path / "runs" / "scripted" / finished.path.name)))


def copied(run: RunDirectory, path) -> None:
    """One sync to a path."""
    follower = Follower(run, "jsonl", {"path": str(path)})
    assert follower.catch_up()
    follower.close()


def test_without_a_path_there_is_nothing_to_do(tmp_path):
    run = trained(tmp_path, "runner.logger.logger_backends=[jsonl]")
    assert not [event for event in (run.path / "events.jsonl").read_text().splitlines() if '"backend"' in event]
    assert {file.name for file in run.path.rglob("*.jsonl")} == {
        "metrics.jsonl", "episodes.jsonl", "eval_episodes.jsonl", "events.jsonl", "timeline.jsonl",
        "fingerprints.jsonl",
    }  # fmt: skip


def test_a_path_names_the_experiment_and_the_run(run, tmp_path):
    copied(run, tmp_path / "shared" / "{experiment}" / "{run}.jsonl")
    copy = tmp_path / "shared" / "scripted" / f"{run.run_id}.jsonl"
    assert copy.read_bytes() == (run.path / "metrics.jsonl").read_bytes()


@pytest.mark.parametrize("damage", ["torn", "foreign", "gone", "longer"])
def test_whatever_happened_to_the_copy_it_becomes_the_lines_of_the_run(run, tmp_path, damage):
    truth = (run.path / "metrics.jsonl").read_bytes()
    lines = truth.splitlines(keepends=True)
    copied(run, tmp_path / "{run}")
    copy = tmp_path / run.run_id
    copy.write_bytes(
        {
            "torn": truth[:-9],
            "foreign": lines[0] + b'{"iteration": 2}\n' + lines[2],
            "gone": b"",
            "longer": truth + b'{"iteration": 5}\n',
        }[damage]
    )
    mark_file(run.path, "jsonl").unlink()
    copied(run, tmp_path / "{run}")
    assert copy.read_bytes() == truth


def test_a_path_that_runs_would_share_is_refused_before_anything_starts(tmp_path):
    backend = "runner.logger.logger_backends=[jsonl]"
    with pytest.raises(ConfigError, match=r"'/shared/all\.jsonl'; write {run} for the run id"):
        scripted(tmp_path, backend, "runner.logger.options.jsonl.path=/shared/all.jsonl")
    with pytest.raises(ConfigError, match=r"'{run}\.jsonl'; write it from the root on"):
        scripted(tmp_path, backend, "runner.logger.options.jsonl.path='{run}.jsonl'")


def test_the_truth_itself_is_never_written(run):
    truth = (run.path / "metrics.jsonl").read_bytes()
    with pytest.raises(ConfigError, match="which lies in the run directory"):
        copied(run, run.path.parent / "{run}" / "metrics.jsonl")
    assert (run.path / "metrics.jsonl").read_bytes() == truth
