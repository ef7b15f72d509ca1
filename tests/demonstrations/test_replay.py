"""Demonstrations whose observations are trees, and ``rlpipe demos CONFIG --replay``, which makes them."""

from __future__ import annotations

import dataclasses
import json
import re
import shutil
import sys
from pathlib import Path

import gymnasium
import h5py
import numpy as np
import pytest
import torch
from typer.testing import CliRunner

import rlpipe
from rlpipe.cli import app
from rlpipe.config.loading import load_config
from rlpipe.config.tree import to_yaml
from rlpipe.demonstrations import dataset
from rlpipe.demonstrations.formats.registry import open_dataset
from rlpipe.demonstrations.replay import replay_demonstrations
from rlpipe.errors import ConfigError
from rlpipe.learning.demonstrated import chunked_decisions
from rlpipe.learning.replay import ReplayBuffer
from rlpipe.run.directory import read_jsonl
from rlpipe.trajectory import LeafSpec, SpaceSpec
from tests.helpers.cameras import vulkan
from tests.helpers.demonstrations import SHIPPED, few, steps, write
from tests.helpers.gym_trees import DrawnReach
from tests.helpers.runs import scripted

__all__ = ["vulkan"]

CPU = torch.device("cpu")
LEAVES = {"rgb": LeafSpec((2, 2, 3), "uint8"), "pose": LeafSpec((1,))}
SPEC = SpaceSpec.of_tree(LEAVES, 1, None, np.array([-1.0], np.float32), np.array([1.0], np.float32))


def task(**changes):
    options = {"id": "Reach-v1", "control_mode": "pd", "reward_mode": "sparse", "ignore_terminations": False}
    return type("Task", (), options | {"obs_mode": "rgb", "has_cameras": True} | changes)()


def pictured(folder, lengths=(3, 2), **info):
    """Demonstrations whose picture and pose count the steps."""
    file = write(folder, [steps(length, success_at=length) for length in lengths], obs_mode="rgb", **info)
    with h5py.File(file, "a") as out:
        for group in out.values():
            numbers = np.arange(len(group["obs"]))
            del group["obs"]
            group["obs/rgb"] = np.broadcast_to(numbers[:, None, None, None], (len(numbers), 2, 2, 3)).astype(np.uint8)
            group["obs/pose"] = numbers[:, None].astype(np.float32)
    return file


def test_trees_are_read_in_their_own_dtypes(tmp_path):
    shown = dataset.load(pictured(tmp_path), task(), SPEC)
    assert shown.observations["rgb"].dtype == np.uint8
    assert shown.observations["rgb"][:, 0, 0, 0].tolist() == [0, 1, 2, 0, 1]
    assert shown.next_observations["pose"][:, 0].tolist() == [1, 2, 3, 1, 2]
    decisions = chunked_decisions(shown, 2, CPU)
    assert decisions[:2].observations["rgb"].shape == (2, 2, 2, 3)
    assert decisions.num_steps.tolist() == [2, 2, 1, 2, 1]


def test_a_replay_buffer_holds_each_demonstrated_frame_once(tmp_path):
    shown = dataset.load(pictured(tmp_path), task(), SPEC)
    buffer = ReplayBuffer(7, SPEC, CPU, 0.5)
    buffer.add_demonstrations(shown)
    assert buffer.state()["frames/pose"].flatten().tolist() == [0, 1, 2, 0, 1, 3, 2]
    batch = buffer.transitions(buffer.read(buffer.draw(400, torch.Generator().manual_seed(0))[0]))
    pairs = zip(batch.observations["pose"][:, 0].tolist(), batch.next_observations["rgb"][:, 0, 0, 0].tolist(),
                batch.terminated.tolist(), strict=True)  # fmt: skip
    assert sorted(set(pairs)) == [(0, 1, 0), (1, 2, 0), (1, 2, 1), (2, 3, 1)]


@pytest.mark.parametrize(
    ("changes", "leaves", "says"),
    [
        ({"obs_mode": "state+rgb"}, LEAVES, "recorded with obs_mode rgb, but env.train.obs_mode is state"),
        ({"camera_size": 84}, LEAVES, "recorded with camera_size 64, but env.train.camera_size is 84"),
        (
            {"kwargs": {"robot_uids": "b"}},
            LEAVES,
            r"recorded with kwargs \{'robot_uids': 'a'\}, but env.train.kwargs is",
        ),
        ({"pixels": 32}, LEAVES, "recorded with pixels 64, but env.train.pixels is 32"),
        (
            {},
            LEAVES | {"depth": LeafSpec((2, 2, 1), "uint8")},
            r"observes depth, .* but .*: traj_0 has none of that shape",
        ),
        (
            {},
            LEAVES | {"rgb": LeafSpec((4, 4, 3), "uint8")},
            r"rgb, uint8 \[4, 4, 3\], but .* It has .*rgb uint8 \[2, 2, 3\]",
        ),
        ({}, LEAVES | {"pose": LeafSpec((1,), "int16")}, r"pose, int16 \[1\], but .* It has pose float32 \[1\]"),
    ],
)
def test_other_observations_are_refused_with_the_command_that_makes_them(tmp_path, changes, leaves, says):
    file = pictured(tmp_path, camera_size=64, pixels=64, kwargs={"robot_uids": "a"})
    spec = SpaceSpec.of_tree(leaves, 1, None, SPEC.action_low, SPEC.action_high)
    with pytest.raises(ConfigError, match=says + r".*rlpipe demos CONFIG --replay"):
        dataset.load(file, task(**({"camera_size": 64, "kwargs": {"robot_uids": "a"}} | changes)), spec)


def test_vectors_are_refused_where_a_tree_is_wanted_and_the_other_way_round(tmp_path):
    vectors = write(tmp_path, [steps(3, success_at=3)])
    with pytest.raises(ConfigError, match=r"observes rgb, .* It has state float32 \[4\]\. Make .*rlpipe demos CONFIG"):
        dataset.load(vectors, task(), SPEC)
    vector = SpaceSpec(4, 1, None, SPEC.action_low, SPEC.action_high)
    with pytest.raises(ConfigError, match=r"observes state, float32 \[4\], .* It has pose float32 \[1\], rgb uint8"):
        dataset.load(pictured(tmp_path), task(obs_mode="rgb"), vector)


# --- replaying


def seeds_of(file):
    return dataset.seeds(open_dataset(file, "demos"))


def pick_cube(folder, *overrides, **train):
    options = {"name": "maniskill", "id": "PickCube-v1", "control_mode": "pd_ee_delta_pos", "total_num_envs": 2}
    return scripted(
        folder, f"demos={folder}/new.h5", *overrides, env={"train": options | train},
        algorithm={"name": "behaviour_cloning", "held_out": 0.5, "epochs": 1, "batch_size": 64},
        evaluation={"episodes": 2},
    )  # fmt: skip


def replayed(folder, *overrides, **train):
    config = pick_cube(folder, *overrides, **train)
    return config, replay_demonstrations(str(few(folder)), config, folder / "new.h5", lambda *_: None)


def test_a_replay_observes_what_the_file_holds(tmp_path):
    config, made = replayed(tmp_path)
    assert (made.trajectories, made.failed) == (2, 0)
    ours, theirs = (dataset.load(file, config.env.train, made.spec) for file in (str(made.file), str(SHIPPED)))
    assert len(ours) == made.steps
    first = ours.trajectory == 0  # after the first, what the episode before left in PhysX differs in the last bits
    assert np.array_equal(ours.observations[first], theirs.observations[: len(ours)][first])
    assert np.abs(ours.observations - theirs.observations[: len(ours)])[:, :9].max() < 1e-3  # of the joints, in radians
    assert np.array_equal(ours.actions, theirs.actions[: len(ours)])
    assert seeds_of(made.file) == {0, 1}
    assert sorted(path.name for path in tmp_path.iterdir()) == ["few.h5", "few.json", "new.h5", "new.json"]


def test_a_trajectory_that_does_not_succeed_again_is_left_out(tmp_path):
    file = few(tmp_path)
    with h5py.File(file, "a") as out:
        out["traj_0"]["actions"][:] = 0.0
    made = replay_demonstrations(str(file), pick_cube(tmp_path), tmp_path / "new.h5", lambda *_: None)
    assert (made.trajectories, made.failed) == (1, 1)
    assert seeds_of(made.file) == {1}


def test_nothing_is_written_where_none_succeeds_or_seeds_are_missing(tmp_path):
    file = few(tmp_path, 1)
    with h5py.File(file, "a") as out:
        out["traj_0"]["actions"][:] = 0.0
    with pytest.raises(ConfigError, match="none of the 1 trajectories"):
        replay_demonstrations(str(file), pick_cube(tmp_path), tmp_path / "new.h5", lambda *_: None)
    information = json.loads(file.with_suffix(".json").read_text())
    information["episodes"] = [{"episode_id": 0}]
    file.with_suffix(".json").write_text(json.dumps(information))
    with pytest.raises(ConfigError, match="gives no seed for any of its 1 trajectories"):
        replay_demonstrations(str(file), pick_cube(tmp_path), tmp_path / "new.h5", lambda *_: None)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["few.h5", "few.json"]


class Breaking(DrawnReach):
    """Cannot take a step, and counts how often it is closed."""

    closed = 0

    def step(self, action):
        raise RuntimeError("a joint broke")

    def close(self):
        Breaking.closed += 1


gymnasium.register("Breaking-v0", "tests.demonstrations.test_replay:Breaking", max_episode_steps=3)


def to_the_goal(folder, env_id):
    """One demonstration of Reach, whose goal is reached by two steps of half the way."""
    folder.mkdir(exist_ok=True)
    env = DrawnReach()
    env.reset(seed=4)
    file = Path(write(folder, [steps(2, success_at=2, action=env.goal)], env_id=env_id)).with_suffix(".json")
    information = json.loads(file.read_text())
    del information["env_info"]["env_kwargs"]["control_mode"]
    file.write_text(json.dumps(information | {"episodes": [{"episode_id": 0, "episode_seed": 4}]}))
    return str(file.with_suffix(".h5"))


def reach(folder, env_id, *overrides):
    train = {"name": "gymnasium", "id": env_id, "success_key": "is_success", "pixels": 20, "pixels_with_state": True}
    return scripted(
        folder, f"demos={folder}/new.h5", *overrides, env={"train": train | {"total_num_envs": 2}},
        algorithm={"name": "behaviour_cloning", "epochs": 1},
    )  # fmt: skip


def test_gymnasiums_pictures_are_recorded_with_the_options_that_made_them(tmp_path):
    config = reach(tmp_path, "DrawnReach-v0")
    source = to_the_goal(tmp_path / "given", "DrawnReach-v0")
    made = replay_demonstrations(source, config, tmp_path / "new.h5", lambda *_: None)
    shown = dataset.load(str(made.file), config.env.train, made.spec)
    assert shown.observations["pixels"][:, 0, 0, 0].tolist() == [0, 10]
    other = reach(tmp_path, "DrawnReach-v0", "env.train.pixels=16").env.train
    with pytest.raises(ConfigError, match=r"recorded with pixels 20, but env.train.pixels is 16"):
        dataset.check(str(made.file), other)


def test_a_simulator_without_reward_modes_pays_what_was_recorded(tmp_path):
    config = reach(tmp_path, "DrawnReach-v0")
    made = replay_demonstrations(to_the_goal(tmp_path / "given", "DrawnReach-v0"), config, tmp_path / "new.h5", print)
    with h5py.File(made.file, "a") as file:
        file["traj_0/rewards"][...] = [-1, 3]
    assert dataset.load(str(made.file), config.env.train, made.spec).rewards.tolist() == [-1, 3]


@pytest.mark.parametrize("part", ["success", "rewards", "obs"])
def test_the_command_of_a_message_records_what_a_file_lacks(tmp_path, monkeypatch, part):
    config = reach(tmp_path, "DrawnReach-v0")
    (tmp_path / "reach.yaml").write_text(to_yaml(config))
    given = to_the_goal(tmp_path / "given", "DrawnReach-v0")
    with h5py.File(given, "a") as out:
        del out["traj_0"][part]
    paid = dataclasses.replace(config.env.train, pixels=None, pixels_with_state=False)
    spec = SpaceSpec(4, 1, None, SPEC.action_low, SPEC.action_high)
    if part == "rewards":  # of a task with dense rewards, whose file holds them
        paid = type("Task", (), vars(paid) | {"reward_mode": "dense"})()
        beside = Path(given).with_suffix(".json")
        beside.write_text(beside.read_text().replace('"reward_mode": null', '"reward_mode": "dense"'))
    with pytest.raises(ConfigError) as raised:
        dataset.load(given, paid, spec)
    command = re.search(r"rlpipe (demos CONFIG --replay .* demos=NEW\.h5), and then", str(raised.value))[1]
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(app, command.replace("CONFIG", "reach.yaml").split())
    assert done.exit_code == 0, done.output
    with h5py.File("NEW.h5") as made:
        assert made["traj_0"][part]


def test_a_task_that_reports_no_success_is_refused(tmp_path):
    config = reach(tmp_path, "DrawnReach-v0", "env.train.success_key=null")
    with pytest.raises(ConfigError, match=r"\(DrawnReach-v0\) does not report success.* env.train.success_key"):
        replay_demonstrations(to_the_goal(tmp_path / "given", "DrawnReach-v0"), config, tmp_path / "new.h5", print)
    assert [path.name for path in tmp_path.iterdir()] == ["given"]


def test_a_simulator_that_breaks_is_closed_and_nothing_is_written(tmp_path):
    source = to_the_goal(tmp_path / "given", "Breaking-v0")
    with pytest.raises(RuntimeError, match="a joint broke"):
        replay_demonstrations(source, reach(tmp_path, "Breaking-v0"), tmp_path / "new.h5", lambda *_: None)
    assert Breaking.closed == 1
    assert [path.name for path in tmp_path.iterdir()] == ["given"]


def test_the_command_finds_shipped_files_anywhere_and_never_replaces_what_it_reads(tmp_path, monkeypatch):
    ran = []
    monkeypatch.setattr("rlpipe.demonstrations.replay.replay_demonstrations", lambda source, *_: ran.append(source))
    command = ["demos", "chunk_pick_cube", "--replay", str(SHIPPED)]
    shipped = SHIPPED.resolve()
    monkeypatch.chdir(tmp_path)
    CliRunner().invoke(app, [*command, "demos=new.h5"])
    assert [Path(source).resolve() for source in ran] == [shipped]
    same = CliRunner().invoke(app, [*command, f"demos={shipped}"])
    assert "name the file to write" in str(same.exception) + same.output
    assert len(ran) == 1


def test_a_missing_file_to_replay_is_not_answered_with_the_command_that_runs(tmp_path):
    with pytest.raises(ConfigError, match=r"--replay is .*none.h5, but there is no such file") as raised:
        replay_demonstrations(str(tmp_path / "none.h5"), reach(tmp_path, "DrawnReach-v0"), tmp_path / "new.h5", print)
    assert "Make it" not in str(raised.value)


def test_a_replay_without_h5py_names_the_extra(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "h5py", None)
    with pytest.raises(ConfigError, match=r"--replay needs the package h5py, .* pip install 'rlpipe\[maniskill\]'"):
        replay_demonstrations("some.h5", reach(tmp_path, "DrawnReach-v0"), tmp_path / "new.h5", print)


def test_the_command_says_what_is_missing():
    run = CliRunner().invoke
    without = run(app, ["demos", "chunk_pick_cube", f"demos={SHIPPED}", "--replay", str(SHIPPED)])
    assert isinstance(without.exception, SystemExit | ConfigError)
    planned = run(app, ["demos", "PickCube-v1", "env.train.id=PickCube-v1"])
    assert "--replay" in str(planned.exception) + planned.output


def test_pictures_are_cloned_and_evaluated_by_one_worker_as_by_two(vulkan, tmp_path):
    camera = {"obs_mode": "rgb", "camera_size": 32, "max_episode_steps": 8}
    config, made = replayed(tmp_path, "policy.chunk_size=4", **camera)
    assert made.spec.leaves["base_camera_rgb"].shape == (32, 32, 3)
    assert made.file.stat().st_size < 0.5 * made.steps * 32 * 32 * 3
    results = []
    for count in (1, 2):
        options = [
            f"rollout.num_workers={count}",
            "policy.actor_observations=[base_camera_rgb]",
            "demos=" + str(made.file),
        ]
        given = rlpipe.config.tree.from_yaml(rlpipe.config.tree.to_yaml(config))
        run = rlpipe.train(load_config(given, options), local=True).directory
        rows = read_jsonl(run / "eval_episodes.jsonl")
        results.append(
            [(row["seed"], row["length"], row["return"]) for row in sorted(rows, key=lambda row: row["seed"])]
        )
        shutil.rmtree(run)
    assert results[0] == results[1]
    assert len(results[0]) == 2
