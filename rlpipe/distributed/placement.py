"""Which node each part of a run goes to, and what to say when there is none for it.

Ray starts the parts of a placement group together or not at all. One that no node can ever hold stays pending for ever,
without a word, so every bundle is compared with every node beforehand: the sum over a cluster says nothing of a bundle.
"""

from __future__ import annotations

import logging
import re
import sys
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import ray
from ray.util.placement_group import PlacementGroup, placement_group, placement_group_table, remove_placement_group
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy, PlacementGroupSchedulingStrategy

from rlpipe.config.schema import Config
from rlpipe.config.selection import algorithm_class, number_of_workers
from rlpipe.config.stages import stages
from rlpipe.errors import ConfigError

log = logging.getLogger("rlpipe")

WORKER, LEARNER, SERVER = "rollout worker", "learner", "inference server"
_SHOWN = ("CPU", "GPU")
_TELL_EVERY = 10.0
_RESERVING = 5.0
"""Seconds that Ray has in any case to reserve places that are free."""
_ROUNDING = 1e-9


@dataclass(frozen=True)
class Node:
    """A living node: its name, all it has, and its labels."""

    name: str
    resources: Mapping[str, float]
    labels: Mapping[str, str]


@dataclass(frozen=True)
class Bundle:
    """What one part needs of one node.

    Attributes:
        part: what it is for, such as ``rollout worker``; all of one part need the same.
        keys: of the configuration that say how many there are and how much each needs.
        resources: amounts by Ray's names; none for what runs beside the others and reserves nothing.
        labels: selector of each label: ``value``, ``!value``, ``in(a, b)`` or ``!in(a, b)``.
        alone: whether no other may be on its node.
    """

    part: str
    keys: str
    resources: Mapping[str, float]
    labels: Mapping[str, str] = field(default_factory=dict)
    alone: bool = False

    def suits(self, node: Node) -> bool:
        """Whether the node has the labels."""
        return all(_selects(selector, node.labels.get(label)) for label, selector in self.labels.items())

    def fits(self, node: Node) -> bool:
        """Whether the node, with nothing else on it, can hold it."""
        return self.suits(node) and all(
            node.resources.get(name, 0.0) >= need - _ROUNDING for name, need in self.resources.items()
        )


def _selects(selector: str, value: str | None) -> bool:
    found = re.fullmatch(r"(!?)\s*(?:in\(([^)]*)\)|(.*))", selector.strip())
    assert found is not None  # the last part takes whatever there is
    negated, several, one = found.groups()
    values = [one] if several is None else [part.strip() for part in several.split(",")]
    return (value in values) != bool(negated)


def nodes() -> list[Node]:
    """Nodes that are alive."""
    alive = named([node for node in ray.nodes() if node["Alive"]])
    return [Node(name, node["Resources"], node.get("Labels") or {}) for name, node in alive.items()]


def named(nodes: Sequence[Mapping[str, Any]]) -> dict[str, Mapping[str, Any]]:
    """Ray's nodes by host, and where hosts share that also by address, or by id."""
    names = [str(node["NodeManagerHostname"]) for node in nodes]
    for key, width in (("NodeManagerAddress", 40), ("NodeID", 8)):
        times = Counter(names)
        names = [
            name if times[name] == 1 else f"{node['NodeManagerHostname']} ({node[key][:width]})"
            for name, node in zip(names, nodes, strict=True)
        ]
    return dict(zip(names, nodes, strict=True))


def here() -> NodeAffinitySchedulingStrategy:
    """Of what must run on the node of this process."""
    return NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)


def parts(config: Config, found: Sequence[Node]) -> list[Bundle]:
    """What a run asks for: a bundle for each rollout worker, by rank, for each learner, and for each inference server.

    Whatever is ``auto`` is decided by the nodes that are there.
    """
    worker, learner = worker_bundle(config), learner_bundle(config, found)
    learners = [learner] * number_of_learners(config, learner, found)
    left = _beside(learners, found, worker)
    servers = inference_bundles(config, left)
    count = number_of_workers(config, room(worker, _beside(servers, left, worker)))
    return [worker] * count + learners + servers


def _beside(bundles: Sequence[Bundle], found: Sequence[Node], sparing: Bundle) -> Sequence[Node]:
    for bundle in bundles:
        found = without(bundle, found, sparing=sparing)
    return found


def number_of_learners(config: Config, learner: Bundle, found: Sequence[Node]) -> int:
    """``learner.num_learners``; ``auto`` is one for each GPU that the nodes have for them, if the algorithm allows.

    Inference servers come first where there is a GPU for each beside one learner.
    """
    wanted = config.learner.num_learners
    if isinstance(wanted, int):
        return wanted
    several = config.learner.device != "cpu" and algorithm_class(config).shared
    if learner.resources.get("GPU", 0.0) < 1 or not several:
        return 1
    sizes = [stage.config.algorithm.group_size or 1 for stage in stages(config)]
    groups: int = config.env.train.total_num_envs // max(sizes)
    servers = inference_bundles(config, without(learner, found, sparing=worker_bundle(config)))
    return max(1, min(room(learner, _beside(servers, found, learner)), groups))


def worker_bundle(config: Config) -> Bundle:
    """Of one rollout worker."""
    cluster = config.cluster
    keys = "rollout.num_workers, cluster.cpus_per_worker, cluster.worker_nodes"
    return Bundle(WORKER, keys, {"CPU": cluster.cpus_per_worker}, cluster.worker_nodes, _alone(config))


def learner_bundle(config: Config, found: Sequence[Node]) -> Bundle:
    """Of the learner; it needs nothing of its own where it has no GPU and works while the workers wait."""
    cluster, device = config.cluster, config.learner.device
    keys = "learner.device, cluster.cpus_per_learner, cluster.gpus_per_learner, cluster.learner_nodes"
    anything = Bundle(LEARNER, keys, {}, cluster.learner_nodes, _alone(config))
    gpus = cluster.gpus_per_learner
    if isinstance(gpus, str):
        able = any(node.resources.get("GPU", 0.0) >= 1 for node in found if anything.suits(node))
        gpus = 1.0 if device.startswith("cuda") or (able and device != "cpu") else 0.0
    needs = {"CPU": cluster.cpus_per_learner, "GPU": gpus}
    return replace(anything, resources={name: amount for name, amount in needs.items() if amount})


def inference_bundles(config: Config, found: Sequence[Node]) -> list[Bundle]:
    """Of the inference servers, none where workers act by themselves; ``found`` without what the learners take."""
    cluster, rollout = config.cluster, config.rollout
    if rollout.inference == "local":
        return []
    keys = (
        "rollout.num_inference_servers, cluster.cpus_per_inference_server, cluster.gpus_per_inference_server, "
        "cluster.inference_nodes"
    )
    needs = {"CPU": cluster.cpus_per_inference_server}
    plain = Bundle(SERVER, keys, needs, cluster.inference_nodes, _alone(config))
    gpus = cluster.gpus_per_inference_server
    if isinstance(gpus, str):
        fast = replace(plain, resources={**needs, "GPU": 1.0})
        gpus = 1.0 if room(fast, found) >= rollout.num_inference_servers else 0.0
    bundle = replace(plain, resources={**needs, "GPU": gpus}) if gpus else plain
    return [bundle] * rollout.num_inference_servers


def _alone(config: Config) -> bool:
    return config.cluster.strategy == "strict_spread"


def room(bundle: Bundle, found: Sequence[Node]) -> int:
    """How many such bundles the nodes hold when nothing else is on them."""
    return sum(
        min(
            [
                *(int(node.resources.get(name, 0.0) / need + _ROUNDING) for name, need in bundle.resources.items()),
                1 if bundle.alone else sys.maxsize,
            ]
        )
        for node in found
        if bundle.suits(node)
    )


def without(bundle: Bundle, found: Sequence[Node], *, sparing: Bundle) -> list[Node]:
    """The nodes when one of them has taken the bundle: the one where that costs the other the least room."""
    if not bundle.resources:
        return list(found)
    left = [
        [*found[:index], *([] if bundle.alone else [_less(node, bundle)]), *found[index + 1 :]]
        for index, node in enumerate(found)
        if bundle.fits(node)
    ]
    return max(left, key=lambda rest: room(sparing, rest), default=list(found))


def _less(node: Node, bundle: Bundle) -> Node:
    rest = {name: amount - bundle.resources.get(name, 0.0) for name, amount in node.resources.items()}
    return replace(node, resources=rest)


def shortage(bundles: Sequence[Bundle], found: Sequence[Node]) -> str | None:
    """What a cluster lacks for these bundles, whatever else runs on it; None where there is a place for each."""
    counts = Counter(bundle.part for bundle in bundles)
    kinds = {bundle.part: bundle for bundle in bundles}
    for one in kinds.values():
        if not any(one.suits(node) for node in found):
            return f"no node has the labels that a {one.part} is to have, {_labels(one.labels)} ({one.keys})"
        if not any(one.fits(node) for node in found):
            return f"no node that may hold a {one.part} has {_amounts(one.resources)} ({one.keys})"
        if one.resources and room(one, found) < counts[one.part]:
            return f"{_wanted(one, counts[one.part])}, and there is room for {room(one, found)}"
    if len(kinds) < 2:
        return None
    *others, many = sorted(kinds.values(), key=lambda one: counts[one.part])
    # Exact beside one other part: what is left over has only one kind to hold.
    for one, beside in [(others[-1], others[:-1]), (many, others)]:
        left = _beside([bundle for bundle in bundles if kinds[bundle.part] in beside], found, one)
        if one.resources and room(one, left) < counts[one.part]:
            those = " and ".join(part for part in kinds if kinds[part] in beside)
            return f"{_wanted(one, counts[one.part])}, and beside the {those} there is room for {room(one, left)}"
    return None


def _wanted(one: Bundle, count: int) -> str:
    nodes, keys = (" on nodes of their own", "cluster.strategy, ") if one.alone else ("", "")
    return (
        f"{count} {one.part}{'s' * (count != 1)} with {_amounts(one.resources)} each{nodes} are wanted "
        f"({keys}{one.keys})"
    )


def table(found: Sequence[Node]) -> str:
    """The nodes, a line each: name, what it has, labels."""
    lines = []
    for node in found:
        own = {label: value for label, value in node.labels.items() if not label.startswith("ray.io/")}
        lines.append(f"  {node.name}: {_amounts({name: node.resources.get(name, 0.0) for name in _SHOWN})}"
                     f"{', labels ' + _labels(own) if own else ''}")  # fmt: skip
    return "\n".join(lines)


def _amounts(resources: Mapping[str, float]) -> str:
    return " and ".join(f"{amount:g} {name}{'s' if amount != 1 else ''}" for name, amount in resources.items())


def _labels(labels: Mapping[str, str]) -> str:
    return ", ".join(f"{label}={value}" for label, value in sorted(labels.items()))


class RunPlacement:
    """The parts of a run on nodes of a cluster: all of them have their place, or none."""

    def __init__(self, bundles: Sequence[Bundle], strategy: str, wait: float, *, grows: bool = True) -> None:
        """Reserves them.

        Args:
            bundles: in the order in which ``place`` counts them.  strategy: ``cluster.strategy``.
            wait: seconds to wait for nodes that are still to come, or that are busy.
            grows: whether nodes may still come.
        Raises:
            ConfigError: there is no place for them.
        """
        ends = time.monotonic() + wait
        self._bundles = list(bundles)
        self._strategy = strategy.upper()
        self._groups: list[PlacementGroup] = []
        self._places: dict[int, tuple[PlacementGroup, int]] = {}
        if not grows:
            _await_nodes(bundles, 0.0)
        try:
            group = self._reserve(range(len(bundles)))
            _await_nodes(bundles, ends)  # meanwhile the group that waits tells an autoscaler what to start
            _await_room(group, bundles, max(ends, time.monotonic() + _RESERVING), grows)
        except BaseException:  # also Ctrl-C, for which whoever waits for the places need not ask
            self.close()
            raise

    def _reserve(self, indexes: Sequence[int]) -> PlacementGroup:
        reserved = [index for index in indexes if self._bundles[index].resources]
        selectors = [dict(self._bundles[index].labels) for index in reserved]
        group = placement_group(
            [dict(self._bundles[index].resources) for index in reserved],
            strategy=self._strategy,
            bundle_label_selector=selectors if any(selectors) else None,
        )
        self._groups.append(group)
        self._places |= {index: (group, place) for place, index in enumerate(reserved)}
        return group

    def move(self, indexes: Sequence[int]) -> None:
        """Asks for other places for some bundles, whose nodes are about to go; Ray gives none on such nodes. What is
        placed from now on waits for them."""
        if any(self._bundles[index].resources for index in indexes):
            self._reserve(indexes)

    def place(self, index: int) -> dict[str, Any]:
        """Options of the actor that takes the bundle with this number. One that needs nothing of its own goes where its
        labels say, or else to the node of this process."""
        bundle = self._bundles[index]
        if bundle.resources:
            group, place = self._places[index]
            where: dict[str, Any] = {
                "scheduling_strategy": PlacementGroupSchedulingStrategy(
                    group, placement_group_bundle_index=place, placement_group_capture_child_tasks=False
                )
            }
        elif bundle.labels:
            where = {"label_selector": dict(bundle.labels)}
        else:
            where = {"scheduling_strategy": here()}
        return {"num_cpus": bundle.resources.get("CPU", 0.0), "num_gpus": bundle.resources.get("GPU", 0.0), **where}

    def landed(self, part: str) -> Counter[str]:
        """How many bundles of a part are on each node, by the node's id."""
        tables = {group.id: placement_group_table(group)["bundles_to_node_id"] for group in self._groups}
        return Counter(
            tables[group.id][place]
            for index, (group, place) in self._places.items()
            if self._bundles[index].part == part
        )

    def close(self) -> None:
        """Gives the places back."""
        for group in self._groups:
            remove_placement_group(group)
        self._groups.clear()


def _await_nodes(bundles: Sequence[Bundle], ends: float) -> None:
    told = time.monotonic()
    while (lacking := shortage(bundles, found := nodes())) is not None:
        now = time.monotonic()
        if now >= ends:
            raise ConfigError(_cannot_hold(lacking, bundles, found))
        if now - told >= _TELL_EVERY:
            told = now
            log.info("Waiting for nodes, %.0f s more: %s", ends - now, lacking)
        time.sleep(0.5)


def _await_room(group: PlacementGroup, bundles: Sequence[Bundle], ends: float, grows: bool) -> None:
    while not group.wait(min(_TELL_EVERY, max(0.1, ends - time.monotonic()))):
        left = ends - time.monotonic()
        state = placement_group_table(group)["stats"]["scheduling_state"]
        if state == "INFEASIBLE" and (left <= 0 or not grows):
            raise ConfigError(_cannot_hold("its parts find no place beside each other", bundles, nodes()))
        if left <= 0:
            raise ConfigError(
                f"the nodes of the cluster have no room now ({state}): other work may be on them. Needed: "
                f"{_needed(bundles)}. There is, when nothing is on it:\n{table(nodes())}\nWait until it ends, ask for "
                "less, or raise cluster.placement_timeout."
            )
        log.info("Waiting for room on the nodes, %.0f s more", left)


def _cannot_hold(why: str, bundles: Sequence[Bundle], found: Sequence[Node]) -> str:
    return (
        f"the cluster cannot hold this run: {why}. Needed: {_needed(bundles)}. There is:\n{table(found)}\n"
        "Ask for less, add nodes, or raise cluster.placement_timeout if nodes are still to come."
    )


def _needed(bundles: Sequence[Bundle]) -> str:
    wanted = [bundle for bundle in bundles if bundle.resources or bundle.labels]
    parts = Counter((bundle.part, _amounts(bundle.resources), _labels(bundle.labels)) for bundle in wanted)
    return ", ".join(
        f"{count} x {part}{f' with {amounts}' if amounts else ''}{f' on {labels}' if labels else ''}"
        for (part, amounts, labels), count in parts.items()
    )
