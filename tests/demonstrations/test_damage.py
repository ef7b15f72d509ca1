"""Damaged demonstrations on the command line: one message with file and row, exit code 2, and nothing written."""

from __future__ import annotations

import json
from dataclasses import replace

import h5py
import numpy as np
import pytest

import rlpipe
from rlpipe.config.loading import load_pretraining
from rlpipe.demonstrations.checks import check_demonstrations, check_steps
from rlpipe.demonstrations.formats.episode import RecordedEpisode
from rlpipe.demonstrations.formats.registry import FORMATS
from rlpipe.errors import ConfigError
from rlpipe.training.checks import check_spaces
from tests.helpers.commands import command
from tests.helpers.datasets import INFO, pictures, write

PENDULUM = replace(INFO, task="Pendulum-v1", options={})


def pendulum(number, **changes):
    """An episode of three steps with Pendulum's shapes."""
    columns = {
        "actions": np.full((3, 1), 0.5, np.float32), "observations": {"state": np.zeros((4, 3), np.float32)},
        "rewards": np.zeros(3, np.float32),
        "success": np.array([False, False, True]), "seed": number,
    }  # fmt: skip
    return RecordedEpisode(f"traj_{number}", **columns | changes)


def drop(path, name):
    (path / name).unlink()


def describe(path, **facts):
    info = json.loads((path / "meta/info.json").read_text())
    (path / "meta/info.json").write_text(json.dumps(info | facts))


def shorten(path, name):
    """Cuts the last row off an array of HDF5."""
    (file,) = path.rglob("*.hdf5")
    with h5py.File(file, "a") as out:
        rows = out[name][:-1]
        del out[name]
        out[name] = rows


def cut_rows(path):
    import pyarrow.parquet as pq

    (file,) = (path / "data").rglob("*.parquet")
    pq.write_table(pq.read_table(file).slice(0, 5), file)


def cut_file(path, pattern):
    (file,) = path.rglob(pattern)
    file.write_bytes(file.read_bytes()[:-100])


def shorter_video(path, pattern="*.mp4", frames=4):
    from rlpipe.demonstrations.formats.video import VideoEncoder

    (file,) = path.rglob(pattern)
    video = VideoEncoder(file, (16, 32, 3), 20)
    for _ in range(frames):
        video.add(np.zeros((16, 32, 3), np.uint8))
    video.close()


DAMAGED = {
    "half a dataset": (
        "lerobot", lambda path: drop(path, "data/chunk-000/file-000.parquet"), "pretrain",
        "half a dataset: data/chunk-000/file-000.parquet, with episode 0, is missing",
    ),
    "half a dataset of v2.1": (
        "lerobot-v2.1", lambda path: drop(path, "data/chunk-000/episode_000001.parquet"), "pretrain",
        "half a dataset: data/chunk-000/episode_000001.parquet, with episode 1, is missing",
    ),
    "without its list": (
        "lerobot-v2.1", lambda path: drop(path, "meta/episodes.jsonl"), "pretrain",
        "meta/episodes.jsonl cannot be read",
    ),
    "an unreadable version": (
        "lerobot", lambda path: describe(path, codebase_version="v3.7"), "pretrain",
        "is of version v3.7 of LeRobotDataset; v3.0 and v2.1 are read",
    ),
    "an older version": (
        "lerobot-v2.1", lambda path: describe(path, codebase_version="v1.6"), "pretrain",
        "is of version v1.6 of LeRobotDataset; v3.0 and v2.1 are read",
    ),
    "rows that are missing": (
        "lerobot", cut_rows, "pretrain", "file-000.parquet has 2 rows of episode 1, but the list of episodes says 3",
    ),
    "a table that is cut off": (
        "lerobot", lambda path: cut_file(path, "data/*/*.parquet"), "pretrain",
        "file-000.parquet is damaged or cut off",
    ),
    "a column of another length in robomimic's": (
        "robomimic", lambda path: shorten(path, "data/demo_1/rewards"), "pretrain",
        "demo_1 has 3 actions, but 2 rows of rewards, not 3",
    ),
    "observations of another length in robomimic's": (
        "robomimic", lambda path: shorten(path, "data/demo_1/obs/state"), "pretrain",
        "demo_1 has 3 actions, but 2 rows of obs/state, not 3",
    ),
    "a column of another length in Minari's": (
        "minari", lambda path: shorten(path, "episode_1/rewards"), "pretrain",
        "episode_1 has 3 actions, but 2 rows of rewards, not 3",
    ),
    "a video that ends early": (
        "lerobot", shorter_video, "inspect", "file-000.mp4 ends early: it has 1 of the 3 frames from 0.15 s on",
    ),
    "a video that is cut off": (
        "lerobot", lambda path: cut_file(path, "*.mp4"), "inspect", "file-000.mp4",
    ),
}  # fmt: skip


@pytest.mark.parametrize("what", DAMAGED)
def test_damage_is_one_message_with_the_file_and_the_row(tmp_path, what):
    form, damage, how, says = DAMAGED[what]
    cameras = {"cameras": {"front": pictures(3, 16, 32)}} if how == "inspect" else {}
    path = tmp_path / "data"
    write(path, [pendulum(number, **cameras) for number in range(2)], FORMATS[form], PENDULUM)
    damage(path)
    answer = tried(how, path, tmp_path)
    assert (answer.code, answer.err.count("error:")) == (2, 1), answer.err
    text = " ".join(answer.err.split())
    assert says in text, text
    assert str(path) in text
    assert sorted(file.name for file in tmp_path.iterdir()) == ["config.yaml", "data"]


def tried(how, path, folder):
    """Runs ``demos inspect``, or ``pretrain`` in Pendulum."""
    config = folder / "config.yaml"
    config.write_text(
        "env: {train: {name: gymnasium, id: Pendulum-v1, total_num_envs: 1, max_episode_steps: 3}}\n"
        f"policy: {{name: mlp}}\nalgorithm: {{name: ppo}}\nrunner: {{logger: {{log_path: {folder / 'runs'}}}}}\n"
    )
    if how == "inspect":
        return command("demos", "inspect", str(path))
    return command("pretrain", str(config), f"demos={path}", "--local")


@pytest.mark.parametrize("form", FORMATS)
def test_an_action_beyond_the_bounds_is_named_with_its_episode_and_its_row(tmp_path, monkeypatch, form):
    monkeypatch.setattr(rlpipe, "_engine", None)  # nothing starts
    path = tmp_path / "data"
    name = write(path, [pendulum(0), pendulum(1, actions=BEYOND)], FORMATS[form], PENDULUM).episodes[1].name
    answer = tried("pretrain", path, tmp_path)
    assert (answer.code, answer.err.count("error:")) == (2, 1), answer.err
    text = " ".join(answer.err.split())
    assert f"{path}: {name} has actions 0.5 outside the simulator's bounds, first in row 2" in text, text


BEYOND = np.array([[0.5], [0.5], [2.5]], np.float32)


@pytest.mark.maniskill
@pytest.mark.parametrize(
    ("control_mode", "says"),
    [
        ("pd_ee_delta_pos", "traj_1 has actions 1.5 outside the simulator's bounds, first in row 2"),
        ("pd_joint_pos", None),
    ],
)
def test_an_action_beyond_what_maniskill_scales_is_found_without_its_simulator(tmp_path, control_mode, says):
    path, episodes = tmp_path / "data", [pendulum(0), pendulum(1, actions=BEYOND)]
    write(path, episodes, info=replace(PENDULUM, task="PickCube-v1"))
    options = [f"demos={path}", f"env.train.control_mode={control_mode}"]
    assert refused(load_pretraining("sparse_pick_cube", options)) == (says and f"demos: {path}: {says}")


@pytest.mark.maniskill
@pytest.mark.parametrize(
    ("form", "damage", "says"),
    [
        ("lerobot", lambda _: None, None),
        ("lerobot", shorter_video, "file-000.mp4 ends early: it has 1 of the 3 frames from 0.15 s on"),
        ("lerobot", lambda path: cut_file(path, "*.mp4"), "ends early: it has 0 of the 3 frames from 0 s on"),
        ("lerobot-v2.1", lambda _: None, None),
        (
            "lerobot-v2.1", lambda path: shorter_video(path, "episode_000001.mp4", 2),
            "episode_000001.mp4 ends early: it has 2 of the 3 frames from 0 s on",
        ),
    ],
)  # fmt: skip
def test_a_video_that_ends_early_is_found_before_the_simulator_starts(tmp_path, form, damage, says):
    path, episodes = tmp_path / "data", [pendulum(n, cameras={"front": pictures(3, 16, 32)}) for n in range(2)]
    write(path, episodes, FORMATS[form], replace(PENDULUM, task="PickCube-v1"))
    damage(path)
    options = [f"demos={path}", "env.train.control_mode=pd_ee_delta_pos"]
    assert refused(load_pretraining("sparse_pick_cube", options)) is None  # nothing looks at pictures
    answer = refused(load_pretraining("sparse_pick_cube", [*options, "env.train.obs_mode=rgb"]))
    assert (answer is None) == (says is None)
    assert (says or "") in (answer or ""), answer


def refused(config):
    """Message that refuses demonstrations without a simulator; None if it has nothing to refuse."""
    try:
        check_steps(config, check_demonstrations(config), check_spaces(config))
    except ConfigError as error:
        return str(error).partition(". Was it")[0]
    return None
