"""Measures the time from ``rlpipe train CONFIG`` to the first environment step, and what it costs.

    python benchmarks/startup.py                                     # configs/ppo_push_cube.yaml, five times
    python benchmarks/startup.py configs/grpo_push_cube.yaml -n 3    # another configuration, three times
    python benchmarks/startup.py --compare ../before                 # in turn with another checkout of rlpipe

Each run is a user's command in a process of its own, ended after its first iteration. Printed are, in seconds after
the command, the median and the range of

- driver imported: the driver begins to start Ray;
- Ray ready: the driver begins to start the rollout workers;
- workers ready: the first worker is asked to collect;
- first step: the first worker has reset its environments and takes the first step;

and the processor seconds that all processes of the run have used up to the first step, by kind of process. Other work
on the machine lengthens the seconds more than the processor seconds; with ``--compare``, trust the ratios.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import IO, Any

import psutil

REPOSITORY = Path(__file__).parent.parent
MOMENTS = ("driver imported", "Ray ready", "workers ready", "first step")
SAMPLE_SECONDS = 0.1
LIMIT_SECONDS = 180.0
KINDS = (
    ("rollout worker", r"ray::rollout"),
    ("learner", r"ray::learner"),
    ("metric logger", r"ray::metric-logger"),
    ("inference server", r"ray::inference"),
    ("process template", r"template_server"),
    ("Ray's agents", r"ray::\w*Agent"),
    ("Ray's idle workers", r"ray::|default_worker\.py|worker_entry\.py"),
    ("Ray's servers", r"/raylet/raylet|/gcs/gcs_server"),
    ("Ray's agents", r"agent|log_monitor|monitor\.py|dashboard"),
)
"""Kinds of processes and the pattern of their command line; the first that matches counts."""


class ProcessorTimes:
    """Processor seconds of a process and its descendants over time, by process."""

    def __init__(self, root: psutil.Process) -> None:
        """Takes no sample yet."""
        self._root = root
        self._samples: list[tuple[float, dict[int, tuple[str, float]]]] = []
        self._last: dict[int, tuple[str, float]] = {}

    def sample(self) -> None:
        """Records the seconds that each living process has used; one that has ended keeps its last number."""
        try:
            processes = [self._root, *self._root.children(recursive=True)]
        except psutil.NoSuchProcess:
            return
        for process in processes:
            try:
                times = process.cpu_times()
                kind = "driver" if process == self._root else _kind(" ".join(process.cmdline()))
                self._last[process.pid] = kind, times.user + times.system
            except (psutil.NoSuchProcess, psutil.ZombieProcess):
                continue
        self._samples.append((time.time(), dict(self._last)))

    def until(self, moment: float) -> Counter[str]:
        """Returns the seconds by kind of process up to a moment, as in the first sample after it.

        A process counts with the kind that it has at the end: Ray names an actor's process only when it gets it.
        """
        kinds = {pid: kind for pid, (kind, _) in self._last.items()}
        _, processes = next((entry for entry in self._samples if entry[0] >= moment), self._samples[-1])
        seconds: Counter[str] = Counter()
        for pid, (_, used) in processes.items():
            seconds[kinds[pid]] += used  # type: ignore[assignment]
        return seconds


def _kind(command: str) -> str:
    return next((kind for kind, pattern in KINDS if re.search(pattern, command)), "other")


def _read_lines(stream: IO[str], into: list[tuple[float, str]]) -> None:
    into.extend((time.time(), line) for line in stream)


def measure(config: str, overrides: Iterable[str], repository: Path) -> dict[str, Any]:
    """Runs the command once; returns its moments in seconds, and the processor seconds up to the first step."""
    with tempfile.TemporaryDirectory() as folder:
        runs, lines = Path(folder, "runs"), list[tuple[float, str]]()
        began = time.time()
        process = subprocess.Popen(
            [*(sys.executable, "-m", "rlpipe", "train", config), *overrides, f"runner.logger.log_path={runs}"],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            cwd=repository,
            env={**os.environ, "PYTHONPATH": str(repository)},
        )
        assert process.stderr is not None
        reader = threading.Thread(target=_read_lines, args=(process.stderr, lines))
        reader.start()
        times = ProcessorTimes(psutil.Process(process.pid))
        try:
            spans = _wait_for_first_iteration(process, runs, times, lines)
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait()
            reader.join()
    first = {
        name: min(span["began"] for span in spans if span["name"] == name and span["part"].startswith("rollout"))
        for name in ("first reset", "collect")
    }
    moments = (
        _moment_of(lines, "Starting Ray"),
        _moment_of(lines, r"Starting \d+ rollout worker"),
        first["first reset"],
        first["collect"],
    )
    processor = times.until(first["collect"])
    return {**{name: at - began for name, at in zip(MOMENTS, moments, strict=True)}, "processor": processor}


def _wait_for_first_iteration(
    process: subprocess.Popen[str], runs: Path, times: ProcessorTimes, lines: list[tuple[float, str]]
) -> list[dict[str, Any]]:
    """Samples processor times until the first iteration is in the run's timeline; returns its spans."""
    ends = time.monotonic() + LIMIT_SECONDS
    while time.monotonic() < ends and process.poll() is None:
        times.sample()
        for file in runs.glob("*/*/timeline.jsonl"):
            spans: list[dict[str, Any]] = []
            for line in file.read_text().splitlines():
                spans += json.loads(line)["spans"]
            if spans:
                return spans
        time.sleep(SAMPLE_SECONDS)
    raise RuntimeError(f"rlpipe train did not finish an iteration:\n{''.join(line for _, line in lines)}")


def _moment_of(lines: list[tuple[float, str]], pattern: str) -> float:
    return next((at for at, line in lines if re.search(pattern, line)), float("nan"))


def _report(title: str, measured: list[dict[str, Any]]) -> None:
    print(f"\n{title}: {len(measured)} runs, median (range)")
    for name in MOMENTS:
        seconds = [entry[name] for entry in measured]
        print(f"  {name:<22}{statistics.median(seconds):6.2f} s  ({min(seconds):.2f} to {max(seconds):.2f})")
    kinds = sorted({kind for entry in measured for kind in entry["processor"]})
    totals = [sum(entry["processor"].values()) for entry in measured]
    print(f"  {'processor seconds':<22}{statistics.median(totals):6.2f} s  ({min(totals):.2f} to {max(totals):.2f})")
    medians = {kind: statistics.median(entry["processor"][kind] for entry in measured) for kind in kinds}
    for kind, seconds in sorted(medians.items(), key=lambda item: -item[1]):
        print(f"    {kind:<20}{seconds:6.2f} s")


def main() -> None:
    """Runs the command several times and prints the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("config", nargs="?", default=str(REPOSITORY / "configs" / "ppo_push_cube.yaml"))
    parser.add_argument("overrides", nargs="*", metavar="key=value")
    parser.add_argument("-n", type=int, default=5, help="number of runs (default: 5)")
    parser.add_argument("--compare", type=Path, metavar="CHECKOUT", help="another checkout, measured in turn")
    options = parser.parse_intermixed_args()
    checkouts = {"this checkout": REPOSITORY, **({"the other": options.compare.resolve()} if options.compare else {})}
    measured: dict[str, list[dict[str, Any]]] = {name: [] for name in checkouts}
    for index in range(options.n):
        for name, checkout in checkouts.items():
            entry = measure(str(Path(options.config).resolve()), options.overrides, checkout)
            measured[name].append(entry)
            total = sum(entry["processor"].values())
            load = os.getloadavg()[0]
            print(
                f"run {index + 1}, {name}: first step after {entry['first step']:.2f} s, {total:.1f} processor seconds "
                f"(load {load:.1f})",
                flush=True,
            )
    for name, entries in measured.items():
        _report(name, entries)


if __name__ == "__main__":
    main()
