"""Variations between episodes: what they draw from, what they do, and that they do nothing at their neutral levels."""

from __future__ import annotations

import contextlib
import inspect
import itertools
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import mujoco
import numpy as np
import pytest
import sapien
from hypothesis import given
from hypothesis import strategies as st

import rlpipe
from rlpipe.config.loading import load_config
from rlpipe.config.protocol import comparable, protocol
from rlpipe.config.sections import typed
from rlpipe.config.simulators import task_facts
from rlpipe.config.variations import NUMBERS, Axis, Variations
from rlpipe.demonstrations.checks import check_demonstrations
from rlpipe.envs.base import Simulator
from rlpipe.envs.maniskill import ManiSkill
from rlpipe.envs.maniskill.loading import load_maniskill
from rlpipe.envs.maniskill.physics import SPREADS
from rlpipe.envs.maniskill.single import ManiSkillEnv
from rlpipe.envs.shared import axes
from rlpipe.envs.shared.axes import EVERYWHERE
from rlpipe.envs.shared.mujoco.physics import MuJoCoPhysics
from rlpipe.envs.shared.varied import VariedSimulator
from rlpipe.errors import ConfigError
from rlpipe.plugins import resolve
from rlpipe.report.run_content import collect
from rlpipe.report.view_episodes import episodes_section
from rlpipe.training.checks import check_spaces
from rlpipe.trajectory.tree import leaves_of
from tests.helpers.contract import episode, made, random_actions
from tests.helpers.kinds import KINDS
from tests.helpers.runs import lines, scripted

SEEDS = st.integers(0, 2**31 - 1)
AXES = [axis.name for axis in EVERYWHERE]
LEVELS = st.sampled_from([{"uniform": [0.25, 1.5]}, {"log_uniform": [0.5, 2.0]}, {"choice": [1, 2, 3]}, 0.5])
ECHO = {"name": "tests.helpers.simulators:Echo", "script": [[{"length": 1000}]]}
SCRIPTED = {"name": "scripted"}


def variations(values) -> Variations:
    return Variations.of(SimpleNamespace(variations=values))


def commands_of(actions, **levels) -> list[float]:
    """What arrives of actions, in an environment whose step t pays t times what arrives."""
    simulator = made(ECHO | {"variations": levels}, [5])
    simulator.reset()
    rewards = [simulator.step(np.array([[action]], dtype=np.float32)).rewards[0] for action in actions]
    return [round(float(reward) / t, 6) for t, reward in enumerate(rewards, 1)]


def steps_observed(count, seed=5, length=100, **levels) -> list[int]:
    """Numbers of the steps whose observations are seen at the start and after each step."""
    script = [[{"length": length}]]
    simulator = made(SCRIPTED | {"script": script, "variations": levels}, [seed, seed])
    observed = [simulator.reset()[0]]
    observed += [simulator.step(np.zeros((1, 1), dtype=np.float32)).observations for _ in range(count)]
    return [int(observation[0, 2]) for observation in observed]


# --- levels


@given(SEEDS, st.dictionaries(st.sampled_from(AXES), LEVELS), st.dictionaries(st.sampled_from(AXES), LEVELS))
def test_a_level_follows_from_the_seed_and_the_name_of_its_axis_alone(seed, some, others):
    mine = variations(some).draw(seed)
    together = variations(others | some).draw(seed)
    assert {name: together[name] for name in mine} == mine
    assert variations(dict(reversed(some.items()))).draw(seed) == mine


@given(SEEDS)
def test_levels_lie_within_their_range(seed):
    drawn = variations({"a": {"uniform": [-2, 3]}, "b": {"log_uniform": [0.1, 10]}, "c": {"choice": [7]}}).draw(seed)
    assert -2 <= drawn["a"] < 3
    assert 0.1 <= drawn["b"] < 10
    assert drawn["c"] == 7


def test_every_choice_is_about_as_likely_and_the_median_of_a_range_is_its_middle():
    varied = variations({"a": {"choice": [0, 1, 2]}, "b": {"uniform": [0, 2]}, "c": {"log_uniform": [0.01, 100]}})
    drawn = [varied.draw(seed) for seed in range(3000)]
    counts = np.bincount([int(levels["a"]) for levels in drawn])
    assert (np.abs(counts - 1000) < 120).all()
    assert np.median([levels["b"] for levels in drawn]) == pytest.approx(1, abs=0.05)
    assert np.median([levels["c"] for levels in drawn]) == pytest.approx(1, rel=0.3)


# --- actions


def test_a_late_command_arrives_some_steps_later_and_the_first_one_stands_in_until_then():
    assert commands_of([0.1, 0.2, 0.3, 0.4, 0.5], action_latency=2) == [0.1, 0.1, 0.1, 0.2, 0.3]


def test_a_held_command_is_replaced_after_some_steps_only():
    assert commands_of([0.1, 0.2, 0.3, 0.4, 0.5], action_hold=2) == [0.1, 0.1, 0.3, 0.3, 0.5]


def test_a_command_that_is_held_and_late_is_both():
    assert commands_of([0.1, 0.2, 0.3, 0.4, 0.5, 0.6], action_hold=2, action_latency=1) == [
        0.1, 0.1, 0.1, 0.3, 0.3, 0.5,
    ]  # fmt: skip


def test_a_scaled_command_stays_within_its_bounds():
    assert commands_of([0.1, -0.4, 0.9], action_scale=2) == [0.2, -0.8, 1.0]


def test_noise_on_commands_has_its_deviation_in_half_action_ranges():
    arrived = np.array(commands_of([0.0] * 400, action_noise=0.1))
    assert arrived.std() == pytest.approx(0.1, rel=0.15)
    assert abs(arrived.mean()) < 0.02


# --- observations


def test_a_late_observation_is_that_of_some_steps_before():
    assert steps_observed(5, observation_latency=2) == [0, 0, 0, 1, 2, 3]


def test_the_next_episode_does_not_observe_the_last_one():
    assert steps_observed(5, length=3, observation_latency=1) == [0, 0, 1, 0, 0, 1]


def test_a_dropped_observation_is_the_one_before():
    assert steps_observed(4, observation_dropout=1) == [0, 0, 0, 0, 0]
    observed = steps_observed(40, observation_dropout=0.5)
    assert all(now in (before, t) for t, (before, now) in enumerate(itertools.pairwise(observed), 1))
    assert 8 < len({*observed}) < 32


def test_what_ended_an_episode_is_observed_as_late_as_all_else():
    simulator = made(SCRIPTED | {"script": [[{"length": 3}]], "variations": {"observation_latency": 2}}, [5, 6])
    simulator.reset()
    *_, last = (simulator.step(np.zeros((1, 1), dtype=np.float32)) for _ in range(3))
    assert (last.truncated[0], last.successors[0, 2], last.observations[0, 2]) == (True, 1, 0)


def test_noise_follows_from_the_seed_of_the_episode_and_not_from_its_slot():
    tree = SCRIPTED | {"script": [[{"length": 3}]], "variations": {"observation_noise": 0.5}}
    clean = SCRIPTED | {"script": [[{"length": 3}]]}

    def noise_of(seeds, slots):
        varied, plain = (made(each, seeds, slots) for each in (tree, clean))
        return varied.reset()[0] - plain.reset()[0]

    two, swapped = noise_of([5, 6], 2), noise_of([6, 5], 2)
    assert two == pytest.approx(swapped[::-1], abs=1e-6)
    assert abs(two[0] - two[1]).min() > 1e-3


# --- pictures

PAINTED = {"name": "tests.helpers.simulators:Painted"}


def row_seen(seed=5, **levels) -> list[int]:
    """A row of the first picture, which is 100, 100, 100, 255 without variations."""
    simulator = made(PAINTED | {"variations": levels}, [seed])
    return simulator.reset()[0]["camera"][0, 1, :, 0].tolist()


def test_brightness_and_contrast_change_colours_within_their_range():
    assert row_seen(brightness=0.2) == [151, 151, 151, 255]
    assert row_seen(brightness=-1) == [0, 0, 0, 0]
    assert row_seen(contrast=2) == [72, 72, 72, 255]
    assert row_seen(contrast=0) == [128, 128, 128, 128]


def test_a_picture_is_shifted_as_its_seed_says_and_its_edges_are_repeated():
    assert {tuple(row_seen(seed, camera_shift=0.25)) for seed in range(20)} == {
        (100, 100, 100, 255), (100, 100, 100, 100), (100, 100, 255, 255),
    }  # fmt: skip
    assert row_seen(7, camera_shift=0.25) == row_seen(7, camera_shift=0.25)


def picture_seen(seed=5, **levels) -> list[list[int]]:
    """The first picture, 4 x 4, whose last column is 255 and all else 100 without variations."""
    simulator = made(PAINTED | {"variations": levels}, [seed])
    return simulator.reset()[0]["camera"][0, :, :, 0].tolist()


def test_a_picture_is_turned_about_its_centre_to_the_side_that_its_seed_says():
    dark, bright = [100] * 4, [255] * 4
    turned = [picture_seen(seed, camera_tilt=90) for seed in range(20)]
    assert {str(picture) for picture in turned} == {str([dark, dark, dark, bright]), str([bright, dark, dark, dark])}
    assert turned == [picture_seen(seed, camera_tilt=90) for seed in range(20)]
    assert picture_seen(camera_tilt=180) == [[255, 100, 100, 100]] * 4
    assert picture_seen(camera_tilt=0) == picture_seen()


def test_a_picture_is_turned_and_then_shifted():
    """Bright in the first column after half a turn; a quarter of its width further right or left, or neither."""
    seen = {tuple(picture_seen(seed, camera_tilt=180, camera_shift=0.25)[1]) for seed in range(20)}
    assert seen == {(255, 100, 100, 100), (255, 255, 100, 100), (100, 100, 100, 100)}


def test_noise_needs_fractions_to_act_on(tmp_path):
    with pytest.raises(ConfigError, match="names observation_noise, but the task has no fractions: leave it out"):
        made(PAINTED | {"variations": {"observation_noise": 0.1}}, [5])


# --- nothing at the neutral levels


def some_actions(spec, count) -> np.ndarray:
    """[count, 1, ...] actions within the spaces."""
    return np.ones((count, 1), dtype=np.int64) if spec.num_actions else random_actions(spec, count)


def everything_of(tree, count, slots=2) -> list:
    """Numbers of some steps of a simulator that has been reset."""
    simulator = made(tree, iter(range(5, 1000)), slots)
    observations, beginnings = simulator.reset()
    seen = [[leaf.tobytes() for leaf in leaves_of(observations)], {**beginnings}.keys()]
    for action in some_actions(simulator.spec, count):
        step = simulator.step(np.repeat(action, slots, axis=0))
        seen += [leaf.tobytes() for leaf in leaves_of(step.observations)]
        seen += [leaf[step.valid].tobytes() for leaf in leaves_of(step.successors)]
        seen += [step.rewards.tobytes(), step.terminated.tobytes(), step.truncated.tobytes(), step.valid.tobytes()]
    simulator.close()
    return seen


def axes_of(tree):
    """Axes of the task of a simulator's section, which act on something."""
    section = typed(resolve("envs", tree["name"], "env.train.name").Config, tree, "env.train")
    return [
        axis for axis in task_facts(section, "env.train").axes if not (axis.needs == NUMBERS and "Cart" in str(tree))
    ]


TASKS = {
    "scripted": {"name": "tests.helpers.simulators:Seeded", "script": [[{"length": 7}]]},
    "vectorised": {"name": "gymnasium", "id": "CartPole-v1", "vectorized": True},
    "MuJoCo": {"name": "gymnasium", "id": "InvertedPendulum-v5", "max_episode_steps": 9, "ignore_terminations": True},
    "Fetch": {"name": "gymnasium", "id": "gymnasium_robotics:FetchPush-v4", "max_episode_steps": 9},
    "ManiSkill": {"name": "maniskill", "id": "PushCube-v1", "max_episode_steps": 9},
}


@pytest.mark.parametrize("task", TASKS)
def test_at_their_neutral_levels_variations_change_no_bit(task):
    tree = TASKS[task]
    neutral = tree | {"variations": {axis.name: axis.neutral for axis in axes_of(tree)}}
    assert everything_of(neutral, 20) == everything_of(tree, 20)


# --- physics

MODEL = """
<mujoco>
  <option gravity="0 0 -9.81"/>
  <worldbody>
    <geom name="floor" type="plane" size="1 1 1" friction="0.8 0.1 0.1"/>
    <body name="cube" pos="0 0 1"><freejoint/><geom type="box" size="0.1 0.1 0.1" mass="2" friction="1 0.1 0.1"/></body>
    <body name="arm" pos="1 0 1"><joint type="hinge" axis="0 1 0" damping="0.5"/><geom size="0.1" mass="3"/></body>
  </worldbody>
</mujoco>
"""


def numbers_of(model) -> dict[str, bytes]:
    """Every array of a MuJoCo model, its options and statistics included."""
    arrays = {name: getattr(model, name) for name in dir(model) if isinstance(getattr(model, name, None), np.ndarray)}
    return {name: values.tobytes() for name, values in arrays.items()} | {
        "gravity": model.opt.gravity.tobytes(),
        "stat": str(model.stat),
    }


def test_levels_change_a_mujoco_model_and_the_neutral_ones_restore_it():
    model = mujoco.MjModel.from_xml_string(MODEL)
    before = numbers_of(model)
    physics = MuJoCoPhysics(lambda: model)
    physics.vary({"mass": 3.0, "friction": 0.5, "joint_damping": 2.0, "gravity": 0.0})
    assert model.body_mass.tolist() == [0, 6, 3]  # the arm does not move freely
    assert model.body_subtreemass[0] == 9
    assert model.geom_friction[:, 0].tolist() == [0.4, 0.5, 0.5]
    assert model.dof_damping.tolist() == [0, 0, 0, 0, 0, 0, 1.0]
    assert model.opt.gravity.tolist() == [0, 0, 0]
    physics.vary({"mass": 1.0})
    assert numbers_of(model) == before


def test_a_model_that_is_compiled_anew_gets_the_levels_again():
    models = [mujoco.MjModel.from_xml_string(MODEL) for _ in range(2)]
    physics = MuJoCoPhysics(lambda: models[0])
    physics.vary({"mass": 2.0})
    del models[0]
    physics.was_reset()
    assert models[0].body_mass.tolist() == [0, 4, 3]


def test_an_episode_of_mujoco_does_not_depend_on_the_levels_of_the_last_one():
    levels = {"mass": {"choice": [1.0, 3.0]}, "gravity": {"choice": [0.5, 1.0]}, "joint_damping": 2.0}
    tree = TASKS["MuJoCo"] | {"variations": levels}
    used, fresh = made(tree, [5, 6, 7]), made(tree, [7])
    actions = random_actions(used.spec, 8)
    for _ in range(2):
        episode(used, actions)
    for ours, theirs in zip(episode(used, actions), episode(fresh, actions), strict=True):
        assert np.array_equal(ours, theirs)


def test_levels_that_are_no_longer_named_are_neutral_again():
    """First three times the mass, then none named, in the same simulator."""
    varied, fresh = made(TASKS["MuJoCo"] | {"variations": {"mass": 3.0}}, [5, 7]), made(TASKS["MuJoCo"], [7])
    actions = random_actions(varied.spec, 8)
    episode(varied, actions)
    varied.vary(Variations())
    for ours, theirs in zip(episode(varied, actions), episode(fresh, actions), strict=True):
        assert np.array_equal(ours, theirs)


def test_other_variations_reach_several_tasks_and_a_simulator_in_a_process_of_its_own():
    """The same task twice, the second in a Python of its own, from the same seed at one mass and then at another."""
    tasks = [{"label": "here"}, {"label": "there", "python": sys.executable}]
    several = {"tasks": tasks, "total_num_envs": 2, "observe_task": False, "variations": {"mass": 1.5}}

    def two_steps() -> np.ndarray:
        simulator.reset()
        return [simulator.step(np.ones((2, 1), dtype=np.float32)).successors for _ in range(2)][1]

    with contextlib.closing(made(TASKS["MuJoCo"] | several, [5] * 8, 2)) as simulator:
        before = two_steps()
        simulator.vary(variations({"mass": 3.0}))
        after = two_steps()
    assert np.array_equal(before[0], before[1])
    assert np.array_equal(after[0], after[1])
    assert not np.array_equal(before[0], after[0])


def test_a_level_that_is_drawn_anew_is_that_of_the_physics():
    """The second episode is that of a simulator in which its new level is the only one."""
    drawn = replace(variations({"mass": {"uniform": [0.5, 4.0]}}), redrawn=frozenset({"mass"}))
    varied = made(TASKS["MuJoCo"] | {"variations": {"mass": {"uniform": [0.5, 4.0]}}}, [5, 7])
    varied.vary(drawn)
    fresh = made(TASKS["MuJoCo"] | {"variations": drawn.draw(7)}, [7])
    actions = random_actions(varied.spec, 8)
    episode(varied, actions)
    for ours, theirs in zip(episode(varied, actions), episode(fresh, actions), strict=True):
        assert np.array_equal(ours, theirs)


@given(SEEDS)
def test_a_redrawn_axis_has_another_level_and_the_others_have_the_same(seed):
    drawn = variations({"mass": {"uniform": [0.5, 2.0]}, "friction": {"uniform": [0.5, 2.0]}})
    again = replace(drawn, redrawn=frozenset({"mass"})).draw(seed)
    assert again["friction"] == drawn.draw(seed)["friction"]
    assert again["mass"] != drawn.draw(seed)["mass"]


PICK_CUBE = {"name": "maniskill", "id": "PickCube-v1", "max_episode_steps": 9}


class TestManiSkill:
    """The physics of ManiSkill's scenes."""

    @pytest.fixture(scope="class")
    def envs(self):
        """An environment at other levels, and one as it is."""
        load_maniskill()
        config = typed(ManiSkill.Config, PICK_CUBE, "env.train")
        varied, plain = ManiSkillEnv(config), ManiSkillEnv(config)
        varied.vary({"mass": 2.0, "friction": 0.5, "joint_stiffness": 0.5, "joint_damping": 3.0, "gravity": 3.0})
        varied.reset(1), plain.reset(1)
        yield varied, plain
        varied.close(), plain.close()

    def test_the_levels_reach_the_scene(self, envs):
        varied, plain = ([env.task.cube._bodies[0], env.task.agent.robot.active_joints[0]._objs[0]] for env in envs)
        assert varied[0].mass == pytest.approx(2 * plain[0].mass)
        assert varied[0].inertia == pytest.approx(2 * plain[0].inertia)
        frictions = [body.collision_shapes[0].physical_material.static_friction for body, _ in (varied, plain)]
        assert frictions[0] == pytest.approx(0.5 * frictions[1])
        assert varied[1].stiffness == 0.5 * plain[1].stiffness
        assert varied[1].damping == 3 * plain[1].damping

    def test_things_fall_as_gravity_says(self, envs):
        fallen = []
        for env in envs:
            env.task.cube.set_pose(sapien.Pose([0.3, 0.3, 0.5]))
            env.step(np.zeros(8, dtype=np.float32))
            fallen.append(0.5 - env.task.cube.pose.p[0, 2].item())
        assert fallen[0] == pytest.approx(3 * fallen[1], rel=1e-3)

    def test_the_start_is_spread_around_the_middle(self, envs):
        _, plain = envs
        places = {}
        for level in (1.0, 0.0, 2.0):
            plain.vary({"start": level})
            plain.reset(3)
            places[level] = plain.task.cube.pose.p[0].tolist()
        assert places[0.0][:2] == pytest.approx([0, 0], abs=1e-6)
        assert places[2.0][:2] == pytest.approx([2 * place for place in places[1.0][:2]], rel=1e-4)
        assert places[2.0][2] == places[1.0][2]

    def test_what_gains_weight_in_a_reset_is_looked_at_again(self, envs):
        """Three times the gravity acts on what the reset has made free, and no more on what it has fixed."""
        env, _ = envs
        body = env.task.cube._bodies[0]
        env.reset(1)
        env.step(np.zeros(8, dtype=np.float32))
        body.disable_gravity = True
        env.vary({"gravity": 3.0})
        env.reset(1)
        env.task.cube.set_pose(sapien.Pose([0.3, 0.3, 0.5]))
        env.step(np.zeros(8, dtype=np.float32))
        body.disable_gravity = False
        assert env.task.cube.pose.p[0, 2].item() == 0.5

    def test_stepped_as_one_they_have_the_numbers_of_single_environments(self):
        levels = {name: {"uniform": [0.5, 2.0]} for name in ("mass", "friction", "joint_damping", "joint_stiffness")}
        levels |= {
            "gravity": {"choice": [1.0, 2.0]},
            "start": {"uniform": [0, 2]},
            "action_latency": {"choice": [0, 2]},
        }
        one_by_one, as_one = (
            everything_of(PICK_CUBE | {"variations": levels, "batched": batched}, 25, slots=3)
            for batched in (False, True)
        )
        assert one_by_one == as_one


SPREAD = {
    "LiftPegUpright-v1": {"peg": "xy"},
    "PegInsertionSide-v1": {"peg": "x", "box": "x"},
    "PickCube-v1": {"cube": "xy", "goal_site": "xy"},
    "PlaceSphere-v1": {"obj": "y", "bin": "y"},
    "PlugCharger-v1": {"charger": "y", "receptacle": "y"},
    "PokeCube-v1": {"peg": "xy", "cube": "xy", "goal_region": "xy"},
    "PullCube-v1": {"obj": "xy", "goal_region": "xy"},
    "PullCubeTool-v1": {"l_shape_tool": "y", "cube": "y"},
    "PushCube-v1": {"obj": "xy", "goal_region": "xy"},
    "StackCube-v1": {"cubeA": "xy", "cubeB": "xy"},
}
"""Tasks in which things begin further from the middle: what moves, and along which axes."""


def test_the_table_of_what_spreads_has_every_task():
    assert {*SPREAD} == {*SPREADS}


@pytest.mark.parametrize(
    "task", [pytest.param(name, marks=[pytest.mark.soak] * (name != "StackCube-v1")) for name in SPREAD]
)
def test_places_spread_evenly_and_nothing_else_changes(task):
    """From level 0 to 1 and on to 2, each thing moves by the same way, along its axes alone."""
    load_maniskill()
    with contextlib.closing(
        ManiSkillEnv(typed(ManiSkill.Config, {"name": "maniskill", "id": task}, "env.train"))
    ) as env:
        poses = {}
        for level in (0.0, 1.0, 2.0):
            env.vary({"start": level})
            env.reset(3)
            things = {**env.task.scene.actors, **env.task.scene.articulations}
            poses[level] = {name: thing.pose.raw_pose[0].numpy().copy() for name, thing in things.items()}
        names = {
            name: axes
            for attribute, axes in SPREAD[task].items()
            for name, thing in things.items()
            if thing._objs[0] == getattr(env.task, attribute)._objs[0]
        }
    for name, first in poses[0.0].items():
        ways = poses[1.0][name] - first, poses[2.0][name] - poses[1.0][name]
        assert ways[0] == pytest.approx(ways[1], abs=1e-5), name
        moved = "".join(axis for axis, way in zip("xyzabcd", ways[0], strict=True) if abs(way) > 1e-4)
        assert moved == names.get(name, ""), name


def test_in_a_process_of_its_own_physics_varies_alike():
    tree = TASKS["MuJoCo"] | {"variations": {"mass": {"uniform": [0.5, 2.0]}, "observation_latency": 1}}
    assert everything_of(tree | {"python": sys.executable}, 20) == everything_of(tree, 20)


# --- what a run has of it


def test_a_simulator_that_draws_its_own_seeds_varies_by_those_of_its_slots():
    levels = {"action_latency": {"choice": [0, 1, 2]}}
    simulator = made(TASKS["vectorised"] | {"variations": levels}, iter(range(5, 100)), 2)
    _, beginnings = simulator.reset()
    began = [*beginnings.values()]
    for _ in range(30):
        began += simulator.step(np.ones(2, dtype=np.int64)).beginnings.values()
    assert [beginning.variations for beginning in began] == [
        variations(levels).draw(seed) for seed in range(5, 5 + len(began))
    ]
    assert len(began) > 4


def test_whatever_a_simulator_can_be_asked_reaches_the_one_whose_axes_vary():
    questions = {name for name, held in vars(Simulator).items() if inspect.isfunction(held) and name[0] != "_"}
    assert questions <= vars(VariedSimulator).keys()


def test_each_of_several_tasks_has_its_variations(tmp_path):
    tasks = [{"label": "late", "variations": {"action_latency": 2}}, {"label": "held"}]
    train = ECHO | {"total_num_envs": 4, "tasks": tasks, "variations": {"action_hold": 3}}
    simulator = made(train, [5, 6], 2)
    _, beginnings = simulator.reset()
    assert {b.task: b.variations for b in beginnings.values()} == {
        "late": {"action_latency": 2}, "held": {"action_hold": 3},
    }  # fmt: skip
    with pytest.raises(ConfigError, match=r"env.train.tasks\[0\].variations names mass"):
        scripted(tmp_path, env={"train": train | {"tasks": [{"label": "a", "variations": {"mass": 1}}, tasks[1]]}})


def test_the_levels_are_observed_beside_a_vector():
    levels = {"action_latency": {"choice": [0, 1, 2]}}
    simulator = made(SCRIPTED | {"variations": levels, "observe_variations": ["action_hold", "action_latency"]}, [5, 6])
    observations, beginnings = simulator.reset()
    assert simulator.spec.leaves["variations"].shape == (2,)
    assert observations["variations"].tolist() == [[1, beginnings[0].variations["action_latency"]]]
    assert observations["observation"].shape == (1, 4)


def test_true_observes_the_axes_that_vary_in_training(tmp_path):
    tree = {"variations": {"action_latency": 1, "action_hold": 2}, "observe_variations": True, "total_num_envs": 4}
    config = scripted(tmp_path, "env.eval.variations={action_noise: 0.1}", env={"train": SCRIPTED | tree})
    assert config.env.train.observe_variations == ["action_latency", "action_hold"]
    assert config.env.eval.observe_variations == ["action_latency", "action_hold"]
    assert config.env.eval.variations == {"action_noise": 0.1}


def test_an_evaluation_varies_as_the_training_unless_it_says_otherwise(tmp_path):
    train = {"env": {"train": SCRIPTED | {"total_num_envs": 4, "variations": {"action_latency": 1}}}}
    assert scripted(tmp_path, **train).env.eval.variations == {"action_latency": 1}
    assert scripted(tmp_path, "env.eval.variations={}", **train).env.eval.variations == {}


def test_variations_replace_those_before_on_the_command_line_in_a_stage_and_in_an_evaluation(tmp_path):
    before = {"action_latency": 1, "action_noise": {"uniform": [0, 0.1]}}
    env = {"train": SCRIPTED | {"total_num_envs": 4, "variations": before}, "eval": {"variations": before}}
    stages = [
        {"name": "clean", "timesteps": 64, "overrides": {"env.train.variations": {}}},
        {"name": "noisy", "overrides": {"env.train.variations": {"action_noise": {"choice": [0.2]}}}},
    ]
    overrides = ["env.eval.variations={action_hold: 2}", "env.train.variations.action_noise={choice: [0.3]}"]
    config = scripted(tmp_path, *overrides, env=env, stages=stages)
    assert config.env.eval.variations == {"action_hold": 2}
    assert config.env.train.variations == {"action_latency": 1, "action_noise": {"choice": [0.3]}}
    varied = [stage.config.env.train.variations for stage in config.schedule]
    assert varied == [{}, {"action_noise": {"choice": [0.2]}}]


def test_evaluations_that_vary_differently_are_not_comparable(tmp_path):
    protocols = [
        comparable(protocol(scripted(tmp_path, f"env.eval.variations={levels}")))
        for levels in ("{}", "{action_latency: 1}")
    ]
    assert {key for key in protocols[0] if protocols[0][key] != protocols[1][key]} == {"env.eval.variations"}


def test_the_ledger_has_the_levels_of_each_episode(tmp_path):
    levels = "{action_latency: {choice: [0, 1, 2]}, action_noise: {uniform: [0, 0.5]}}"
    run = rlpipe.train(scripted(tmp_path, f"env.train.variations={levels}"), local=True).directory
    for file in ("episodes.jsonl", "eval_episodes.jsonl"):
        rows = lines(run, file)
        drawn = variations({"action_latency": {"choice": [0, 1, 2]}, "action_noise": {"uniform": [0, 0.5]}})
        assert [row["variations"] for row in rows] == [drawn.draw(row["seed"]) for row in rows]
    assert "action latency" in episodes_section(collect(run), 100).html


# --- what is refused


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (
            ["env.train.variations={mass: 2}"],
            "names mass, which scripted .scripted. cannot vary. It has action_noise, ",
        ),
        (["env.train.variations={action_nois: 2}"], "did you mean 'action_noise'?"),
        (["env.train.variations={action_noise: {uniform: [0.3, 0.1]}}"], r"is \[0.3, 0.1\], which is no range"),
        (["env.train.variations={action_noise: {uniform: [0.3]}}"], r"is \[0.3\], which is no range"),
        (["env.train.variations={action_noise: {log_uniform: [0, 1]}}"], "begins at 0, which has no logarithm"),
        (["env.train.variations={action_latency: {choice: []}}"], "choice is empty"),
        (["env.train.variations={action_noise: {normal: [0, 1]}}"], "it must be {uniform: "),
        (["env.train.variations={action_noise: a}"], "is 'a'; it must be {uniform: "),
        (["env.train.variations={action_noise: {uniform: 1}}"], "uniform is 1; it must hold a list"),
        (["env.train.variations={action_noise: {uniform: [0, 9]}}"], "reaches 9; it must be from 0 to 2 half action"),
        (["env.train.variations={action_latency: {uniform: [0, 2]}}"], "is in whole environment steps"),
        (["env.train.variations={action_latency: 0.5}"], "is in whole environment steps"),
        (["env.train.variations=3"], "variations is 3; it must hold keys and values"),
        (["env.train.observe_variations=true"], "variations names no axis, so there is nothing to observe"),
        (["env.train.observe_variations=[mass]"], "observe_variations names mass, which scripted"),
        (["env.eval.observe_variations=[action_noise]"], "leave it out under env.eval"),
        (["env.eval.variations={mass: 2}"], "env.eval.variations names mass"),
    ],
)
def test_variations_that_cannot_be_are_refused(tmp_path, overrides, message):
    with pytest.raises(ConfigError, match=message):
        scripted(tmp_path, *overrides)


def test_goals_are_not_judged_by_what_is_observed_wrongly(tmp_path):
    late = "env.train.variations={observation_latency: 1}"
    config = KINDS["goals in hindsight, sac"].config(tmp_path, late)
    with pytest.raises(ConfigError, match="which judges goals by what was observed, but env"):
        config.algorithm.check_task(config.env.train)


def test_demonstrations_have_no_levels_to_observe():
    overrides = ["env.train.variations={mass: 2}", "env.train.observe_variations=true"]
    with pytest.raises(ConfigError, match=r"demonstrations \(demos\) say nothing of variations: leave either out"):
        check_demonstrations(load_config("sparse_pick_cube", overrides))


@pytest.mark.parametrize(
    ("variations", "message"),
    [
        ("{action_noise: 0.1}", "names action_noise, but the task has no continuous actions: leave it out"),
        ("{action_latency: {choice: [1, 500]}}", "reaches 500 steps, but an episode ends after 500, the time limit"),
        ("{brightness: 0.5}", "names brightness, which CartPole-v1 .gymnasium. cannot vary"),
        ("{mass: 2}", "names mass, which CartPole-v1 .gymnasium. cannot vary"),
    ],
)
def test_variations_of_what_a_task_does_not_have_are_refused(variations, message):
    with pytest.raises(ConfigError, match=message):
        check_spaces(load_config("ppo_cartpole", [f"env.train.variations={variations}"]))


def test_without_variations_nothing_stands_around_a_simulator():
    assert not isinstance(made(SCRIPTED, [5]), VariedSimulator)


# --- the page


def test_the_page_has_every_task_whose_starts_spread():
    page = Path("docs/variations.md").read_text(encoding="utf-8")
    assert all(f"`{task}`" in page for task in SPREADS)


def test_the_page_has_each_axis_as_it_is_declared():
    page = Path("docs/variations.md").read_text(encoding="utf-8")
    declared = {axis.name: axis for axis in vars(axes).values() if isinstance(axis, Axis)}
    rows = {
        f"| `{axis.name}` | {axis.neutral:g} | {axis.legal} | {low:g} to {high:g} | {axis.meaning} |"
        for axis in declared.values()
        for low, high in [axis.stress]
    }
    assert {line for line in page.splitlines() if line.startswith("| `") and line.split("`")[1] in declared} == rows
