"""Recording of evaluation episodes: it changes nothing, and each episode ends before the next one begins."""

from __future__ import annotations

import numpy as np
import pytest

import rlpipe
from rlpipe.collection.recorder import Recorder
from rlpipe.envs.base import Simulator
from rlpipe.metrics import MetricWindow


def evaluated(tmp_path, **options):
    """A random baseline of PickCube: two slots, stepped as one, of two episodes of 5 steps each."""
    pytest.importorskip("mani_skill", reason="mani_skill is not installed")
    tree = {"name": "maniskill", "id": "PickCube-v1", "total_num_envs": 2, "max_episode_steps": 5}
    file = tmp_path / "task.yaml"
    file.write_text(f"env: {{train: {tree}}}\npolicy: {{name: mlp}}\nalgorithm: {{name: ppo}}\n")
    return rlpipe.evaluate(
        file, policy="random", overrides=[f"runner.logger.log_path={tmp_path}"], local=True, **options
    )


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    """Four episodes with replays."""
    return evaluated(tmp_path_factory.mktemp("recorded"), episodes=4, replays=4)


@pytest.mark.maniskill
def test_an_evaluation_has_the_same_episodes_with_and_without_replays(tmp_path, recorded):
    without = evaluated(tmp_path, episodes=4)
    assert (without.episodes, without.metrics) == (recorded.episodes, recorded.metrics)
    assert len(recorded.replays.replays) == 4


@pytest.mark.maniskill
def test_the_last_poses_of_an_episode_are_those_before_the_reset_of_the_next(tmp_path, recorded):
    alone = evaluated(tmp_path, episodes=2, replays=2).replays.replays
    for one, other in zip(alone, recorded.replays.replays, strict=False):
        assert one.episode.seed == other.episode.seed
        assert one.poses.shape[0] == one.episode.length + 1
        assert np.array_equal(one.actions, other.actions)
        assert np.array_equal(one.poses, other.poses)
        assert np.array_equal(one.observations["observation"], other.observations["observation"])


class Unable(Simulator):
    """Says that it has bodies, and fails to describe them."""

    def __init__(self):
        self.num_envs = 1

    @classmethod
    def make(cls, config, num_envs, next_seed):
        return cls()

    def reset(self):
        raise NotImplementedError

    def step(self, actions, active=None):
        raise NotImplementedError

    def scene(self, n):
        raise RuntimeError("no such mesh")

    def close(self):
        pass


def test_a_simulator_that_fails_to_describe_its_bodies_costs_the_evaluation_nothing():
    recorder = Recorder(Unable(), 2)
    recorder.begin({0: None}, np.zeros((1, 3), np.float32))
    window = MetricWindow()
    recorder.add_to(window, "rollout-0")
    assert window.faults == [
        "rollout-0: replays show no bodies, because the simulator raised RuntimeError: no such mesh."
    ]
