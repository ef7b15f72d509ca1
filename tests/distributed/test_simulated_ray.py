"""Facts that rlpipe relies on, of a real Ray and of the stand-in alike: else the stand-in would prove nothing."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import ray
from ray.exceptions import (
    ActorDiedError,
    ActorUnschedulableError,
    GetTimeoutError,
    ObjectLostError,
    RayActorError,
    RayError,
    RayTaskError,
)

from rlpipe.distributed import placement_group
from rlpipe.distributed.nodes import draining_nodes, is_alive, pinned_to
from tests.helpers import cluster
from tests.helpers.simulated_ray.trials import on_a_simulated_cluster

SMALL, LARGE = 1_000, 200_000
"""Bytes of objects: the first travels with the answer."""


class Part:
    """Actor of these tests."""

    def pid(self) -> int:
        return os.getpid()

    def answer(self, value: Any) -> Any:
        return value

    def bytes(self, count: int) -> bytes:
        return bytes(count)

    def two(self, value: Any) -> tuple[Any, Any]:
        return value, value

    def note(self, file: str, line: str = "called") -> str:
        with Path(file).open("a") as notes:
            notes.write(f"{line}\n")
        return line

    def note_slowly(self, file: str) -> None:
        self.note(file)
        time.sleep(60)

    def rest(self, seconds: float) -> float:
        time.sleep(seconds)
        return seconds

    def fail(self, *_: Any) -> None:
        raise ZeroDivisionError("as intended")


def new_part(**options: Any) -> Any:
    return ray.remote(Part).options(num_cpus=0, **options).remote()


class System:
    """Real Ray, or the stand-in.

    Attributes:
        kill: kills an actor, of which it takes the handle and the number of its process, from outside.
        part: an actor that tests leave alive.
        other: another one.
    """

    def __init__(self, kill: Callable[[Any, int], None]) -> None:
        self.kill, self.part, self.other = kill, new_part(), new_part()


@pytest.fixture(scope="module", params=["stand-in", pytest.param("ray", marks=pytest.mark.soak)])
def system(request, tmp_path_factory) -> Iterator[System]:
    with contextlib.ExitStack() as stack:
        if request.param == "ray":
            request.getfixturevalue("ray_cluster")
            yield System(lambda _, pid: os.kill(pid, signal.SIGKILL))
        else:
            world = stack.enter_context(on_a_simulated_cluster(tmp_path_factory.mktemp("system")))
            yield System(lambda part, _: world.end(part.actor, "killed"))


def failure(ref: Any) -> RayError:
    with pytest.raises(RayError) as raised:
        ray.get(ref, timeout=60)
    return raised.value


def test_wait_returns_any_answers_as_many_as_asked_for_in_the_order_given(system):
    refs = [system.part.answer.remote(number) for number in range(4)]
    ray.get(refs)
    for count in (1, 2, 4):
        done, rest = ray.wait(refs, num_returns=count, timeout=60)
        assert len(done) == count
        assert (done, rest) == ([ref for ref in refs if ref in done], [ref for ref in refs if ref not in done])


def test_wait_counts_failures_as_answers_and_returns_nothing_when_time_is_over(system):
    slow, failed = system.part.rest.remote(1), system.other.fail.remote()
    assert ray.wait([slow], timeout=0) == ([], [slow])
    assert ray.wait([slow, failed], num_returns=2, timeout=60) == ([slow, failed], [])


def test_a_list_fails_as_soon_as_one_of_its_calls_does(system):
    slow, failed = system.part.rest.remote(3), system.other.fail.remote()
    assert isinstance(failure([slow, failed]), ZeroDivisionError)
    assert ray.wait([slow], timeout=0) == ([], [slow])
    ray.get(slow)


def test_an_answer_that_does_not_come_in_time_is_no_error_of_the_call(system):
    with pytest.raises(GetTimeoutError) as raised:
        ray.get(system.part.rest.remote(1), timeout=0.1)
    assert isinstance(raised.value, TimeoutError)
    assert not isinstance(raised.value, RayTaskError)


def test_an_exception_is_that_of_the_method_and_rays_at_once_and_its_text_names_the_process(system):
    error, pid = failure(system.part.fail.remote()), ray.get(system.part.pid.remote())
    assert isinstance(error, ZeroDivisionError)
    assert isinstance(error, RayTaskError)
    assert str(error.cause) == "as intended"
    assert f"pid={pid}" in str(error)
    assert not hasattr(error, "pid")


def test_both_answers_of_a_call_come_or_fail_together(system):
    assert ray.get(system.part.two.options(num_returns=2).remote("same")) == ["same", "same"]
    errors = [failure(ref) for ref in system.part.fail.options(num_returns=2).remote()]
    assert [type(error.cause) for error in errors] == [ZeroDivisionError, ZeroDivisionError]


def test_a_call_with_a_failed_argument_fails_without_being_made(system, tmp_path):
    error = failure(system.part.note.remote(str(tmp_path / "notes"), system.other.fail.remote()))
    assert isinstance(error, RayTaskError)
    assert type(error.cause) is ZeroDivisionError
    assert not (tmp_path / "notes").exists()


def test_calls_run_in_the_order_in_which_they_were_sent_also_where_one_waits_for_its_argument(system, tmp_path):
    file, part = str(tmp_path / "notes"), system.part
    late = system.other.rest.remote(1)
    ray.get([part.note.remote(file, late), part.note.remote(file, "second"), part.note.remote(file, "third")])
    assert Path(file).read_text().split() == ["1", "second", "third"]


def test_an_argument_is_a_copy(system):
    numbers = [1]
    ref = ray.put(numbers)
    numbers.append(2)
    assert ray.get(system.part.answer.remote(ref)) == [1]


def test_all_calls_of_a_process_that_dies_fail_and_none_is_made_again(system, tmp_path):
    file, part = str(tmp_path / "notes"), new_part()
    small, large = part.bytes.remote(SMALL), part.bytes.remote(LARGE)
    pid = ray.get(part.pid.remote())
    running, queued = part.note_slowly.remote(file), part.note.remote(file)
    while not Path(file).exists():
        time.sleep(0.1)
    system.kill(part, pid)
    for ref in (running, queued, part.pid.remote()):
        error = failure(ref)
        assert isinstance(error, ActorDiedError)
        assert error.actor_id
    assert Path(file).read_text().split() == ["called"]
    assert [len(ray.get(ref, timeout=60)) for ref in (small, large)] == [SMALL, LARGE]  # answers outlive it


def test_an_actor_can_be_ended_twice_and_its_calls_fail(system):
    part = new_part()
    ray.get(part.pid.remote())
    pending = part.rest.remote(60)
    ray.kill(part)
    ray.kill(part)
    assert isinstance(failure(pending), RayActorError)
    assert isinstance(failure(part.pid.remote()), RayActorError)


def test_an_actor_for_a_node_that_does_not_exist_fails(system):
    part = new_part(scheduling_strategy=pinned_to("ab" * 28))
    assert isinstance(failure(part.pid.remote()), ActorUnschedulableError)


def test_a_group_of_places_is_created_once_there_is_room_and_waits_before(system):
    cpus = sum(node["Resources"].get("CPU", 0.0) for node in ray.nodes() if node["Alive"])
    largest = max(node["Resources"].get("CPU", 0.0) for node in ray.nodes() if node["Alive"])
    fits, waits = (placement_group.placement_group([{"CPU": need}], "SPREAD") for need in (largest / 2, cpus + 1))
    try:
        assert fits.wait(60)
        states = [placement_group.placement_group_table(group)["state"] for group in (fits, waits)]
        assert states == ["CREATED", "PENDING"]
    finally:
        for group in (fits, waits):
            placement_group.remove_placement_group(group)


# --- nodes


@dataclass
class Nodes:
    """Cluster whose nodes can be taken away; each is used by one test.

    Attributes:
        free: nodes that no test has used yet.
        lose: takes a node away.
        drain: announces that a node will go in so many seconds.
    """

    free: list[str]
    lose: Callable[[str], None]
    drain: Callable[[str, int], None]

    def part(self) -> tuple[Any, str]:
        """Starts an actor on a node that nothing else uses; returns it and the node."""
        node = self.free.pop()
        return new_part(scheduling_strategy=pinned_to(node)), node

    def lose_and_notice(self, node: str) -> None:
        self.lose(node)
        while is_alive(node):
            time.sleep(0.1)


@pytest.fixture(scope="module", params=["stand-in", pytest.param("ray", marks=pytest.mark.soak)])
def nodes(request, tmp_path_factory) -> Iterator[Nodes]:
    with contextlib.ExitStack() as stack:
        if request.param == "ray":
            cluster.end_shared_ray()
            several = stack.enter_context(cluster.simulated(4, 1.0))
            ray.init(address=several.address, namespace="rlpipe", log_to_driver=False)
            stack.callback(ray.shutdown)
            yield Nodes([node for node in other_nodes() if several.has(node)], several.kill, several.drain)
        else:
            world = stack.enter_context(on_a_simulated_cluster(tmp_path_factory.mktemp("nodes"), nodes=5))
            yield Nodes(
                other_nodes(),
                lambda node: world.lose_node(world.nodes[node], 3.0),
                lambda node, seconds: world.drain(world.nodes[node], seconds),
            )


def other_nodes() -> list[str]:
    driver = ray.get_runtime_context().get_node_id()
    return [node["NodeID"] for node in ray.nodes() if node["NodeID"] != driver]


def test_a_lost_node_takes_its_actors_and_large_objects_but_no_small_ones(nodes):
    part, node = nodes.part()
    small, large = part.bytes.remote(SMALL), part.bytes.remote(LARGE)
    ray.wait([small, large], num_returns=2, timeout=60, fetch_local=False)
    nodes.lose_and_notice(node)
    assert isinstance(failure(part.pid.remote()), ActorDiedError)
    assert len(ray.get(small, timeout=60)) == SMALL
    assert isinstance(failure(large), ObjectLostError)


def test_a_call_with_a_lost_argument_fails_with_that_loss_as_its_cause(nodes):
    part, node = nodes.part()
    large = part.bytes.remote(LARGE)
    ray.wait([large], timeout=60, fetch_local=False)
    nodes.lose_and_notice(node)
    survivor, _ = nodes.part()
    error = failure(survivor.answer.remote(large))
    assert isinstance(error, RayTaskError)
    assert isinstance(error.cause, ObjectLostError)


def test_a_node_that_drains_is_announced_with_its_deadline_and_works_on(nodes):
    part, node = nodes.part()
    ray.get(part.pid.remote())
    ends = time.time() + 60
    nodes.drain(node, 60)
    while node not in (announced := draining_nodes()):
        time.sleep(0.1)
    assert announced[node] == pytest.approx(ends, abs=5)
    assert ray.get(part.answer.remote("still there")) == "still there"
