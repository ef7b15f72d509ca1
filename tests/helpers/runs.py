"""Small runs, commands that train, and what a run directory says."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from rlpipe.config.loading import load_config
from rlpipe.config.schema import Config
from rlpipe.config.tree import from_yaml, to_yaml
from rlpipe.metrics import CATALOGUE, MetricWindow
from rlpipe.metrics import catalogue as m
from rlpipe.run.directory import read_jsonl
from rlpipe.trajectory import Episode

TIMINGS = "time/"
SLOW_RUN = ("runner.total_timesteps=1000000", "runner.save_interval=3", "env.train.step_seconds=0.002")


def scripted(tmp_path, *overrides: str, **tree: Any) -> Config:
    """A run on the scripted simulator that takes a second: 4 environments, 16 steps an iteration each, 4 iterations."""
    base: dict[str, Any] = {
        "env": {"train": {"name": "scripted", "total_num_envs": 4, "match_actions": True}},
        "policy": {"name": "mlp", "hidden_sizes": [8]},
        "algorithm": {"name": "ppo", "update_epochs": 2, "num_minibatches": 4},
        "learner": {"num_threads": 1},
        "rollout": {"horizon": 16},
        "evaluation": {"episodes": 6},
        "runner": {
            "total_timesteps": 256,
            "save_interval": 2,
            "report": False,  # a fifth of a second, in each of many hundred runs
            "logger": {"log_path": str(tmp_path), "experiment_name": "scripted", "logger_backends": []},
        },
    }
    base.update(tree)
    return load_config(base, overrides)


def sac(tmp_path, *overrides, **tree):
    """Soft actor-critic on the scripted simulator: 4 environments, 16 steps an iteration each."""
    base = {
        "algorithm": {
            "name": "sac", "batch_size": 32, "critic_hidden_sizes": [16], "learning_starts": 64,
            "update_to_data": 0.5, "replay_capacity": 500, "discount": 0.5,
        },
        "policy": {"name": "squashed_gaussian", "hidden_sizes": [16]},
    }  # fmt: skip
    return scripted(tmp_path, *overrides, **(base | tree))


def gru(tmp_path, *overrides, **tree):
    """The scripted run with a policy that has a memory."""
    return scripted(tmp_path, *overrides, **({"policy": {"name": "gru", "memory_size": 6, "hidden_sizes": [8]}} | tree))


def to_mapping(config) -> dict:
    return from_yaml(to_yaml(config))


def write_config(tmp_path) -> str:
    file = tmp_path / "config.yaml"
    file.write_text(to_yaml(scripted(tmp_path / "runs")))
    return str(file)


def rlpipe_command(*arguments: str, **options) -> subprocess.Popen:
    """Starts ``rlpipe`` in a process of its own."""
    return subprocess.Popen(
        [sys.executable, "-m", "rlpipe", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        **options,
    )


def wait_for_rows(folder: Path, count: int) -> Path:
    """Returns the directory of the first run below a folder that has written so many rows."""
    deadline = time.time() + 600
    while time.time() < deadline:
        for file in folder.glob("*/*/metrics.jsonl"):
            if file.read_bytes().count(b"\n") >= count:
                return file.parent
        time.sleep(0.05)
    raise TimeoutError(f"no run in {folder} has written {count} rows")


@contextlib.contextmanager
def beside(attempt: Callable[[], bool]) -> Iterator[None]:
    """Makes attempts beside the block, one after the other, until one did what there is to do or the block ends."""
    ends = threading.Event()

    def work() -> None:
        while not ends.wait(0.02) and not attempt():
            pass

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ends.set()
        thread.join()


@contextlib.contextmanager
def load() -> Iterator[None]:
    """Keeps every core of the machine busy beside the block."""
    busy = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(os.cpu_count() or 1)]
    try:
        yield
    finally:
        for process in busy:
            process.kill()
            process.wait()


def lines(run: Path, name: str) -> list[dict]:
    return list(read_jsonl(run / name))


def without_timings(run: Path) -> list[dict[str, float]]:
    return [
        {name: value for name, value in row["metrics"].items() if not name.startswith(TIMINGS)}
        for row in lines(run, "metrics.jsonl")
    ]


def from_ledger(run: Path, file: str, metrics: m.EpisodeMetrics, iteration: int) -> dict[str, float]:
    """The metrics of one iteration, recomputed from the episodes that stand in the ledger."""
    namespace = metrics.num_trajectories.name.partition("/")[0] + "/"
    declared = [metric for name, metric in CATALOGUE.items() if name.startswith(namespace)]
    recent, whole = MetricWindow(), MetricWindow()
    rows = [row for row in lines(run, file) if row["iteration"] <= iteration]
    metrics.observe(recent, [Episode.from_row(row) for row in rows if row["iteration"] == iteration])
    metrics.observe(whole, [Episode.from_row(row) for row in rows])
    return recent.read([metric for metric in declared if not metric.lifetime]) | whole.read(
        [metric for metric in declared if metric.lifetime]
    )
