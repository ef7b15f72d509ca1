"""A run directory that version 0.1 wrote can be resumed, evaluated, compared, diagnosed, shown and exported."""

from __future__ import annotations

import csv
import json
import shutil
from pathlib import Path

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from typer.testing import CliRunner

import rlpipe
from rlpipe.analysis.comparison import compare
from rlpipe.cli import app
from rlpipe.config.loading import load_config
from rlpipe.run.checkpoint import newest
from rlpipe.run.directory import RunDirectory, read_jsonl

DATA = Path(__file__).parents[1] / "data" / "run_of_version_0_1"


@pytest.fixture
def run(tmp_path) -> Path:
    """A copy of the run directory: CartPole, 5 iterations of 128 steps, evaluated and saved after the last one."""
    (original,) = DATA.glob("*-seed0")
    return Path(shutil.copytree(original, tmp_path / "runs" / "ppo_cartpole" / original.name))


def rlpipe_command(*arguments: str | Path) -> str:
    answer = CliRunner().invoke(app, list(map(str, arguments)), catch_exceptions=False)
    assert answer.exit_code == 0, answer.output
    return answer.output


def metrics(run: Path) -> list[dict]:
    return [row["metrics"] for row in read_jsonl(run / "metrics.jsonl")]


def test_every_file_is_valid(run):
    RunDirectory.existing(run).check()
    assert newest(run).meta["iteration"] == 5


def test_it_is_resumed_behind_its_last_iteration(run):
    before = {name: (run / name).read_bytes() for name in ("metrics.jsonl", "episodes.jsonl", "metrics.csv")}
    config = load_config(run / "config.yaml", ["runner.total_timesteps=1280"])
    result = rlpipe.train(config, local=True, resume=run)
    assert (result.status, result.directory) == ("completed", run)
    rows = list(read_jsonl(run / "metrics.jsonl"))
    assert [row["iteration"] for row in rows] == [1, 2, 3, 4, 5, 6, 7, 8, 9, 10]
    assert rows[-1]["total_timesteps"] == 1280
    assert rows[-1]["metrics"]["time/total_episodes"] == len(list(read_jsonl(run / "episodes.jsonl")))
    for name in ("metrics.jsonl", "episodes.jsonl"):
        assert (run / name).read_bytes().startswith(before[name]), name
    with (run / "metrics.csv").open(newline="") as file:
        assert [row["iteration"] for row in csv.DictReader(file)] == [str(number) for number in range(1, 11)]
    assert not list(run.glob("discarded-*"))


def test_its_checkpoint_is_evaluated_to_the_return_that_the_old_version_found(run):
    report = rlpipe.evaluate(run, local=True)
    assert report.metrics["eval/return"] == metrics(run)[-1]["eval/return"]
    assert report.changes == {}
    old = {episode["seed"]: episode["return"] for episode in read_jsonl(run / "eval_episodes.jsonl")}
    assert {episode.seed: episode.episode_return for episode in report.episodes} == old


def test_two_of_them_are_compared(run):
    copy = shutil.copytree(run, run.with_name("20270101-000000-seed0"))
    comparison = compare([run, Path(copy)])
    (group,) = comparison.groups
    assert group.pooled.value == metrics(run)[-1]["eval/return"]
    assert [seed for seed, _ in group.by_seed] == [0, 0]


def test_it_is_diagnosed(run):
    diagnosis = json.loads(rlpipe_command("diagnose", run, "--json"))
    assert (diagnosis["dialect"], diagnosis["reports"], diagnosis["unknown"]) == ("rlpipe", 5, [])


def test_it_is_shown_in_tensorboard_and_in_the_table_that_it_has_already(run):
    table = (run / "metrics.csv").read_text()
    assert "up to iteration 5" in rlpipe_command("sync", run, "--to", "csv")
    assert (run / "metrics.csv").read_text() == table
    assert "up to iteration 5" in rlpipe_command("sync", run, "--to", "tensorboard")
    shown = EventAccumulator(str(run / "tensorboard")).Reload().Scalars("env/return")
    assert [point.value for point in shown] == pytest.approx([row["env/return"] for row in metrics(run)])


def test_it_is_exported(run):
    rlpipe_command("export", run, "--format", "csv")
    for name in ("metrics", "episodes", "eval_episodes", "events"):
        with (run / "export" / f"{name}.csv").open(newline="") as file:
            assert len(list(csv.DictReader(file))) == len(list(read_jsonl(run / f"{name}.jsonl"))), name


def test_an_iteration_of_it_becomes_a_trace(run):
    rlpipe_command("timeline", run, "--iteration", "3")
    trace = json.loads((run / "timeline-000003.json").read_text())
    assert {"collect", "train", "write row"} <= {event["name"] for event in trace["traceEvents"]}
