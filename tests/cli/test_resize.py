"""``rlpipe resize``: what a run is asked for, and what is refused."""

from __future__ import annotations

import pytest

import rlpipe
from rlpipe.run.directory import RunDirectory
from tests.helpers.commands import command
from tests.helpers.runs import scripted


@pytest.fixture(scope="module")
def elastic(tmp_path_factory):
    config = scripted(tmp_path_factory.mktemp("elastic"), "rollout.num_workers={min: 2, max: 4}")
    return RunDirectory(rlpipe.train(config, local=True).directory)


def test_a_run_is_asked_for_a_number_of_processes_or_for_all(elastic):
    assert elastic.processes_asked_for() is None
    for typed, number in (("3", 3), ("all", None)):
        result = command("resize", str(elastic.path), typed)
        assert (result.code, elastic.processes_asked_for()) == (0, number)
        assert f"will take {typed} before its next collection" in result.out


@pytest.mark.parametrize(
    ("typed", "message"),
    [
        ("1", "PROCESSES is 1; this run takes 2 (rollout.min_processes) to 4 (rollout.num_workers)."),
        ("5", "PROCESSES is 5; this run takes 2 (rollout.min_processes) to 4 (rollout.num_workers)."),
        ("many", "PROCESSES is 'many'; it must be a whole number."),
    ],
)
def test_a_number_that_the_run_cannot_take_is_refused(elastic, typed, message):
    result = command("resize", str(elastic.path), typed)
    assert result.code == 2
    assert message in result.err
    assert elastic.processes_asked_for() is None


def test_a_run_whose_processes_do_not_change_is_refused(tmp_path):
    run = rlpipe.train(scripted(tmp_path, "runner.total_timesteps=64"), local=True).directory
    result = command("resize", str(run), "2")
    assert result.code == 2
    assert "it was started without rollout.min_processes" in result.err
