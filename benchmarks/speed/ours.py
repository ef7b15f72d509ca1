"""rlpipe as a contender: whole runs with a user's command, and collection alone."""

from __future__ import annotations

import dataclasses
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.machine import ROOT
from benchmarks.peers import task as shared
from rlpipe.config.schema import RunnerConfig

TIMES = (
    "time/generate_rollouts",
    "time/cal_adv_and_returns",
    "time/actor_training",
    "time/sync_weights",
    "time/checkpoint",
    "time/log",
    "time/other",
    "time/step",
    "time/env/env_interact_step",  # of the slowest worker, within time/generate_rollouts, as is the next
    "time/rollout/predict",
)


def configuration(task: str) -> dict[str, Any]:
    """Configuration of a run: PPO with the settings of ``benchmarks.peers.task``."""
    return {
        "env": {
            "train": {
                "name": "maniskill",
                "id": task,
                "control_mode": shared.CONTROL_MODES[task],
                "reward_mode": "normalized_dense",
                "total_num_envs": shared.ENVS,
            }
        },
        "policy": {"name": "mlp", "hidden_sizes": list(shared.HIDDEN), "initial_log_std": shared.INITIAL_LOG_STD},
        "algorithm": {
            "name": "ppo",
            "update_epochs": shared.EPOCHS,
            "num_minibatches": shared.MINIBATCHES,
            "discount": shared.DISCOUNT,
            "gae_lambda": shared.GAE_LAMBDA,
        },
        "rollout": {"horizon": shared.STEPS // shared.ENVS},
        "evaluation": {"episodes": 1},
        "runner": {"logger": {"experiment_name": "throughput"}},
    }


def has_pipelines() -> bool:
    """True if ``runner.pipeline`` is a key of this version."""
    return any(field.name == "pipeline" for field in dataclasses.fields(RunnerConfig))


def command(folder: Path, task: str, iterations: int, overrides: list[str]) -> list[str]:
    """Command of a run, whose configuration is written to the folder."""
    from omegaconf import OmegaConf

    file = folder / "config.yaml"
    file.write_text(OmegaConf.to_yaml(OmegaConf.create(configuration(task))))
    return [
        *(sys.executable, "-m", "rlpipe", "train", str(file)),
        f"runner.total_timesteps={iterations * shared.STEPS}",
        f"runner.logger.log_path={folder / 'runs'}",
        *overrides,
    ]


def _overrides(pipeline: str | None) -> list[str]:
    return [] if pipeline is None else [f"runner.pipeline={pipeline}"]


def run(task: str, pipeline: str | None, iterations: int) -> dict[str, Any]:
    """Trains with a learning rate of 0, in a process of its own. Returns medians over the later iterations.

    Args:
        task: id of the task
        pipeline: value of ``runner.pipeline``; None leaves it alone
        iterations: length of the run, at least 4
    Raises:
        RuntimeError: the run failed.
    """
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        began = time.time()
        ended = subprocess.run(
            command(folder, task, iterations, [*_overrides(pipeline), "learner.lr=0.0"]),
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=False,
        )
        if ended.returncode != 0:
            raise RuntimeError(f"rlpipe train failed with exit code {ended.returncode}: {ended.stderr[-800:]}")
        found = _newest_run(folder / "runs")
        assert found is not None
        events = [json.loads(line) for line in (found / "events.jsonl").read_text().splitlines()]
        lines = (found / "metrics.jsonl").read_text().splitlines()
    rows = [json.loads(line)["metrics"] for line in lines][2:-1]  # the first warm up, the last is evaluated
    times = [name for name in TIMES if name in rows[0]]
    return {
        "end_to_end": statistics.median(row["time/fps_interval"] for row in rows),
        "first_step": next(event["time"] for event in events if event["kind"] == "started") - began,
        "collection_in_training": statistics.median(shared.STEPS / row["time/generate_rollouts"] for row in rows),
        "time": {name: statistics.median(row[name] for row in rows) for name in times},
    }


def seconds_to_success(
    task: str, pipeline: str | None, iterations: int, target: float, seed: int
) -> dict[str, float | None]:
    """Learns until training has had the target success rate over the recent episodes.

    Returns:
        Seconds from the command, None if the run ended before.
    """
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        overrides = [*_overrides(pipeline), f"learner.lr={shared.LEARNING_RATE}", f"runner.seed={seed}"]
        began = time.time()
        process = subprocess.Popen(
            command(folder, task, iterations, overrides),
            cwd=ROOT,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        reached = _wait_for_success(process, folder / "runs", target)
        process.terminate()
        process.wait()
    return {"seconds_to_success": None if reached is None else reached - began}


def _newest_run(runs: Path) -> Path | None:
    found = sorted(runs.glob("throughput/*"))
    return found[-1] if found else None


def _wait_for_success(process: subprocess.Popen, runs: Path, target: float) -> float | None:
    """Time at which the recent training episodes first reached the target; None if the run ended before."""
    while process.poll() is None:
        time.sleep(0.2)
        run_folder = _newest_run(runs)
        if run_folder is None or not (run_folder / "episodes.jsonl").is_file():
            continue
        lines = (run_folder / "episodes.jsonl").read_text().splitlines(keepends=True)
        outcomes = [json.loads(line)["success_once"] for line in lines if line.endswith("\n")]
        if len(outcomes) >= shared.RECENT and statistics.mean(outcomes[-shared.RECENT :]) >= target:
            return time.time()
    return None
