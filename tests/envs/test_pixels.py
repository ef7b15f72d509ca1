"""Gymnasium environments observed by their pictures."""

from __future__ import annotations

import gymnasium
import numpy as np
import pytest

import rlpipe
from rlpipe.envs.gymnasium import Gymnasium
from rlpipe.envs.gymnasium.options import GymnasiumConfig
from rlpipe.envs.maniskill.options import ManiSkillConfig
from rlpipe.envs.shared.mujoco.pixels import resized
from rlpipe.errors import ConfigError
from tests.helpers.gym_trees import DrawnReach


class Drawn(gymnasium.Env):
    """Draws its step number, in a picture that is wider than high."""

    metadata = {"render_modes": ["rgb_array"]}  # noqa: RUF012
    observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (2,))
    action_space = gymnasium.spaces.Box(-1.0, 1.0, (1,))

    def __init__(self, render_mode=None, opengl=True):
        if not opengl:
            raise RuntimeError("no OpenGL context")
        self.render_mode, self.number = render_mode, 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.number = 0
        return np.zeros(2, np.float32), {}

    def step(self, action):
        self.number += 1
        return np.full(2, self.number, np.float32), 0.0, False, False, {}

    def render(self):
        return np.full((40, 80, 3), 10 * self.number, dtype=np.uint8)


class Named(DrawnReach):
    """The same with a leaf called pixels."""

    observation_space = gymnasium.spaces.Dict({"pixels": gymnasium.spaces.Discrete(2)})


gymnasium.register("Drawn-v0", "tests.envs.test_pixels:Drawn", max_episode_steps=5)
gymnasium.register("Named-v0", "tests.envs.test_pixels:Named")


def config(**changes):
    return GymnasiumConfig("gymnasium", **({"id": "Drawn-v0", "pixels": 20} | changes))


def played(**changes):
    simulator = Gymnasium.make(config(**changes), 1, lambda _: 0)
    action = np.zeros((1, 1), dtype=np.float32)
    seen = [simulator.reset()[0], *(simulator.step(action).successors for _ in range(3))]
    simulator.close()
    return simulator.spec, seen


def test_the_picture_is_the_observation():
    spec, seen = played()
    assert {name: leaf.shape for name, leaf in spec.leaves.items()} == {"observation": (20, 20, 3)}
    assert [one["observation"][0, 19, 19, 0] for one in seen] == [0, 10, 20, 30]
    assert Gymnasium.find_spaces(config()).leaves == spec.leaves


def test_the_state_can_stay_beside_it():
    spec, seen = played(pixels_with_state=True, frame_stack=2)
    assert {name: leaf.shape for name, leaf in spec.leaves.items()} == {"pixels": (20, 20, 6), "state": (2,)}
    assert [one["state"][0, 0] for one in seen] == [0, 1, 2, 3]
    assert [one["pixels"][0, 0, 0, ::3].tolist() for one in seen] == [[0, 0], [0, 10], [10, 20], [20, 30]]


def test_a_dictionary_keeps_its_leaves_beside_the_picture():
    task = {"id": "tests.helpers.gym_trees:DrawnReach-v0", "pixels_with_state": True}
    spec, seen = played(**task)
    assert {name: leaf.shape for name, leaf in spec.leaves.items()} == {
        "observation": (1,), "achieved_goal": (1,), "desired_goal": (1,), "pixels": (20, 20, 3),
    }  # fmt: skip
    assert [one["pixels"][0, 0, 0, 0] for one in seen] == [0, 10, 20, 30]
    assert {one["desired_goal"].item() for one in seen} == {seen[0]["desired_goal"].item()}
    assert Gymnasium.find_spaces(config(**task)).leaves == spec.leaves


def test_a_leaf_that_is_called_like_the_picture_is_refused():
    with pytest.raises(ConfigError, match=r"pixels_with_state is true, but Named-v0 itself observes .* called pixels"):
        Gymnasium.find_spaces(config(id="Named-v0", pixels_with_state=True))


def test_a_keyword_that_the_environment_does_not_know_is_not_blamed_on_rendering():
    with pytest.raises(ConfigError, match=r"cannot make Drawn-v0 with \{'opengi': True\}.*argument 'opengi'"):
        Gymnasium.make(config(kwargs={"opengi": True}), 1, lambda _: 0)


def test_a_stage_cannot_change_what_is_observed():
    for change in ("pixels: 32", "frame_stack: 2", "ignore_observations: [a]"):
        stages = f"stages=[{{name: a, timesteps: 8192, overrides: {{env.train: {{{change}}}}}}}, {{name: b}}]"
        name = change.partition(":")[0]
        with pytest.raises(ConfigError, match=f"changes env.train.{name}, which stays the same for a run"):
            rlpipe.load_config("ppo_cartpole", [stages])


def test_only_maniskills_cameras_need_vulkan():
    drawn, camera = config(), ManiSkillConfig("maniskill", obs_mode="rgb")
    assert (drawn.has_cameras, drawn.needs_vulkan) == (True, False)
    assert (camera.has_cameras, camera.needs_vulkan) == (True, True)
    assert not config(pixels=None).has_cameras


def test_a_smaller_picture_has_the_mean_of_the_pixels_that_each_of_its_own_covers():
    image = np.array([[[0], [100], [7], [7]], [[0], [100], [7], [9]]], dtype=np.uint8)
    assert resized(image, 2)[..., 0].tolist() == [[50, 7], [50, 8]]
    assert resized(image[:, :2], 2) is not None
    assert resized(image[:, :2], 2)[..., 0].tolist() == [[0, 100], [0, 100]]


def test_an_environment_that_cannot_draw_here_is_refused_before_the_start():
    with pytest.raises(ConfigError, match=r"pixels is 20, but Drawn-v0 cannot be made to render.*no OpenGL.*MUJOCO_GL"):
        Gymnasium.find_spaces(config(kwargs={"opengl": False}))


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"vectorized": True}, "pictures need vectorized=false"),
        ({"pixels": None, "pixels_with_state": True}, "pixels_with_state is true, but pixels is null"),
    ],
)
def test_options_that_contradict_each_other_are_refused(changes, says):
    with pytest.raises(ConfigError, match=says):
        config(**changes)
