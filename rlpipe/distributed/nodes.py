"""Nodes of the Ray cluster: which are alive or draining, and functions that run on one of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import ray
from ray.exceptions import RayError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from rlpipe.distributed.placement import Node

ANSWER_SECONDS = 3.0
"""Limit for a question that must not hold up the run."""


def alive_nodes() -> list[Node]:
    """Returns the living nodes of the cluster."""
    alive = by_unique_name([node for node in ray.nodes() if node["Alive"]])
    return [Node(name, node["Resources"], node.get("Labels") or {}, node["NodeID"]) for name, node in alive.items()]


def by_unique_name(nodes: Sequence[Mapping[str, Any]]) -> dict[str, Mapping[str, Any]]:
    """Returns Ray's nodes by host name, with the address or the id added where hosts share a name."""
    names = [str(node["NodeManagerHostname"]) for node in nodes]
    for key, width in (("NodeManagerAddress", 40), ("NodeID", 8)):
        times = Counter(names)
        names = [
            name if times[name] == 1 else f"{node['NodeManagerHostname']} ({node[key][:width]})"
            for name, node in zip(names, nodes, strict=True)
        ]
    return dict(zip(names, nodes, strict=True))


def is_alive(node_id: str) -> bool:
    """True if Ray lists the node as alive."""
    return any(node["NodeID"] == node_id and node["Alive"] for node in ray.nodes())


def draining_nodes() -> dict[str, float]:
    """Returns the deadlines of draining nodes by id, in seconds since 1970.

    Ray's libraries ask in the same way; there is no public function for it.
    """
    try:
        from ray._private.state import state

        return {node: deadline / 1000 for node, deadline in state.get_draining_nodes().items()}
    except Exception:  # the function is private and may disappear; then the end of a node is noticed when it comes
        return {}


def missing_from_ray() -> str:
    """Returns a package of Ray's extra ``default`` that is not installed; empty for none."""
    try:
        import ray.dashboard.optional_deps  # noqa: F401 - what Ray itself tries before it starts servers and opens ports
    except ImportError as error:
        return error.name or str(error)
    return ""


def own_node_id() -> str:
    """Returns the id of the node of this process."""
    return str(ray.get_runtime_context().get_node_id())


def pinned_to(node_id: str) -> NodeAffinitySchedulingStrategy:
    """Returns the scheduling strategy that pins an actor or a task to a node."""
    return NodeAffinitySchedulingStrategy(node_id, soft=False)


def run_on_node(node_id: str, function: Callable[..., Any], *args: Any) -> Any:
    """Runs a function on a node and returns its result, or None if the node does not answer in time."""
    if node_id == own_node_id():
        return function(*args)
    task = ray.remote(function).options(num_cpus=0, scheduling_strategy=pinned_to(node_id), max_retries=0)
    try:
        return ray.get(task.remote(*args), timeout=ANSWER_SECONDS)
    except RayError:
        return None
