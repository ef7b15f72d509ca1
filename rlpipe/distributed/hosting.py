"""Which process is the host of which workers, as arithmetic."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Sequence


def runs(workers: int, hosts: int) -> list[list[int]]:
    """Returns the ranks of each of some processes: one run after the other, of equal lengths or one more."""
    bounds = [number * workers // hosts for number in range(hosts + 1)]
    return [[*range(first, last)] for first, last in itertools.pairwise(bounds)]


def deal(workers: int, held: Sequence[Sequence[int]]) -> list[list[int]]:
    """Deals workers to processes in runs of their ranks, so that many stay where they are.

    Args:
        workers: number of workers.
        held: ranks that each process has now; those of others have to move.
    Returns:
        The ranks of each process, in the same order.
    """
    dealt = runs(workers, len(held))
    run_of = [number for number, ranks in enumerate(dealt) for _ in ranks]
    common = Counter((host, run_of[rank]) for host, ranks in enumerate(held) for rank in ranks)
    run_of_host: dict[int, int] = {}
    free = {*range(len(held))}
    for (host, number), _ in sorted(common.items(), key=lambda entry: (-entry[1], entry[0])):
        if host not in run_of_host and number in free:
            run_of_host[host] = number
            free.remove(number)
    left = iter(sorted(free))
    return [dealt[run_of_host[host] if host in run_of_host else next(left)] for host in range(len(held))]
