"""Episodes that begin in a stored state or with a chosen seed."""

from __future__ import annotations

import json
from dataclasses import replace

import h5py
import numpy as np
import pytest

from rlpipe.config.loading import load_config
from rlpipe.demonstrations import dataset
from rlpipe.demonstrations.replay import add_states, replay_demonstrations, states_of
from rlpipe.envs.maniskill import ManiSkill
from rlpipe.envs.maniskill.options import ManiSkillConfig
from rlpipe.envs.maniskill.state import blended
from rlpipe.trajectory import ChosenStart
from tests.helpers.demonstrations import SHIPPED, few
from tests.helpers.reach import Reach, ReachConfig

PICK_CUBE = {"id": "PickCube-v1", "control_mode": "pd_ee_delta_pos", "max_episode_steps": 200}


def pick_cube(**options):
    return ManiSkillConfig(name="maniskill", **(PICK_CUBE | options))


@pytest.fixture(scope="module")
def shown():
    """The first shipped demonstration: its seed, actions, observations, and the states found by running it again."""
    seed = json.loads(SHIPPED.with_suffix(".json").read_text())["episodes"][0]["episode_seed"]
    (states,) = states_of(str(SHIPPED), pick_cube(), ["traj_0"])
    with h5py.File(SHIPPED) as file:
        return seed, file["traj_0/actions"][:], file["traj_0/obs"][:], states


@pytest.fixture(scope="module")
def spec():
    """The spaces of the task."""
    simulator = ManiSkill.make(pick_cube(), 1, lambda _: None)
    simulator.close()
    return simulator.spec


def start_at(shown, step, **options):
    seed, _, _, states = shown
    return ChosenStart(seed, {name: values[step] for name, values in states.items()}, 0, step, **options)


@pytest.mark.parametrize("batched", [True, False])
def test_a_stored_state_is_observed_as_it_was_recorded_and_can_be_continued(shown, batched):
    _, actions, observations, _ = shown
    steps = [0, 40, len(actions) - 5]  # before, while and after the cube is grasped and carried
    simulator = ManiSkill.make(pick_cube(batched=batched), 3, lambda _: 7)
    simulator.next_start = lambda n: start_at(shown, steps[n])
    try:
        seen, beginnings = simulator.reset()
        assert seen[1:] == pytest.approx(observations[steps[1:]], abs=1e-5)
        assert [beginnings[n].chosen.step for n in range(3)] == steps
        left = actions[steps[2] :]
        for action in left:
            step = simulator.step(np.stack([action] * 3))
        assert step.terminated.tolist() == [False, False, True]
        assert step.success.tolist() == [False, False, True]
    finally:
        simulator.close()


@pytest.mark.parametrize("batched", [True, False])
def test_an_episode_may_begin_between_a_stored_state_and_that_of_the_reset(shown, batched):
    simulator = ManiSkill.make(pick_cube(batched=batched), 3, lambda _: 7)
    blends = [0.0, 0.25, 1.0]
    simulator.next_start = lambda n: replace(start_at(shown, 0, blend=blends[n]), seed=None)
    try:
        seen, beginnings = simulator.reset()
        assert [one.seed for one in beginnings.values()] == [7, 7, 7]
        simulator.next_start = lambda _: None
        (own, *_), _ = simulator.reset()
        assert seen[0] == pytest.approx(shown[2][0], abs=1e-5)
        assert seen[2] == pytest.approx(own, abs=1e-5)
        goal = slice(26, 29)  # where the goal is observed
        assert not np.allclose(seen[0][goal], seen[2][goal])
        assert seen[1][goal] == pytest.approx(0.75 * seen[0][goal] + 0.25 * seen[2][goal], abs=1e-5)
    finally:
        simulator.close()


def test_an_episode_may_begin_between_two_stored_states(shown):
    _, _, observations, _ = shown
    simulator = ManiSkill.make(pick_cube(), 2, lambda _: 7)
    first, second = start_at(shown, 0), start_at(shown, 40)
    simulator.next_start = lambda n: replace(first, blend=(0.5, 1.0)[n], target=second.state, towards=3)
    try:
        seen, _ = simulator.reset()
        cube = slice(29, 32)  # where its position is observed
        assert seen[1] == pytest.approx(observations[40], abs=1e-5)
        assert seen[0][cube] == pytest.approx((observations[0][cube] + observations[40][cube]) / 2, abs=1e-5)
    finally:
        simulator.close()


def test_orientations_take_the_shorter_way():
    turned = np.sqrt(0.5)  # a quarter turn about z
    first, second = np.zeros(13), np.zeros(13)
    first[3], second[3], second[6] = 1.0, -turned, -turned
    between = blended({"actors/cube": first}, {"actors/cube": second}, 0.5)["actors/cube"]
    assert np.abs(between[3:7]) == pytest.approx([np.cos(np.pi / 8), 0.0, 0.0, np.sin(np.pi / 8)])


def test_a_state_of_another_task_is_refused(shown):
    simulator = ManiSkill.make(pick_cube(), 1, lambda _: 7)
    simulator.next_start = lambda _: ChosenStart(1, {"actors/peg": np.zeros(13)})
    try:
        with pytest.raises(ValueError, match=r"a state of actors/peg is not one of this task, which has actors/cube"):
            simulator.reset()
    finally:
        simulator.close()


def test_demonstrations_recorded_again_keep_their_states(tmp_path, shown):
    source = few(tmp_path)
    config = load_config(
        {"env": {"train": {"name": "maniskill", **PICK_CUBE}}, "demos": str(source),
         "algorithm": {"name": "behaviour_cloning"}}
    )  # fmt: skip
    made = replay_demonstrations(str(source), config, tmp_path / "new.h5", lambda *_: None)
    loaded = dataset.load(str(made.file), config.env.train, made.spec)
    assert loaded.seeds[0] == shown[0]
    assert loaded.states[0].keys() == shown[3].keys()
    for name, values in loaded.states[0].items():
        assert np.array_equal(values, shown[3][name])


def test_states_are_added_to_a_file_and_nothing_else_changes(tmp_path):
    file = few(tmp_path, count=1)
    with h5py.File(file) as before:
        observations = before["traj_0/obs"][:]
    add_states(file, pick_cube(), lambda _: None)
    with h5py.File(file) as after:
        assert np.array_equal(after["traj_0/obs"][:], observations)
        assert after["traj_0/env_states/actors/cube"].shape == (len(observations), 13)


def test_demonstrations_without_states_have_none(spec):
    loaded = dataset.load(str(SHIPPED), pick_cube(), spec, count=2, seed=1)
    assert loaded.states == (None, None)


def test_the_seed_decides_which_demonstrations_are_drawn(spec):
    drawn = [dataset.load(str(SHIPPED), pick_cube(), spec, count=3, seed=seed).names for seed in (0, 0, 1)]
    assert drawn[0] == drawn[1] != drawn[2]
    assert len(drawn[0]) == 3


def test_more_demonstrations_than_there_are_is_an_error(spec):
    with pytest.raises(dataset.ConfigError, match=r"num_demos is 201, but .* has only 200 demonstrations that succeed"):
        dataset.load(str(SHIPPED), pick_cube(), spec, count=201)


def reach(next_start):
    simulator = Reach.make(ReachConfig("reach"), 1, lambda _: 7)
    simulator.next_start = next_start
    return simulator


def test_a_chosen_seed_takes_the_place_of_the_slots_own():
    own, _ = reach(None).reset()
    chosen, beginnings = reach(lambda _: ChosenStart(seed=8)).reset()
    assert not np.array_equal(own, chosen)
    assert beginnings[0].seed == 8


def test_a_chosen_start_may_have_a_time_limit_of_its_own():
    still = np.zeros((1, 1), dtype=np.float32)
    simulator = reach(lambda _: ChosenStart(limit=2))
    simulator.reset()
    assert [simulator.step(still).truncated[0] for _ in range(4)] == [False, True, False, True]


def test_the_next_episode_has_the_tasks_own_limit_again():
    still = np.zeros((1, 1), dtype=np.float32)
    starts = iter([ChosenStart(limit=1), None])
    simulator = reach(lambda _: next(starts))
    simulator.reset()
    assert simulator.step(still).truncated[0]
    assert not any(simulator.step(still).truncated[0] for _ in range(11))


def test_a_replay_repeats_the_same_drawn_demonstrations(spec):
    drawn = dataset.load(str(SHIPPED), pick_cube(), spec, count=3, seed=1)
    actions = dataset.load_actions(str(SHIPPED), spec, count=3, seed=1)
    firsts = [drawn.actions[drawn.trajectory == number][0].tolist() for number in range(3)]
    assert [one[0].tolist() for one in actions] == firsts
