"""Kills a rollout worker of the quickstart twenty times (SIGKILL). Prints the success that the run still reaches, and
the cost of a kill: how much longer its collection takes than the median one.

    python benchmarks/worker_kills.py [--kills 20] [CONFIG] [key=value]...
"""

from __future__ import annotations

import argparse
import os
import platform
import random
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path

import psutil

sys.path.insert(0, str(Path(__file__).parent.parent))
from rlpipe.config.loading import load_config
from rlpipe.run.directory import read_jsonl
from tests.helpers.faulty import assert_whole, pids


def workers(run: Path) -> list[psutil.Process]:
    """Processes of the rollout workers that collect at present."""
    found = []
    for name, pid in pids(run).items():
        with suppress(psutil.Error):
            if name.startswith("rollout"):
                found.append(psutil.Process(pid))
    return found


def main() -> int:
    """Runs, kills, prints the results, and returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("config", nargs="?", default="configs/ppo_push_cube.yaml")
    parser.add_argument("overrides", nargs="*")
    arguments = parser.parse_args()
    chance = random.Random(0)
    with tempfile.TemporaryDirectory() as folder:
        given = [arguments.config, *arguments.overrides, f"runner.logger.log_path={folder}"]
        plan = load_config(arguments.config, given[1:]).schedule
        moments = sorted(chance.sample(range(2, plan[-1].until - 2), arguments.kills))
        command = [sys.executable, "-m", "rlpipe", "train", *given, "runner.logger.logger_backends=[]"]
        process = subprocess.Popen(command)
        for moment in moments:
            while not any(file.read_bytes().count(b"\n") >= moment for file in Path(folder).glob("*/*/metrics.jsonl")):
                if process.poll() is not None:
                    raise RuntimeError(f"the run ended with {process.returncode}")
                time.sleep(0.02)
            time.sleep(chance.uniform(0.0, 0.5))
            (file,) = Path(folder).glob("*/*/metrics.jsonl")
            while not (found := workers(file.parent)):
                time.sleep(0.1)
            chance.choice(found).kill()
        code = process.wait()
        (file,) = Path(folder).glob("*/*/metrics.jsonl")
        rows = list(read_jsonl(file))
        assert_whole(file.parent, len(rows))
        last, took = rows[-1]["metrics"], [row["metrics"]["time/generate_rollouts"] for row in rows]
        events = [event for event in read_jsonl(file.parent / "events.jsonl") if event["kind"] == "restarted"]
    usual = statistics.median(took)
    longer = sorted(seconds - usual for seconds in took)[-len(events) :]
    print(
        f"{len(os.sched_getaffinity(0))} cores, {platform.machine()}: {len(events)} workers replaced, exit code "
        f"{code}, {len(rows)} iterations, each once; success_once {last.get('eval/success_once', float('nan')):.3f} "
        f"[{last.get('eval/success_once_ci_low', float('nan')):.3f}, "
        f"{last.get('eval/success_once_ci_high', float('nan')):.3f}]; a kill lengthens a collection of {usual:.2f} s "
        f"by {statistics.median(longer):.1f} s in the median, {longer[-1]:.1f} s at worst"
    )
    return code


if __name__ == "__main__":
    sys.exit(main())
