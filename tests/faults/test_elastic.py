"""Processes that come and go: rows and ledger are those of a run whose processes stay."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import rlpipe
from rlpipe.run.directory import RunDirectory
from rlpipe.training.interruption import Interruption
from tests.helpers.faulty import assert_whole, rows
from tests.helpers.runs import TIMINGS, beside, scripted
from tests.helpers.simulated_ray.trials import on_a_simulated_cluster
from tests.helpers.simulated_ray.world import World

WORKERS, ITERATIONS = 8, 10
SIMULATOR = {"name": "tests.helpers.simulators:Seeded", "total_num_envs": 8, "match_actions": True}


def config_of(folder: Path, *overrides: str, **tree: Any):
    return scripted(
        folder,
        "rollout.horizon=13",  # so that episodes go on over iterations
        f"runner.total_timesteps={13 * WORKERS * ITERATIONS}",
        "runner.val_check_interval=5",
        "cluster.cpus_per_worker=1",
        "learner.device=cpu",
        *overrides,
        env={"train": SIMULATOR},
        **tree,
    )


def written(run: Path) -> tuple[list[dict[str, float]], dict[str, bytes]]:
    """Rows without times, and the ledgers by the names of their files."""
    metrics = [
        {name: value for name, value in row["metrics"].items() if not name.startswith(TIMINGS)} for row in rows(run)
    ]
    return metrics, {file.name: file.read_bytes() for file in run.glob("*episodes.jsonl")}


def moves(run: Path) -> list[int]:
    """Number of processes after each change."""
    messages = [event["message"] for event in rows(run, "events.jsonl") if event["kind"] == "moved"]
    return [int(message.partition(" go on in ")[2].split()[0]) for message in messages]


def the_run(folder: Path) -> Path:
    (file,) = folder.glob("*/*/run.json")
    return file.parent


def simulated(folder: Path, *overrides: str, happenings: Callable[[World], None] = lambda world: None) -> Path:
    """A run of real workers and a real learner on six nodes of two CPUs in virtual time."""
    with on_a_simulated_cluster(folder.resolve(), stubs=False) as world:
        happenings(world)
        rlpipe.train(config_of(folder.resolve(), *overrides))
    return the_run(folder)


@pytest.fixture(scope="module")
def constant(tmp_path_factory) -> Path:
    """Run whose eight workers are in two processes from the beginning to the end."""
    return simulated(tmp_path_factory.mktemp("constant"), "rollout.num_workers=8", "rollout.workers_per_actor=4")


def test_a_run_that_goes_from_two_processes_to_eight_and_with_a_drain_to_three_has_the_same_rows(tmp_path, constant):
    def happenings(world: World) -> None:
        world.after(14.0, lambda: world.drain(world.nodes[of_last_worker(world)], 30.0))
        world.after(18.0, lambda: RunDirectory(the_run(tmp_path)).ask_for_processes(3))

    run = simulated(tmp_path, "rollout.num_workers={min: 2, max: 8}", happenings=happenings)
    assert written(run) == written(constant)
    changes = moves(run)
    assert max(changes) == WORKERS
    assert changes[-1] == 3
    assert not [row for row in rows(run) if row["metrics"].get("rollout/discarded_trajectories")]
    assert [event["kind"] for event in rows(run, "events.jsonl") if event["kind"] == "leaving"] == ["leaving"]


def of_last_worker(world: World) -> str:
    """Node of the process that was started last, of those that are there."""
    alive = [actor for actor in world.actors if actor.role == "rollout" and actor.cause is None and actor.placed]
    return next(actor.node.id for actor in reversed(alive) if actor.node is not world.head)


SIZES = st.lists(st.tuples(st.floats(3.0, 25.0), st.integers(1, 8)), max_size=4)
DRAINS = st.lists(st.floats(5.0, 25.0), max_size=2)


@pytest.mark.soak
@settings(max_examples=3)
@given(sizes=SIZES, drains=DRAINS)
def test_whatever_number_of_processes_is_asked_for_and_drained_the_rows_are_the_same(
    tmp_path_factory, constant, sizes, drains
):
    folder = tmp_path_factory.mktemp("sizes")

    def happenings(world: World) -> None:
        for moment, number in sizes:
            world.after(moment, ask, number)
        for moment in drains:
            world.after(moment, drain_one, world)

    def ask(number: int) -> None:
        for file in folder.glob("*/*/run.json"):
            RunDirectory(file.parent).ask_for_processes(number)

    def drain_one(world: World) -> None:
        busy = {actor.node for actor in world.actors if actor.role == "rollout" and actor.cause is None}
        learning = {actor.node for actor in world.actors if actor.role == "learner"}
        for node in world.nodes.values():
            if node in busy - learning and node is not world.head:
                world.drain(node, 60.0)
                return

    run = simulated(folder, "rollout.num_workers={min: 1, max: 8}", happenings=happenings)
    assert written(run) == written(constant)


def test_a_lost_process_costs_the_episodes_of_its_workers_which_go_on_in_another(tmp_path):
    def happenings(world: World) -> None:
        world.fates["rollout", "collect", 30] = "before"

    run = simulated(tmp_path, "rollout.num_workers={min: 2, max: 8}", happenings=happenings)
    assert_whole(run, ITERATIONS)
    (loss,) = [event for event in rows(run, "events.jsonl") if event["kind"] == "restarted"]
    assert loss["data"]["successor"] is not None
    assert sum(row["metrics"].get("rollout/discarded_trajectories", 0) for row in rows(run)) >= 1


@pytest.mark.soak
def test_on_a_real_ray_processes_come_and_go_and_the_rows_are_the_same(tmp_path):
    usual = ("learner.num_threads=1", "cluster.cpus_per_worker=0.1")
    interruption = Interruption()

    def end_once_it_has_moved() -> bool:
        moved = any(moves(file.parent) for file in tmp_path.glob("elastic/*/*/events.jsonl"))
        if moved:
            interruption.request("workers have moved")
        return moved

    endless = ("runner.total_timesteps=1_000_000_000", "rollout.num_workers={min: 2, max: 8}")
    with beside(end_once_it_has_moved):
        elastic = rlpipe.train(config_of(tmp_path / "elastic", *usual, *endless), interruption=interruption)
    steps = f"runner.total_timesteps={13 * WORKERS * len(rows(elastic.directory))}"
    fixed = rlpipe.train(config_of(tmp_path / "fixed", *usual, steps, "rollout.num_workers=8"), local=True)
    assert moves(elastic.directory)
    (*found, _), ledgers = written(elastic.directory)
    (*expected, _), expected_ledgers = written(fixed.directory)  # whose last row also holds the last evaluation
    assert found == expected
    assert ledgers["episodes.jsonl"] == expected_ledgers["episodes.jsonl"]
