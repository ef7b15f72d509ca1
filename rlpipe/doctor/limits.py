"""Finds the limit that a run will meet first when it grows: memory, threads, open files, CPUs, or the driver's time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from rlpipe.doctor.facts import Facts
from rlpipe.doctor.machine import RAY_FILES, RAY_THREADS, WORKER_FILES, WORKER_THREADS, NodeLoad
from rlpipe.doctor.results import CheckResult, warn

NAME = "first limit"
WITHIN_REACH = 0.5
"""Share of a limit from which it is reported."""
DRIVER_SECONDS = 0.3e-3
"""Processor time of the driver for each rollout worker and iteration; ``benchmarks/driver.py`` measures it."""


@dataclass(frozen=True)
class Limit:
    """One limit, and how much of it a run takes.

    Attributes:
        used: share of the limit; above 1, the run exceeds it.
        message: both numbers.
        remedy: setting to change.
        node: where it applies.
    """

    used: float
    message: str
    remedy: str
    node: str = ""


def first_limit(limits: Sequence[Limit]) -> CheckResult | None:
    """Reports the limit of which a run takes the largest share; returns None if none is within reach."""
    nearest = max(limits, key=lambda limit: limit.used, default=None)
    if nearest is None or nearest.used < WITHIN_REACH:
        return None
    return replace(warn(NAME, f"{nearest.message} ({nearest.used:.0%}).", nearest.remedy), node=nearest.node)


def node_limits(facts: Facts, load: NodeLoad, per_worker: float, connected: int, node: str = "") -> list[Limit]:
    """Returns the limits of one node.

    Args:
        per_worker: bytes of memory of a rollout worker.
        connected: rollout workers to which a process here keeps files open: those of the whole cluster where the
            driver and Ray's control service run, else those of the node.
    """
    workers = load.workers
    limits = [
        Limit(
            workers * per_worker / max(1, facts.available),
            f"memory: {workers:,} rollout workers would take {workers * per_worker / 1e9:.1f} of "
            f"{facts.available / 1e9:.1f} GB ({per_worker / 2**20:,.0f} MiB each)",
            "fewer rollout workers with more environments each (rollout.num_workers), or more nodes.",
        )
    ]
    if workers > facts.cpus:
        message = f"CPUs: {workers:,} rollout workers share {facts.cpus:g}"
        limits.append(Limit(workers / max(1.0, facts.cpus), message, "raise cluster.cpus_per_worker, or add nodes."))
    if facts.open_files is not None:
        files = RAY_FILES + WORKER_FILES * connected
        message = (
            f"open files: about {files:,} of {facts.open_files:,} in one process with {connected:,} rollout workers"
        )
        limits.append(Limit(files / facts.open_files, message, "ulimit -n 1048576 before Ray is started there."))
    limits += _thread_limits(facts, RAY_THREADS + WORKER_THREADS * workers)
    return [replace(limit, node=node) for limit in limits]


def _thread_limits(facts: Facts, threads: int) -> list[Limit]:
    """Returns the limits of threads: of the user or container, and of the kernel."""
    kernel = "sysctl -w kernel.pid_max=4194304 kernel.threads-max=4194304 there."
    user = "ulimit -u unlimited (docker run --pids-limit=-1) where Ray is started."
    limits = [(facts.processes, "of the user or the container", user), (facts.threads, "of the kernel", kernel)]
    return [
        Limit(threads / most, f"threads: about {threads:,} of the {most:,} {whose}", remedy)
        for most, whose, remedy in limits if most is not None
    ]  # fmt: skip


def driver_limit(workers: int, collection: float) -> Limit:
    """Returns how much of an iteration the driver is busy with its rollout workers.

    Args:
        collection: seconds that the workers take to collect an iteration.
    """
    busy = workers * DRIVER_SECONDS
    return Limit(
        busy / collection,
        f"driver: {busy:.2g} s of each iteration for {workers:,} rollout workers, which collect for {collection:.2g} s",
        "raise rollout.horizon or rollout.workers_per_actor, or lower rollout.num_workers.",
    )
