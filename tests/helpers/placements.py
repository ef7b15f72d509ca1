"""Places runs on a simulated cluster, and prints as JSON what became of them.

    python -m tests.helpers.placements FOLDER

The cluster is a head without CPUs, two nodes for simulators, and one with two pretended GPUs. It has a process of its
own, because a process can be in one Ray only.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest.mock import patch

import ray
from ray.cluster_utils import Cluster
from ray.util.placement_group import placement_group, placement_group_table, remove_placement_group

import rlpipe
from rlpipe.distributed.engine import RayEngine
from rlpipe.errors import ConfigError
from tests.helpers.cluster import lean_nodes
from tests.helpers.runs import scripted

FOR_SIMULATORS = ("rollout.num_workers=2", "cluster.worker_nodes={role: sim}", "learner.device=cpu")
SOON = "cluster.placement_timeout=1e-6"


def node_and_gpus(_: object) -> tuple[str, str]:
    """Returns the node of an actor, and the GPUs that it sees."""
    return ray.get_runtime_context().get_node_id(), os.environ["CUDA_VISIBLE_DEVICES"]


def wait_until_free() -> None:
    """Waits until the nodes have back what an earlier run had: where a run goes depends on what is free."""
    ends = time.monotonic() + 600
    while ray.available_resources().get("CPU") != ray.cluster_resources()["CPU"]:
        assert time.monotonic() < ends, ray.available_resources()
        time.sleep(0.1)


def places(engine: RayEngine) -> dict[str, Any]:
    """Returns the node of each actor of a run, the GPUs it sees, and how many workers a node got."""
    logger, engine._logger = engine._logger, None
    found = ray.get([actor.handle.__ray_call__.remote(node_and_gpus) for actor in engine.actors])
    sees = ray.get(logger.handle.__ray_call__.remote(node_and_gpus))[1] if logger is not None else None
    engine._logger = logger
    names = {node["NodeID"]: node["Labels"].get("name") for node in ray.nodes()}
    assert engine._placement is not None
    landed = {names[node]: count for node, count in engine._placement.bundles_by_node("rollout worker").items()}
    return {"actors": [(names[node], gpus) for node, gpus in found], "logger": sees, "landed": landed}


def placed(folder: Path, *wishes: str) -> dict[str, Any]:
    """Starts the actors of a run, and returns their places."""
    wait_until_free()
    engine = RayEngine(scripted(folder, *wishes))
    try:
        plan = engine._config.schedule
        engine.get(engine.start_learner(engine.start_workers(plan, 0), None))
        return places(engine)
    finally:
        engine.close()


def refused(folder: Path, *wishes: str) -> dict[str, Any]:
    """Starts a run that finds no place, and returns its error, and whether it has written anything."""
    runs = folder / "refused"
    try:
        rlpipe.train(scripted(runs, *wishes))
    except ConfigError as error:
        return {"error": str(error), "written": runs.exists()}
    raise AssertionError(f"there is a place for {wishes}")


def groups() -> list[str]:
    """Returns the state of each placement group there is."""
    return [group["state"] for group in placement_group_table().values() if group["state"] != "REMOVED"]


@contextlib.contextmanager
def recorded(found: dict[str, Any], name: str) -> Iterator[None]:
    """Notes the places of a run's actors under a name when the run ends."""

    def close(engine: RayEngine, end: Callable[[RayEngine], None] = RayEngine.close) -> None:
        try:
            found[name] = places(engine)
        finally:
            end(engine)

    with patch.object(RayEngine, "close", close):
        yield


def trained(folder: Path) -> dict[str, Any]:
    """Trains for two iterations, here and in one process; returns the places of the actors and both run directories."""
    config = scripted(folder, *FOR_SIMULATORS, "runner.total_timesteps=128", "cluster.gpus_per_learner=1")
    found: dict[str, Any] = {}
    with recorded(found, "spread"):
        distributed = rlpipe.train(config)
    found["trained"] = [str(run.directory) for run in (distributed, rlpipe.train(config, local=True))]
    return found


def refusals(folder: Path) -> dict[str, Any]:
    """Returns what runs are told that no node can hold, or not now."""
    found: dict[str, Any] = {
        "too large": refused(folder, SOON, "cluster.cpus_per_worker=3"),
        "head": refused(folder, SOON, "cluster.worker_nodes={name: head}"),
        "nobody": refused(folder, SOON, "cluster.worker_nodes={role: render}"),
        "groups after refusals": groups(),
    }
    others = placement_group([{"CPU": 2.0}] * 2, bundle_label_selector=[{"role": "sim"}] * 2)
    found["reserved"] = others.wait(600)
    with patch("rlpipe.distributed.placement_group._RESERVING_SECONDS", 0.1):
        found["busy"] = refused(folder, SOON, *FOR_SIMULATORS)
    remove_placement_group(others)
    return found


def awaited(folder: Path, cluster: Cluster) -> dict[str, Any]:
    """Starts a run for a node that comes late, whose learner then finds that torch cannot use its GPU.

    Returns what was seen meanwhile, where the run was placed and what it is told.
    """
    found: dict[str, Any] = {}
    gpu = ("learner.device=cuda", "learner.num_learners=1")
    late = ("cluster.worker_nodes={role: late}", "cluster.placement_timeout=600", *gpu)
    waiting = threading.Thread(target=lambda: found.update({"no CUDA": refused(folder, *late)}), daemon=True)
    with recorded(found, "late"):
        waiting.start()  # not the node: that starts only in the main thread
        ends = time.monotonic() + 600
        while not groups() and time.monotonic() < ends:
            time.sleep(0.1)
        found["groups while waiting"] = groups()
        cluster.add_node(wait=False, num_cpus=1, labels={"role": "late", "name": "late"})
        waiting.join(timeout=600)
    return found


def main() -> None:
    folder, found = Path(sys.argv[1]), {}
    cluster = Cluster()
    for node in (
        {"num_cpus": 0, "labels": {"name": "head"}, "include_dashboard": False},
        {"num_cpus": 2, "labels": {"role": "sim", "name": "left"}},
        {"num_cpus": 2, "labels": {"role": "sim", "name": "right"}},
        {"num_cpus": 1, "num_gpus": 2, "labels": {"role": "learn", "name": "gpu"}},
    ):
        cluster.add_node(wait=False, **node)
    cluster.wait_for_nodes(600)
    ray.init(address=cluster.address, namespace="rlpipe", log_to_driver=False)
    try:
        found |= trained(folder)
        found["pack"] = placed(folder, *FOR_SIMULATORS, "cluster.strategy=pack")
        found |= refusals(folder)
        found |= awaited(folder, cluster)
    finally:
        print(json.dumps(found), flush=True)
        ray.shutdown()
        cluster.shutdown()


if __name__ == "__main__":
    with lean_nodes():
        main()
