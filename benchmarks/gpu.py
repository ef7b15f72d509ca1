"""Measures what learning costs on a GPU, in under ten minutes; needs torch and a GPU, no simulator and no network.

    python benchmarks/gpu.py --json gpu.json
    python benchmarks/gpu.py --small            # a rehearsal on the CPU, in a minute

- update: PPO's learner on random batches, four passes of eight minibatches, in float32 and bfloat16, compiled or not.
  Policies of state have about 0.3, 10 and 100 million parameters; one sees a camera of 128 x 128 pixels through
  ``impala_cnn``, and one decodes the 64 tokens of a chunk one after the other;
- steps: 128 gradient steps of RLPD with the networks, batches and demonstrations of configs/sparse_pick_cube.yaml, on
  random experience; a sample is a gradient step;
- act: actions of the same policies, whose observations come from the host, as on an inference server;
- minibatch: one optimiser step of the small policy, and what a CUDA graph of it gives;
- run: ``rlpipe train`` with scripted simulators on the CPU and the learner on the GPU, where Ray is installed.

Of each it reports the median seconds, copies from the host to the device, the share of time inside kernels, and the
peak memory. Rows that cannot be measured say why. When ``--budget`` is used up, the remaining rows are skipped. Exits
with 1 if a row failed.
"""

from __future__ import annotations

import argparse
import gc
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
from functools import partial
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).parent.parent))
from benchmarks import machine
from benchmarks.device import updates
from benchmarks.device.cost import measure
from benchmarks.device.updates import Subject

PACKAGES = ("rlpipe", "torch", "numpy", "ray")
COMMAND = ("ray", "typer", "rich")
"""Packages without which there is no ``rlpipe train`` on Ray."""
THREADS = 1
"""Number of torch's threads on the CPU; one, so that a rehearsal on a busy machine does not wait for others."""
Measured = dict[str, float]


class Skipped(Exception):  # noqa: N818 - no error
    """The reason why a row cannot be measured here."""


@dataclass(frozen=True)
class Row:
    """A measurement to make.

    Attributes:
        group: ``update``, ``steps``, ``act``, ``minibatch`` or ``run``.
        name: of the policy.
        precision: ``float32`` or ``bfloat16``.
        mode: ``eager``, ``compiled`` or ``graph``.
        measure: makes the measurement.
    """

    group: str
    name: str
    precision: str
    mode: str
    measure: Callable[[], Measured]

    @property
    def label(self) -> dict[str, str]:
        """Returns the cells that tell this row from others, by column."""
        return {"group": self.group, "name": self.name, "precision": self.precision, "mode": self.mode}


@dataclass(frozen=True)
class Update:
    """An update to measure: ``samples`` that a policy learns from."""

    name: str
    subject: Subject
    samples: int


@dataclass(frozen=True)
class Sizes:
    """Sizes of everything that is measured.

    Attributes:
        updates: first those of the small policy of state, with many samples and with as few as
            ``benchmarks/throughput.py`` has.
        compiled: number of updates that are measured compiled too.
        gradient_steps: of RLPD.
        rows: observations that are acted on at once.
        repeats: timed steps of a row.
        iterations: of the run.
    """

    updates: list[Update]
    compiled: int
    gradient_steps: int
    rows: int
    repeats: int
    iterations: int


SMALL_POLICY = updates.perceptron(256, 256, 256)
FULL = Sizes(
    [
        Update("0.3 M, 65536 samples", SMALL_POLICY, 65_536),
        Update("0.3 M, 3200 samples", SMALL_POLICY, 3_200),
        Update("10 M, 65536 samples", updates.perceptron(1536, 1536, 1536), 65_536),
        Update("100 M, 65536 samples", updates.perceptron(4992, 4992, 4992), 65_536),
        Update("camera, 4096 samples", updates.of_camera(128, {"name": "impala_cnn"}), 4_096),
        Update(
            "tokens, 4096 samples",
            updates.of_tokens(8, [1024, 1024], decoding="autoregressive", slot_width=256, decoder_layers=4),
            4_096,
        ),
    ],
    compiled=1,
    gradient_steps=128,
    rows=256,
    repeats=5,
    iterations=20,
)
SMALL = Sizes(
    [
        Update("0.3 M, 512 samples", SMALL_POLICY, 512),
        Update("0.3 M, 256 samples", SMALL_POLICY, 256),
        Update("camera, 64 samples", updates.of_camera(24, {"name": "impala_cnn", "channels": [4]}), 64),
        Update("tokens, 64 samples", updates.of_tokens(2, [16], decoding="autoregressive", bins=8), 64),
    ],
    compiled=0,
    gradient_steps=8,
    rows=4,
    repeats=2,
    iterations=6,
)


def measure_update(update: Update, precision: str, compiled: bool, device: str, repeats: int):
    """Measures an update of PPO's learner, from batches on the host to new weights on the host."""
    subject, samples = update.subject, update.samples
    config = updates.configuration(subject, samples, device, precision, compiled, num_threads=THREADS)
    learner = updates.make_learner(config, subject)
    batch = updates.random_batch(samples // updates.STEPS, subject)
    counted = {"parameters": updates.count_parameters(learner._policy), "samples": samples}
    return counted | measure(lambda: learner.update(0, 1, batch), device, samples, repeats)


def measure_steps(count: int, device: str, repeats: int):
    """Measures gradient steps of RLPD, after a fragment has been stored."""
    learner, batch = updates.make_rlpd(count, f"learner.device={device}", f"learner.num_threads={THREADS}")
    return {"samples": count} | measure(lambda: learner.update(0, 1, batch), device, count, repeats)


def measure_act(update: Update, rows: int, device: str, repeats: int):
    """Measures how long a policy takes to act."""
    act, policy = updates.acting(update.subject, rows, device)
    counted = {"parameters": updates.count_parameters(policy), "samples": rows}
    return counted | measure(act, device, rows, repeats)


def measure_minibatch(update: Update, precision: str, mode: str, device: str, repeats: int):
    """Measures one optimiser step, whose minibatch is on the device."""
    if mode == "graph" and device == "cpu":
        raise Skipped("CUDA graphs need a GPU")
    subject = update.subject
    config = updates.configuration(subject, update.samples, device, precision, mode == "compiled")
    step, count = updates.minibatch_step(config, subject, device, capturable=mode == "graph")
    step = updates.as_graph(step) if mode == "graph" else step
    counted = {"parameters": updates.count_parameters(subject.build(config)), "samples": count}
    return counted | measure(step, device, count, 10 * repeats)


def measure_run(device: str, iterations: int):
    """Measures a run on Ray: scripted simulators on the CPU, the learner on the device."""
    if absent := [package for package in COMMAND if importlib.util.find_spec(package) is None]:
        raise Skipped(f"not installed: {', '.join(absent)}")
    workers = 2 ** min(3, len(os.sched_getaffinity(0)).bit_length() - 1)
    envs, horizon = 64, 64
    config = {
        "env": {"train": {"name": "scripted", "script": [[{"length": 50}]], "total_num_envs": envs}},
        "policy": {"name": "mlp", "hidden_sizes": [256, 256, 256]},
        "algorithm": {"name": "ppo", "update_epochs": updates.EPOCHS, "num_minibatches": updates.MINIBATCHES},
        "rollout": {"horizon": horizon, "num_workers": workers},
        "learner": {"device": device, "num_threads": THREADS},
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
        ended = subprocess.run(command, cwd=machine.ROOT, capture_output=True, text=True, check=False)
        if ended.returncode != 0:
            raise RuntimeError(f"rlpipe train ended with exit code {ended.returncode}: {ended.stderr[-800:]}")
        (metrics,) = Path(folder).glob("runs/*/*/metrics.jsonl")
        rows = [json.loads(line)["metrics"] for line in metrics.read_text().splitlines()][2:-1]
    return {
        "samples": envs * horizon,
        "workers": workers,
        "seconds": statistics.median(row["time/step"] for row in rows),
        "samples_per_second": statistics.median(row["time/fps_interval"] for row in rows),
        "update_seconds": statistics.median(row["time/actor_training"] for row in rows),
    }


def rows(sizes: Sizes, device: str) -> Iterator[Row]:
    """All rows; compiled ones last, because a compiler takes the most time."""
    for mode in ("eager", "compiled"):
        for update in sizes.updates if mode == "eager" else sizes.updates[: sizes.compiled]:
            for precision in ("float32", "bfloat16"):
                step = partial(measure_update, update, precision, mode == "compiled", device, sizes.repeats)
                yield Row("update", update.name, precision, mode, step)
        if mode == "eager":
            steps = partial(measure_steps, sizes.gradient_steps, device, sizes.repeats)
            yield Row("steps", f"RLPD, {sizes.gradient_steps} steps", "float32", "eager", steps)
            yield Row("run", "scripted simulators", "float32", "eager", partial(measure_run, device, sizes.iterations))
            for name, update in {update.name.partition(",")[0]: update for update in sizes.updates}.items():
                act = partial(measure_act, update, sizes.rows, device, 4 * sizes.repeats)
                yield Row("act", f"{name}, {sizes.rows} rows", "float32", "eager", act)
            yield from minibatch_rows(sizes, device)


def minibatch_rows(sizes: Sizes, device: str) -> Iterator[Row]:
    """Rows of one optimiser step of the small policy."""
    for update in sizes.updates[:2]:
        for precision in ("float32", "bfloat16"):
            for mode in ("eager", "graph", "compiled"):
                if mode == "compiled" and not sizes.compiled:
                    continue
                name = f"0.3 M, {update.samples // updates.MINIBATCHES} samples"
                step = partial(measure_minibatch, update, precision, mode, device, sizes.repeats)
                yield Row("minibatch", name, precision, mode, step)


def measured(row: Row, until: float) -> dict[str, Any]:
    """Measures a row, or says why it was skipped or how it failed."""
    if time.monotonic() > until:
        return row.label | {"skipped": "the budget was used up"}
    try:
        return row.label | row.measure()
    except Skipped as reason:
        return row.label | {"skipped": str(reason)}
    except Exception as error:  # the others are still worth measuring
        return row.label | {"failed": f"{type(error).__name__}: {error}"[:1000]}
    finally:
        gc.collect()
        torch.compiler.reset()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()


def cells(row: dict[str, Any]) -> list[str]:
    """A row of the table."""
    label = [row[name] for name in ("group", "name", "precision", "mode")]
    if reason := row.get("skipped") or row.get("failed"):
        return [*label, *[""] * 6, str(reason).splitlines()[0][:60]]
    cost = [f"{row['parameters'] / 1e6:.1f}" if "parameters" in row else ""]
    cost += [f"{row['seconds'] * 1e3:,.2f}", f"{row['samples_per_second']:,.0f}"]
    if "kernel_share" not in row:
        return [*label, *cost, "", "", "", f"update {row['update_seconds'] * 1e3:,.1f} ms"]
    copies = f"{row['copies_to_device']:,} ({row['bytes_to_device'] / 1e6:,.1f} MB)"
    return [*label, *cost, copies, f"{row['kernel_share']:.0%}", f"{row['peak_memory_mib']:,.0f}", ""]


COLUMNS = (
    "what", "policy", "precision", "mode", "parameters, M", "ms", "samples/s", "copies to device", "in kernels",
    "peak MiB", "",
)  # fmt: skip


def show(found: list[dict[str, Any]]) -> None:
    """Prints the table, with rich where it is installed."""
    lines = [cells(row) for row in found]
    if importlib.util.find_spec("rich") is None:
        widths = [max(len(line[column]) for line in [COLUMNS, *lines]) for column in range(len(COLUMNS))]
        for line in [COLUMNS, *lines]:
            print("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip())
        return
    from rich.console import Console
    from rich.table import Table

    table = Table(*COLUMNS)
    for line in lines:
        table.add_row(*line)
    Console(width=170, highlight=False).print(table)


def main() -> None:
    """Measures row by row, prints the table, and writes the JSON after each row."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--small", action="store_true", help="small sizes on the CPU")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all measurements there")
    parser.add_argument("--budget", type=float, default=480.0, metavar="SECONDS", help="after which no row is begun")
    options = parser.parse_args()
    if not options.small and not torch.cuda.is_available():
        sys.exit("torch finds no GPU here; --small rehearses on the CPU.")
    device, sizes = ("cpu", SMALL) if options.small else ("cuda", FULL)
    torch.set_num_threads(THREADS)
    described = machine.describe(*PACKAGES) | {"gpu": None if options.small else torch.cuda.get_device_name()}
    policies = {update.name: dict(update.subject.policy) for update in sizes.updates}
    result: dict[str, Any] = {"machine": described, "policies": policies, "rows": []}
    print(machine.sentence(described), flush=True)
    until = time.monotonic() + options.budget
    for row in rows(sizes, device):
        print(" ".join(row.label.values()), end=": ", flush=True)
        result["rows"].append(measured(row, until))
        last = result["rows"][-1]
        print(last.get("skipped") or last.get("failed") or f"{last['seconds'] * 1e3:,.2f} ms", flush=True)
        machine.write(options.json, result)
    show(result["rows"])
    if any("failed" in row for row in result["rows"]):
        sys.exit(1)


if __name__ == "__main__":
    main()
