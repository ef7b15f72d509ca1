"""Measures updates on the CPU: milliseconds of CPU time of a gradient step of each learner, on one and on two threads.

    python benchmarks/learner.py [--against PATH]

The learners are those of ``benchmarks/gpu.py``, on random batches: RLPD and SAC with the networks, batches and
demonstrations of configs/sparse_pick_cube.yaml, cloning with those of configs/chunk_pick_cube.yaml, PPO and GRPO with
the quickstart's policy and minibatches of some 500. With --against, those of another source tree of rlpipe are
measured in turn, and the ratio of the medians is that of the other tree to this one.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

from rich.console import Console
from rich.table import Table

import rlpipe.trajectory  # of the source tree that PYTHONPATH names, before this one comes first

sys.path.insert(0, str(Path(__file__).parent.parent))
from benchmarks import machine
from benchmarks.device import plan

UPDATES, STEPS = 5, 32


def measure(threads: int) -> None:
    """Prints the milliseconds of CPU time of a gradient step of each learner, the best of several updates, as JSON."""
    rlpipe.trajectory.__path__.append(str(machine.ROOT / "rlpipe/trajectory"))  # an older tree lacks random fragments
    from benchmarks.device.updates import Work

    spent = {}
    for update in plan.full().decisive:
        if not update.on_cpu:
            continue
        steps = {"count": STEPS} if update.algorithm in ("rlpd", "sac") else {"epochs": 1}
        short = replace(update, threads=threads, **steps)
        work, best = Work(short, "cpu", "cpu"), []
        for _ in range(UPDATES + 1):
            began = time.process_time()
            work()
            best.append(1e3 * (time.process_time() - began) / work.gradient_steps)
        spent[update.title] = min(best[1:])  # the first one warms up the caches
    print(json.dumps(spent))


def compare(trees: dict[str, str], rounds: int) -> None:
    """Prints what ``measure`` finds for source trees of rlpipe, in turn, and the ratio of the first two."""
    table = Table("gradient step", "threads", *trees, "ratio", title="Milliseconds of CPU time")
    for threads in (1, 2):
        measured: dict[str, list[dict[str, float]]] = {name: [] for name in trees}
        for _ in range(rounds):
            for name, path in trees.items():
                environment = {**os.environ, "PYTHONPATH": path, "OMP_WAIT_POLICY": "PASSIVE"}
                command = [sys.executable, __file__, "--threads", str(threads)]
                printed = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True).stdout
                measured[name].append(json.loads(printed.splitlines()[-1]))
        for learner in measured["here"][0]:
            medians = [statistics.median(each[learner] for each in measured[name]) for name in trees]
            ratio = f"{medians[1] / medians[0]:.2f} x" if len(medians) > 1 else ""
            table.add_row(learner, str(threads), *(f"{median:.2f}" for median in medians), ratio)
    Console(width=100).print(table)


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5, help="processes of each tree and number of threads")
    parser.add_argument("--against", metavar="PATH", help="another source tree of rlpipe")
    parser.add_argument("--threads", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.threads is not None:
        measure(options.threads)
    else:
        compare({"here": str(machine.ROOT), **({"there": options.against} if options.against else {})}, options.rounds)


if __name__ == "__main__":
    main()
