"""Compares two kinds of collection: with a copy of the policy in every worker, and with one inference server for all.

    python benchmarks/inference.py                 # steps per second of both, their ratio, and what a step waits for

Both stay ready and collect a fragment of ManiSkill PushCube-v1 in turn, with the MLP and with a policy of about ten
million parameters, half of which act. Nothing is learnt. The server waits for all workers
(``rollout.inference_wait=null``), so that each pass has a row for every environment. It uses a GPU if Ray finds one,
otherwise one CPU. Machines are noisy: trust the ratios, which compare neighbours in time, more than the rates.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import statistics
import time
from importlib import metadata
from multiprocessing.connection import Connection
from typing import Any

import ray
from rich.console import Console
from rich.table import Table
from throughput import TASK, _processor

from rlpipe.config.loading import load_config
from rlpipe.distributed.cluster import Cluster
from rlpipe.distributed.engine import RayEngine
from rlpipe.metrics import CATALOGUE
from rlpipe.metrics.window import merged
from rlpipe.policies.base import NoWeights, Snapshot

SIZES = {"MLP, 3 x 256": [256] * 3, "10 M parameters": [1580] * 3}
WAYS = ("local", "server")
OF_A_STEP = ("wait", "pass", "round trip")


def collect_on_request(
    inference: str, hidden_sizes: list[int], options: argparse.Namespace, orders: Connection
) -> None:
    """Main function of a process: collects a fragment at each request, and sends the measurements."""
    tree: dict[str, Any] = {
        "env": {"train": {"name": "maniskill", "id": TASK, "total_num_envs": options.envs}},
        "policy": {"name": "mlp", "hidden_sizes": hidden_sizes},
        "algorithm": {"name": "ppo", "num_minibatches": 1},
        "rollout": {
            "num_workers": options.workers,
            "horizon": options.horizon,
            "inference": inference,
            "inference_wait": None,
        },
        "cluster": {"cpus_per_worker": 0.1, "cpus_per_inference_server": 0.1, "start_timeout": 3600.0},
    }
    config = load_config(tree)
    engine = RayEngine(config)
    engine.start_workers(config.schedule, 0)
    engine.gather(engine.collect(Snapshot(0, NoWeights.FROM_SEED), 0))
    orders.send(None)
    while orders.recv():
        began = time.perf_counter()
        windows = engine.gather(engine.collect(Snapshot(0, NoWeights.FROM_SEED), 0))[1]
        seconds = time.perf_counter() - began
        found = merged(windows).read(list(CATALOGUE.values()))
        measured = {"steps/s": config.steps_per_iteration / seconds}
        if inference == "server":
            measured["wait"] = found["time/inference_wait"]
            measured["pass"] = found["time/rollout/predict"] / options.horizon
            answered = found["time/env/recv_wait"] / options.horizon
            measured["round trip"] = answered - measured["wait"] - measured["pass"]
            measured["rows"] = found["rollout/inference_batch_size"]
        orders.send(measured)
    engine.close()


def measure(hidden_sizes: list[int], options: argparse.Namespace) -> list[tuple[dict[str, float], dict[str, float]]]:
    """Measurements of each round, without and with a server."""
    spawn = multiprocessing.get_context("spawn")
    orders, processes = [], []
    for way in WAYS:
        ours, theirs = spawn.Pipe()
        processes.append(spawn.Process(target=collect_on_request, args=(way, hidden_sizes, options, theirs)))
        processes[-1].start()
        ours.recv()
        orders.append(ours)
    rounds = []
    for _ in range(options.rounds):
        answers = []
        for order in orders:
            order.send(True)
            answers.append(order.recv())
        rounds.append((answers[0], answers[1]))
    for order, process in zip(orders, processes, strict=True):
        order.send(False)
        process.join()
    return rounds


def main() -> None:
    """Runs the rounds and prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--envs", type=int, default=16, help="of all workers")
    parser.add_argument("--horizon", type=int, default=50)
    options = parser.parse_args()
    console = Console(highlight=False, width=120)
    cluster = Cluster()
    os.environ["RAY_ADDRESS"] = ray.get_runtime_context().gcs_address
    versions = ", ".join(f"{name} {metadata.version(name)}" for name in ("ray", "torch", "mani_skill"))
    gpus = sum(node["gpus"] for node in cluster.describe())
    console.print(f"{_processor()}, {len(os.sched_getaffinity(0))} cores, {gpus:g} GPUs; {versions}")
    console.print(f"{options.workers} workers, {options.envs} environments, medians of {options.rounds} rounds")
    table = Table("policy", "local, steps/s", "server, steps/s", "server / local", "rows a pass", *OF_A_STEP)
    try:
        for name, hidden_sizes in SIZES.items():
            rounds = measure(hidden_sizes, options)
            local, served = (
                {key: statistics.median(both[way][key] for both in rounds) for key in rounds[0][way]} for way in (0, 1)
            )
            ratio = statistics.median(there["steps/s"] / here["steps/s"] for here, there in rounds)
            rates = (f"{measured['steps/s']:,.0f}" for measured in (local, served))
            waits = (f"{1000 * served[key]:.2f} ms" for key in OF_A_STEP)
            table.add_row(name, *rates, f"{ratio:.2f}", f"{served['rows']:.0f}", *waits)
    finally:
        cluster.close()
    console.print(table)


if __name__ == "__main__":
    main()
