"""Tries datasets with Minari's library: ``python minari_data.py write OUT TRUTH`` or ``read FOLDER TRUTH``.

``write`` records three episodes of Pendulum-v1 with its DataCollector: what it observes and a picture, which the
library encodes as JPEG. ``read`` opens what rlpipe wrote. ``TRUTH`` is an archive of NumPy's with the columns
``NUMBER/NAME`` of the episodes, as the library has them. Prints a row for each check as JSON.
"""

import json
import os
import sys
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np


class WithPicture(gym.ObservationWrapper):
    """Adds a picture to what is observed, whose brightness follows the speed."""

    def __init__(self, env: gym.Env) -> None:
        super().__init__(env)
        picture = gym.spaces.Box(0, 255, (32, 40, 3), np.uint8)
        self.observation_space = gym.spaces.Dict({"camera": picture, "state": env.observation_space})

    def observation(self, observation: Any) -> dict[str, Any]:
        """Returns what is observed."""
        picture = np.full((32, 40, 3), 128 + 8 * observation[2], np.uint8)
        picture[8:16, :16] = (250, 30, 60)
        return {"camera": picture, "state": observation}


def columns(episode: Any) -> dict[str, Any]:
    """Returns the columns of an episode."""
    held = episode.observations
    observed = held if isinstance(held, dict) else {"state": held}
    return {
        **{f"observations/{name}": values for name, values in observed.items()}, "actions": episode.actions,
        "rewards": episode.rewards, "terminations": episode.terminations, "truncations": episode.truncations,
    }  # fmt: skip


def write(out: str, truth: str) -> list[dict[str, Any]]:
    """Records episodes with the library."""
    os.environ["MINARI_DATASETS_PATH"] = out
    import minari

    env = minari.DataCollector(WithPicture(gym.make("Pendulum-v1", max_episode_steps=4)), record_infos=True)
    env.action_space.seed(0)
    for seed in (5, None, 7):  # without a seed, the library draws one of 64 bits
        env.reset(seed=seed)
        ended = False
        while not ended:
            *_, terminated, truncated, _ = env.step(env.action_space.sample())
            ended = terminated or truncated
    dataset = env.create_dataset("pendulum/small-v0", description="made to be read")
    episodes = [*dataset.iterate_episodes()]
    held = {f"{episode.id}/{name}": values for episode in episodes for name, values in columns(episode).items()}
    seeds = np.array([row["seed"] for row in dataset.storage.get_episode_metadata(range(3))], np.uint64)
    np.savez_compressed(truth, seeds=seeds, **held)
    numbers = f"{len(episodes)} episodes, {dataset.total_steps} steps, seeds {seeds.tolist()}"
    return [{"check": "it writes", "passed": True, "numbers": numbers}]


def read(folder: str, truth: str) -> list[dict[str, Any]]:
    """Opens a dataset with the library."""
    import minari

    problems, steps, episodes = [], 0, [*minari.MinariDataset(Path(folder) / "data").iterate_episodes()]
    with np.load(truth) as held:
        for episode in episodes:
            ours, steps = columns(episode), steps + len(episode)
            names = [name for name in held.files if name.startswith(f"{episode.id}/")]
            problems += [name for name in names if not np.array_equal(ours.get(name.partition("/")[2]), held[name])]
    numbers = "; ".join([f"{len(episodes)} episodes, {steps} steps", *problems[:3]])
    return [{"check": "values", "passed": not problems and bool(episodes), "numbers": numbers}]


print(json.dumps({"write": write, "read": read}[sys.argv[1]](*sys.argv[2:])))
