"""Measures many rollout workers on one machine: start, memory, driver time, and the loss of many at once.

    python benchmarks/many_workers.py                         # 250 workers, of which 100 are killed; needs 20 GiB
    python benchmarks/many_workers.py --workers 30 --kills 10 [key=value]...

Each worker steps the scripted simulator, on a Ray of the run's own. After half of the iterations, ``--kills``
processes of workers get SIGKILL, one right after the other. Then the run must complete, with every iteration once and
every ``env/*`` equal to what follows from the ledger.

Start is the time from the command to the first iteration's collection. Memory is read once while the run iterates: PSS
divides shared pages among those who share them, and USS leaves them out. Driver time is processor time of all its
threads between two rows before the kill.
"""

from __future__ import annotations

import argparse
import random
import statistics
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
from rich.console import Console
from rich.table import Table

sys.path.insert(0, str(Path(__file__).parent.parent))
from benchmarks.machine import describe, sentence
from benchmarks.memory import MIB, title
from benchmarks.worker_kills import workers
from rlpipe.config.loading import load_config
from rlpipe.config.tree import to_yaml
from rlpipe.run.directory import read_jsonl
from tests.helpers.faulty import assert_whole

GIB = 2**30
HORIZON = 16


def configuration(folder: Path, options: argparse.Namespace) -> str:
    """A run of many workers with little to do; Ray gives each a small share of a CPU."""
    tree = {
        "env": {"train": {"name": "scripted", "total_num_envs": options.workers, "match_actions": True}},
        "policy": {"name": "mlp", "hidden_sizes": [8]},
        "algorithm": {"name": "ppo", "update_epochs": 1, "num_minibatches": 1},
        "learner": {"device": "cpu", "num_threads": 1},
        "rollout": {"num_workers": options.workers, "horizon": HORIZON, "max_restarts": 2 * options.kills},
        "evaluation": {"episodes": options.workers},
        "cluster": {"cpus_per_worker": round(1 / options.workers, 4), "start_timeout": 3600.0},
        "runner": {
            "total_timesteps": options.iterations * options.workers * HORIZON,
            "report": False,
            "logger": {"log_path": str(folder), "experiment_name": "many", "logger_backends": []},
        },
    }
    return to_yaml(load_config(tree, options.overrides))


class Run:
    """Run in a process of its own.

    Attributes:
        driver: its process.
        began: seconds since 1970.
    """

    def __init__(self, folder: Path, options: argparse.Namespace) -> None:
        """Starts it."""
        self._folder, self._output = folder, folder / "output.txt"
        config = folder / "config.yaml"
        config.write_text(configuration(folder / "runs", options))
        self.began = time.time()
        with self._output.open("wb") as out:
            command = [sys.executable, "-m", "rlpipe", "train", str(config)]
            self.driver = psutil.Popen(command, stdout=out, stderr=out)

    @property
    def directory(self) -> Path:
        """Its directory."""
        (file,) = self._folder.glob("runs/*/*/run.json")
        return file.parent

    def rows(self) -> int:
        """Number of rows that it has written."""
        return sum(file.read_bytes().count(b"\n") for file in self._folder.glob("runs/*/*/metrics.jsonl"))

    def wait_for_row(self, count: int, look: Callable[[], Any] = lambda: None) -> int:
        """Waits until it has written so many rows, and looks meanwhile; returns their number.

        Raises:
            RuntimeError: it ended before.
        """
        while (rows := self.rows()) < count:
            if self.driver.poll() is not None:
                raise RuntimeError(f"the run ended with {self.driver.returncode}: {self.said()}")
            look()
            time.sleep(0.05)
        return rows

    def said(self) -> str:
        """End of what it printed."""
        return self._output.read_text()[-3000:]

    def processor_seconds(self) -> float:
        """Processor time of the driver until now."""
        times = self.driver.cpu_times()
        return float(times.user + times.system)

    def memory(self) -> Table:
        """Shows the memory of its processes by kind."""
        kinds: dict[str, list[Any]] = defaultdict(list)
        counts: dict[str, list[tuple[int, int]]] = defaultdict(list)
        for process in [self.driver, *self.driver.children(recursive=True)]:
            with suppress(psutil.Error, OSError):
                name = title(process, self.driver.pid)
                kinds[name].append(process.memory_full_info())
                counts[name].append((process.num_threads(), process.num_fds()))
        view = Table("process", "count", "PSS, MiB each", "USS, MiB each", "threads each", "open files, most")
        for name, infos in kinds.items():
            each = [statistics.median(getattr(info, kind) for info in infos) / MIB for kind in ("pss", "uss")]
            threads, files = zip(*counts[name], strict=True)
            view.add_row(
                name, f"{len(infos)}", *(f"{size:.0f}" for size in each), f"{statistics.median(threads):g}",
                f"{max(files)}",
            )  # fmt: skip
        whole = [sum(getattr(info, kind) for infos in kinds.values() for info in infos) for kind in ("pss", "uss")]
        view.add_row("all, GiB", "", *(f"{size / GIB:.2f}" for size in whole))
        return view


def measure(run: Run, options: argparse.Namespace, console: Console) -> None:
    """Measures a run from its start to its end."""
    lowest = psutil.virtual_memory().available

    def look() -> None:
        nonlocal lowest
        lowest = min(lowest, psutil.virtual_memory().available)

    first = run.wait_for_row(2, look)
    started = next(event for event in read_jsonl(run.directory / "events.jsonl") if event["kind"] == "started")
    console.print(f"start {started['time'] - run.began:.1f} s")
    before = run.processor_seconds()
    moment = options.iterations // 2
    last = run.wait_for_row(moment, look)
    busy = (run.processor_seconds() - before) / (last - first) / options.workers
    console.print(f"driver {1000 * busy:.2f} ms for each worker and iteration, over {last - first} iterations")
    console.print(run.memory())
    processes = {process.pid: process for process in workers(run.directory)}  # several workers may share one
    victims = random.Random(0).sample([*processes.values()], min(options.kills, len(processes)))
    rows, killed_at = run.rows(), time.time()
    for victim in victims:
        victim.kill()
    console.print(
        f"killed {len(victims)} of {len(processes)} processes of workers within {time.time() - killed_at:.2f} s, "
        f"after row {rows}"
    )
    run.wait_for_row(rows + 2, look)  # the next may have been complete already
    console.print(f"two more rows after {time.time() - killed_at:.1f} s")
    while run.driver.poll() is None:
        look()
        time.sleep(0.2)
    if run.driver.returncode:
        raise RuntimeError(f"the run ended with {run.driver.returncode}: {run.said()}")
    written = [row["metrics"] for row in read_jsonl(run.directory / "metrics.jsonl")]
    assert_whole(run.directory, options.iterations)
    restarted = [event for event in read_jsonl(run.directory / "events.jsonl") if event["kind"] == "restarted"]
    lost = sum(row.get("rollout/discarded_trajectories", 0) for row in written)
    steps = [row["time/step"] for row in written[1:]]
    console.print(
        f"{len(written)} iterations, each once, every env/* equal to the ledger's; {len(restarted)} workers replaced, "
        f"{lost:g} episodes lost; an iteration took {statistics.median(steps):.2f} s, the longest {max(steps):.1f} s; "
        f"{time.time() - run.began:.0f} s in all; least memory available {lowest / GIB:.1f} GiB"
    )


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs, measures and prints."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--workers", type=int, default=250)
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--iterations", type=int, default=20)
    parser.add_argument("overrides", nargs="*", help="of the configuration, key=value")
    options = parser.parse_args(arguments)
    console = Console(width=110)
    console.print(sentence(describe("ray", "torch")))
    with tempfile.TemporaryDirectory() as folder:
        run = Run(Path(folder), options)
        try:
            measure(run, options, console)
        finally:
            with suppress(psutil.Error):
                run.driver.terminate()
                run.driver.wait(300)


if __name__ == "__main__":
    main()
