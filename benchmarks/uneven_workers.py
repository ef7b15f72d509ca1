"""Measures what a slow worker costs in each pipeline: two workers, one of them several times slower than the other.

    python benchmarks/uneven_workers.py [--slower 5] [--max-lag 4] [--iterations 60]

Both workers sleep in their simulators, so the machine is idle and only the pipeline decides. Throughput is that of the
middle half of each run, without its start and its end, relative to the sum of what both workers do by themselves: their
environment steps over the time that they spent collecting them.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
os.environ["PYTHONPATH"] = os.pathsep.join([sys.path[0], os.environ.get("PYTHONPATH", "")])

from rich.console import Console
from rich.table import Table

import rlpipe
from rlpipe.config.loading import load_config
from rlpipe.config.schema import Config, PipelineKind
from rlpipe.run.directory import read_jsonl
from tests.helpers.simulators import Uneven

HORIZON, ENVS = 50, 8
STEP_SECONDS = 0.004


def configuration(folder: Path, pipeline: str, options: argparse.Namespace) -> Config:
    """Run of two workers, whose first simulator is slow."""
    simulator = {
        "name": f"{Uneven.__module__}:{Uneven.__name__}",
        "total_num_envs": ENVS,
        "script": [[{"length": 25}]],
        "folder": str(folder),
        "step_seconds": STEP_SECONDS,
        "slow_seconds": STEP_SECONDS * options.slower,
    }
    logger = {"log_path": str(folder), "experiment_name": "uneven", "logger_backends": []}
    return load_config(
        {
            "env": {"train": simulator, "eval": {"step_seconds": 0.0, "slow_seconds": 0.0}},
            "policy": {"name": "mlp", "hidden_sizes": [16]},
            "algorithm": {"name": "ppo", "update_epochs": 1, "num_minibatches": 2},
            "rollout": {"num_workers": 2, "horizon": HORIZON},
            "evaluation": {"episodes": 1},
            "runner": {
                "pipeline": pipeline,
                "max_lag": options.max_lag,
                "total_timesteps": options.iterations * HORIZON * ENVS,
                "save_interval": 10**6,
                "logger": logger,
            },
        }
    )


def measure(run: Path) -> tuple[float, float, float]:
    """Environment steps per second of a run and of its workers by themselves, and the largest lag."""
    rows = list(read_jsonl(run / "metrics.jsonl"))
    middle = rows[len(rows) // 4 : len(rows) * 3 // 4]
    steps = middle[-1]["total_timesteps"] - middle[0]["total_timesteps"]
    seconds = sum(row["metrics"]["time/step"] for row in middle[1:])
    collected: dict[str, list[float]] = {}
    for line in read_jsonl(run / "timeline.jsonl"):
        for span in line["spans"]:
            if span["name"] == "collect":
                collected.setdefault(span["part"], []).append(span["ended"] - span["began"])
    alone = sum(HORIZON * ENVS / 2 / statistics.median(spent) for spent in collected.values())
    return steps / seconds, alone, max(row["metrics"]["rollout/policy_lag_max"] for row in rows)


def main() -> None:
    """Runs each pipeline and prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--slower", type=float, default=5.0, help="how many times slower one worker is")
    parser.add_argument("--max-lag", type=int, default=4)
    parser.add_argument("--iterations", type=int, default=60)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    table = Table("pipeline", "steps/s", "both by themselves", "ratio", "largest lag")
    found = {}
    for kind in PipelineKind:
        with tempfile.TemporaryDirectory() as folder:
            result = rlpipe.train(configuration(Path(folder), kind, options))
            rate, alone, lag = measure(result.directory)
        table.add_row(kind, f"{rate:,.0f}", f"{alone:,.0f}", f"{rate / alone:.2f}", f"{lag:.0f}")
        found[str(kind)] = {"rate": rate, "alone": alone, "ratio": rate / alone, "lag": lag}
    Console(width=100).print(table)
    if options.json:
        options.json.write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
