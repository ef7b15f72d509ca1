"""Several seeds: one command for them all, and equal seeds give equal runs."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest
from omegaconf import OmegaConf
from typer.testing import CliRunner, Result

import rlpipe
from rlpipe.cli import app
from rlpipe.collection.seeds import training_seed
from rlpipe.config.tree import to_yaml
from rlpipe.envs.scripted import Scripted
from rlpipe.errors import ConfigError
from tests.helpers.runs import scripted, without_timings


def written(folder: Path, *overrides: str) -> str:
    """A configuration file of a run that takes a second."""
    file = folder / "config.yaml"
    tree = OmegaConf.create(to_yaml(scripted(folder / "runs", *overrides)))
    OmegaConf.save(tree, file)
    return str(file)


def invoke(*arguments: str) -> Result:
    """Runs ``rlpipe train ... --local``; an error of the user's raises."""
    result = CliRunner().invoke(app, ["train", *arguments, "--local"])
    if isinstance(result.exception, ConfigError):
        raise result.exception
    return result


def train(*arguments: str) -> tuple[int, str]:
    """Exit code and standard output."""
    result = invoke(*arguments)
    return result.exit_code, result.stdout


def runs(folder: Path) -> dict[int, dict[str, Any]]:
    """``run.json`` of each run, by its seed."""
    found = [json.loads(file.read_text()) for file in (folder / "runs").glob("*/*/run.json")]
    assert len({each["seeds"]["seed"] for each in found}) == len(found)
    return {each["seeds"]["seed"]: each for each in found}


# --- rlpipe train --seeds


def test_each_seed_is_a_run_of_its_own_as_it_is_alone_and_the_table_pools_them(tmp_path):
    code, shown = train(written(tmp_path), "--seeds", "2,0")
    assert code == 0
    assert {seed: run["status"] for seed, run in runs(tmp_path).items()} == {0: "completed", 2: "completed"}
    assert all(run["run_id"] in shown for run in runs(tmp_path).values())
    alone = rlpipe.train(scripted(tmp_path / "alone", "runner.seed=2"), local=True).directory
    (among_others,) = (tmp_path / "runs").glob("*/*-seed2")
    assert without_timings(alone) == without_timings(among_others)
    table = shown[shown.index("success_once\n") :]
    assert "12" in table.split()  # 6 episodes of each
    assert "seed 0" in table
    assert "seed 2" in table


class FallsOver(Scripted):
    """Breaks in the first episode of a run with seed 1, with an error that quotes a credential."""

    def reset(self):
        observations, beginnings = super().reset()
        if beginnings[0].seed == training_seed(1, 0, 0, 0, 0):
            raise RuntimeError(f"the robot fell over {os.environ.get('WANDB_API_KEY')}")
        return observations, beginnings


def test_a_stopped_run_is_reported_and_the_others_still_run(tmp_path):
    """A learning rate that no network survives; only a run long enough to see it stops."""
    file = written(tmp_path, "learner.lr=10.0", "runner.total_timesteps=640", "runner.health.on_critical=stop")
    code, shown = train(file, "--seeds", "0,1")
    assert code == 3
    assert {run["status"] for run in runs(tmp_path).values()} == {"stopped"}
    assert [line.split()[:3] for line in shown.splitlines() if " stopped " in line and "after" not in line] == [
        ["0", "stopped", "3"], ["1", "stopped", "3"],
    ]  # fmt: skip


def test_a_failed_run_is_reported_and_the_others_still_run(tmp_path):
    name = "tests.cli.test_seeds:FallsOver"
    file = written(tmp_path, f"env.train.name='{name}'", "rollout.simulator_retries=0", "runner.total_timesteps=64")
    code, shown = train(file, "--seeds", "0,1,2")
    assert code == 1
    assert {seed: run["status"] for seed, run in runs(tmp_path).items()} == {
        0: "completed",
        1: "failed",
        2: "completed",
    }
    (run,) = (tmp_path / "runs").glob("*/*-seed1")
    assert ["1", "failed", "1", str(run)] in [line.split() for line in shown.splitlines()]
    assert "12" in shown[shown.index("success_once\n") :].split()  # episodes of the two that ended


def test_how_a_run_failed_is_told_without_credentials(tmp_path, monkeypatch):
    monkeypatch.setenv("WANDB_API_KEY", "0123456789abcdef")
    falls = ["env.train.name='tests.cli.test_seeds:FallsOver'", "rollout.simulator_retries=0"]
    result = invoke(written(tmp_path, *falls), "--seeds", "1")
    assert "Traceback" in result.stderr
    assert "the robot fell over ***" in result.stderr
    assert "0123456789abcdef" not in result.output
    (run,) = (tmp_path / "runs").glob("*/*-seed1")
    told = (run / "run.json").read_text(), (run / "events.jsonl").read_text()
    assert all("the robot fell over ***" in text and "0123456789abcdef" not in text for text in told)


def test_what_a_simulator_said_that_was_made_again_is_told_without_credentials(tmp_path, monkeypatch):
    monkeypatch.setenv("WANDB_API_KEY", "0123456789abcdef")
    assert invoke(written(tmp_path, "env.train.name='tests.cli.test_seeds:FallsOver'"), "--seeds", "1").exit_code == 0
    (run,) = (tmp_path / "runs").glob("*/*-seed1")
    told = (run / "events.jsonl").read_text()
    assert "the robot fell over ***" in told
    assert "0123456789abcdef" not in told


class AskedToEnd(Scripted):
    """Ctrl-C comes when the evaluation begins, which here is at the end of the run."""

    def reset(self):
        observations, beginnings = super().reset()
        if beginnings[0].seed == 1_000_000:
            signal.raise_signal(signal.SIGINT)
        return observations, beginnings


def test_ctrl_c_in_the_final_evaluation_ends_it_and_lets_no_other_run_begin(tmp_path):
    code, shown = train(written(tmp_path, "env.train.name='tests.cli.test_seeds:AskedToEnd'"), "--seeds", "0,1")
    assert code == 130
    assert {seed: run["status"] for seed, run in runs(tmp_path).items()} == {0: "interrupted"}
    assert ["1", "not", "begun", "-", "-"] in [line.split() for line in shown.splitlines()]


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--seeds", "0,one"], "write whole numbers"),
        (["--seeds", "0,1.5"], "write whole numbers"),
        (["--seeds", "1,2,1e0"], "names a seed twice"),
        (["--seeds", "0,1", "runner.seed=3"], "both set the seed"),
        (["--seeds", "-1"], "runner.seed is -1; it must be at least 0"),
    ],
)
def test_wrong_seeds_are_refused_before_anything_begins(tmp_path, arguments, told):
    with pytest.raises(ConfigError, match=told):
        train(written(tmp_path), *arguments)
    assert not (tmp_path / "runs").exists()


def test_seeds_cannot_be_resumed_together(tmp_path):
    run = rlpipe.train(scripted(tmp_path, "runner.total_timesteps=64"), local=True).directory
    with pytest.raises(ConfigError, match="resume the runs of its seeds one by one"):
        train("--resume", str(run), "--seeds", "0,1")
