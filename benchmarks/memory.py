"""Measures the memory of every process of a run over an hour. The simulator leaks 20 MB per second in each of two
rollout workers, and ``rollout.max_memory`` limits them.

Prints the median memory of each process (unique set size, which excludes shared memory) for each sixth of the time.
Exits with 1 if a process of rlpipe holds over 5 % more in the last sixth than in the first, if a worker exceeds the
limit by more than it leaks in two collections, or if a number of the run does not follow from the episode files.

    python benchmarks/memory.py [--minutes 60]
"""

from __future__ import annotations

import argparse
import os
import platform
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from contextlib import suppress
from pathlib import Path

import psutil
from rich.console import Console
from rich.table import Table

sys.path.insert(0, str(Path(__file__).parent.parent))
from rlpipe.config.loading import load_config
from rlpipe.config.tree import to_yaml
from rlpipe.run.directory import read_jsonl
from tests.helpers.faulty import assert_whole

LIMIT = 1.5
"""GiB that a worker may hold."""
STEP_SECONDS, HORIZON, LEAKED_IN_A_STEP = 0.1, 16, 2e6
SIXTHS = 6
PARTS = ("rollout", "learner", "metric-logger")
MIB = 2**20


def configuration(folder: Path) -> str:
    """Two workers and a learner that mostly wait for the simulators; the run writes every kind of file."""
    simulator = {"name": "tests.helpers.faulty:Faulty", "total_num_envs": 4, "match_actions": True,
                 "step_seconds": STEP_SECONDS}  # fmt: skip
    return to_yaml(load_config({
        "env": {"train": {**simulator, "fault": "leak"}, "eval": {"fault": "", "step_seconds": 0.0}},
        "policy": {"name": "mlp", "hidden_sizes": [32, 32]},
        "algorithm": {"name": "ppo", "update_epochs": 4, "num_minibatches": 4},
        "learner": {"device": "cpu", "num_threads": 1},
        "rollout": {"num_workers": 2, "horizon": HORIZON, "max_memory": LIMIT, "max_restarts": 0},
        "evaluation": {"episodes": 8},
        "cluster": {"cpus_per_worker": 0.5},
        "runner": {
            "total_timesteps": 100_000_000,
            "val_check_interval": 100,
            "save_interval": 50,
            "logger": {"log_path": str(folder), "experiment_name": "memory", "logger_backends": ["tensorboard", "csv"]},
        },
    }))  # fmt: skip


def title(process: psutil.Process, driver: int) -> str:
    """Kind of a process of a run, such as ``driver``, ``rollout``, ``raylet`` or ``backend tensorboard``."""
    if process.pid == driver:
        return "driver"
    words = process.cmdline() or [process.name()]
    if words[0].startswith("ray::"):
        return re.split(r"[\d.\s]", words[0].removeprefix("ray::"))[0].rstrip("-")
    if "rlpipe.distributed.template_server" in words:
        return "process template"
    if "sync" in words and "--to" in words:
        return f"backend {words[words.index('--to') + 1]}"
    return Path(words[0]).name


def main() -> int:
    """Runs, samples the memory, prints the table, and returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=60.0)
    seconds = 60 * parser.parse_args().minutes
    samples: dict[str, list[list[float]]] = defaultdict(lambda: [[] for _ in range(SIXTHS)])
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        (folder / "config.yaml").write_text(configuration(folder / "runs"))
        command = [sys.executable, "-m", "rlpipe", "train", str(folder / "config.yaml")]
        with (folder / "output.txt").open("wb") as out:
            process = subprocess.Popen(command, stdout=out, stderr=out)
        while not any(folder.glob("runs/*/*/metrics.jsonl")):
            if process.poll() is not None:
                raise RuntimeError((folder / "output.txt").read_text())
            time.sleep(0.1)
        begun, shared = time.monotonic(), set(os.listdir("/dev/shm"))
        while (passed := time.monotonic() - begun) < seconds:
            driver = psutil.Process(process.pid)
            for child in [driver, *driver.children(recursive=True)]:
                with suppress(psutil.Error):
                    uss = child.memory_full_info().uss / MIB
                    samples[title(child, process.pid)][int(SIXTHS * passed / seconds)].append(uss)
            time.sleep(2.0)
        new = set(os.listdir("/dev/shm")) - shared
        process.send_signal(signal.SIGTERM)
        code = process.wait(120)
        (run,) = (file.parent for file in folder.glob("runs/*/*/metrics.jsonl"))
        rows = list(read_jsonl(run / "metrics.jsonl"))
        assert_whole(run, len(rows))
        recycled = sum(event["kind"] == "restarted" for event in read_jsonl(run / "events.jsonl"))

    table = Table("MiB, median", *(f"to {seconds / 60 * (n + 1) / SIXTHS:.0f} min" for n in range(SIXTHS)), "most")
    for part, sixths in samples.items():
        most = max(value for sixth in sixths for value in sixth)
        table.add_row(part, *(f"{statistics.median(sixth):.0f}" for sixth in sixths), f"{most:.0f}")
    console = Console(width=100)
    console.print(table)
    ours = ("driver", *PARTS[1:])  # workers grow and are replaced; Ray keeps a history, up to a length
    grown = [part for part in ours
             if statistics.median(samples[part][-1]) > 1.05 * statistics.median(samples[part][0])]  # fmt: skip
    beyond = max(value for sixth in samples["rollout"] for value in sixth) - 1024 * LIMIT
    allowed = 2 * HORIZON * LEAKED_IN_A_STEP / MIB
    console.print(
        f"{len(os.sched_getaffinity(0))} cores, {platform.machine()}: {len(rows):,} iterations, each once, env/* equal "
        f"to the episode files'; {recycled} workers replaced at {LIMIT} GiB, largest {beyond:+.0f} MiB from it; grown: "
        f"{', '.join(grown) or 'none'}; {len(new)} new pieces of shared memory; exit code {code}"
    )
    return int(bool(grown) or beyond > allowed or bool(new) or code != 130)


if __name__ == "__main__":
    sys.exit(main())
