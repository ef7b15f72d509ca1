"""Observations of ManiSkill's cameras: names, pictures, simplified meshes, and machines that cannot render."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
import trimesh

import rlpipe
from rlpipe.envs.base import SingleEnv, SingleStep
from rlpipe.envs.maniskill import ManiSkill, simulator
from rlpipe.envs.maniskill.cameras import camera_tree
from rlpipe.envs.maniskill.loading import load_maniskill
from rlpipe.envs.maniskill.options import ManiSkillConfig
from rlpipe.envs.maniskill.single import ManiSkillEnv
from rlpipe.envs.shared import meshes
from rlpipe.envs.shared.frames import StackedFrames
from rlpipe.envs.shared.meshes import simplified
from rlpipe.envs.shared.spaces import spec_of
from rlpipe.errors import ConfigError
from rlpipe.trajectory import LeafSpec, SpaceSpec, Tree
from tests.helpers.cameras import vulkan

__all__ = ["vulkan"]

PANDA = Path(importlib.util.find_spec("mani_skill").origin).parent / "assets/robots/panda"
LINK = PANDA / "franka_description/meshes/visual/link6.glb"


def config(**changes):
    options = {"id": "PickCube-v1", "control_mode": "pd_ee_delta_pos", "max_episode_steps": 6} | changes
    return ManiSkillConfig("maniskill", **options)


def play(steps=8, **changes):
    """Observations and rewards of two environments, over the end of an episode."""
    simulator = ManiSkill.make(config(**changes), 2, lambda slot: 5 + slot)
    actions = np.random.default_rng(0).uniform(-1, 1, (steps, 2, 4)).astype(np.float32)
    observations = [simulator.reset()[0]]
    rewards = []
    for action in actions:
        step = simulator.step(action)
        observations.append(step.observations)
        rewards.append(step.rewards)
    simulator.close()
    return observations, rewards, simulator.spec


# --- what needs no rendering


def test_leaves_have_plain_names_and_cameras_leave_out_their_parameters():
    tree = camera_tree({
        "agent": {"qpos": torch.zeros(1, 9), "controller": {"target": torch.zeros(1, 2)}},
        "extra": {"is_grasped": torch.tensor([True])},
        "sensor_param": {"hand": {"intrinsic_cv": torch.zeros(1, 3, 3)}},
        "sensor_data": {"hand": {"rgb": torch.ones(1, 4, 5, 3, dtype=torch.uint8)}},
    })  # fmt: skip
    assert {name: (leaf.dtype.name, leaf.shape) for name, leaf in tree.leaves.items()} == {
        "qpos": ("float32", (9,)),
        "controller_target": ("float32", (2,)),
        "is_grasped": ("float32", ()),
        "hand_rgb": ("uint8", (4, 5, 3)),
    }
    assert tree["is_grasped"] == 1.0
    assert spec_of(tree, np.zeros(4), np.ones(4)).leaves["hand_rgb"].is_image


def test_two_observations_of_one_name_are_refused():
    with pytest.raises(ConfigError, match="two observations that would both be called pose"):
        camera_tree({"agent": {"pose": torch.zeros(1, 7)}, "extra": {"pose": torch.zeros(1, 7)}})


def test_cameras_are_not_batched():
    with pytest.raises(ConfigError, match="batched is true, but obs_mode is rgb"):
        config(obs_mode="rgb", batched=True)


def test_a_machine_without_vulkan_is_refused_before_anything_starts(monkeypatch):
    monkeypatch.setattr(simulator, "can_render", lambda: False)
    ManiSkill.describe(config(), "env.train").check_machine()
    ManiSkill.describe(config(obs_mode="rgbd"), "env.eval")
    with pytest.raises(ConfigError, match=r"env\.eval\.obs_mode is rgbd, but this machine has no Vulkan.*lavapipe"):
        ManiSkill.describe(config(obs_mode="rgbd"), "env.eval").check_machine()


@pytest.mark.soak
def test_a_run_with_a_camera_ends_with_code_2_where_there_is_no_vulkan(tmp_path):
    command = [sys.executable, "-m", "rlpipe", "train", "ppo_push_cube", "env.train.obs_mode=rgb"]
    options = [f"runner.logger.log_path={tmp_path}/runs"]
    environment = os.environ | {"VK_ICD_FILENAMES": "/nowhere.json", "VK_DRIVER_FILES": "/nowhere.json"}
    environment.pop("RAY_ADDRESS", None)
    answer = subprocess.run([*command, *options], env=environment, capture_output=True, text=True, check=False)
    assert answer.returncode == 2
    assert "env.train.obs_mode is rgb" in answer.stderr
    assert "mesa-vulkan-drivers" in answer.stderr
    assert not (tmp_path / "runs").exists()


@pytest.mark.maniskill
def test_a_task_that_looks_at_its_own_pictures_says_that_it_needs_them():
    load_maniskill()
    with pytest.raises(ConfigError, match="PushT-v1 looks at its own pictures while it is built, so it needs"):
        ManiSkillEnv(ManiSkillConfig("maniskill", id="PushT-v1"))


def test_a_run_that_joins_a_cluster_leaves_vulkan_to_its_nodes(monkeypatch):
    asked = []
    monkeypatch.setattr(simulator, "can_render", lambda: asked.append("here") or False)
    camera = rlpipe.load_config("ppo_push_cube", ["env.train.obs_mode=rgb"])
    rlpipe._check_machine(camera, local=False, ray_address="head:6379")
    assert not asked
    with pytest.raises(ConfigError, match=r"env.train.obs_mode is rgb, but this machine has no Vulkan"):
        rlpipe._check_machine(camera, local=True, ray_address="head:6379")


def test_a_stage_cannot_change_what_is_observed():
    for change in ("obs_mode: rgb", "camera_size: 32", "show_goals: true"):
        stages = f"stages=[{{name: a, timesteps: 8192, overrides: {{env.train: {{{change}}}}}}}, {{name: b}}]"
        name = change.partition(":")[0]
        with pytest.raises(ConfigError, match=rf"changes env.train.{name}, which stays the same for a run"):
            rlpipe.load_config("ppo_push_cube", [stages])


def test_the_registered_time_limit_is_known_without_starting_anything():
    assert ManiSkill.describe(config(max_episode_steps=None), "env.train").time_limit == 50
    assert ManiSkill.describe(config(max_episode_steps=7), "env.train").time_limit == 7
    with pytest.raises(
        ConfigError, match=r"policy.chunk_size is 51, but an episode ends after 50 steps, the time limit"
    ):
        rlpipe.load_config("chunk_pick_cube", ["policy.chunk_size=51", "env.train.max_episode_steps=null"])


# --- meshes


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "rlpipe" / "meshes"


def geometries(file):
    return trimesh.load_scene(file, process=False).geometry


def test_a_simplified_mesh_has_few_triangles_the_same_extent_and_materials_and_normals_of_length_one(cache):
    before, after = geometries(LINK), geometries(simplified(LINK, 2000))
    assert sum(len(mesh.faces) for mesh in before.values()) > 12_000
    assert 1500 < sum(len(mesh.faces) for mesh in after.values()) <= 2100
    assert sum(len(mesh.vertices) for mesh in after.values()) < 5000  # the file repeats a vertex for each of its faces
    assert after.keys() == before.keys()
    for name, mesh in after.items():
        assert np.abs(mesh.bounds - before[name].bounds).max() < 0.002  # metres
        assert mesh.visual.material.baseColorFactor.tolist() == before[name].visual.material.baseColorFactor.tolist()
        assert "vertex_normals" in mesh._cache.cache  # read from the file, not made from the faces
        assert np.linalg.norm(mesh.vertex_normals, axis=1) == pytest.approx(1, abs=1e-3)


def test_a_mesh_is_simplified_once_for_each_content_and_target(cache, monkeypatch):
    first = simplified(LINK, 500)
    made = first.stat().st_mtime_ns
    monkeypatch.setattr(meshes, "_simplify", None)  # would fail
    assert simplified(LINK, 500) == first
    assert first.stat().st_mtime_ns == made
    assert list(cache.iterdir()) == [first]
    with pytest.raises(TypeError):
        simplified(LINK, 501)


def test_a_mesh_with_few_triangles_stays_as_it_is(cache):
    finger = LINK.with_name("finger.glb")
    assert simplified(finger, 2000).read_bytes() == finger.read_bytes()


def test_a_geometry_with_a_picture_on_it_keeps_its_triangles(cache):
    table = PANDA.parents[2] / "utils/scene_builder/table/assets/table.glb"
    before, after = geometries(table), geometries(simplified(table, 100))
    pictured = [name for name, mesh in before.items() if mesh.visual.uv is not None]
    assert pictured
    assert [len(after[name].faces) for name in pictured] == [len(before[name].faces) for name in pictured]
    assert all(len(after[name].faces) <= len(mesh.faces) for name, mesh in before.items())


# --- with rendering


def test_cameras_do_not_change_what_is_simulated(vulkan):
    state, rewards, _ = play(batched=False)
    for changes in ({"mesh_triangles": 2000}, {"mesh_triangles": None}, {"show_goals": True}):
        seen, paid, spec = play(obs_mode="state+rgb", **changes)
        assert [leaf["state"].tobytes() for leaf in seen] == [vector.tobytes() for vector in state]
        assert np.array_equal(paid, rewards)
        assert spec.leaves["base_camera_rgb"].shape == (64, 64, 3)


def test_a_picture_with_simplified_meshes_is_nearly_the_same(vulkan):
    shipped, simple = (
        play(1, obs_mode="rgb", camera_size=128, mesh_triangles=most)[0][0]["base_camera_rgb"].astype(int)
        for most in (None, 2000)
    )
    difference = np.abs(shipped - simple)
    assert shipped.std() > 20
    assert 0 < difference.mean() < 1  # of 255
    assert (difference.max(-1) > 32).mean() < 0.01


def test_each_mode_has_its_leaves(vulkan):
    observed, _, spec = play(1, obs_mode="rgbd", camera_size=32)
    assert spec.leaves["base_camera_rgb"].dtype == "uint8"
    assert (spec.leaves["base_camera_depth"].dtype, spec.leaves["base_camera_depth"].shape) == ("int16", (32, 32, 1))
    assert {"qpos", "qvel", "tcp_pose"} < spec.leaves.keys()
    assert 100 < np.median(observed[0]["base_camera_depth"]) < 5000  # millimetres
    assert play(1, obs_mode="state+depth")[2].leaves.keys() == {"state", "base_camera_depth"}
    kwargs = {"sensor_configs": {"width": 20, "base_camera": {"height": 24}}}
    assert play(1, obs_mode="rgb", kwargs=kwargs)[2].leaves["base_camera_rgb"].shape == (24, 20, 3)


def test_a_goal_is_seen_only_where_that_is_asked_for(vulkan):
    def green(**changes):
        pictures = play(8, obs_mode="rgb", camera_size=96, **changes)[0]
        return [
            int(((image[..., 1] > 150) & (image[..., 0] < 80)).sum())
            for observation in pictures
            for image in observation["base_camera_rgb"]
        ]

    assert max(green()) == 0
    assert min(green(show_goals=True)[:2]) > 0
    assert max(green(show_goals=True)[-2:]) > 0  # in the next episode too


# --- several pictures in one image


class Counting(SingleEnv):
    """Its picture and its state count the steps."""

    has_success = False

    def __init__(self, **leaves):
        self.spec = SpaceSpec.of_tree({"camera": LeafSpec((2, 2, 3), "uint8"), "state": LeafSpec((1,))} | leaves, 1)

    def reset(self, seed):
        self.step_number = seed
        return self.observed(), None

    def observed(self):
        image = np.full((2, 2, 3), self.step_number, dtype=np.uint8)
        return Tree({"camera": image, "state": np.full(1, self.step_number, dtype=np.float32)})

    def step(self, action):
        self.step_number += 1
        return SingleStep(self.observed(), 0.0, terminated=False, truncated=False, success=None)

    def expert_action(self):
        return np.full(1, self.step_number, dtype=np.float32)

    def close(self):
        pass


def test_an_image_holds_the_last_pictures_and_an_episode_begins_with_its_first_one():
    env = StackedFrames(Counting(), 3)
    assert env.spec.leaves["camera"].shape == (2, 2, 9)
    assert env.spec.observation_dim == 36 + 1
    seen = [env.reset(7)[0], *(env.step(None).observation for _ in range(3)), env.reset(1)[0]]
    assert [one["camera"][0, 0, ::3].tolist() for one in seen] == [
        [7, 7, 7], [7, 7, 8], [7, 8, 9], [8, 9, 10], [1, 1, 1],
    ]  # fmt: skip
    assert [one["state"].tolist() for one in seen] == [[7], [8], [9], [10], [1]]
    assert env.expert_action().tolist() == [1]


class Reusing(Counting):
    """Draws all its pictures into the same memory."""

    image = np.zeros((2, 2, 3), dtype=np.uint8)

    def observed(self):
        self.image[:] = self.step_number
        return Tree({"camera": self.image, "state": np.zeros(1, dtype=np.float32)})


def test_pictures_stay_in_the_stack_when_the_environment_draws_over_them():
    env = StackedFrames(Reusing(), 2)
    seen = [env.reset(3)[0], env.step(None).observation, env.step(None).observation]
    assert [one["camera"][0, 0, ::3].tolist() for one in seen] == [[3, 3], [3, 4], [4, 5]]


def test_frames_without_images_cannot_be_stacked():
    env = Counting()
    env.spec = SpaceSpec(4, 1)
    with pytest.raises(ConfigError, match="frame_stack is 2, but no observation is an image"):
        StackedFrames(env, 2)
    with pytest.raises(ConfigError, match="frame_stack is 2, but obs_mode is state"):
        config(frame_stack=2)
