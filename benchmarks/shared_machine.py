"""Measures how much longer a run takes on a machine that it shares with others.

    python benchmarks/shared_machine.py [--busy 4] [--runs 3] [--steps 16000] [--repeats 1] [OVERRIDE ...]

Trains CartPole (configs/ppo_cartpole.yaml, --local) alone, then beside --busy processes that only compute, then beside
--runs more runs of its own kind, and prints the seconds of each and their ratio. With C cores and B others, a fair
share of the machine makes a run with T busy threads (B + T) / C times slower, or as slow as alone if that is less.
A run that burns its share with waiting takes far longer. Start it on a machine that is otherwise idle.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator

from rich.console import Console
from rich.table import Table

_BUSY = "while True: pass"


def command(steps: int, folder: str, overrides: list[str]) -> list[str]:
    """Command line of one run, without evaluation and checkpoints."""
    return [
        sys.executable, "-m", "rlpipe", "train", "ppo_cartpole", "--local", f"runner.total_timesteps={steps}",
        "runner.logger.logger_backends=[]", f"runner.logger.log_path={folder}", *overrides,
    ]  # fmt: skip


@contextlib.contextmanager
def beside(others: list[list[str]]) -> Iterator[None]:
    """Keeps other processes running meanwhile."""
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    running = [subprocess.Popen(other, **quiet) for other in others]  # type: ignore[call-overload]
    try:
        yield
    finally:
        for process in running:
            process.kill()
            process.wait()


def seconds(others: list[list[str]], args: argparse.Namespace) -> float:
    """Seconds that a run takes beside others."""
    with tempfile.TemporaryDirectory() as folder, beside(others):
        began = time.perf_counter()
        subprocess.run(command(args.steps, folder, args.overrides), check=True, capture_output=True)
        return time.perf_counter() - began


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--busy", type=int, default=4, help="processes that only compute")
    parser.add_argument("--runs", type=int, default=3, help="other runs of the same kind")
    parser.add_argument("--steps", type=int, default=16_000, help="environment steps of the measured run")
    parser.add_argument("--repeats", type=int, default=1, help="times to measure each; the median counts")
    parser.add_argument("overrides", nargs="*", help="changes of the configuration, such as learner.num_threads=2")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        endless = command(100_000_000, folder, args.overrides)
        ways = {
            "alone": [],
            f"beside {args.busy} busy processes": [[sys.executable, "-c", _BUSY]] * args.busy,
            f"beside {args.runs} runs of its own kind": [endless] * args.runs,
        }
        table = Table("CartPole", "seconds", "times alone", title=f"{args.steps:,} steps on {os.cpu_count()} CPUs")
        alone = 0.0
        for name, others in ways.items():
            taken = statistics.median(seconds(others, args) for _ in range(args.repeats))
            alone = alone or taken
            table.add_row(name, f"{taken:.1f}", f"{taken / alone:.2f}")
    Console(width=100).print(table)


if __name__ == "__main__":
    main()
