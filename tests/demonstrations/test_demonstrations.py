"""Demonstrations: what is read, and what is refused; cloning them, and going on from there."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import h5py
import numpy as np
import pytest

import rlpipe
from rlpipe.config.loading import load_config, load_pretraining
from rlpipe.config.tree import to_yaml
from rlpipe.demonstrations.checks import check_demonstrations
from rlpipe.demonstrations.dataset import load, load_actions
from rlpipe.errors import ConfigError
from rlpipe.run import checkpoint
from rlpipe.run.checkpoint import newest
from rlpipe.run.directory import read_jsonl
from rlpipe.trajectory import SpaceSpec
from tests.helpers.demonstrations import demonstrator, steps, write
from tests.helpers.runs import scripted

SPEC = SpaceSpec(4, 1, None, np.array([-1.0], np.float32), np.array([1.0], np.float32))


def task(**changes):
    options = {"id": "Reach-v1", "control_mode": "pd", "reward_mode": "sparse", "ignore_terminations": False}
    return SimpleNamespace(**(options | changes))


def test_a_trajectory_ends_where_success_ends_the_task(tmp_path):
    shown = load(write(tmp_path, [steps(5, success_at=3)]), task(), SPEC)
    assert shown.rewards.tolist() == [0, 0, 1]
    assert shown.terminated.tolist() == [False, False, True]
    assert not shown.truncated.any()
    assert shown.next_observations[:, 0].tolist() == [1, 2, 3]


def test_where_success_does_not_end_the_task_all_of_it_counts_and_its_end_is_a_time_limit(tmp_path):
    shown = load(write(tmp_path, [steps(5, success_at=3)]), task(ignore_terminations=True), SPEC)
    assert shown.rewards.tolist() == [0, 0, 1, 1, 1]
    assert not shown.terminated.any()
    assert shown.truncated.tolist() == [False] * 4 + [True]


def test_trajectories_without_success_are_left_out_and_counted(tmp_path):
    shown = load(write(tmp_path, [steps(4), steps(4, success_at=4), steps(2, success_at=2)]), task(), SPEC)
    assert (shown.num_trajectories, len(shown)) == (2, 6)
    assert shown.trajectory.tolist() == [0] * 4 + [1] * 2


def test_a_failed_attempt_in_front_of_a_trajectory_is_left_out(tmp_path):
    """As ManiSkill's replay leaves it: an end without success in the middle of what is one trajectory."""
    file = write(tmp_path, [steps(6, success_at=6)])
    with h5py.File(file, "a") as out:
        out["traj_0"]["terminated"] = np.array([0, 1, 0, 0, 0, 1], bool)
    assert load(file, task(), SPEC).observations[:, 0].tolist() == [2, 3, 4, 5]


def test_actions_alone_are_read_past_the_success_and_whatever_was_observed(tmp_path):
    """The first trajectory goes on after its success, the second never succeeds, the third begins with an attempt."""
    file = write(tmp_path, [steps(5, success_at=3), steps(4), steps(6, success_at=6)])
    with h5py.File(file, "a") as out:
        out["traj_2"]["terminated"] = np.array([0, 1, 0, 0, 0, 1], bool)
        for name in out:
            del out[name]["obs"]
    assert [actions.tolist() for actions in load_actions(file, SPEC)] == [[[0.5]] * 5, [[0.5]] * 4]


def test_another_reward_is_the_recorded_one(tmp_path):
    shown = load(write(tmp_path, [steps(3, success_at=3)]), task(reward_mode="dense"), SPEC)
    assert shown.rewards.tolist() == [0, 1, 2]


@pytest.mark.parametrize(
    ("changes", "spec", "says"),
    [
        ({"id": "Push-v1"}, SPEC, "made with id Reach-v1, but env.train.id is Push-v1"),
        ({"control_mode": "pd_ee"}, SPEC, "made with control_mode pd, but env.train.control_mode is pd_ee"),
        ({"reward_mode": "normalized_dense"}, SPEC, "recorded with reward_mode dense"),
        (
            {},
            SpaceSpec(5, 1, None, SPEC.action_low, SPEC.action_high),
            r"observes state, float32 \[5\], but .* It has state float32 \[4\]",
        ),
        ({}, SpaceSpec(4, 2, None, np.full(2, -1.0), np.full(2, 1.0)), r"actions of shape \(5, 1\)"),
        (
            {},
            SpaceSpec(4, 1, None, -SPEC.action_high / 10, SPEC.action_high / 10),
            "0.4 outside",
        ),
    ],
)
def test_demonstrations_of_something_else_are_refused(tmp_path, changes, spec, says):
    with pytest.raises(ConfigError, match=says):
        load(write(tmp_path, [steps(5, success_at=3)]), task(**changes), spec)


@pytest.mark.parametrize(
    ("part", "says"), [(0, "has observations that are not finite"), (1, "has actions that are not finite")]
)
def test_numbers_that_are_not_finite_are_refused(tmp_path, part, says):
    trajectory = steps(5, success_at=3)
    trajectory[part][2] = np.nan
    with pytest.raises(ConfigError, match=says):
        load(write(tmp_path, [trajectory]), task(), SPEC)


def test_a_simulator_without_observation_modes_takes_what_was_recorded_with_one(tmp_path):
    file = write(tmp_path, [steps(3, success_at=3)], obs_mode="state")
    assert len(load(file, task(), SPEC)) == 3
    with pytest.raises(ConfigError, match=r"recorded with obs_mode state, but env.train.obs_mode is rgb"):
        load(file, task(obs_mode="rgb"), SPEC)


def test_a_file_that_is_missing_damaged_or_without_success_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="there is no such file"):
        load(str(tmp_path / "none.h5"), task(), SPEC)
    file = write(tmp_path, [steps(5)])
    with pytest.raises(ConfigError, match="none of the 1 trajectories"):
        load(file, task(), SPEC)
    with h5py.File(file, "a") as out:
        del out["traj_0"]["obs"]
    with pytest.raises(ConfigError, match="It has no observations"):
        load(file, task(), SPEC)
    (tmp_path / "demos.h5").write_bytes(b"not HDF5")
    with pytest.raises(ConfigError, match="is damaged, or no HDF5 file"):
        load(file, task(), SPEC)
    Path(write(tmp_path, [steps(5)])).with_suffix(".json").unlink()
    with pytest.raises(ConfigError, match="says how it was made, is not beside it"):
        load(file, task(), SPEC)


def test_rlpd_needs_demonstrations(tmp_path):
    with pytest.raises(ConfigError, match="needs demonstrations"):
        check_demonstrations(scripted(tmp_path, algorithm={"name": "rlpd"}, policy={"name": "squashed_gaussian"}))


def test_demonstrations_that_nothing_learns_from_are_refused(tmp_path):
    with pytest.raises(ConfigError, match=r"algorithm\.name=ppo does not learn from demonstrations"):
        check_demonstrations(scripted(tmp_path, "demos=some.h5"))


def test_evaluation_may_not_ask_what_was_shown(tmp_path):
    config = pretraining(tmp_path)
    (tmp_path / "demos.json").write_text(
        (tmp_path / "demos.json")
        .read_text()
        .replace('{"env_info"', '{"episodes": [{"episode_seed": 1000003}], "env_info"')
    )
    with pytest.raises(
        ConfigError, match=r"uses seeds 1000000 to 1000005, but .* demonstrates 1 of them, such as 1000003"
    ):
        check_demonstrations(config)


def test_more_demonstrations_than_the_file_holds_are_refused_before_the_simulator_is_made():
    with pytest.raises(ConfigError, match=r"num_demos is 201, but .*PickCube-v1\.h5 has only 200 demonstrations\."):
        check_demonstrations(load_config("sparse_pick_cube_few", ["num_demos=201"]))


# --- cloning, and going on from there; the demonstrator of the scripted task answers the sign of the bias


def pretraining(tmp_path, *overrides):
    tmp_path.mkdir(exist_ok=True)
    config = scripted(tmp_path, policy={"name": "squashed_gaussian", "hidden_sizes": [32]})
    (tmp_path / "task.yaml").write_text(to_yaml(config))
    options = (f"demos={demonstrator(tmp_path)}", "learner.lr=3e-3", "algorithm.batch_size=32", *overrides)
    return load_pretraining(tmp_path / "task.yaml", options)


@pytest.mark.parametrize("name", ["sparse_pick_cube_few", "ppo_push_cube"])
def test_cloning_needs_neither_curriculum_nor_stages_of_the_configuration(name):
    config = load_pretraining(f"configs/{name}.yaml", ["demos=configs/demonstrations/PickCube-v1.h5"])
    assert (config.curriculum.name, config.stages) == ("none", ())
    assert config.algorithm.name == "behaviour_cloning"


def test_cloning_learns_what_is_shown_and_keeps_the_best_pass(tmp_path):
    result = rlpipe.train(pretraining(tmp_path, "algorithm.epochs=60"), local=True)
    rows = [row["metrics"] for row in read_jsonl(result.directory / "metrics.jsonl")]
    assert rows[-1]["train/actor/cloning_loss_held_out"] < 0.05 < rows[0]["train/actor/cloning_loss_held_out"]
    assert rows[-1]["eval/return"] > 9.0  # of 10
    assert all(row["train/actor/cloning_best_epoch"] <= index for index, row in enumerate(rows, 1))
    assert {name for row in rows for name in row if name.startswith(("env/", "rollout/"))} == set()


@pytest.mark.soak
@pytest.mark.parametrize(("policy", "remembers"), [("gru", True), ("mlp", False)])
def test_only_a_memory_clones_what_the_present_observation_does_not_say(tmp_path, policy, remembers):
    """The sign to repeat stands in the first observation of each demonstration, and in no other."""
    generator = np.random.default_rng(0)
    demonstrated = []
    for _ in range(40):
        sign, count = generator.choice([-1.0, 1.0]), int(generator.integers(4, 9))
        observations = np.zeros((count + 1, 4))
        observations[0, 3] = sign
        demonstrated.append((observations, np.full((count, 1), 0.8 * sign), [False] * (count - 1) + [True]))
    config = scripted(tmp_path, policy={"name": policy, "hidden_sizes": [16]})
    (tmp_path / "task.yaml").write_text(to_yaml(config))
    options = ("learner.lr=1e-2", "algorithm.batch_size=32", "algorithm.epochs=15")
    config = load_pretraining(tmp_path / "task.yaml", (*options, f"demos={write(tmp_path, demonstrated)}"))
    result = rlpipe.train(config, local=True)
    assert (result.metrics["train/actor/cloning_loss_held_out"] < 0.02) == remembers
    assert result.metrics["train/demo_buffer/num_trajectories"] == 40


def test_cloning_ends_when_held_out_demonstrations_get_no_better(tmp_path):
    result = rlpipe.train(pretraining(tmp_path, "algorithm.patience=2", "learner.lr=0"), local=True)
    rows = [row["metrics"] for row in read_jsonl(result.directory / "metrics.jsonl")]
    assert [row["train/actor/cloning_finished"] for row in rows] == [0, 0, 1]
    assert "eval/return" in rows[-1]
    assert result.status == "completed"


def test_with_nothing_held_out_cloning_learns_from_all_demonstrations_and_keeps_the_last_pass(tmp_path):
    options = ("algorithm.held_out=0", "algorithm.epochs=4", "algorithm.patience=1")
    result = rlpipe.train(pretraining(tmp_path, *options), local=True)
    rows = [row["metrics"] for row in read_jsonl(result.directory / "metrics.jsonl")]
    assert [row["train/actor/cloning_best_epoch"] for row in rows] == [1, 2, 3, 4]
    assert [row["train/actor/cloning_finished"] for row in rows] == [0, 0, 0, 1]
    assert not any("train/actor/cloning_loss_held_out" in row for row in rows)
    last = dict(checkpoint.load(result.checkpoint).arrays)
    names = [name.removeprefix("policy/") for name in last if name.startswith("policy/")]
    assert all(np.array_equal(last[f"policy/{name}"], last[f"current/{name}"]) for name in names)


def test_cloning_takes_no_environment_steps_and_is_not_broken_for_that(tmp_path):
    cloned = rlpipe.train(pretraining(tmp_path, "algorithm.epochs=5"), local=True)
    alerts = [str(event) for event in read_jsonl(cloned.directory / "events.jsonl") if "total_timesteps" in str(event)]
    assert alerts == []
    assert list(read_jsonl(cloned.directory / "metrics.jsonl"))[-1]["metrics"]["time/total_timesteps"] == 0


def test_a_run_goes_on_from_a_cloned_policy(tmp_path):
    cloned = rlpipe.train(pretraining(tmp_path, "algorithm.epochs=30"), local=True)
    config = scripted(
        tmp_path, "learner.lr=0", "runner.total_timesteps=64",
        policy={"name": "squashed_gaussian", "hidden_sizes": [32], "warm_start": str(cloned.directory)},
    )  # fmt: skip
    result = rlpipe.train(config, local=True)
    before, after = newest(cloned.directory).arrays, newest(result.directory).arrays
    assert all(np.array_equal(after[name], before[name]) for name in before if name.startswith("policy/actor"))


def test_a_warm_start_that_does_not_fit_is_refused_before_anything_is_written(tmp_path):
    cloned = rlpipe.train(pretraining(tmp_path, "algorithm.epochs=1"), local=True)
    config = scripted(
        tmp_path / "other",
        policy={"name": "squashed_gaussian", "hidden_sizes": [16], "warm_start": str(cloned.directory)},
    )
    with pytest.raises(ConfigError, match="do not fit the policy"):
        rlpipe.train(config, local=True)
    assert not (tmp_path / "other").exists()
    with pytest.raises(ConfigError, match="neither a run directory nor a checkpoint"):
        rlpipe.train(scripted(tmp_path / "other", policy={"name": "mlp", "warm_start": "none"}), local=True)


def test_cloning_is_resumed_like_any_run(tmp_path):
    whole = rlpipe.train(pretraining(tmp_path / "a", "algorithm.epochs=6"), local=True)
    half = rlpipe.train(pretraining(tmp_path / "b", "algorithm.epochs=3"), local=True)
    longer = load_config(half.directory / "config.yaml", ["algorithm.epochs=6"])
    resumed = rlpipe.train(longer, local=True, resume=half.directory)
    assert len(list(read_jsonl(resumed.directory / "metrics.jsonl"))) == len(
        list(read_jsonl(whole.directory / "metrics.jsonl"))
    )
