"""Episodes and datasets of every format, and files as other libraries write them."""

from __future__ import annotations

import numpy as np

from rlpipe.demonstrations.formats import maniskill
from rlpipe.demonstrations.formats.episode import DatasetInfo, Frames, RecordedEpisode
from rlpipe.demonstrations.formats.writing import DatasetWriter

INFO = DatasetInfo("Reach-v1", {"control_mode": "pd"}, 20.0, "by hand")


def episode(number, steps=3, **changes):
    """An episode whose observations count its steps, and whose last one succeeds."""
    rows = np.arange(steps + 1, dtype=np.float32)[:, None]
    columns = {
        "observations": {"state": rows + 10 * number, "goal": np.repeat(rows, 2, axis=1)},
        "rewards": np.linspace(0, 1, steps, dtype=np.float32),
        "success": np.arange(steps) == steps - 1,
        "terminated": np.arange(steps) == steps - 1,
        "truncated": np.zeros(steps, bool),
        "seed": 100 + number,
        "states": {"actors/cube": np.repeat(rows, 3, axis=1)},
        "task": "reach the goal",
    }
    actions = np.full((steps, 2), number / 8, np.float32)
    return RecordedEpisode(f"traj_{number}", actions, **columns | changes)


def pictures(steps=3, height=4, width=6):
    generator = np.random.default_rng(0)
    return Frames.of(generator.integers(0, 256, (steps + 1, height, width, 3), np.uint8))


def assert_equal(first, second):
    """Two episodes are equal to the bit, but for their names."""
    for name in ("actions", "rewards", "success", "terminated", "truncated"):
        np.testing.assert_array_equal(getattr(first, name), getattr(second, name), name, strict=True)
    for name in ("observations", "states", "others"):
        before, after = getattr(first, name) or {}, getattr(second, name) or {}
        assert before.keys() == after.keys()
        for key, values in before.items():
            np.testing.assert_array_equal(values, after[key], key, strict=True)
    assert first.cameras.keys() == second.cameras.keys()
    for name, frames in first.cameras.items():
        np.testing.assert_array_equal(frames.stacked(), second.cameras[name].stacked(), strict=True)
    assert (first.seed, first.task) == (second.seed, second.task)


def write(folder, episodes, form=maniskill, info=INFO):
    with DatasetWriter(folder, form, info) as writer:
        for each in episodes:
            writer.add(each)
    return form.open_dataset(folder, "demos")


# --- files of others, in two episodes of two steps, the second of which succeeds

OBS, ACTIONS, REWARDS = np.zeros((3, 4)), np.zeros((2, 1)), np.array([0.0, 1.0])


def robomimic(out):
    out.create_group("data").attrs["env_args"] = "{}"
    for number in range(2):
        demo = out.create_group(f"data/demo_{number}")
        demo["actions"], demo["rewards"], demo["dones"] = ACTIONS, REWARDS, REWARDS.astype(int)
        demo["obs/object"], demo["obs/eef"] = OBS[:2, :3], OBS[:2, 3]


def minari(out):
    for number in range(2):
        episode = out.create_group(f"episode_{number}")
        episode["observations"], episode["actions"], episode["rewards"] = OBS, ACTIONS, REWARDS
        episode["terminations"], episode["truncations"] = REWARDS > 0, REWARDS > 1
        episode.attrs["seed"] = 100 + number
