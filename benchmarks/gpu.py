"""Measures what learning costs on a GPU, in under ten minutes; needs torch and a GPU, no simulator and no network.

    python benchmarks/gpu.py --json gpu.json
    python benchmarks/gpu.py --small            # a rehearsal on the CPU, in a minute

- update: ``rlpipe.learning.on_policy.Learner`` on random batches, four passes of eight minibatches, for policies of
  about 0.3, 10 and 100 million parameters, in float32 and bfloat16, compiled or not;
- minibatch: one optimiser step of the small policy, and what a CUDA graph of it gives;
- camera and tokens: policies that rlpipe does not have yet. Plain torch modules of the same shape stand in for them;
- run: ``rlpipe train`` with scripted simulators on the CPU and the learner on the GPU, where Ray is installed.

Of each it reports the median seconds, copies from the host to the device, the share of time inside kernels, and the
peak memory. Rows that cannot be measured say why. When ``--budget`` is used up, the remaining rows are skipped. Exits
with 1 if a row failed.
"""

from __future__ import annotations

import argparse
import dataclasses
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
from benchmarks.device import stand_ins, updates
from benchmarks.device.cost import measure

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
        group: ``update``, ``minibatch``, ``camera``, ``tokens`` or ``run``.
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
class Sizes:
    """Sizes of everything that is measured.

    Attributes:
        policies: hidden layers of the policies, by name; the first is the small one.
        samples: of an update.
        few_samples: of an update as small as that of ``benchmarks/throughput.py``.
        compiled: number of policies whose compiled update is measured.
        camera: of the camera policy.
        tokens: of the token policy.
        repeats: timed steps of a row.
        iterations: of the run.
    """

    policies: dict[str, list[int]]
    samples: int
    few_samples: int
    compiled: int
    camera: stand_ins.Camera
    tokens: stand_ins.Tokens
    repeats: int
    iterations: int


FULL = Sizes(
    {"0.3 M": [256] * 3, "10 M": [1536] * 3, "100 M": [4992] * 3},
    samples=65_536,
    few_samples=3_200,
    compiled=3,
    camera=stand_ins.Camera(images=4_096, pixels=128),
    tokens=stand_ins.Tokens(sequences=256, prefix=64, width=768, layers=12, heads=12),
    repeats=5,
    iterations=20,
)
SMALL = Sizes(
    {"0.3 M": [256] * 3, "tiny": [16] * 3},
    samples=512,
    few_samples=256,
    compiled=0,
    camera=stand_ins.Camera(images=16, pixels=64),
    tokens=stand_ins.Tokens(sequences=4, prefix=8, width=32, layers=2, heads=2),
    repeats=2,
    iterations=6,
)


def measure_update(hidden: list[int], samples: int, precision: str, compiled: bool, device: str, repeats: int):
    """Measures an update of the learner, from batches on the host to new weights on the host."""
    config = updates.configuration(hidden, samples, device, precision, compiled, num_threads=THREADS)
    learner, batch = updates.make_learner(config), updates.random_batch(samples // updates.STEPS)
    counted = {"parameters": updates.count_parameters(config), "samples": samples}
    return counted | measure(lambda: learner.update(0, 1, batch), device, samples, repeats)


def measure_minibatch(hidden: list[int], samples: int, precision: str, mode: str, device: str, repeats: int):
    """Measures one optimiser step, whose minibatch is on the device."""
    if mode == "graph" and device == "cpu":
        raise Skipped("CUDA graphs need a GPU")
    config = updates.configuration(hidden, samples, device, precision, mode == "compiled")
    step, count = updates.minibatch_step(config, device, capturable=mode == "graph")
    step = updates.as_graph(step) if mode == "graph" else step
    counted = {"parameters": updates.count_parameters(config), "samples": count}
    return counted | measure(step, device, count, 10 * repeats)


def measure_stand_in(make: Callable[[], tuple[Callable[[], Any], int, torch.nn.Module]], device: str, repeats: int):
    """Measures a step of a stand-in."""
    step, samples, policy = make()
    counted = {"parameters": sum(each.numel() for each in policy.parameters()), "samples": samples}
    return counted | measure(step, device, samples, repeats)


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
        "runner": {"total_timesteps": iterations * envs * horizon, "logger": {"logger_backends": []}},
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


def stand_in_rows(sizes: Sizes, device: str) -> Iterator[Row]:
    """Rows of the camera policy and the token policy."""
    for precision in ("float32", "bfloat16"):
        for mode in ("eager", "compiled") if sizes.compiled else ("eager",):
            compiled = mode == "compiled"
            camera = partial(stand_ins.camera_update, sizes.camera, device, precision, compiled=compiled)
            tokens = partial(stand_ins.token_update, sizes.tokens, device, precision, compiled=compiled)
            yield Row("camera", "stand-in, update", precision, mode, partial(measure_stand_in, camera, device, 3))
            yield Row("tokens", "stand-in, step", precision, mode, partial(measure_stand_in, tokens, device, 5))
        act = partial(stand_ins.decode_tokens, sizes.tokens, device, precision)
        yield Row("tokens", "stand-in, act", precision, "eager", partial(measure_stand_in, act, device, 5))


def rows(sizes: Sizes, device: str) -> Iterator[Row]:
    """All rows; compiled ones last, because a compiler takes the most time."""
    small = next(iter(sizes.policies.values()))
    updated = [
        *((f"{name}, {sizes.samples} samples", hidden, sizes.samples) for name, hidden in sizes.policies.items()),
        (f"{next(iter(sizes.policies))}, {sizes.few_samples} samples", small, sizes.few_samples),
    ]
    for mode in ("eager", "compiled"):
        chosen = updated if mode == "eager" else updated[: sizes.compiled]
        for name, hidden, samples in chosen:
            for precision in ("float32", "bfloat16"):
                given = (hidden, samples, precision, mode == "compiled", device, sizes.repeats)
                yield Row("update", name, precision, mode, partial(measure_update, *given))
        if mode == "eager":
            yield Row("run", "scripted simulators", "float32", "eager", partial(measure_run, device, sizes.iterations))
            yield from minibatch_rows(sizes, small, device)
            yield from stand_in_rows(sizes, device)


def minibatch_rows(sizes: Sizes, hidden: list[int], device: str) -> Iterator[Row]:
    """Rows of one optimiser step of the small policy."""
    for samples in (sizes.few_samples, sizes.samples):
        for precision in ("float32", "bfloat16"):
            for mode in ("eager", "graph", "compiled"):
                if mode == "compiled" and not sizes.compiled:
                    continue
                given = (hidden, samples, precision, mode, device, sizes.repeats)
                name = f"0.3 M, {samples // updates.MINIBATCHES} samples"
                yield Row("minibatch", name, precision, mode, partial(measure_minibatch, *given))


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
    result: dict[str, Any] = {"machine": described, "sizes": dataclasses.asdict(sizes), "rows": []}
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
