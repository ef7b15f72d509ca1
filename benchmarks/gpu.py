"""Measures what learning costs on a GPU and what CUDA graphs save, in under eight minutes.

    python benchmarks/gpu.py --json gpu.jsonl
    python benchmarks/gpu.py --small                        # a rehearsal on the CPU, in about a minute
    python benchmarks/gpu.py --show gpu.jsonl [--markdown]  # the tables of an earlier measurement

It needs a checkout, a GPU, torch and NumPy. The floor needs no more. Everything else imports ``omegaconf``, ``psutil``,
``pydantic`` (which brings ``pydantic_core``, ``annotated_types``, ``typing_extensions`` and ``typing_inspection``),
``rich`` (``markdown_it``, ``mdurl``, ``pygments``) and ``yaml``; RLPD and cloning ``h5py``; the run ``ray`` with all
that ``rlpipe train`` imports. No simulator and no network is used. A row that lacks a package is skipped, and says so.
On a machine whose time is dear, this is the whole command; the rows that decide most come first:

    python benchmarks/gpu.py --budget 400 --json $OUT/gpu.jsonl

- update: the learners of RLPD, PPO, GRPO, SAC and cloning on random batches, eager (``learner.graphs=false``), with
  CUDA graphs (``true``), and the smaller ones on the CPU of the same machine: samples or gradient steps a second,
  time inside kernels, launches, memory, and whether the graphs end with the bits of the eager learner, moments and
  targets included. PPO with 0.3, 10 and 100 million parameters, 3,200 and 65,536 samples, in float32, tf32 and
  bfloat16, with a camera of 128 x 128 pixels and with tokens; the largest update compiled, too;
- reads: how often an update waits for the device, by file and line. Rehearsed on a CPU, it counts the operations that
  would wait;
- floor: microseconds of an addition, a read, copies, a mask, and of a graph and each of its nodes;
- act: actions for observations that come from the host, as on an inference server;
- run: ``rlpipe train`` with scripted simulators on the CPU and the learner on the GPU.

Each row is written as one line of JSON as soon as it is measured, in a process of its own: a crash costs one row.
Tables and goals are printed last. After ``--budget`` seconds no row is begun. Exits with 1 if a row failed.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent))
from benchmarks import machine
from benchmarks.device import cost, host, plan, tables
from benchmarks.device.plan import Plan, Skipped, Update
from benchmarks.device.worker import Worker

PACKAGES = ("rlpipe", "torch", "numpy", "ray")
NEEDS = {"update": ("omegaconf", "psutil", "pydantic", "rich", "yaml"), "demos": ("h5py",), "run": ("ray", "typer")}
"""Packages without which there are no updates, no demonstrations, or no ``rlpipe train`` on Ray."""
LONGEST = 100.0
"""Seconds after which a row is given up on a GPU."""
Result = dict[str, Any]


@dataclass(frozen=True)
class Row:
    """A measurement to make.

    Attributes:
        part: ``update``, ``reads``, ``floor``, ``act`` or ``run``.
        name: of what is measured.
        measure: makes the measurement, within so many seconds.
        precision: of an update.
        mode: ``eager``, ``graphs`` or ``cpu``.
        goals: what the measurement shall reach, for ``tables``.
    """

    part: str
    name: str
    measure: Callable[[float], Result]
    precision: str = ""
    mode: str = ""
    goals: dict[str, float] | None = None

    @property
    def label(self) -> Result:
        """Facts about a row before anything is measured."""
        label = {"part": self.part, "name": self.name, "precision": self.precision, "mode": self.mode}
        return {key: value for key, value in label.items() if value} | ({"goals": self.goals} if self.goals else {})


def require(*kinds: str) -> None:
    """Raises Skipped if a package is not installed."""
    packages = [package for kind in kinds for package in NEEDS[kind]]
    if absent := [package for package in packages if importlib.util.find_spec(package) is None]:
        raise Skipped(f"not installed: {', '.join(absent)}")


class Bench:
    """Makes all measurements of a plan on a device; processes that were profiled time nothing."""

    def __init__(self, sizes: Plan, device: str, folder: Path, timing: Worker, profiling: Worker) -> None:
        self._plan, self._device, self._folder = sizes, device, folder
        self._timing, self._profiling = timing, profiling

    def rows(self) -> Iterator[Row]:
        """All rows, those that decide most first."""
        sizes, device, calls = self._plan, self._device, self._plan.calls
        for update in sizes.decisive:
            yield from self._updates(update)
        for update in sizes.reads:
            for mode in ("graphs", "eager") if device == "cuda" else ("cpu",):
                yield Row("reads", update.name, self._with(update, mode, self._reads), update.precision, mode)
        for name, floor in (("host", host.measure_floor), ("CUDA graph", host.measure_graph_floor)):
            yield Row("floor", name, lambda limit, floor=floor: self._timing.call(floor, device, calls, timeout=limit))
        for update in sizes.others:
            yield from self._updates(update)
        yield Row("run", "scripted", lambda limit: measure_run(device, sizes.iterations, limit))
        for update in sizes.acting:
            yield Row("act", update.title, self._with(update, "eager", self._act))
        for update in sizes.compiled:
            yield from self._updates(update)

    def _updates(self, update: Update) -> Iterator[Row]:
        modes = ["cpu"] if self._device == "cpu" else ["eager"]
        modes += ["graphs", *(["cpu"] if update.on_cpu else [])]
        for mode in modes:
            yield Row(
                "update", update.name, self._with(update, mode, self._update), update.precision, mode,
                dict(update.goals) if mode == "graphs" else None,
            )  # fmt: skip

    def _with(self, update: Update, mode: str, function: Callable[..., Result]) -> Callable[[float], Result]:
        """Calls a method on an update, a device and a mode, if they are possible here."""

        def measure(limit: float) -> Result:
            require("update", *(["demos"] if update.algorithm in ("rlpd", "behaviour_cloning") else []))
            if mode == "graphs" and self._device == "cpu":
                raise Skipped("CUDA graphs need a GPU")
            return function(update, "cpu" if mode == "cpu" else self._device, mode, limit)

        return measure

    def _reads(self, update: Update, device: str, mode: str, limit: float) -> Result:
        return self._timing.call(host.count_reads, update, device, mode, timeout=limit)

    def _act(self, update: Update, device: str, _mode: str, limit: float) -> Result:
        return self._timing.call(cost.measure_act, update, device, self._plan.rows, 20, timeout=limit)

    def _update(self, update: Update, device: str, mode: str, limit: float) -> Result:
        """Times an update, and then profiles it in the other process."""
        weights = str(self._folder / "weights.npz")
        if mode != "graphs":
            Path(weights).unlink(missing_ok=True)
        measured = self._timing.call(cost.measure_update, update, device, mode, weights, timeout=limit)
        if device != self._device:
            return measured
        what = (cost.profile_update, update, device, mode, measured["seconds"])
        try:
            return measured | self._profiling.call(*what, timeout=limit)
        except RuntimeError as error:
            return measured | {"unprofiled": str(error)}


def measure_run(device: str, iterations: int, limit: float) -> Result:
    """Measures a run on Ray: scripted simulators on the CPU, the learner on the device."""
    require("update", "run")
    workers = 2 ** min(3, len(os.sched_getaffinity(0)).bit_length() - 1)
    envs, horizon = 64, 64
    config = {
        "env": {"train": {"name": "scripted", "script": [[{"length": 50}]], "total_num_envs": envs}},
        "policy": plan.SMALL_POLICY,
        "algorithm": {"name": "ppo", "update_epochs": plan.EPOCHS, "num_minibatches": plan.MINIBATCHES},
        "rollout": {"horizon": horizon, "num_workers": workers},
        "learner": {"device": device, "num_threads": 1},
        "evaluation": {"episodes": 1},
        "runner": {
            "total_timesteps": iterations * envs * horizon,
            "report": False,
            "logger": {"logger_backends": []},
        },
    }
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "config.yaml"
        file.write_text(json.dumps(config))  # JSON is YAML
        command = [sys.executable, "-m", "rlpipe", "train", str(file), f"runner.logger.log_path={folder}/runs"]
        ended = subprocess.run(command, cwd=machine.ROOT, capture_output=True, text=True, check=False, timeout=limit)
        if ended.returncode != 0:
            raise RuntimeError(f"rlpipe train ended with exit code {ended.returncode}: {ended.stderr[-800:]}")
        (metrics,) = Path(folder).glob("runs/*/*/metrics.jsonl")
        rows = [json.loads(line)["metrics"] for line in metrics.read_text().splitlines()][2:-1]
    return {
        "count": envs * horizon,
        "workers": workers,
        "seconds": statistics.median(row["time/step"] for row in rows),
        "per_second": statistics.median(row["time/fps_interval"] for row in rows),
        "update_seconds": statistics.median(row["time/actor_training"] for row in rows),
    }


def measured(row: Row, until: float, device: str) -> Result:
    """Measures a row, or says why it was skipped or how it failed."""
    left = until - time.monotonic()
    if left <= 0:
        return row.label | {"skipped": "the budget was used up"}
    try:
        return row.label | row.measure(left if device == "cpu" else LONGEST)
    except Skipped as reason:
        return row.label | {"skipped": str(reason)}
    except Exception as error:  # the others are still worth measuring
        return row.label | {"failed": f"{type(error).__name__}: {error}"[:1000]}


def measure_all(options: argparse.Namespace) -> list[Result]:
    """Measures row by row. Writes each as a line of JSON."""
    until = time.monotonic() + options.budget
    os.environ.setdefault("KINETO_LOG_LEVEL", "6")  # or each profile announces its stages
    timing = Worker()
    profiling = timing if options.small else Worker()
    try:
        described = timing.call(host.describe_device, timeout=LONGEST)
        if not options.small and described["gpu"] is None:
            sys.exit("torch finds no GPU here; --small rehearses on the CPU.")
        here = machine.describe(*PACKAGES)
        described["versions"] = here["versions"] | described["versions"]
        described = here | described
        print(machine.sentence(described), flush=True)
        append(options.json, {"machine": described})
        device, sizes = ("cpu", plan.small()) if options.small else ("cuda", plan.full())
        rows = []
        with tempfile.TemporaryDirectory() as folder:
            for row in Bench(sizes, device, Path(folder), timing, profiling).rows():
                began = time.monotonic()
                rows.append(measured(row, until, device) | {"took": round(time.monotonic() - began, 1)})
                append(options.json, rows[-1])
                print(progress(rows[-1]), flush=True)
        return rows
    finally:
        for worker in {timing, profiling}:
            worker.close()


def append(file: Path | None, row: Result) -> None:
    """Adds a line to the file, if one was given."""
    if file is not None:
        with file.open("a") as out:
            out.write(json.dumps(row, allow_nan=False) + "\n")


def progress(row: Result) -> str:
    """A row in one line, as soon as it is measured."""
    label = " ".join(row[key] for key in ("part", "name", "precision", "mode") if key in row)
    figure = f"{row['per_second']:,.0f}/s" if "per_second" in row else ""
    return f"{label}: {tables.reason(row) or figure or 'measured'} ({row['took']:.1f} s)"


def main() -> None:
    """Measures row by row, then prints the tables and the goals."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--small", action="store_true", help="small sizes on the CPU")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the machine and each row there, a line each")
    parser.add_argument("--budget", type=float, default=440.0, metavar="SECONDS", help="after which no row is begun")
    parser.add_argument("--show", type=Path, metavar="FILE", help="print the tables of this file, and measure nothing")
    parser.add_argument("--markdown", action="store_true", help="print the tables as Markdown")
    options = parser.parse_args()
    if options.show:
        first, *rows = map(json.loads, options.show.read_text().splitlines())
        print(machine.sentence(first["machine"]))
    else:
        if options.json is not None:
            options.json.unlink(missing_ok=True)
        rows = measure_all(options)
    tables.show(rows, options.markdown)
    print(f"measured in {sum(row['took'] for row in rows):.0f} s")
    if any("failed" in row or "unprofiled" in row for row in rows):
        sys.exit(1)


if __name__ == "__main__":
    main()
