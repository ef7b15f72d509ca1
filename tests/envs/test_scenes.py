"""Geometry for replays: what simulators tell of their bodies, and that it is where they say it is."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from rlpipe.config.loading import load_config
from rlpipe.envs.dm_control import DMControlConfig
from rlpipe.envs.shared.make import make_simulator
from rlpipe.trajectory import Body, Scene, Shape


def needs(*packages):
    for package in packages:
        pytest.importorskip(package, reason=f"{package} is not installed")


def simulator(name, task, slots=1, **options):
    tree = {
        "env": {"train": {"name": name, "id": task, "total_num_envs": slots, **options}},
        "policy": {"name": "mlp"},
        "algorithm": {"name": "ppo"},
    }
    return make_simulator(load_config(tree).env.train, slots, lambda n: n)


def stepped(simulator, steps=3):
    simulator.reset()
    generator = np.random.default_rng(0)
    for _ in range(steps):
        shape = (simulator.num_envs, simulator.spec.action_dim)
        simulator.step(generator.uniform(-1, 1, shape).astype(np.float32))
    return simulator


def of(poses, scene, name):
    return poses[[body.name for body in scene.bodies].index(name)]


def turned(quaternion, point):
    """A point after a rotation w, x, y, z."""
    w, *rest = quaternion
    vector = np.array(rest)
    return point + 2 * np.cross(vector, np.cross(vector, point) + w * point)


@pytest.mark.extras
@pytest.mark.parametrize("task", ["HalfCheetah-v5", "gymnasium_robotics:FetchPush-v4"])
def test_the_geometry_of_a_mujoco_task_is_where_mujoco_has_it(task):
    needs("mujoco", "gymnasium_robotics")
    made = stepped(simulator("gymnasium", task))
    scene, poses = made.scene(0), made.poses(0)
    task = made._envs[0]._env.unwrapped
    seen = 0
    for body, pose in zip(scene.bodies, poses, strict=True):
        if body.ghost:
            continue
        ours = [pose[:3] + turned(pose[3:], np.array(shape.position)) for shape in body.shapes]
        number = 0 if body.name == "world" else task.model.body(body.name).id
        theirs = task.data.geom_xpos[task.model.geom_bodyid == number]
        for place in ours:
            assert np.abs(theirs - place).max(axis=1).min() < 1e-5
        seen += len(ours)
    assert seen >= 9
    made.close()


@pytest.mark.extras
def test_the_goal_of_a_fetch_task_is_drawn_where_the_task_has_it():
    needs("mujoco", "gymnasium_robotics")
    made = stepped(simulator("gymnasium", "gymnasium_robotics:FetchPush-v4"))
    scene, poses = made.scene(0), made.poses(0)
    assert [body.name for body in scene.bodies if body.ghost] == ["target0"]
    assert of(poses, scene, "target0")[:3] == pytest.approx(made._envs[0]._env.unwrapped.goal, abs=1e-6)
    assert any(shape.kind == "mesh" and len(shape.triangles) for body in scene.bodies for shape in body.shapes)
    made.close()


@pytest.mark.extras
@pytest.mark.parametrize(("name", "task"), [("metaworld", "reach-v3"), ("dm_control", "cheetah/run")])
def test_other_libraries_of_mujoco_tasks_have_bodies_too(name, task):
    needs(name, "mujoco")
    made = stepped(simulator(name, task))
    scene, poses = made.scene(0), made.poses(0)
    assert poses.shape == (len(scene.bodies), 7)
    assert np.linalg.norm(poses[:, 3:], axis=1) == pytest.approx(np.ones(len(poses)), abs=1e-5)
    assert made.scene(0) is scene
    made.close()


@pytest.mark.extras
def test_a_goal_that_a_task_moves_within_its_model_is_drawn_where_it_is_now():
    needs("dm_control", "mujoco")
    seeds = itertools.count()
    made = make_simulator(DMControlConfig("dm_control", id="reacher/easy"), 1, lambda _: next(seeds))
    places = []
    for _ in range(2):
        made.reset()
        model = made._envs[0]._env.physics.model
        target = np.array(model.ptr.geom_pos[model.name2id("target", "geom")])
        shapes = [shape for body in made.scene(0).bodies for shape in body.shapes]
        assert any(np.allclose(shape.position, target, atol=1e-6) for shape in shapes)
        places.append(target)
    assert not np.allclose(*places)
    made.close()


@pytest.mark.parametrize("slots", [1, 2])
@pytest.mark.maniskill
def test_a_maniskill_task_has_its_robot_its_cube_and_its_goal_also_where_it_is_stepped_as_one(slots):
    needs("mani_skill")
    made = stepped(simulator("maniskill", "PickCube-v1", slots))
    last = slots - 1
    scene, poses, task = made.scene(last), made.poses(last), made._envs[last].task
    assert type(made).__name__ == {1: "ManiSkill", 2: "BatchedManiSkill"}[slots]
    cube = next(body for body in scene.bodies if body.name == "cube")
    (shape,) = cube.shapes
    assert (shape.kind, shape.size) == ("box", pytest.approx((0.02, 0.02, 0.02)))
    assert shape.colour == (1, 0, 0, 1)
    assert [body.name for body in scene.bodies if body.ghost] == ["goal_site"]
    assert of(poses, scene, "cube") == pytest.approx(task.cube.pose.raw_pose[0].numpy(), abs=1e-6)
    hand = task.agent.robot.links_map["panda_hand"].pose.raw_pose[0].numpy()
    assert of(poses, scene, "panda/panda_hand") == pytest.approx(hand, abs=1e-6)
    link = next(body for body in scene.bodies if body.name == "panda/panda_link0")
    assert link.shapes[0].file.endswith("link0.glb")
    assert len(link.stand_in[0].triangles) > 100
    made.close()


def test_a_simulator_without_geometry_has_no_scene():
    made = simulator("gymnasium", "CartPole-v1")
    made.reset()
    assert made.scene(0) is None
    made.close()


def test_scenes_that_look_the_same_have_one_key_and_others_have_another():
    def scene(size):
        return Scene((Body("cube", (Shape("box", (size, size, size)),)),))

    assert scene(0.02).key == scene(0.02).key
    assert scene(0.02).key != scene(0.03).key


def test_a_shape_of_an_unknown_kind_is_refused():
    with pytest.raises(ValueError, match="'cone'"):
        Shape("cone", (1.0,))
