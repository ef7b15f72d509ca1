"""Workers are dealt to processes evenly, in runs, and stay where they are as far as possible."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from rlpipe.distributed.hosting import deal, runs


def test_processes_have_runs_of_equal_lengths_or_one_more():
    assert runs(8, 3) == [[0, 1], [2, 3, 4], [5, 6, 7]]


def test_a_process_that_joins_takes_some_of_each_and_nobody_else_moves():
    assert deal(8, [[0, 1, 2, 3], [4, 5, 6, 7], []]) == [[0, 1], [5, 6, 7], [2, 3, 4]]


def test_the_workers_of_a_process_that_leaves_are_shared_out():
    assert deal(4, [[0, 1], [3]]) == [[0, 1], [2, 3]]


@st.composite
def hostings(draw) -> tuple[int, list[list[int]]]:
    """Workers, and who has which of them; those of nobody were in a process that leaves."""
    workers = draw(st.integers(1, 20))
    hosts = draw(st.integers(1, workers))
    owners = draw(st.lists(st.integers(-1, hosts - 1), min_size=workers, max_size=workers))
    return workers, [[rank for rank, owner in enumerate(owners) if owner == host] for host in range(hosts)]


@given(hostings())
def test_every_worker_is_dealt_once_and_no_process_has_two_more_than_another(hosting):
    workers, held = hosting
    dealt = deal(workers, held)
    assert sorted(rank for ranks in dealt for rank in ranks) == list(range(workers))
    assert max(map(len, dealt)) - min(map(len, dealt)) <= 1
    assert all(ranks == list(range(ranks[0], ranks[-1] + 1)) for ranks in dealt)


@given(hostings())
def test_what_was_dealt_stays(hosting):
    workers, held = hosting
    dealt = deal(workers, held)
    assert deal(workers, dealt) == dealt
