"""Files of demonstrations."""

from __future__ import annotations

import json
from pathlib import Path

import h5py
import numpy as np

SHIPPED = Path("configs/demonstrations/PickCube-v1.h5")


def write(folder, trajectories, *, env_id="Reach-v1", reward_mode="dense", seeds=(), **info):
    """A file in ManiSkill's format from (observations, actions, success) of each trajectory, and their seeds."""
    file = folder / "demos.h5"
    with h5py.File(file, "w") as out:
        for index, (observations, actions, success) in enumerate(trajectories):
            group = out.create_group(f"traj_{index}")
            group["obs"] = np.asarray(observations, np.float32)
            group["actions"] = np.asarray(actions, np.float32)
            group["success"] = np.asarray(success, bool)
            group["rewards"] = np.arange(len(success), dtype=np.float32)
    kwargs = {"control_mode": "pd", "reward_mode": reward_mode, **info}
    information = {"env_info": {"env_id": env_id, "env_kwargs": kwargs}}
    if seeds:
        information["episodes"] = [{"episode_id": index, "episode_seed": seed} for index, seed in enumerate(seeds)]
    file.with_suffix(".json").write_text(json.dumps(information))
    return str(file)


def steps(count, success_at=None, *, action=0.5):
    """A trajectory whose observation is the number of the step."""
    observations = np.repeat(np.arange(count + 1.0)[:, None], 4, axis=1)
    success = [success_at is not None and t + 1 >= success_at for t in range(count)]
    return observations, np.full((count, 1), action), success


def demonstrator(folder, gain=0.8):
    """Twenty demonstrations of the scripted simulator: the action is the bias, which is observed last, times a gain."""
    generator = np.random.default_rng(0)
    shown = []
    for index in range(20):
        bias = np.where(generator.random(11) < 0.5, -1.0, 1.0)
        observations = np.stack([np.full(11, index % 4), np.zeros(11), np.arange(11), bias], axis=1)
        shown.append((observations, gain * bias[:10, None], [False] * 9 + [True]))
    return write(folder, shown)


def few(folder, count=2):
    """The first of the shipped demonstrations."""
    folder.mkdir(exist_ok=True)
    file = folder / "few.h5"
    information = json.loads(SHIPPED.with_suffix(".json").read_text())
    information["episodes"] = information["episodes"][:count]
    file.with_suffix(".json").write_text(json.dumps(information))
    with h5py.File(SHIPPED) as shipped, h5py.File(file, "w") as out:
        for number in range(count):
            shipped.copy(f"traj_{number}", out)
    return file
