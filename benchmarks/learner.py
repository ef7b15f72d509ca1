"""Measures an update: samples per second on the CPU and on a GPU, and the share of transfers and of metrics.

    python benchmarks/learner.py [--precision bfloat16] [--compile] [--samples N]
    python benchmarks/learner.py --steps [--against PATH]

A learner receives batches of random observations. The devices take turns, one update each, and the ratio is that of
the medians. A missing device is reported. The updates:

- PPO, four passes of eight minibatches, on 64 steps of 1,024 environments (64 environments without a GPU) with 42
  observed numbers and 8 actions. The policy is the quickstart's (three layers of 256) or one of about ten million
  parameters (three of 1,536);
- the same on 64 steps of a sixteenth of the environments, with the encoder of configs/camera_push_cube.yaml (64 x 64
  pixels), and with the tokens of configs/grpo_token_pick_cube.yaml (chunks of 16 actions);
- 128 gradient steps of RLPD with the networks, batches and demonstrations of configs/sparse_pick_cube.yaml; a sample is
  a gradient step.

Shares are of the update's wall clock, measured with the device idle before and after each step:

- transfers: the batch to the device, the new weights to the host;
- metrics: an update with all metrics, minus one without (PPO).

With --steps it measures the CPU alone: milliseconds of CPU time, on one and on two threads, of a gradient step of that
RLPD and of an update of PPO (the quickstart's, 64 minibatches). With --against, the same of another source tree of
rlpipe, in turn, and the ratio of the medians.
"""

from __future__ import annotations

import argparse
import math
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from unittest.mock import patch

import torch
from rich.console import Console
from rich.table import Table

sys.path.append(str(Path(__file__).parent.parent))  # behind the source tree that --against names
from benchmarks.device.updates import (
    SPEC,
    STEPS,
    Subject,
    configuration,
    count_parameters,
    make_learner,
    make_rlpd,
    of_camera,
    of_tokens,
    perceptron,
    random_batch,
)
from rlpipe.algorithms.ppo import PPO
from rlpipe.algorithms.shared.clipped import ClippedAlgorithm
from rlpipe.config.loading import load_config
from rlpipe.learning.base import LearnerBase
from rlpipe.learning.on_policy import Learner
from rlpipe.metrics import catalogue as m
from rlpipe.metrics.on_device import DeviceObservations
from rlpipe.trajectory.batch import TrajectoryBatch

UPDATES, GRADIENT_STEPS = 6, 128
QUICKSTART = perceptron(256, 256, 256)
Make = Callable[[str], tuple[LearnerBase, TrajectoryBatch, int]]
"""Gives a learner of a device, the batch of each update, and the number of samples in it."""


def without_metrics() -> list[object]:
    """Patches that turn off everything that is only logged."""
    nothing = lambda *_args, **_options: {}  # noqa: E731
    return [
        patch.object(ClippedAlgorithm, "_describe_batch", nothing),
        patch.object(PPO, "measure", nothing),
        patch.object(DeviceObservations, "add", nothing),
        patch.object(DeviceObservations, "reduce", nothing),
    ]


def update(learn: LearnerBase, batch: TrajectoryBatch, iteration: int, *, logged: bool) -> tuple[float, float]:
    """Seconds that an update and its transfers take."""
    patches = [] if logged else without_metrics()
    for each in patches:
        each.start()  # type: ignore[attr-defined]
    began = time.perf_counter()
    _, window = learn.update(0, iteration, batch)
    spent = time.perf_counter() - began
    for each in patches:
        each.stop()  # type: ignore[attr-defined]
    moved = window.read([m.RECV_TRAJ_TIME, m.PUBLISH_WEIGHTS_TIME])
    return spent, sum(moved.values())


def measure_steps(threads: int) -> None:
    """Prints the milliseconds of CPU time of a gradient step of RLPD and of an update of PPO, the best of several."""
    overrides = [f"learner.num_threads={threads}", "learner.device=cpu"]
    config = load_config("ppo_push_cube", [*overrides, "algorithm.target_kl=null"])
    ppo = Learner(config.schedule, SPEC)
    for learn, batch in (make_rlpd(GRADIENT_STEPS, *overrides), (ppo, random_batch(50, QUICKSTART))):
        spent = []
        for iteration in range(1, UPDATES + 2):
            began = time.process_time()
            _, window = learn.update(0, iteration, batch)
            spent.append(1000.0 * (time.process_time() - began))
        steps = window.read([m.GRADIENT_STEPS]).get("train/sac/gradient_steps", 1)
        print(min(spent[1:]) / steps)  # the first one warms up the caches


def compare_steps(trees: dict[str, str], rounds: int) -> None:
    """Prints what ``measure_steps`` finds for source trees of rlpipe, in turn, and the ratio of the first two."""
    table = Table("", "threads", *trees, "ratio", title="Milliseconds of CPU time")
    for threads in (1, 2):
        found: dict[str, list[list[float]]] = {name: [] for name in trees}
        for _ in range(rounds):
            for name, path in trees.items():
                environment = {**os.environ, "PYTHONPATH": path, "OMP_WAIT_POLICY": "PASSIVE"}
                command = [sys.executable, __file__, "--steps", "--threads", str(threads)]
                printed = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True).stdout
                found[name].append([float(line) for line in printed.splitlines()])
        for row, what in enumerate(("gradient step of RLPD", "update of PPO")):
            medians = [statistics.median(each[row] for each in found[name]) for name in trees]
            ratio = f"{medians[1] / medians[0]:.2f} x" if len(medians) > 1 else ""
            table.add_row(what, str(threads), *(f"{median:.2f}" for median in medians), ratio)
    Console(width=100).print(table)


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--precision", default="float32")
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--samples", type=int, default=65_536 if torch.cuda.is_available() else 4_096)
    parser.add_argument("--updates", type=int, default=5)
    parser.add_argument("--steps", action="store_true", help="RLPD and PPO on the CPU")
    parser.add_argument("--against", help="another source tree of rlpipe")
    parser.add_argument("--threads", type=int, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.threads is not None:
        measure_steps(args.threads)
    elif args.steps:
        trees = {"here": str(Path(__file__).parent.parent), **({"there": args.against} if args.against else {})}
        compare_steps(trees, args.updates)
    else:
        compare_devices(args)


def ppo(subject: Subject, samples: int, args: argparse.Namespace) -> Make:
    """Makes PPO's learner of a device, and the batch that all of them learn from."""
    batch = random_batch(samples // STEPS, subject)

    def make(device: str) -> tuple[LearnerBase, TrajectoryBatch, int]:
        config = configuration(subject, samples, device, args.precision, args.compile)
        return make_learner(config, subject), batch, samples

    return make


def rlpd(device: str) -> tuple[LearnerBase, TrajectoryBatch, int]:
    """Makes RLPD's learner of a device, and a batch; a sample is a gradient step."""
    learn, batch = make_rlpd(GRADIENT_STEPS, f"learner.device={device}")
    return learn, batch, GRADIENT_STEPS


def compare_devices(args: argparse.Namespace) -> None:
    """Prints the speed of an update on the CPU and, if there is one, on a GPU."""
    devices = ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]
    camera = of_camera(64, {"name": "drq_cnn", "channels": 16, "width": 128})
    measured: dict[str, Make] = {
        "PPO, 3 x 256": ppo(QUICKSTART, args.samples, args),
        "PPO, 3 x 1536": ppo(perceptron(1536, 1536, 1536), args.samples, args),
        "PPO, camera": ppo(camera, args.samples // 16, args),
        "PPO, tokens": ppo(of_tokens(16, [512, 512, 512]), args.samples // 16, args),
        "RLPD": rlpd,
    }
    table = Table("", "parameters", "device", "samples", "samples/s", "transfers", "metrics", title="One update")
    for name, make in measured.items():
        made = {device: make(device) for device in devices}
        kinds = (True, False) if make is not rlpd else (True,)
        times: dict[tuple[str, bool], list[float]] = {(device, logged): [] for device in devices for logged in kinds}
        moved: dict[str, list[float]] = {device: [] for device in devices}
        for iteration in range(1, args.updates + 2):
            for device, (learn, batch, _) in made.items():
                for logged in kinds:
                    spent, transfers = update(learn, batch, iteration, logged=logged)
                    if iteration > 1:  # the first one warms up the caches
                        times[device, logged].append(spent)
                        moved[device] += [transfers] if logged else []
        rates = {}
        for device, (learn, _, samples) in made.items():
            whole, bare = (statistics.median(times.get((device, logged), [math.nan])) for logged in (True, False))
            rates[device] = samples / whole
            table.add_row(
                name, f"{count_parameters(learn._policy):,}", device, f"{samples:,}", f"{rates[device]:,.0f}",
                f"{statistics.median(moved[device]) / whole:.1%}",
                f"{(whole - bare) / whole:.1%}" if bare == bare else "",
            )  # fmt: skip
        if "cuda" in rates:
            table.add_row(name, "", "cuda / cpu", "", f"{rates['cuda'] / rates['cpu']:.1f} x", "", "")
    console = Console(width=100)
    console.print(table)
    gpu = torch.cuda.get_device_name() if "cuda" in devices else "no GPU here: run this where there is one"
    console.print(
        f"{os.cpu_count()} CPUs ({platform.processor() or platform.machine()}), {gpu}; torch {torch.__version__}, "
        f"{args.precision}{', compiled' if args.compile else ''}; median of {args.updates} updates"
    )


if __name__ == "__main__":
    main()
