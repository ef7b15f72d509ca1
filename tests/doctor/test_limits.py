"""The limit that a run will meet first, on machines whose numbers are known."""

from __future__ import annotations

from dataclasses import replace

import pytest

from rlpipe.doctor.facts import Facts
from rlpipe.doctor.limits import driver_limit, first_limit, node_limits
from rlpipe.doctor.machine import NodeLoad
from rlpipe.doctor.results import CheckResult

GB = 10**9
ROOMY = Facts(
    python="3.11.7", packages={}, source="52befc72", cpus=64, memory=100 * GB, available=100 * GB, shared_memory=None,
    open_files=10_000, processes=None, gpus=(), gpu_trouble="", scratch="/tmp", full=0.5, threads=30_000,
)  # fmt: skip


def nearest(
    workers: int, *, connected: int | None = None, per_worker: float = GB, **facts: object
) -> CheckResult | None:
    """The finding on one node with so many workers, each of one GB."""
    load = NodeLoad(cpus=64, workers=workers)
    limits = node_limits(replace(ROOMY, **facts), load, per_worker, connected or workers, "node1")
    return first_limit(limits)


def test_nothing_is_reported_while_every_limit_is_far():
    assert nearest(49) is None


@pytest.mark.parametrize(
    ("workers", "facts", "message", "setting"),
    [
        (50, {}, "memory: 50 rollout workers would take 50.0 of 100.0 GB (954 MiB each) (50%).", "rollout.num_workers"),
        (9, {"cpus": 6}, "CPUs: 9 rollout workers share 6 (150%).", "cluster.cpus_per_worker"),
        (8, {"open_files": 200}, "open files: about 160 of 200 in one process with 8 rollout workers (80%).", "-n"),
        (10, {"processes": 1000}, "threads: about 600 of the 1,000 of the user or the container (60%).", "ulimit -u"),
        (10, {"threads": 800}, "threads: about 600 of the 800 of the kernel (75%).", "kernel.pid_max"),
    ],
)  # fmt: skip
def test_a_limit_within_reach_is_reported_with_both_numbers_and_the_setting(workers, facts, message, setting):
    result = nearest(workers, **facts)
    assert (result.status, result.name, result.node, result.message) == ("warn", "first limit", "node1", message)
    assert setting in result.remedy


def test_only_the_nearest_limit_is_reported():
    assert nearest(60, threads=2500).message.startswith("threads: about 2,100 of the 2,500")  # 84 %, memory 60 %


def test_the_drivers_node_keeps_files_open_to_the_workers_of_all_nodes():
    assert nearest(1, connected=2000).message.startswith("open files: about 8,128 of 10,000 in one process with 2,000")


@pytest.mark.parametrize(("collection", "reported"), [(0.7, False), (0.6, True)])
def test_the_drivers_time_is_compared_with_the_time_of_a_collection(collection, reported):
    result = first_limit([driver_limit(1000, collection)])  # 1000 workers of 0.3 ms
    assert (result is not None) == reported
    if reported:
        assert (
            result.message
            == "driver: 0.3 s of each iteration for 1,000 rollout workers, which collect for 0.6 s (50%)."
        )
        assert "rollout.horizon" in result.remedy
