"""Measures the cost of metrics: their share of an iteration of the quickstart, and the time to merge many windows.

    python benchmarks/metrics_overhead.py

The first measurement runs ``configs/ppo_push_cube.yaml`` in this process, with one worker for all environments, and
alternates between iterations with and without metrics. "Without" means that only what learning needs is computed, kept,
reduced, merged or written: of the terms of ``PPO.loss`` only the loss, no second pass over the batch to compare
log-probabilities, no observation in any window, no reduction on the learner's device, no row. The divergence stays,
because ``algorithm.target_kl`` needs it. Neither draws the terminal's table.

Physics varies by more than the metrics cost. The simulator therefore runs for a few timed iterations only; then both
kinds of iteration repeat the recorded steps and differ in the metrics alone. The learning rate is 0, so that every
update takes the same number of passes. One thread computes everything, and its processor time is measured, which other
processes on the machine do not change. Writing is measured in wall-clock time.

The second measurement lets thousands of real rollout workers collect from the scripted simulator, and merges and reads
their windows on one core.
"""

from __future__ import annotations

import argparse
import itertools
import os
import platform
import statistics
import tempfile
import time
from contextlib import ExitStack, contextmanager
from pathlib import Path
from unittest.mock import patch

import numpy as np
import torch

from rlpipe.algorithms.ppo import PPO
from rlpipe.collection.worker import RolloutWorker
from rlpipe.config.loading import load_config
from rlpipe.learning.on_policy import Learner
from rlpipe.metrics import CATALOGUE, MetricWindow
from rlpipe.metrics.catalogue.env import EpisodeMetrics
from rlpipe.metrics.on_device import DeviceObservations
from rlpipe.metrics.window import merged
from rlpipe.policies.base import Snapshot
from rlpipe.run.directory import RunDirectory
from rlpipe.run.metric_logger import MetricLogger, run_info

QUICKSTART = Path(__file__).parent.parent / "configs" / "ppo_push_cube.yaml"
PACKAGES = ("torch", "numpy", "mani_skill")
PARTS = ("collection", "update", "row")
SLOTS, STEPS = 4, 100  # of each simulated worker


# --- the share of an iteration


@contextmanager
def without_metrics():
    """Turns off everything that learning does not need."""
    prepare = PPO.prepare

    def prepare_only(self, trajectories, policy):
        with patch.object(policy, "evaluate_actions", lambda _, actions: (torch.zeros(len(actions)), None)):
            samples, _ = prepare(self, trajectories, policy)
        return samples, {}

    def nothing(*_, **__):
        return None

    with ExitStack() as off:
        for owner, name, instead in (
            (PPO, "prepare", prepare_only),
            (PPO, "measure", lambda *_: {}),
            (DeviceObservations, "add", nothing),
            (DeviceObservations, "add_update", nothing),
            (DeviceObservations, "reduce", nothing),
            (MetricWindow, "observe", nothing),
            (EpisodeMetrics, "observe", nothing),
        ):
            off.enter_context(patch.object(owner, name, instead))
        yield


class Iterations:
    """The quickstart in this process."""

    def __init__(self, folder: Path) -> None:
        """Makes simulator, policy, learner and logger."""
        self.config = load_config(
            QUICKSTART, ["learner.lr=0", "learner.num_threads=1", f"runner.logger.log_path={folder}"]
        )
        plan = self.config.schedule
        self.worker = RolloutWorker(plan, 0, 1)
        ready = self.worker.ready()
        self.learner = Learner(plan, ready.spec)
        directory = RunDirectory.create(self.config, {})
        self.logger = MetricLogger(directory, run_info(directory, self.config, 1, ready.spec), self.config, {})
        self.count = 0

    def run(self, *, write: bool) -> dict[str, float]:
        """Runs one iteration. Returns the seconds of its phases."""
        marks = [time.process_time()]
        batch, collected = self.worker.collect(self.learner.snapshot(), 0)
        marks.append(time.process_time())
        _, learnt = self.learner.update(0, 1, batch)
        marks.append(time.process_time())
        began = time.perf_counter()
        if write:
            self.count += 1
            self.logger.write(self.count, collected, learnt)
        spent = (*np.diff(marks).tolist(), time.perf_counter() - began)
        return dict(zip(PARTS, spent, strict=True))

    def record(self, iterations: int) -> list[dict[str, float]]:
        """Runs with the simulator; later iterations repeat its steps."""
        simulator = self.worker._simulator
        step, recorded = simulator.step, []

        def recording(actions):
            recorded.append(step(actions))
            return recorded[-1]

        simulator.step = recording
        timed = [self.run(write=True) for _ in range(iterations)]
        repeated = itertools.cycle(recorded)
        simulator.step = lambda _: next(repeated)
        return timed


def measure_share(pairs: int, console) -> None:
    """Prints the cost of the metrics of an iteration."""
    from rich.table import Table

    with tempfile.TemporaryDirectory() as folder:
        iterations = Iterations(Path(folder))
        real = iterations.record(4)[1:]
        timed: dict[bool, list[dict[str, float]]] = {True: [], False: []}
        for pair in range(pairs + 2):
            for metrics in (True, False) if pair % 2 else (False, True):
                with ExitStack() as stack:
                    if not metrics:
                        stack.enter_context(without_metrics())
                    seconds = iterations.run(write=metrics)
                if pair >= 2:  # the first pairs warm up
                    timed[metrics].append(seconds)
        iterations.logger.close("completed")

    def median(of: list[dict[str, float]], part: str) -> float:
        return statistics.median(seconds[part] for seconds in of)

    on = {part: median(timed[True], part) for part in PARTS}
    # compares neighbours in time, because the machine's speed drifts more slowly than that
    cost = {
        part: statistics.median(a[part] - b[part] for a, b in zip(timed[True], timed[False], strict=True))
        for part in PARTS
    }
    whole = {**on, "collection": median(real, "collection")}
    simulator = whole["collection"] - on["collection"]
    console.print(f"{QUICKSTART.name}, {iterations.config.steps_per_iteration:,} steps, medians of {pairs} iterations")
    table = Table("", "with metrics", "without", "cost")
    table.add_row("simulator", *[f"{1e3 * simulator:,.1f} ms"] * 2, "")
    for part in PARTS:
        name = "rest of the collection" if part == "collection" else part
        table.add_row(name, *(f"{1e3 * t:,.1f} ms" for t in (on[part], on[part] - cost[part], cost[part])))
    console.print(table)
    for workers in sorted({1, len(os.sched_getaffinity(0))}):
        share = _over(cost, workers) / _over(whole, workers)
        console.print(
            f"rollout workers: {workers}; metrics take {share:.2%} of an iteration, the target is at most 2 %"
        )


def _over(seconds: dict[str, float], workers: int) -> float:
    """Seconds of an iteration whose collection is spread over workers; learner and logger wait for each other."""
    return seconds["collection"] / workers + seconds["update"] + seconds["row"]


# --- merging


def make_windows(count: int) -> list[MetricWindow]:
    """Windows of ``count`` rollout workers for one fragment: a few episodes each, no two workers alike."""
    generator = np.random.default_rng(0)
    script = [
        [
            {
                "length": int(generator.integers(5, 40)),
                "end": str(generator.choice(["terminated", "truncated"])),
                "success_at": [3] if generator.random() < 0.5 else [],
                "reward": float(generator.normal()),
            }
            for _ in range(7)
        ]
        for _ in range(97)
    ]
    config = load_config(
        {
            "env": {"train": {"name": "scripted", "total_num_envs": SLOTS * count, "script": script}},
            "policy": {"name": "mlp", "hidden_sizes": [8]},
            "algorithm": {"name": "ppo"},
            "rollout": {"horizon": STEPS, "num_workers": count},
            "runner": {"total_timesteps": SLOTS * STEPS * count, "logger": {"experiment_name": "merging"}},
        }
    )
    plan = config.schedule
    windows, snapshot = [], None
    for rank in range(count):
        worker = RolloutWorker(plan, rank, count)
        snapshot = snapshot or Snapshot(0, worker._policy.weights())
        windows.append(worker.collect(snapshot, 0)[1])
    return windows


def measure_merging(counts: list[int], console) -> None:
    """Prints how long it takes to merge and read windows."""
    from rich.table import Table

    windows, metrics = make_windows(max(counts)), list(CATALOGUE.values())
    table = Table("workers", "episodes", "merge and read", "per worker")
    for count in counts:
        taken = []
        for _ in range(5):
            began = time.process_time()
            window = merged(windows[:count])
            window.read(metrics)
            for histogram in window.histograms(metrics).values():
                histogram.read()
                histogram.buckets()
            taken.append(time.process_time() - began)
        seconds = statistics.median(taken)
        table.add_row(f"{count:,}", f"{len(window.episodes):,}", f"{seconds:.3f} s", f"{1e6 * seconds / count:.0f} us")
    console.print(f"windows of {len(windows[0].states)} metrics, one core; the target is 1,000 in at most 0.5 s")
    console.print(table)


# --- the report


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else []:
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor() or "unknown processor"


def main() -> None:
    """Runs both measurements and prints their results."""
    from importlib import metadata

    from rich.console import Console

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=20, help="iterations with metrics, and as many without")
    parser.add_argument("--workers", type=int, nargs="+", default=[100, 300, 1000, 3000], help="windows to merge")
    options = parser.parse_args()
    console = Console(highlight=False, width=110)
    versions = ", ".join(f"{name} {metadata.version(name)}" for name in PACKAGES)
    console.print(f"{_processor()}, {len(os.sched_getaffinity(0))} cores; {versions}")
    measure_merging(options.workers, console)
    measure_share(options.pairs, console)


if __name__ == "__main__":
    main()
