"""Reservation of a place on the cluster for every actor of a run."""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Sequence
from typing import Any

from ray.util.placement_group import PlacementGroup, placement_group, placement_group_table, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from rlpipe.distributed.nodes import alive_nodes, own_node_id, pinned_to
from rlpipe.distributed.placement import Bundle, Node, bundle_list, node_table, shortage
from rlpipe.distributed.roles import Role
from rlpipe.errors import ConfigError

log = logging.getLogger("rlpipe")

_REPORT_SECONDS = 10.0
"""Interval of the messages while a run waits."""
_RESERVING_SECONDS = 5.0
"""Least time that Ray has to reserve places that are free."""


class RunPlacement:
    """Places of a run's actors on the nodes of a cluster: all are reserved, or none."""

    def __init__(
        self,
        bundles: Sequence[Bundle],
        strategy: str,
        wait: float,
        *,
        grows: bool = True,
        needed: Sequence[int] | None = None,
    ) -> None:
        """Reserves a place for each bundle.

        Args:
            bundles: needs of the actors; ``place`` takes an index in this list.
            strategy: ``cluster.strategy``.
            wait: seconds to wait for nodes that are still to join, or that are busy.
            grows: True if nodes may still join.
            needed: indexes of the bundles to reserve; None for all. For the others, ``has_place`` asks later.
        Raises:
            ConfigError: the cluster has no room for them.
        """
        ends = time.monotonic() + wait
        self._bundles = list(bundles)
        self._strategy = strategy.upper()
        self._groups: list[PlacementGroup] = []
        self._places: dict[int, tuple[PlacementGroup, int]] = {}
        indexes = range(len(bundles)) if needed is None else needed
        reserved = [bundles[index] for index in indexes]
        if not grows:
            _wait_for_nodes(reserved, 0.0)
        try:
            group = self._reserve(indexes)
            _wait_for_nodes(reserved, ends)  # meanwhile the pending group tells an autoscaler what to start
            _wait_for_room(group, reserved, max(ends, time.monotonic() + _RESERVING_SECONDS), grows)
        except BaseException:  # including Ctrl-C
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
        """Reserves new places for bundles on draining nodes, where Ray places nothing new.

        Actors that are placed from now on wait for these places.
        """
        if any(self._bundles[index].resources for index in indexes):
            self._reserve(indexes)

    def has_place(self, index: int) -> bool:
        """True if a bundle has its place; asks for one if nobody has."""
        if not self._bundles[index].resources:
            return True
        if index not in self._places:
            self._reserve([index])
        return bool(placement_group_table(self._places[index][0])["state"] == "CREATED")

    def give_back(self, index: int) -> None:
        """Releases the place of a bundle, or what was asked for it; one of those that were reserved together stays
        reserved until ``close``, and ``has_place`` asks for another.
        """
        group, _ = self._places.pop(index, (None, 0))
        if group is not None and group not in (other for other, _ in self._places.values()):
            self._groups.remove(group)
            remove_placement_group(group)

    def place(self, index: int) -> dict[str, Any]:
        """Returns Ray's options for the actor of a bundle.

        An actor that reserves nothing goes to a node with its labels, or without labels to the driver's node.
        """
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
            where = {"scheduling_strategy": pinned_to(own_node_id())}
        return {"num_cpus": bundle.resources.get("CPU", 0.0), "num_gpus": bundle.resources.get("GPU", 0.0), **where}

    def bundles_by_node(self, role: Role) -> Counter[str]:
        """Returns how many bundles of a role are on each node, by the node's id."""
        tables = {group.id: placement_group_table(group)["bundles_to_node_id"] for group in self._groups}
        return Counter(
            tables[group.id][place]
            for index, (group, place) in self._places.items()
            if self._bundles[index].role == role
        )

    def close(self) -> None:
        """Releases the places."""
        for group in self._groups:
            remove_placement_group(group)
        self._groups.clear()


def _wait_for_nodes(bundles: Sequence[Bundle], ends: float) -> None:
    reported = time.monotonic()
    while (lacking := shortage(bundles, nodes := alive_nodes())) is not None:
        now = time.monotonic()
        if now >= ends:
            raise ConfigError(_cannot_hold(lacking, bundles, nodes))
        if now - reported >= _REPORT_SECONDS:
            reported = now
            log.info("Waiting for nodes, %.0f s more: %s", ends - now, lacking)
        time.sleep(0.5)


def _wait_for_room(group: PlacementGroup, bundles: Sequence[Bundle], ends: float, grows: bool) -> None:
    while not group.wait(min(_REPORT_SECONDS, max(0.1, ends - time.monotonic()))):
        left = ends - time.monotonic()
        state = placement_group_table(group)["stats"]["scheduling_state"]
        if state == "INFEASIBLE" and (left <= 0 or not grows):
            raise ConfigError(
                _cannot_hold("its actors do not all fit on the nodes at the same time", bundles, alive_nodes())
            )
        if left <= 0:
            raise ConfigError(
                f"the nodes of the cluster have no free room now ({state}): other work may be using them. Needed: "
                f"{bundle_list(bundles)}. The nodes have, when idle:\n{node_table(alive_nodes())}\nWait until the "
                "other work ends, ask for less, or raise cluster.placement_timeout."
            )
        log.info("Waiting for room on the nodes, %.0f s more", left)


def _cannot_hold(why: str, bundles: Sequence[Bundle], nodes: Sequence[Node]) -> str:
    return (
        f"the cluster cannot hold this run: {why}. Needed: {bundle_list(bundles)}. Available:\n{node_table(nodes)}\n"
        "Ask for less, add nodes, or raise cluster.placement_timeout if nodes are still to come."
    )
