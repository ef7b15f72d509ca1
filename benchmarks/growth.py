"""How much the processes of a run grow over many iterations: memory and open files of each, with intervals.

    python benchmarks/growth.py                                               # 50,000 iterations, at most an hour
    RAY_task_events_max_num_task_in_gcs=1000 python benchmarks/growth.py --iterations 20000

A run on a Ray of its own learns from two steps of the scripted simulator in each iteration, is saved every 100
iterations and evaluated every 500. Variables of the environment reach Ray's processes.

Memory is what a process has written (``RssAnon``): without files that it maps and without Ray's object store. After a
warm-up the iterations are divided into equal blocks. The growth is the mean of the differences between the medians of
neighbouring blocks, with a 95 % interval of Student's t over them: memory that wanders has independent differences, and
where it jumps to and fro about a line, the interval is too wide rather than too narrow.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path

import psutil
from rich.console import Console
from rich.table import Table

sys.path.insert(0, str(Path(__file__).parent.parent))
from benchmarks.machine import describe, sentence
from benchmarks.memory import title
from rlpipe.config.loading import load_config
from rlpipe.config.tree import to_yaml
from rlpipe.functional.intervals import student_quantile

HORIZON = 2
WARM_UP = 0.1
"""Share of the iterations that is left out at the beginning."""
BLOCKS = 20
LATER_BLOCKS = 10
"""Blocks whose growth is also printed by itself: what has a limit may have reached it by then."""


@dataclass(frozen=True)
class Sample:
    """Resources that a process held at one moment.

    Attributes:
        iteration: number of complete iterations.
        memory: MiB that it has written.
        resident: MiB of all that it has in memory.
        files: number of open files.
        threads: their number.
    """

    title: str
    iteration: int
    memory: float
    resident: float
    files: int
    threads: int

    @classmethod
    def of(cls, process: psutil.Process, driver: int, iteration: int) -> Sample:
        """Reads it from the kernel.

        Raises:
            OSError, psutil.Error: the process has ended.
        """
        status = dict(line.split(":", 1) for line in Path(f"/proc/{process.pid}/status").read_text().splitlines())
        memory, resident = (int(status[name].split()[0]) / 1024 for name in ("RssAnon", "VmRSS"))
        return cls(title(process, driver), iteration, memory, resident, process.num_fds(), process.num_threads())


@dataclass(frozen=True)
class Growth:
    """Growth for each 1,000 iterations, and half the width of its 95 % interval."""

    rate: float
    half_width: float


def growth(iterations: Sequence[float], values: Sequence[float], blocks: int) -> Growth:
    """Computes the growth from the samples after the warm-up, in blocks of equally many samples."""
    bounds = [round(place * len(values) / blocks) for place in range(blocks + 1)]
    pairs = list(pairwise(bounds))
    medians = [statistics.median(values[begin:end]) for begin, end in pairs]
    middles = [statistics.mean(iterations[begin:end]) for begin, end in pairs]
    rates = [
        1000 * (after - before) / (later - earlier)
        for (before, after), (earlier, later) in zip(pairwise(medians), pairwise(middles), strict=True)
    ]
    spread = statistics.stdev(rates) / len(rates) ** 0.5
    return Growth(statistics.mean(rates), student_quantile(0.95, len(rates) - 1) * spread)


def table(samples: Sequence[Sample]) -> Table:
    """Shows the growth of each process that lived all the time."""
    last = max((sample.iteration for sample in samples), default=0)
    counted = [sample for sample in samples if sample.iteration >= WARM_UP * last]
    moments = sorted({sample.iteration for sample in counted})
    if len(moments) < 2 * BLOCKS:
        raise SystemExit(f"{len(moments)} samples after {last:,} iterations do not fill {BLOCKS} blocks; run longer.")
    later = moments[-round(len(moments) * LATER_BLOCKS / BLOCKS)]
    view = Table(title=f"iterations {moments[0]:,} to {last:,}, {len(moments)} samples")
    for heading in ("process", "MiB", "MiB for each 1,000 iterations", f"from {later:,}", "open files", "threads"):
        view.add_column(heading, justify="left" if heading == "process" else "right")
    for name in dict.fromkeys(sample.title for sample in counted):
        series = [sample for sample in counted if sample.title == name]
        if len(series) != len(moments):
            continue
        cells = []
        for first, blocks in ((0, BLOCKS), (later, LATER_BLOCKS)):
            part = [sample for sample in series if sample.iteration >= first]
            result = growth([one.iteration for one in part], [one.memory for one in part], blocks)
            cells.append(f"{result.rate:+.4f} ± {result.half_width:.4f}")
        ends = series[0], series[-1]
        view.add_row(
            name, " → ".join(f"{end.memory:.1f}" for end in ends), *cells,
            " → ".join(f"{end.files}" for end in ends), " → ".join(f"{end.threads}" for end in ends),
        )  # fmt: skip
    return view


def configuration(folder: Path, iterations: int, overrides: Sequence[str]) -> str:
    """A run whose iterations cost as little as possible and that writes every kind of file."""
    tree = {
        "env": {"train": {"name": "scripted", "total_num_envs": 1, "match_actions": True}},
        "policy": {"name": "mlp", "hidden_sizes": [4]},
        "algorithm": {"name": "ppo", "update_epochs": 1, "num_minibatches": 1},
        "learner": {"device": "cpu", "num_threads": 1},
        "rollout": {"num_workers": 1, "horizon": HORIZON},
        "evaluation": {"episodes": 2},
        "runner": {
            "total_timesteps": iterations * HORIZON,
            "val_check_interval": 500,
            "save_interval": 100,
            "report": False,
            "logger": {"log_path": str(folder), "experiment_name": "growth", "logger_backends": ["tensorboard"]},
        },
    }
    return to_yaml(load_config(tree, overrides))


def sampled(folder: Path, options: argparse.Namespace) -> list[Sample]:
    """Runs, samples every process, and returns the samples.

    Raises:
        RuntimeError: the run failed.
    """
    config, output = folder / "config.yaml", folder / "output.txt"
    config.write_text(configuration(folder / "runs", options.iterations, options.overrides))
    ends = time.monotonic() + 60 * options.minutes
    with output.open("wb") as out:
        process = subprocess.Popen([sys.executable, "-m", "rlpipe", "train", str(config)], stdout=out, stderr=out)
    samples: list[Sample] = []
    iteration, due, place = 0, 0, 0
    try:
        while process.poll() is None and time.monotonic() < ends:
            time.sleep(0.2)
            for file in folder.glob("runs/*/*/metrics.jsonl"):
                with file.open("rb") as rows:
                    rows.seek(place)
                    new = rows.read()
                place, iteration = place + len(new), iteration + new.count(b"\n")
            if iteration < due:
                continue
            due = iteration + options.interval
            driver = psutil.Process(process.pid)
            for each in [driver, *driver.children(recursive=True)]:
                with suppress(psutil.Error, OSError, KeyError):
                    samples.append(Sample.of(each, process.pid, iteration))
                    print(json.dumps(asdict(samples[-1])), file=options.samples, flush=True)
        process.send_signal(signal.SIGTERM)  # does nothing to one that has completed
        code = process.wait(300)
    finally:
        process.kill()
    if code not in (0, 130):
        raise RuntimeError(f"the run ended with {code}: {output.read_text()[-2000:]}")
    return samples


def main(arguments: Sequence[str] | None = None) -> None:
    """Measures and prints the table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--iterations", type=int, default=50_000)
    parser.add_argument("--minutes", type=float, default=60.0, help="time after which the run is asked to end")
    parser.add_argument("--interval", type=int, default=50, help="iterations between samples")
    parser.add_argument("--samples", type=argparse.FileType("w"), default=os.devnull, help="where to write them")
    parser.add_argument("overrides", nargs="*", help="of the configuration, key=value")
    options = parser.parse_args(arguments)
    console = Console(width=120)
    with tempfile.TemporaryDirectory() as folder:
        samples = sampled(Path(folder), options)
    console.print(sentence(describe("ray", "torch", "numpy")))
    for name, value in os.environ.items():
        if name.startswith("RAY_"):
            console.print(f"{name}={value}")
    console.print(table(samples))


if __name__ == "__main__":
    main()
