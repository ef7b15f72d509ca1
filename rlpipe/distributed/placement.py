"""Which node each actor of a run goes to, as arithmetic on nodes and bundles without Ray.

Ray starts the bundles of a placement group together or not at all. A bundle that no node can ever hold stays pending
without a message, so every bundle is compared with every node beforehand: the sum over a cluster says nothing about a
single bundle.
"""

from __future__ import annotations

import re
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from rlpipe.config.plan import Plan
from rlpipe.config.selection import number_of_workers
from rlpipe.distributed.roles import Role

_SHOWN_RESOURCES = ("CPU", "GPU")
_ROUNDING = 1e-9


@dataclass(frozen=True)
class Node:
    """Living node of a cluster.

    Attributes:
        name: host name, with an address or id where hosts share a name.
        resources: everything it has, used or not, by Ray's names.
        labels: Ray's labels of the node.
        node_id: Ray's id of the node.
    """

    name: str
    resources: Mapping[str, float]
    labels: Mapping[str, str]
    node_id: str = ""


@dataclass(frozen=True)
class Bundle:
    """Resources that one actor needs on one node.

    Attributes:
        role: role of the actor; all actors of one role need the same.
        keys: configuration keys for the number of actors and the needs of each.
        resources: amounts by Ray's names; empty for an actor that reserves nothing.
        labels: selector of each label: ``value``, ``!value``, ``in(a, b)`` or ``!in(a, b)``.
        alone: True if no other bundle may be on its node.
    """

    role: Role
    keys: str
    resources: Mapping[str, float]
    labels: Mapping[str, str] = field(default_factory=dict)
    alone: bool = False

    def suits(self, node: Node) -> bool:
        """True if the node has the labels."""
        return all(_selects(selector, node.labels.get(label)) for label, selector in self.labels.items())

    def fits(self, node: Node) -> bool:
        """True if the node, with nothing else on it, can hold the bundle."""
        return self.suits(node) and all(
            node.resources.get(name, 0.0) >= need - _ROUNDING for name, need in self.resources.items()
        )


def _selects(selector: str, value: str | None) -> bool:
    match = re.fullmatch(r"(!?)\s*(?:in\(([^)]*)\)|(.*))", selector.strip())
    assert match is not None  # the last alternative matches any text
    negated, several, single = match.groups()
    values = [single] if several is None else [value.strip() for value in several.split(",")]
    return (value in values) != bool(negated)


def run_bundles(config: Plan, nodes: Sequence[Node]) -> list[Bundle]:
    """Returns the bundles of a run: rollout workers by rank, then learners, then inference servers.

    Whatever is ``auto`` is decided by the nodes of the cluster.
    """
    worker, learner = worker_bundle(config), learner_bundle(config, nodes)
    learners = [learner] * number_of_learners(config, learner, nodes)
    left = _without_all(learners, nodes, worker)
    servers = inference_bundles(config, left)
    _, places = worker_counts(config, room(worker, _without_all(servers, left, worker)))
    return [worker] * places + learners + servers


def needed_at_start(config: Plan, bundles: Sequence[Bundle]) -> list[int]:
    """Returns the indexes of the bundles without which a run cannot start: all, but those of processes that may come
    later (``rollout.min_processes``)."""
    places = sum(bundle.role == Role.ROLLOUT_WORKER for bundle in bundles)
    first = config.rollout.min_processes or places
    return [index for index in range(len(bundles)) if not first <= index < places]


def worker_counts(config: Plan, room_for: int) -> tuple[int, int]:
    """Returns the number of rollout workers, and that of the places of their processes.

    Args:
        room_for: number of processes that there is room for, of which ``rollout.num_workers=auto`` takes all.
    """
    each = config.rollout.workers_per_actor
    workers = number_of_workers(config, room_for * each)
    return workers, -(-workers // each)


def _without_all(bundles: Sequence[Bundle], nodes: Sequence[Node], sparing: Bundle) -> Sequence[Node]:
    for bundle in bundles:
        nodes = without(bundle, nodes, sparing=sparing)
    return nodes


def number_of_learners(config: Plan, learner: Bundle, nodes: Sequence[Node]) -> int:
    """Returns ``learner.num_learners``; ``auto`` is one per GPU that learners may use, if several can learn together.

    Inference servers get their GPUs first if there is one for each of them beside one learner.
    """
    number = config.learner.num_learners
    if isinstance(number, int):
        return number
    together = config.algorithm_class.shared and not config.curriculum_class.chooses
    several = config.learner.device != "cpu" and together
    if learner.resources.get("GPU", 0.0) < 1 or not several:
        return 1
    sizes = [stage.config.algorithm.group_size or 1 for stage in config.schedule]
    groups: int = config.env.train.total_num_envs // max(sizes)
    servers = inference_bundles(config, without(learner, nodes, sparing=worker_bundle(config)))
    return max(1, min(room(learner, _without_all(servers, nodes, learner)), groups))


def worker_bundle(config: Plan) -> Bundle:
    """Returns the bundle of a rollout worker."""
    cluster = config.cluster
    keys = "rollout.num_workers, cluster.cpus_per_worker, cluster.worker_nodes"
    return Bundle(Role.ROLLOUT_WORKER, keys, {"CPU": cluster.cpus_per_worker}, cluster.worker_nodes, _alone(config))


def learner_bundle(config: Plan, nodes: Sequence[Node]) -> Bundle:
    """Returns the bundle of a learner. Without a GPU it reserves nothing: it works while the workers wait."""
    cluster, device = config.cluster, config.learner.device
    keys = "learner.device, cluster.cpus_per_learner, cluster.gpus_per_learner, cluster.learner_nodes"
    empty = Bundle(Role.LEARNER, keys, {}, cluster.learner_nodes, _alone(config))
    gpus = cluster.gpus_per_learner
    if isinstance(gpus, str):
        available = any(node.resources.get("GPU", 0.0) >= 1 for node in nodes if empty.suits(node))
        gpus = 1.0 if device.startswith("cuda") or (available and device != "cpu") else 0.0
    needs = {"CPU": cluster.cpus_per_learner, "GPU": gpus}
    return replace(empty, resources={name: amount for name, amount in needs.items() if amount})


def inference_bundles(config: Plan, nodes: Sequence[Node]) -> list[Bundle]:
    """Returns the bundles of the inference servers on nodes without what the learners take.

    There are none if workers hold the policy themselves.
    """
    cluster, rollout = config.cluster, config.rollout
    if rollout.inference != "server":
        return []
    keys = (
        "rollout.num_inference_servers, cluster.cpus_per_inference_server, cluster.gpus_per_inference_server, "
        "cluster.inference_nodes"
    )
    needs = {"CPU": cluster.cpus_per_inference_server}
    without_gpu = Bundle(Role.INFERENCE_SERVER, keys, needs, cluster.inference_nodes, _alone(config))
    gpus = cluster.gpus_per_inference_server
    if isinstance(gpus, str):
        with_gpu = replace(without_gpu, resources={**needs, "GPU": 1.0})
        gpus = 1.0 if room(with_gpu, nodes) >= rollout.num_inference_servers else 0.0
    bundle = replace(without_gpu, resources={**needs, "GPU": gpus}) if gpus else without_gpu
    return [bundle] * rollout.num_inference_servers


def _alone(config: Plan) -> bool:
    return config.cluster.strategy == "strict_spread"


def room(bundle: Bundle, nodes: Sequence[Node]) -> int:
    """Returns how many such bundles the nodes hold when nothing else is on them."""
    return sum(
        min(
            [
                *(int(node.resources.get(name, 0.0) / need + _ROUNDING) for name, need in bundle.resources.items()),
                1 if bundle.alone else sys.maxsize,
            ]
        )
        for node in nodes
        if bundle.suits(node)
    )


def without(bundle: Bundle, nodes: Sequence[Node], *, sparing: Bundle) -> list[Node]:
    """Returns what is left of the nodes once one of them holds the bundle.

    That node is chosen so that the most room is left for the bundle ``sparing``.
    """
    if not bundle.resources:
        return list(nodes)
    left = [
        [*nodes[:index], *([] if bundle.alone else [_reduced(node, bundle)]), *nodes[index + 1 :]]
        for index, node in enumerate(nodes)
        if bundle.fits(node)
    ]
    return max(left, key=lambda rest: room(sparing, rest), default=list(nodes))


def _reduced(node: Node, bundle: Bundle) -> Node:
    rest = {name: amount - bundle.resources.get(name, 0.0) for name, amount in node.resources.items()}
    return replace(node, resources=rest)


def shortage(bundles: Sequence[Bundle], nodes: Sequence[Node]) -> str | None:
    """Returns what a cluster lacks for these bundles, whatever else runs on it; None if there is room for all."""
    counts = Counter(bundle.role for bundle in bundles)
    by_role = {bundle.role: bundle for bundle in bundles}
    for bundle in by_role.values():
        if not any(bundle.suits(node) for node in nodes):
            return f"no node has the labels that a {bundle.role} needs, {_labels(bundle.labels)} ({bundle.keys})"
        if not any(bundle.fits(node) for node in nodes):
            return f"no node that may hold a {bundle.role} has {_amounts(bundle.resources)} ({bundle.keys})"
        if bundle.resources and room(bundle, nodes) < counts[bundle.role]:
            return f"{_demand(bundle, counts[bundle.role])}, and there is room for {room(bundle, nodes)}"
    return _shortage_together(bundles, nodes, by_role, counts) if len(by_role) > 1 else None


def _shortage_together(
    bundles: Sequence[Bundle], nodes: Sequence[Node], by_role: Mapping[Role, Bundle], counts: Mapping[Role, int]
) -> str | None:
    """Returns what is lacking where each role alone has room; exact beside one other role."""
    *others, most = sorted(by_role.values(), key=lambda bundle: counts[bundle.role])
    for bundle, beside in [(others[-1], others[:-1]), (most, others)]:
        left = _without_all([other for other in bundles if by_role[other.role] in beside], nodes, bundle)
        if bundle.resources and room(bundle, left) < counts[bundle.role]:
            roles = " and ".join(role for role, other in by_role.items() if other in beside)
            demand = _demand(bundle, counts[bundle.role])
            return f"{demand}, and beside the {roles} there is room for {room(bundle, left)}"
    return None


def _demand(bundle: Bundle, count: int) -> str:
    where, keys = (" on nodes of their own", "cluster.strategy, ") if bundle.alone else ("", "")
    return (
        f"{count} {bundle.role}{'s' * (count != 1)} with {_amounts(bundle.resources)} each{where} are wanted "
        f"({keys}{bundle.keys})"
    )


def node_table(nodes: Sequence[Node]) -> str:
    """Returns one line per node: name, CPUs and GPUs, and the labels that a user gave it."""
    lines = []
    for node in nodes:
        user_labels = {label: value for label, value in node.labels.items() if not label.startswith("ray.io/")}
        resources = _amounts({name: node.resources.get(name, 0.0) for name in _SHOWN_RESOURCES})
        lines.append(f"  {node.name}: {resources}{', labels ' + _labels(user_labels) if user_labels else ''}")
    return "\n".join(lines)


def bundle_list(bundles: Sequence[Bundle]) -> str:
    """Returns the bundles as a list in words, such as ``2 x rollout worker with 1 CPU on role=sim``."""
    demanding = [bundle for bundle in bundles if bundle.resources or bundle.labels]
    kinds = Counter((bundle.role, _amounts(bundle.resources), _labels(bundle.labels)) for bundle in demanding)
    return ", ".join(
        f"{count} x {role}{f' with {amounts}' if amounts else ''}{f' on {labels}' if labels else ''}"
        for (role, amounts, labels), count in kinds.items()
    )


def _amounts(resources: Mapping[str, float]) -> str:
    return " and ".join(f"{amount:g} {name}{'s' if amount != 1 else ''}" for name, amount in resources.items())


def _labels(labels: Mapping[str, str]) -> str:
    return ", ".join(f"{label}={value}" for label, value in sorted(labels.items()))
