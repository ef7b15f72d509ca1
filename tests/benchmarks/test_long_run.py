"""``benchmarks/long_run.py``: a long run that every command accepts, and whose episodes no reader keeps."""

from __future__ import annotations

import json
import shutil
import tracemalloc

import pytest

from benchmarks import long_run
from rlpipe.cli.export import export
from rlpipe.report.course import read_course
from rlpipe.report.curriculum import read_progress
from rlpipe.report.ledger import read_ledger
from rlpipe.run.directory import RunDirectory
from rlpipe.run.rollback import roll_back

ITERATIONS, FEW, MANY = 200, 2_000, 12_000


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Two runs of as many iterations, one of them with six times as many episodes, by this number."""
    real = long_run.train_real(tmp_path_factory.mktemp("real"))
    return {
        episodes: long_run.lengthened(real, real.with_name(f"{episodes}"), ITERATIONS, episodes)
        for episodes in (FEW, MANY)
    }


@pytest.mark.extras
def test_the_long_run_has_as_many_iterations_and_episodes_as_it_should(runs):
    directory = RunDirectory.existing(runs[FEW])
    directory.check()
    course = read_course(directory.path)
    assert (course.rows, course.last("time/total_episodes")) == (ITERATIONS, FEW)
    assert read_ledger(directory.path, course).total == FEW
    state = json.loads((directory.path / "run.json").read_text())["view"]
    assert state["total_iterations"] == ITERATIONS


READERS = {
    "report": lambda run: read_ledger(run, read_course(run)),
    "curriculum": lambda run: read_progress(RunDirectory.existing(run)),
    "export": lambda run: export(run, "csv"),
    "check": lambda run: RunDirectory.existing(run).check(),
    "resume": lambda run: roll_back(run, ITERATIONS - 10, ITERATIONS - 10),
}


@pytest.mark.extras
@pytest.mark.parametrize("reader", READERS)
def test_a_reader_keeps_a_few_bytes_of_each_episode_whose_line_has_five_hundred(runs, tmp_path, monkeypatch, reader):
    monkeypatch.setattr("rlpipe.cli.export.VALUES_AT_ONCE", 10_000)

    def peak(run) -> int:
        copy = shutil.copytree(run, tmp_path / run.name)
        READERS[reader](copy)  # what is loaded once
        shutil.rmtree(copy)
        shutil.copytree(run, copy)
        tracemalloc.start()
        try:
            READERS[reader](copy)
            return tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()

    assert peak(runs[MANY]) - peak(runs[FEW]) < 25 * (MANY - FEW)
