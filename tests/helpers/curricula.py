"""Runs with a curriculum on a task that is learnt in a minute."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from tests.helpers.demonstrations import write
from tests.helpers.reach import ReachEnv
from tests.helpers.runs import scripted

REACH = "tests.helpers.reach:Reach"


def demonstrated(folder: Path, count: int = 3) -> str:
    """Demonstrations that go straight to the goal, with their seeds but without states."""
    env, trajectories, kept = ReachEnv(), [], []
    for seed in range(1000):
        observations, actions, success = [env.reset(seed)[0]], [], []
        while not any(success) and len(actions) < 10:
            actions.append([np.clip((observations[-1][1] - observations[-1][0]) / 0.2, -1.0, 1.0)])
            answer = env.step(actions[-1])
            observations.append(answer.observation)
            success.append(answer.success)
        if len(actions) > 4 and any(success):
            trajectories.append((observations, actions, success))
            kept.append(seed)
        if len(kept) == count:
            break
    return write(folder, trajectories, env_id=REACH, reward_mode="sparse", seeds=kept)


def reach(folder, *overrides, name="reverse", **tree):
    """RLPD on a task that pays only on arrival, 4 environments, 6 iterations of 16 steps each."""
    folder.mkdir(parents=True, exist_ok=True)
    base = {
        "env": {"train": {"name": REACH, "total_num_envs": 4}},
        "policy": {"name": "squashed_gaussian", "hidden_sizes": [16]},
        "algorithm": {
            "name": "rlpd", "batch_size": 32, "critic_hidden_sizes": [16], "learning_starts": 64,
            "update_to_data": 0.25, "replay_capacity": 500,
        },
        "demos": demonstrated(folder),
        "curriculum": {"name": name, "own_starts": 0.3} | ({} if name == "forward" else {"step_back": 2}),
    }  # fmt: skip
    return scripted(folder, "runner.total_timesteps=384", "runner.save_interval=1", *overrides, **(base | tree))


WIDEST = {"wind": {"uniform": [-1.0, 1.0]}, "action_latency": {"choice": [0, 1, 2]}}
"""Axes of ``windy``: a wind above 0.5 m/s makes episodes fail, and a late action makes no difference."""


def windy(folder, *overrides, **tree):
    """PPO on episodes of 2 steps, with ranges that widen: 4 environments, 12 iterations of 32 episodes each."""
    base = {
        "env": {
            "train": {
                "name": "tests.helpers.simulators:Windy", "total_num_envs": 4, "script": [[{"length": 2}]],
                "variations": WIDEST,
            }
        },
        "curriculum": {"name": "widening", "edge_window": 4, "edge_steps": 4, "own_starts": 0.2},
    }  # fmt: skip
    return scripted(folder, "runner.total_timesteps=768", "runner.save_interval=6", *overrides, **(base | tree))
