"""``rlpipe collect``: whole episodes in the order of their seeds, whatever the workers and the interruptions."""

from __future__ import annotations

import h5py
import numpy as np
import pytest

import rlpipe
from rlpipe.demonstrations import dataset
from rlpipe.demonstrations.formats import maniskill
from rlpipe.demonstrations.formats.registry import FORMATS, open_dataset
from rlpipe.demonstrations.formats.writing import is_unfinished, open_unfinished
from rlpipe.errors import RunError
from rlpipe.training import collecting
from rlpipe.trajectory import SpaceSpec
from tests.helpers.collections import Killed, collected, config_of, episodes, files, killed_after
from tests.helpers.commands import command


def test_each_episode_is_whole_and_they_follow_in_the_order_of_their_seeds(tmp_path):
    out, collection = collected(tmp_path, count=5)
    found = episodes(out)
    assert [episode.seed for episode in found] == [0, 1, 2, 3, 4]
    assert [len(episode) for episode in found] == [2, 20, 2, 20, 2]
    assert (collection.episodes, collection.steps, collection.tried, collection.succeeded) == (5, 46, 5, 3)
    for episode in found:
        solved = episode.seed % 2 == 0
        assert episode.observations["state"][:, 0].tolist() == [episode.seed] * (len(episode) + 1)
        assert episode.observations["state"][:, 2].tolist() == [*range(len(episode) + 1)]
        assert episode.success.tolist() == [False] * (len(episode) - 1) + [solved]
        assert episode.terminated[-1] == solved
        assert episode.truncated[-1] != solved
        assert not (episode.terminated | episode.truncated)[:-1].any()
        assert episode.rewards.sum() == (1 if solved else 0)


def test_the_episodes_are_those_of_an_evaluation_with_the_same_seeds(tmp_path):
    out, _ = collected(tmp_path, count=4, first_seed=7)
    overrides = ["evaluation.first_seed=7"]
    report = rlpipe.evaluate(config_of(tmp_path), policy="random", episodes=4, overrides=overrides, local=True)
    assert [(each.seed, each.length) for each in report.episodes] == [(e.seed, len(e)) for e in episodes(out)]


def test_one_worker_and_two_write_the_same_bytes(tmp_path):
    alone, _ = collected(tmp_path, into="one")
    together, _ = collected(tmp_path, into="two", workers=2)
    assert files(alone) == files(together)


@pytest.mark.parametrize("only", [None, "successes"])
def test_a_collection_that_is_killed_and_continued_equals_one_that_is_not(tmp_path, monkeypatch, only):
    whole, _ = collected(tmp_path, into="whole", only=only)
    with monkeypatch.context() as patch:
        killed_after(patch, 3)
        with pytest.raises(Killed):
            collected(tmp_path, into="killed", only=only)
    out = tmp_path / "killed"
    assert is_unfinished(out)
    assert [episode.seed for episode in open_unfinished(out).episodes] == ([0, 1, 2] if only is None else [0, 2, 4])
    _, collection = collected(tmp_path, into="killed", only=only)
    assert files(out) == files(whole)
    assert collection.episodes == 10


@pytest.mark.parametrize("form", FORMATS)
def test_random_actions_have_the_type_of_the_action_space(tmp_path, form):
    out, _ = collected(tmp_path, count=1, format=form, rate=20)
    dataset = open_dataset(out, "demos")
    assert dataset.features.action.dtype == str(dataset.read(0).actions.dtype) == "float32"


def test_only_successes_goes_on_with_further_seeds_until_there_are_enough(tmp_path):
    out, collection = collected(tmp_path, count=6, only="successes")
    assert [episode.seed for episode in episodes(out)] == [0, 2, 4, 6, 8, 10]
    assert collection.tried > 6


def test_training_reads_what_was_collected(tmp_path):
    out, _ = collected(tmp_path, count=4)
    config = rlpipe.load_config(config_of(tmp_path))
    spec = SpaceSpec(4, 1, None, -np.ones(1, np.float32), np.ones(1, np.float32))
    demonstrations = dataset.load(str(out / maniskill.FILE), config.env.train, spec)
    assert demonstrations.seeds == (0, 2)
    assert np.bincount(demonstrations.trajectory).tolist() == [2, 2]
    assert demonstrations.rewards.tolist() == [0, 1, 0, 1]


def test_a_policy_that_never_succeeds_ends_with_what_is_missing_and_leaves_nothing(tmp_path, monkeypatch):
    monkeypatch.setattr(collecting, "PATIENCE", 8)
    failing = "{name: scripted, script: [[{length: 3, end: truncated}]], total_num_envs: 4}"
    with pytest.raises(RunError, match="so 2 of 2 successes are missing"):
        collected(tmp_path, count=2, train=failing, only="successes")
    assert not (tmp_path / "out").exists()


def test_the_states_are_those_in_which_the_observations_were_made(tmp_path):
    """InvertedPendulum observes positions and velocities, which follow the time in MuJoCo's state."""
    gymnasium = "{name: gymnasium, id: InvertedPendulum-v5, max_episode_steps: 5, total_num_envs: 2}"
    pytest.importorskip("mujoco", reason="mujoco is not installed")
    out, _ = collected(tmp_path, count=3, train=gymnasium)
    for episode in episodes(out):
        assert len(episode.states["mujoco/state"]) == len(episode) + 1
        np.testing.assert_allclose(episode.observations["state"], episode.states["mujoco/state"][:, 1:5], rtol=1e-6)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--policy", "random", "--only", "failures"], "--only is 'failures'"),
        (["--policy", "random", "--format", "maniskil"], "--format is maniskil; there are maniskill"),
        (["--policy", "random", "--format", "lerobot"], "LeRobotDataset needs a whole number of steps a second"),
        (["--policy", "replay"], "--policy is replay, which repeats demonstrations"),
        (["--policy", "random", "-n", "0"], "evaluation.episodes is 0"),
        (["--policy", "random", "--seeds", "1073741823"], "they must lie between 0 and"),
        ([], "is a configuration, which has learnt nothing"),
    ],
)
def test_a_mistake_is_named_before_a_simulator_starts_and_leaves_nothing(tmp_path, arguments, message):
    out = tmp_path / "out"
    answer = command("collect", str(config_of(tmp_path)), "--out", str(out), "--local", *arguments)
    assert answer.code == 2
    assert message in " ".join(answer.err.split())
    assert not out.exists()


def test_a_folder_is_continued_by_the_same_collection_alone(tmp_path, monkeypatch):
    with monkeypatch.context() as patch:
        killed_after(patch, 3)
        with pytest.raises(Killed):
            collected(tmp_path)
    before = files(tmp_path / "out")
    for arguments in (["--seeds", "5"], ["--only", "successes"], ["-n", "2"]):
        answer = command(
            "collect", str(config_of(tmp_path)), "--policy", "random", "--local", "--out", str(tmp_path / "out"),
            *arguments,
        )  # fmt: skip
        assert answer.code == 2, answer.err
        assert files(tmp_path / "out") == before


def test_a_complete_dataset_is_not_written_again(tmp_path):
    out, _ = collected(tmp_path, count=2)
    before = files(out)
    arguments = ("--policy", "random", "--local", "--out", str(out), "-n", "2")
    answer = command("collect", str(config_of(tmp_path)), *arguments)
    assert (answer.code, files(out)) == (2, before)
    assert "is a complete dataset, of 2 episodes: name another folder" in " ".join(answer.err.split())


def test_the_command_says_what_it_has_collected_and_how_many_succeeded(tmp_path):
    arguments = ("--policy", "random", "--local", "--out", str(tmp_path / "out"), "-n", "4")
    answer = command("collect", str(config_of(tmp_path)), *arguments)
    lines = [line.split(maxsplit=1) for line in answer.out.splitlines()]
    assert answer.code == 0, answer.err
    assert answer.out.startswith(f"4 episodes of random in {tmp_path / 'out'}")
    assert ["run", "4 episodes, of which 2 succeeded"] in lines
    assert ["seeds", "0 to 3"] in lines


@pytest.mark.soak
def test_on_ray_two_workers_write_the_same_bytes_as_one_in_this_process(tmp_path):
    alone, _ = collected(tmp_path, into="local")
    on_ray, _ = collected(tmp_path, into="ray", workers=2, local=False)
    assert files(alone) == files(on_ray)


@pytest.mark.maniskill
def test_states_of_scenes_that_are_stepped_as_one_are_those_of_their_stock_environments(tmp_path):
    pytest.importorskip("mani_skill", reason="mani_skill is not installed")
    task = "{name: maniskill, id: PickCube-v1, max_episode_steps: 4, total_num_envs: 2, batched: BATCHED}"
    folders = [
        collected(tmp_path, into=word, count=4, train=task.replace("BATCHED", word))[0] for word in ("true", "false")
    ]
    with h5py.File(folders[0] / maniskill.FILE) as one, h5py.File(folders[1] / maniskill.FILE) as other:
        names = []
        one.visititems(lambda name, item: names.append(name) if hasattr(item, "shape") else None)
        assert any("env_states/actors/cube" in name for name in names)
        for name in names:
            np.testing.assert_array_equal(one[name][:], other[name][:], name)
