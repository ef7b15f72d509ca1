"""Meta-World, dm_control, Gymnasium-Robotics, PushT, xArm, gym-hil and robosuite meet the step contract, with the real
libraries: those that are installed."""

from __future__ import annotations

import importlib.util
from typing import Any, NamedTuple

import numpy as np
import pytest

from rlpipe.cli.tasks import find
from rlpipe.config.loading import load_config
from rlpipe.envs.gymnasium import Gymnasium
from rlpipe.envs.shared.mujoco.physics import AXES
from rlpipe.envs.shared.mujoco.pixels import choose_opengl_if_found
from rlpipe.errors import ConfigError
from tests.helpers import contract

pytestmark = pytest.mark.extras
choose_opengl_if_found()  # MuJoCo settles how to draw when it is imported, which may be by another test


class Task(NamedTuple):
    """A task to try: its package, how to get it, what it observes, and its options."""

    package: str
    install: str
    observed: int | dict[str, Any]
    tree: dict[str, Any]


def gymnasium(name, key, **options):
    return {"name": "gymnasium", "id": name, "success_key": key, **options}


TASKS = {
    "fetch": Task(
        "gymnasium_robotics", "rlpipe[robotics]", {"achieved_goal": (3,), "desired_goal": (3,), "observation": (25,)},
        gymnasium("gymnasium_robotics:FetchPush-v4", "is_success"),
    ),
    "adroit": Task(
        "gymnasium_robotics", "rlpipe[robotics]", 39,
        gymnasium("gymnasium_robotics:AdroitHandDoorSparse-v1", "success"),
    ),
    "metaworld": Task("metaworld", "rlpipe[metaworld]", 39, {"name": "metaworld", "id": "pick-place-v3"}),
    "dm_control reach": Task(
        "dm_control", "rlpipe[dm-control]",
        {
            "jaco_arm/jaco_hand/joints_pos": (3,), "jaco_arm/jaco_hand/joints_vel": (3,),
            "jaco_arm/jaco_hand/pinch_site_pos": (3,), "jaco_arm/jaco_hand/pinch_site_rmat": (9,),
            "jaco_arm/joints_pos": (6, 2), "jaco_arm/joints_torque": (6,), "jaco_arm/joints_vel": (6,),
            "target_position": (3,),
        },
        {"name": "dm_control", "id": "manipulation/reach_site_features"},
    ),
    "dm_control suite": Task(
        "dm_control", "rlpipe[dm-control]", {"height": (), "orientations": (14,), "velocity": (9,)},
        {"name": "dm_control", "id": "walker/walk"},
    ),
    "pusht": Task("gym_pusht", "rlpipe[pusht]", 5, gymnasium("gym_pusht:gym_pusht/PushT-v0", "is_success")),
    "pusht pixels": Task(
        "gym_pusht", "rlpipe[pusht]", {"agent_pos": (2,), "pixels": (96, 96, 3)},
        gymnasium("gym_pusht:gym_pusht/PushT-v0", "is_success", kwargs={"obs_type": "pixels_agent_pos"}),
    ),
    "xarm": Task("gym_xarm", "--no-deps gym-xarm", 28, gymnasium("gym_xarm:gym_xarm/XarmLift-v0", "is_success")),
    "hil": Task(
        "gym_hil", "gym-hil", {"agent_pos": (18,), "environment_state": (3,)},
        gymnasium("gym_hil:gym_hil/PandaPickCubeBase-v0", "succeed", kwargs={"random_block_position": True}),
    ),
    "robosuite": Task(
        "robosuite", "robosuite", {"object-state": (10,), "robot0_proprio-state": (50,)},
        {"name": "robosuite", "id": "Lift", "hard_reset": False},
    ),
}  # fmt: skip
ALONE = ["metaworld", "dm_control suite", "pusht", "xarm", "robosuite"]
"""One task of each adapter and way to reset, for what takes a run."""


def installed(name: str) -> dict[str, Any]:
    """Options of a task; skips the test where its package is not installed."""
    task = TASKS[name]
    if importlib.util.find_spec(task.package) is None:
        pytest.skip(f"needs {task.package}: pip install '{task.install}'")
    return task.tree


def unwrapped(simulator) -> Any:
    """The library's own environment in the first slot."""
    return simulator._envs[0]._env.unwrapped


def idle(simulator):
    """Takes a step that asks for nothing."""
    return simulator.step(np.zeros((1, simulator.spec.action_dim), dtype=np.float32))


@pytest.mark.parametrize("name", TASKS)
def test_the_same_seed_begins_the_same_episode(name):
    contract.assert_episodes_follow_from_their_seeds(installed(name))


@pytest.mark.parametrize("name", TASKS)
def test_a_time_limit_truncates_after_the_true_last_observation(name):
    contract.assert_a_time_limit_cuts_off(installed(name))


@pytest.mark.parametrize("name", TASKS)
def test_what_a_task_observes(name):
    simulator = contract.made(installed(name), [0])
    spec, expected = simulator.spec, TASKS[name].observed
    if isinstance(expected, int):
        assert (spec.leaves, spec.observation_dim) == (None, expected)
    else:
        assert {leaf: found.shape for leaf, found in spec.leaves.items()} == expected
    assert np.isfinite(spec.action_low).all()
    assert np.isfinite(spec.action_high).all()
    assert simulator.has_success is (name != "dm_control suite")
    simulator.close()


@pytest.mark.parametrize("name", ALONE)
def test_two_workers_collect_what_one_collects(name, tmp_path):
    contract.assert_two_workers_equal_one(tmp_path, installed(name))


@pytest.mark.parametrize("name", ALONE)
def test_a_resumed_run_goes_on(name, tmp_path):
    contract.assert_a_resumed_run_goes_on(tmp_path, installed(name))


# --- variations of physics


@pytest.mark.parametrize("name", ["fetch", "metaworld", "dm_control reach", "dm_control suite", "robosuite"])
def test_physics_varies_and_at_its_neutral_levels_changes_no_bit(name):
    tree = installed(name)

    def bits(**levels):
        simulator = contract.made(tree | {"variations": levels}, [5])
        first, successors, rewards = contract.episode(simulator, contract.random_actions(simulator.spec, 30))
        simulator.close()
        return first.tobytes(), successors.tobytes(), rewards

    clean = bits()
    assert bits(**{axis.name: axis.neutral for axis in AXES}) == clean
    same = {axis.name for axis in AXES if bits(**{axis.name: 3.0}) == clean}
    assert same == ({"friction"} if name == "dm_control reach" else set())  # whose hand touches nothing


# --- success, and what ends with it


def test_metaworld_pays_and_ends_with_success_where_it_is_asked_to():
    reach = installed("metaworld") | {"id": "reach-v3"}
    sparse = contract.made(reach | {"reward_mode": "sparse", "end_on_success": True}, [3])
    dense = contract.made(reach, [3])
    before, _ = sparse.reset()
    dense.reset()
    for _ in range(100):
        action = contract.towards_the_goal(before)
        step, paid = sparse.step(action), dense.step(action)
        before = step.observations
        assert (step.rewards[0], bool(step.terminated[0])) == (float(step.success[0]), bool(step.success[0]))
        assert not paid.terminated[0]
        if step.success[0]:
            assert paid.success[0]
            assert paid.rewards[0] > 1
            return
    pytest.fail("the goal was not reached")


def test_metaworld_hides_its_goal_where_it_is_asked_to():
    shown, hidden = (contract.made(installed("metaworld") | {"show_goal": goal}, [3]) for goal in (True, False))
    (seen, _), (unseen, _) = shown.reset(), hidden.reset()
    assert np.array_equal(seen[0, :36], unseen[0, :36])
    assert seen[0, 36:].all()
    assert not unseen[0, 36:].any()


def test_metaworld_takes_no_step_beyond_its_own_limit():
    with pytest.raises(ConfigError, match=r"max_episode_steps is 501.* at most 500"):
        load_config({"env": {"train": installed("metaworld") | {"max_episode_steps": 501}}})


def test_dm_controls_manipulation_succeeds_where_it_pays_1():
    simulator = contract.made(installed("dm_control reach") | {"max_episode_steps": 5}, range(20))
    simulator.reset()
    steps = [idle(simulator) for _ in range(60)]
    assert {bool(step.success[0]) for step in steps} == {False, True}  # the hand stands still: in some, at the target
    for step in steps:
        assert bool(step.success[0]) == (step.rewards[0] > 1 - 1e-6)
        assert not step.terminated[0]


def test_dm_controls_suite_succeeds_from_the_reward_that_is_named():
    tree = installed("dm_control suite") | {"id": "reacher/easy"}
    with pytest.raises(ConfigError, match="reward_mode is sparse, but reacher/easy does not tell success: success_rew"):
        contract.made(tree | {"reward_mode": "sparse"}, [0])
    simulator = contract.made(tree | {"success_reward": 1, "max_episode_steps": 5}, range(40))
    simulator.reset()
    steps = [idle(simulator) for _ in range(100)]
    assert {bool(step.success[0]) for step in steps} == {False, True}
    assert all(bool(step.success[0]) == (step.rewards[0] == 1) for step in steps)


def test_dm_controls_own_ends_are_told_apart():
    """Its discount is 0 where a task ends by itself, and 1 at the time limit."""
    tree = installed("dm_control suite")
    settled = contract.made(tree | {"id": "lqr/lqr_2_1"}, [0])
    settled.reset()
    physics = settled._envs[0]._env.physics
    with physics.reset_context():
        physics.data.qpos[:] = physics.data.qvel[:] = 0
    step = idle(settled)
    assert (bool(step.terminated[0]), bool(step.truncated[0])) == (True, False)
    reach = contract.made(installed("dm_control reach"), [0])
    reach.reset()
    ends = [idle(reach) for _ in range(250)]
    assert [bool(step.truncated[0]) for step in ends] == [False] * 249 + [True]
    assert not any(step.terminated[0] for step in ends)


def test_a_simulation_of_dm_control_that_diverges_ends_as_a_failure():
    simulator = contract.made(installed("dm_control suite"), [0, 1])
    before, _ = simulator.reset()
    simulator._envs[0]._env.physics.data.qvel[:] = 1e12
    step = idle(simulator)
    assert (bool(step.terminated[0]), float(step.failure[0]), float(step.rewards[0])) == (True, 1.0, 0.0)
    assert np.array_equal(contract.numbers(step.successors), contract.numbers(before))  # the last one that is known
    assert not idle(simulator).terminated[0]  # of the next episode


def test_what_diverges_in_dm_control_cannot_go_on_even_where_ends_are_ignored():
    simulator = contract.made(installed("dm_control suite") | {"ignore_terminations": True}, [0, 1])
    simulator.reset()
    simulator._envs[0]._env.physics.data.qvel[:] = 1e12
    step = idle(simulator)
    assert (bool(step.terminated[0]), bool(step.truncated[0]), float(step.failure[0])) == (False, True, 1.0)
    assert list(step.beginnings) == [0]


def test_an_end_of_dm_control_that_is_ignored_begins_no_other_episode():
    tree = installed("dm_control suite") | {"id": "lqr/lqr_2_1", "ignore_terminations": True}
    settled = contract.made(tree, [0])
    settled.reset()
    physics = settled._envs[0]._env.physics
    with physics.reset_context():
        physics.data.qpos[:] = physics.data.qvel[:] = 0
    steps = [idle(settled) for _ in range(3)]
    assert not any(step.terminated[0] or step.truncated[0] for step in steps)
    assert np.abs(contract.numbers(steps[-1].successors)).max() < 1e-6  # still where it was put


@pytest.mark.parametrize("task", ["manipulation/reassemble_5_bricks_random_order_features", "lqr/lqr_2_1"])
def test_dm_control_tasks_that_remember_earlier_episodes_are_made_anew(task):
    simulator = contract.made(installed("dm_control reach") | {"id": task}, [5, 6, 5])
    firsts = [[contract.numbers(simulator.reset()[0]), contract.numbers(idle(simulator).successors)] for _ in range(3)]
    assert np.array_equal(firsts[0], firsts[2])
    assert not np.array_equal(firsts[0], firsts[1])


def test_dm_control_draws_its_cameras():
    simulator = contract.made(installed("dm_control reach") | {"id": "manipulation/reach_site_vision"}, [0, 1])
    first, _ = simulator.reset()
    picture = first["front_close"][0]
    assert (picture.shape, picture.dtype) == ((84, 84, 3), np.uint8)
    assert picture.std() > 10
    simulator.close()


def test_pusht_succeeds_and_ends_on_the_goal():
    simulator = contract.made(installed("pusht"), [0, 1])
    simulator.reset()
    task = unwrapped(simulator)
    task.block.angle, task.block.position = float(task.goal_pose[2]), task.goal_pose[:2].tolist()
    task.agent.position = 20.0, 20.0
    step = simulator.step(np.full((1, 2), 20.0, dtype=np.float32))
    assert (bool(step.success[0]), bool(step.terminated[0]), bool(step.truncated[0])) == (True, True, False)
    assert step.rewards[0] == 1.0


def test_xarm_succeeds_and_ends_with_the_cube_in_the_air():
    simulator = contract.made(installed("xarm"), [0, 1])
    simulator.reset()
    task = unwrapped(simulator)
    place = task._utils.get_joint_qpos(task.model, task.data, "object_joint0")
    place[2] += 0.8  # see docs/simulators.md: less is no success
    task._utils.set_joint_qpos(task.model, task.data, "object_joint0", place)
    step = idle(simulator)
    assert (bool(step.success[0]), bool(step.terminated[0])) == (True, True)


def test_hil_succeeds_and_ends_with_the_cube_in_the_hand():
    simulator = contract.made(installed("hil"), [0, 1])
    simulator.reset()
    for _ in range(3):
        simulator.step(np.array([[0, 0, 0.2, 0, 0, 0, 0]], dtype=np.float32))
    task = unwrapped(simulator)
    task._data.jnt("block").qpos[:3] = task._data.sensor("2f85/pinch_pos").data
    step = idle(simulator)
    assert (bool(step.success[0]), bool(step.terminated[0])) == (True, True)


def test_robosuite_succeeds_with_the_cube_in_the_air_and_ends_where_it_is_asked_to():
    simulator = contract.made(installed("robosuite") | {"end_on_success": True}, [0, 1])
    simulator.reset()
    task = simulator._envs[0]._env
    place = task.sim.data.get_joint_qpos(task.cube.joints[0])
    place[2] += 0.3
    task.sim.data.set_joint_qpos(task.cube.joints[0], place)
    step = idle(simulator)
    assert (bool(step.success[0]), bool(step.terminated[0])) == (True, True)


def test_robosuites_wipe_ends_by_itself_and_not_by_the_time_limit(monkeypatch):
    simulator = contract.made(installed("robosuite") | {"id": "Wipe"}, [0, 1])
    simulator.reset()
    monkeypatch.setattr(simulator._envs[0]._env, "_check_terminated", lambda: True)
    step = idle(simulator)
    assert (bool(step.terminated[0]), bool(step.truncated[0])) == (True, False)


def test_fetch_reaches_its_goal_and_goes_on():
    simulator = contract.made(installed("fetch") | {"id": "gymnasium_robotics:FetchReach-v4"}, [0])
    seen, _ = simulator.reset()
    for _ in range(20):
        way = 10 * (seen["desired_goal"] - seen["achieved_goal"])
        step = simulator.step(np.clip(np.concatenate([way, [[0]]], axis=1), -1, 1).astype(np.float32))
        seen = step.observations
        assert not step.terminated[0]
    assert (bool(step.success[0]), step.rewards[0]) == (True, 0.0)


# --- finding a task


@pytest.mark.parametrize(
    ("name", "word", "found"),
    [
        ("pusht", "PUSHT-v0", "gym_pusht:gym_pusht/PushT-v0"),
        ("xarm", "xarm", "gym_xarm:gym_xarm/XarmLift-v0"),
        ("metaworld", "pick-place-v3", "pick-place-v3"),
        ("dm_control suite", "cheetah/", "cheetah/run"),
        ("robosuite", "nutassemblysq", "NutAssemblySquare"),
    ],
)
def test_rlpipe_tasks_finds_and_tries_it(name, word, found):
    tasks = {task.id: task for task in find(word, installed(name)["name"], None)[0]}
    assert tasks[found].tried
    assert tasks[found].success is (name != "dm_control suite")
    assert tasks[found].time_limit in (300, 500, 1000)


@pytest.mark.parametrize(
    ("name", "wrong", "right"),
    [
        ("fetch", "gymnasium_robotics:FetchPsh-v4", "gymnasium_robotics:FetchPush-v4"),
        ("metaworld", "pick-plac-v3", "pick-place-v3"),
        ("dm_control suite", "cheeta/run", "cheetah/run"),
        ("pusht", "gym_pusht:gym_pusht/PushTT-v0", "gym_pusht:gym_pusht/PushT-v0"),
        ("xarm", "gym_xarm:gym_xarm/XarmLft-v0", "gym_xarm:gym_xarm/XarmLift-v0"),
        ("hil", "gym_hil:gym_hil/PandaPickCub-v0", "gym_hil:gym_hil/PandaPickCube-v0"),
        ("robosuite", "Lif", "Lift"),
    ],
)
def test_a_misspelt_task_is_answered_by_the_nearest(name, wrong, right):
    with pytest.raises(ConfigError, match=f"env.train.id is '{wrong}', .* did you mean '{right}'"):
        load_config({"env": {"train": installed(name) | {"id": wrong}}})


def test_tasks_that_need_a_person_are_not_offered():
    installed("hil")
    offered = [task.id for task in Gymnasium.tasks() if task.id.startswith("gym_hil")]
    assert len(offered) == 4
    assert not [task for task in offered if "Gamepad" in task or "Keyboard" in task or "Viewer" in task]
