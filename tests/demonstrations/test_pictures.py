"""Pictures that are drawn of recorded states: the same, frame by frame, as those of a collection with cameras."""

from __future__ import annotations

import numpy as np
import pytest

from rlpipe.demonstrations.formats import maniskill
from rlpipe.demonstrations.pictures import DrawnDataset
from rlpipe.envs.maniskill.options import ManiSkillConfig
from rlpipe.errors import ConfigError
from tests.helpers.cameras import vulkan
from tests.helpers.collections import collected, config_of
from tests.helpers.commands import command
from tests.helpers.datasets import episode, write
from tests.helpers.reach import ReachConfig

__all__ = ["vulkan"]

STATES = "{name: tests.helpers.reach:Reach, total_num_envs: 2}"
PICTURES = STATES.replace("Reach", "DrawnReach")
DRAWN = ReachConfig("tests.helpers.reach:DrawnReach")


def assert_same_pictures(drawn, collected):
    """Two datasets have the same cameras, and the same pictures in every row of every episode."""
    assert drawn.features.cameras == collected.features.cameras
    for number, entry in enumerate(collected.episodes):
        before, after = collected.read(number), drawn.read(number)
        for name, frames in before.cameras.items():
            np.testing.assert_array_equal(after.cameras[name].stacked(), frames.stacked(), f"{entry.name} {name}")


def test_pictures_of_states_are_those_of_a_collection_with_cameras(tmp_path):
    states, _ = collected(tmp_path, into="states", count=5, train=STATES)
    pictures, _ = collected(tmp_path, into="pictures", count=5, train=PICTURES)
    out = tmp_path / "converted"
    answer = command(
        "demos", "convert", str(states), str(config_of(tmp_path, PICTURES)), "--to", "maniskill", "--out", str(out)
    )
    assert answer.code == 0, answer.err
    assert "camera_rgb [2, 64, 3]" in answer.out
    with_cameras = maniskill.open_dataset(pictures)
    assert len({frame.tobytes() for frame in with_cameras.read(0).cameras["camera_rgb"]}) > 3
    assert_same_pictures(maniskill.open_dataset(out), with_cameras)
    np.testing.assert_array_equal(
        maniskill.open_dataset(out).read(0).observations["state"], with_cameras.read(0).observations["state"]
    )


@pytest.mark.maniskill
def test_pictures_of_maniskills_states_are_those_of_a_collection_with_cameras(vulkan, tmp_path):
    task = "{name: maniskill, id: PickCube-v1, max_episode_steps: 6, total_num_envs: 2, camera_size: 32, MODE}"
    states, _ = collected(tmp_path, into="states", count=3, train=task.replace("MODE", "obs_mode: state"))
    pictures, _ = collected(tmp_path, into="pictures", count=3, train=task.replace("MODE", "obs_mode: state+rgb"))
    camera = ManiSkillConfig("maniskill", id="PickCube-v1", obs_mode="state+rgb", camera_size=32)
    with DrawnDataset(str(states), camera) as drawn:
        assert_same_pictures(drawn, maniskill.open_dataset(pictures))


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"states": None}, "it has no states of the simulator"),
        ({"seed": None}, "traj_0 has no seed"),
    ],
)
def test_what_cannot_be_drawn_is_named_before_a_simulator_starts(tmp_path, changes, says):
    write(tmp_path / "data", [episode(0, **changes)])
    with pytest.raises(ConfigError, match=f"of which no pictures can be drawn: {says}"):
        DrawnDataset(str(tmp_path / "data"), DRAWN)


def test_a_configuration_without_cameras_is_refused_and_nothing_is_written(tmp_path):
    states, _ = collected(tmp_path, into="states", count=1, train=STATES)
    out = tmp_path / "converted"
    answer = command(
        "demos", "convert", str(states), str(config_of(tmp_path, STATES)), "--to", "maniskill", "--out", str(out)
    )
    assert (answer.code, out.exists()) == (2, False)
    assert "observes no pictures, so CONFIG draws none" in " ".join(answer.err.split())
