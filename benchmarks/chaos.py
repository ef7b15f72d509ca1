"""Kills parts of a run on a simulated cluster at random every few seconds (SIGKILL): a rollout worker, the learner, the
metric logger, a node, the driver. Then checks that every iteration is there once, that every number follows from the
episode files, that no process is left behind, and that the policy has learnt.

Prints a table and exits with 1 if a check fails. The moments are random, but follow from a seed.

    python benchmarks/chaos.py [--minutes 10] [--seed 0]
"""

from __future__ import annotations

import argparse
import os
import platform
import random
import signal
import statistics
import sys
import tempfile
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import ray
from rich.console import Console
from rich.table import Table

sys.path.insert(0, str(Path(__file__).parent.parent))
from rlpipe.config.loading import load_config
from rlpipe.config.schema import Config
from tests.helpers.cluster import Run, SimulatedCluster, simulated
from tests.helpers.faulty import assert_whole, pids, processes

CHANCES = {"rollout worker": 8, "learner": 2, "metric logger": 2, "node": 2, "driver": 1}
PREFIXES = {"rollout worker": "rollout", "learner": "learner", "metric logger": "metric-logger"}
PAUSE = (1.0, 4.0)
"""Seconds between a recovery and the next fault."""
PATIENCE = 120.0
"""Seconds after which a fault without an event counts as not noticed."""


@dataclass
class Hit:
    """One fault.

    Attributes:
        target: kind of process or node that was killed.
        moment: time of the kill.
        event: event by which the run reported the fault; None if it did not.
        recovered: seconds from the kill to the next row; None if there was none.
    """

    target: str
    moment: float
    event: dict[str, Any] | None = None
    recovered: float | None = None

    @property
    def lost(self) -> int:
        """Number of iterations that were replayed."""
        return int((self.event or {"data": {}})["data"].get("discarded", 0))


HORIZON, ENVS = 64, 16


def configuration(folder: Path, pipeline: str) -> Config:
    """PPO on a task that is learnt in a minute or two; two workers and a learner, each on a CPU of its own."""
    return load_config(
        {
            "env": {"train": {"name": "tests.helpers.reach:Reach", "total_num_envs": ENVS, "step_seconds": 0.004}},
            "policy": {"name": "mlp", "hidden_sizes": [32, 32]},
            "algorithm": {"name": "ppo", "update_epochs": 4, "num_minibatches": 4},
            "learner": {"device": "cpu", "num_threads": 1, "lr": 1e-3},
            "rollout": {"num_workers": 2, "horizon": HORIZON, "max_restarts": 10_000, "timeout": 30.0},
            "evaluation": {"episodes": 32},
            "cluster": {"cpus_per_worker": 1, "cpus_per_learner": 1},
            "runner": {
                "pipeline": pipeline,
                "total_timesteps": 100_000_000,
                "save_interval": 5,
                "max_recoveries": 10_000,
                "auto_resume": True,
                "logger": {"log_path": str(folder / "runs"), "experiment_name": "chaos", "logger_backends": ["csv"]},
            },
        }
    )


def strike(target: str, run: Run, cluster: SimulatedCluster, chance: random.Random) -> bool:
    """Kills one process or node of this kind. Returns False if there is none."""
    if target == "driver":
        run.process.kill()
        run.process.wait()
        run.start()
        return True
    if target == "node":
        nodes = sorted({node for node in run.parts().values() if cluster.has(node)})
        if not nodes:
            return False
        cluster.kill(chance.choice(nodes))
        return True
    found = processes(PREFIXES[target])
    if target == "rollout worker":  # not a spare, which nobody would miss
        working = set(pids(run.directory).values())
        found = [process for process in found if process.pid in working]
    if not found:
        return False
    with suppress(psutil.NoSuchProcess):
        chance.choice(found).kill()
    return True


def follow(hit: Hit, run: Run) -> None:
    """Waits until the run has reported the fault and written its next iteration."""
    ends = time.monotonic() + PATIENCE
    while time.monotonic() < ends:
        time.sleep(0.05)
        if run.process.poll() is not None:
            raise RuntimeError(f"the run ended with {run.process.returncode}:\n{run.output.read_text()[-3000:]}")
        events = [e for e in run.events("restarted", "recovered", "resumed") if e["time"] > hit.moment]
        if not events:
            continue
        hit.event = events[0]
        after = [row["time"] for row in run.rows() if row["time"] > events[0]["time"]]
        if after:
            hit.recovered = after[0] - hit.moment
            return


def report(hits: list[Hit], console: Console) -> None:
    """Prints the table."""
    table = Table("fault", "count", "median", "worst", "iterations replayed")
    for target in CHANCES:
        own = [hit for hit in hits if hit.target == target]
        seconds = [hit.recovered for hit in own if hit.recovered is not None]
        if own:
            median, worst = (f"{value:.1f} s" for value in (statistics.median(seconds), max(seconds)))
            table.add_row(target, str(len(own)), median, worst, str(sum(hit.lost for hit in own)))
    console.print(table)


def main() -> int:
    """Runs with faults, checks what the run wrote, and returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--pipeline", default="sync", help="as in runner.pipeline")
    arguments = parser.parse_args()
    chance, console, hits = random.Random(arguments.seed), Console(width=100), []
    console.print(f"{len(os.sched_getaffinity(0))} cores, {platform.processor() or platform.machine()}, Python "
                  f"{platform.python_version()}, Ray {ray.__version__}, seed {arguments.seed}, "
                  f"pipeline {arguments.pipeline}")  # fmt: skip
    with tempfile.TemporaryDirectory() as temporary, simulated(nodes=4, cpus=1) as cluster:
        folder = Path(temporary)
        run = Run(configuration(folder, arguments.pipeline), folder, cluster.address)
        try:
            run.until(lambda: len(run.rows()) > 10)
            ends = time.monotonic() + 60 * arguments.minutes
            while time.monotonic() < ends:
                time.sleep(chance.uniform(*PAUSE))
                (target,) = chance.choices(list(CHANCES), list(CHANCES.values()))
                hit = Hit(target, time.time())
                if strike(target, run, cluster, chance):
                    hits.append(hit)
                    follow(hit, run)
                    if target == "node":
                        cluster.add()  # not before: its processes would start on the same cores
                    outcome = (
                        "not noticed" if hit.event is None else f"{hit.recovered or 0:.1f} s: {hit.event['message']}"
                    )
                    console.print(f"{len(hits):4d} {target}: {outcome}", soft_wrap=True, markup=False, highlight=False)
            time.sleep(5)
            run.process.send_signal(signal.SIGTERM)
            code = run.process.wait(120)
            time.sleep(5)
            orphans = processes()
            rows = run.rows()
            assert_whole(run.directory, len(rows))
            claimed = int(rows[-1]["metrics"]["time/total_timesteps"])
            ended = sum(episode["length"] for episode in run.rows("episodes.jsonl"))
            success = [row["metrics"]["env/success_once"] for row in rows]
        finally:
            run.process.kill()
    report(hits, console)
    first, last = statistics.mean(success[:10]), statistics.mean(success[-10:])
    console.print(
        f"{len(rows)} iterations, each once; env/* of all recomputed from episodes.jsonl: equal; {claimed:,} "
        f"environment steps, {ended:,} of them in whole episodes; success {first:.3f} in the first ten iterations, "
        f"{last:.3f} in the last ten; exit code {code}; {len(orphans)} processes left"
    )
    steps = len(rows) * HORIZON * ENVS
    return int(claimed != steps or ended > steps or bool(orphans) or last <= first or code != 130)


if __name__ == "__main__":
    sys.exit(main())
