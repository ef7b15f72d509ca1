"""Kills a run at random moments (SIGKILL) and resumes it each time; then checks that every store holds it exactly once.

Half of the time only the run is killed, half of the time its backend processes too, as when a machine is lost. The
moments are random, but follow from a seed. Exits with 1 if a number in a store differs from ``metrics.jsonl``.

    python benchmarks/kills.py [--kills 50] [--seed 0]
"""

from __future__ import annotations

import argparse
import importlib
import os
import platform
import random
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path

import psutil
from rich.console import Console
from rich.progress import track
from rich.table import Table

sys.path.insert(0, str(Path(__file__).parent.parent))
from rlpipe.config.tree import to_yaml
from rlpipe.run.directory import RunDirectory, read_jsonl
from tests.helpers.outages import wrong_rows
from tests.helpers.runs import scripted

BACKENDS = ("tensorboard", "wandb", "swanlab", "csv")
LONGEST = 6.0
"""Longest time in seconds from a new row to the kill."""
SAVE_INTERVAL = 7
"""Iterations between checkpoints; a run without a checkpoint starts from the beginning instead of resuming."""


def lines(run: Path) -> int:
    """Number of rows written so far."""
    return (run / "metrics.jsonl").read_bytes().count(b"\n") if (run / "metrics.jsonl").is_file() else 0


def killed(command: list[str], folder: Path, moment: float, backends_too: bool) -> Path:
    """Starts a run, kills it ``moment`` seconds after its first new row, and returns its directory."""
    before = {run: lines(run) for run in folder.glob("scripted/*")}
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    while not any(SAVE_INTERVAL < lines(run) != before.get(run, 0) for run in folder.glob("scripted/*")):
        if process.poll() is not None:
            raise RuntimeError(f"the run ended with {process.returncode}: {process.stderr.read().decode()}")
        time.sleep(0.01)
    time.sleep(moment)
    both = backends_too and process.poll() is None
    backends = psutil.Process(process.pid).children(recursive=True) if both else []
    process.kill()
    for backend in backends:
        with suppress(psutil.NoSuchProcess):
            backend.kill()
    process.wait()
    (run,) = folder.glob("scripted/*")
    return run


def main() -> int:
    """Runs, kills, resumes, compares."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    chance = random.Random(arguments.seed)
    stores = {name: importlib.import_module(f"tests.helpers.stores.{name}") for name in BACKENDS}
    iterations = 100 + 25 * arguments.kills
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        options = [option for store in stores.values() for option in store.OPTIONS]
        config = scripted(
            folder, f"runner.logger.logger_backends=[{','.join(BACKENDS)}]", *options,
            f"runner.save_interval={SAVE_INTERVAL}", f"runner.total_timesteps={64 * iterations}",
            "env.train.step_seconds=0.002", "runner.logger.finish_timeout=600",
        )  # fmt: skip
        (folder / "config.yaml").write_text(to_yaml(config), encoding="utf-8")
        train = [sys.executable, "-m", "rlpipe", "train"]
        command = [*train, str(folder / "config.yaml"), "--local"]
        for _ in track(range(arguments.kills), "Kills"):
            run = killed(command, folder, chance.uniform(0, LONGEST), chance.random() < 0.5)
            command = [*train, "--resume", str(run), "--local"]
        ended = subprocess.run(command, capture_output=True, text=True, check=False)
        directory = RunDirectory(run)
        found = [row["iteration"] for row in read_jsonl(run / "metrics.jsonl")]
        table = Table(title=f"{arguments.kills} kills, {platform.machine()}, {os.cpu_count()} cores")
        for column in ("store", "iterations", "missing or different", "exactly once"):
            table.add_column(column)
        once = found == list(range(1, iterations + 1))
        table.add_row("metrics.jsonl", str(len(found)), "0", "yes" if once else "no")
        wrong = 0 if once else 1
        for name, store in stores.items():
            try:
                differ, doubled = wrong_rows(directory, store), ""
            except AssertionError as error:
                differ, doubled = len(found), str(error)
            wrong += bool(differ)
            table.add_row(name, str(len(found)), str(differ), doubled or ("no" if differ else "yes"))
        console = Console(width=120)
        console.print(table)
        console.print(f"exit code of the last run: {ended.returncode}")
        return int(bool(wrong) or ended.returncode != 0)


if __name__ == "__main__":
    sys.exit(main())
