"""Episodes recorded as an evaluation records them, beside what the simulator itself says of its bodies."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from rlpipe.collection.episodes import EpisodeTracker
from rlpipe.collection.recorder import Recorder
from rlpipe.config.loading import load_config
from rlpipe.envs.shared.make import make_simulator
from rlpipe.metrics import MetricWindow
from rlpipe.trajectory import Replay, Scene


class Recorded(NamedTuple):
    """A replay, its geometry, and by step the poses that ManiSkill's own objects have."""

    replay: Replay
    scene: Scene
    truth: list[dict[str, np.ndarray]]


def maniskill_episode(task: str, act: Callable[[np.ndarray], np.ndarray], slots: int, **options: Any) -> Recorded:
    """Runs an episode in each slot, and returns the first slot's."""
    tree = {
        "env": {"train": {"name": "maniskill", "id": task, "total_num_envs": slots, **options}},
        "policy": {"name": "mlp"},
        "algorithm": {"name": "ppo"},
    }
    left = {n: [n] for n in range(slots)}
    simulator: Any = make_simulator(load_config(tree).env.train, slots, lambda n: left[n].pop() if left[n] else None)
    recorder = Recorder(simulator, slots)
    tracker = EpisodeTracker(0, 0, slots)
    observations, beginnings = simulator.reset()
    tracker.begin(beginnings)
    recorder.begin(beginnings, observations)
    truth = [_poses(simulator._envs[0].task)]
    ended = 0
    while ended < slots:
        actions = act(observations)
        step = simulator.step(actions)
        episodes = {one.slot: one for one in tracker.step(step, 0)}
        recorder.step(step, simulator.spec.clip(actions), episodes)
        truth.append(_poses(simulator._envs[0].task))
        observations = step.observations
        ended += len(episodes)
    window = MetricWindow()
    recorder.add_to(window, "rollout-0")
    simulator.close()
    assert window.faults == []
    replay = next(one for one in window.eval_replays if one.episode.slot == 0)
    return Recorded(replay, window.scenes[replay.scene], truth)


def _poses(task: Any) -> dict[str, np.ndarray]:
    links = task.agent.robot.links_map
    found = {
        f"panda/{name}": links[name].pose for name in ("panda_link0", "panda_link5", "panda_hand", "panda_leftfinger")
    }
    actors = {
        name: actor.pose for name, actor in task.scene.actors.items() if name in ("cube", "goal_site", "goal_region")
    }
    return {name: pose.raw_pose[0].numpy().copy() for name, pose in (found | actors).items()}


def pushing(observations: np.ndarray) -> np.ndarray:
    """Actions of ``pd_ee_delta_pos`` that push the cube of PushCube to the goal: behind it, down, and along x."""
    hand, cube = observations[:, 18:21], observations[:, 28:31]
    away = np.array([0.1, 0.0, 0.01])
    behind = np.linalg.norm((hand - cube + away)[:, 1:], axis=1) < 0.02
    target = np.where(behind[:, None], cube + np.array([0.1, 0.0, 0.0]), cube - away)
    actions = np.zeros((len(observations), 4), dtype=np.float32)
    actions[:, :3] = np.clip((target - hand) * 10, -1, 1)
    actions[:, 3] = -1
    return actions


class RandomActions:
    """Random actions of a fixed seed."""

    def __init__(self, dim: int) -> None:
        self._generator, self._dim = np.random.default_rng(0), dim

    def __call__(self, observations: np.ndarray) -> np.ndarray:
        return self._generator.uniform(-1, 1, (len(observations), self._dim)).astype(np.float32)
