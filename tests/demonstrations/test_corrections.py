"""``rlpipe collect --expert``: what a policy visits, with the actions of an expert."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest

import rlpipe
from rlpipe.config.loading import load_pretraining
from rlpipe.demonstrations import dataset
from rlpipe.demonstrations.checks import check_demonstrations, check_replay
from rlpipe.demonstrations.corrections import EXECUTED, INTERVENED
from rlpipe.demonstrations.formats.registry import FORMATS, open_dataset
from rlpipe.envs.maniskill.expert import why_no_expert
from rlpipe.envs.maniskill.options import ManiSkillConfig
from rlpipe.errors import ConfigError
from rlpipe.training import collecting
from rlpipe.trajectory import SpaceSpec
from tests.helpers import contract
from tests.helpers.collections import Killed, collected, config_of, episodes, files, killed_after
from tests.helpers.commands import command

EXPERT = "tests.helpers.experts:counting"
SPEC = SpaceSpec(4, 1, None, -np.ones(1, np.float32), np.ones(1, np.float32))


def corrected(folder, beta=0.5, **options):
    return collected(folder, expert=EXPERT, beta=beta, **options)


@pytest.mark.parametrize("beta", [None, 0.5, 1.0])
def test_actions_are_the_experts_and_beside_them_is_who_acted_and_how(tmp_path, beta):
    plain, _ = collected(tmp_path, into="plain", count=6)
    out, collection = corrected(tmp_path, beta, count=6)
    flags = []
    for before, episode in zip(episodes(plain), episodes(out), strict=True):
        steps = np.arange(len(episode), dtype=np.float32)[:, None]
        intervened = episode.others[INTERVENED]
        np.testing.assert_allclose(episode.actions, steps / 100, rtol=1e-6)
        assert episode.actions.dtype == episode.others[EXECUTED].dtype == np.float32
        np.testing.assert_array_equal(episode.others[EXECUTED][intervened], episode.actions[intervened])
        if not beta:  # the policy acts as it would without an expert
            np.testing.assert_array_equal(episode.others[EXECUTED], before.actions)
        flags += intervened.tolist()
    assert collection.interventions == np.mean(flags)
    assert abs(collection.interventions - (beta or 0.0)) < 0.15


def test_one_worker_and_two_write_the_same_corrections_also_when_they_are_interrupted(tmp_path, monkeypatch):
    alone, _ = corrected(tmp_path, into="one")
    together, _ = corrected(tmp_path, into="two", workers=2)
    with monkeypatch.context() as patch:
        killed_after(patch, 3)
        with pytest.raises(Killed):
            corrected(tmp_path, into="killed")
    continued, _ = corrected(tmp_path, into="killed")
    assert files(alone) == files(together) == files(continued)


@pytest.mark.parametrize("name", ["maniskill", "lerobot", "minari"])
def test_cloning_reads_all_episodes_of_corrections_also_those_that_fail(tmp_path, name):
    out, _ = corrected(tmp_path, count=4, format=name, rate=20.0)
    config = rlpipe.load_config(config_of(tmp_path))
    demonstrations = dataset.load(str(out), config.env.train, SPEC)
    assert np.bincount(demonstrations.trajectory).tolist() == [2, 20, 2, 20]
    assert demonstrations.seeds == (0, 1, 2, 3)
    assert (np.flatnonzero(demonstrations.terminated) + 1).tolist() == [2, 24]
    assert (np.flatnonzero(demonstrations.truncated) + 1).tolist() == [22, 44]
    np.testing.assert_allclose(demonstrations.actions[2:22, 0], np.arange(20) / 100, rtol=1e-6)
    flags = [episode.others[INTERVENED].reshape(-1) for episode in _read(out)]
    np.testing.assert_array_equal(demonstrations.interventions, np.concatenate(flags))


def _read(folder):
    opened = open_dataset(folder, "demos")
    return [opened.read(number) for number in range(len(opened.episodes))]


def test_a_round_follows_the_episodes_of_the_rounds_before_with_further_seeds(tmp_path):
    first, _ = collected(tmp_path, into="first", count=4, only="successes")
    second, collection = corrected(tmp_path, into="second", count=3, aggregate=first)
    third, _ = corrected(tmp_path, into="third", count=1, aggregate=second)
    found = episodes(third)
    assert [episode.seed for episode in found] == [0, 2, 4, 6, 7, 8, 9, 10]
    assert (collection.episodes, collection.seeds) == (3, (7, 9))
    for before, after in zip(episodes(first), found, strict=False):
        np.testing.assert_array_equal(before.actions, after.actions)
        np.testing.assert_array_equal(after.others[EXECUTED], after.actions)
        assert after.others[INTERVENED].all()  # the expert has demonstrated them
    assert [np.array_equal(a.actions, b.actions) for a, b in zip(episodes(second), found, strict=False)] == [True] * 7


@pytest.mark.soak
def test_a_clone_logs_the_share_of_interventions(tmp_path):
    out, collection = corrected(tmp_path, count=6)
    overrides = [
        f"demos={out}", "algorithm.epochs=1", "algorithm.held_out=0.2", "evaluation.episodes=2",
        "evaluation.first_seed=1000", "policy.hidden_sizes=[8]",
    ]  # fmt: skip
    result = rlpipe.train(load_pretraining(config_of(tmp_path), overrides), local=True)
    rows = [json.loads(line) for line in (result.checkpoint.parents[1] / "metrics.jsonl").read_text().splitlines()]
    shares = [row["metrics"]["train/interventions"] for row in rows if "train/interventions" in row["metrics"]]
    assert shares == [pytest.approx(collection.interventions)]
    assert rows[-1]["metrics"]["train/demo_buffer/num_trajectories"] == 6
    # the clone is corrected in turn, and may be an expert itself
    again = rlpipe.collect(
        result.checkpoint, tmp_path / "again", count=2, expert=result.checkpoint, beta=0.5, local=True
    )
    for episode in episodes(tmp_path / "again"):
        np.testing.assert_array_equal(episode.actions, episode.others[EXECUTED])
    assert 0 < again.interventions < 1


@pytest.fixture(scope="module")
def earlier(tmp_path_factory):
    """Datasets of earlier rounds: of the same simulator, without results, and of another task."""
    folder = tmp_path_factory.mktemp("earlier")
    first, _ = collected(folder, into="first", count=2)
    opened = open_dataset(first, "demos")
    (bare, other), (episode, _) = (folder / "bare", folder / "other"), _read(first)
    for path, info in ((bare, opened.info), (other, replace(opened.info, task="CartPole-v1"))):
        path.mkdir()
        FORMATS["maniskill"].write(path, info, [replace(episode, rewards=None, terminated=None, truncated=None)])
    return {"FIRST": first, "BARE": bare, "OTHER": other}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--beta", "0.5"], "--beta is for corrections: name an --expert"),
        (["--aggregate", "FIRST"], "--aggregate is for corrections: name an --expert"),
        (["--expert", EXPERT, "--beta", "1.5"], "--beta is 1.5; it must be a probability"),
        (["--expert", "planner"], "has no planner, as some tasks of maniskill and all of metaworld do"),
        (["--expert", "tests.helpers.experts:missing"], "tests.helpers.experts"),
        (["--expert", "runs/nothing"], "runs/nothing"),
        (["--expert", EXPERT, "--aggregate", "nowhere"], "--aggregate is nowhere, but there is no such file or folder"),
        (["--expert", EXPERT, "--aggregate", "FIRST", "--seeds", "1"], "has an episode with the seed 1"),
        (["--expert", EXPERT, "--aggregate", "BARE"], "does not hold rewards, terminated, truncated"),
        (["--expert", EXPERT, "--aggregate", "OTHER"], "was made with task CartPole-v1, but now it is"),
    ],
)
def test_a_mistake_is_named_before_a_simulator_starts_and_leaves_nothing(tmp_path, earlier, arguments, message):
    out = tmp_path / "out"
    words = [str(earlier.get(word, word)) for word in arguments]
    answer = command("collect", str(config_of(tmp_path)), "--policy", "random", "--local", "--out", str(out), *words)
    assert answer.code == 2
    assert message in " ".join(answer.err.split())
    assert not out.exists()


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["algorithm.name=rlpd", "policy.name=squashed_gaussian"], "algorithm.name=rlpd replays what was demonstrated"),
        (["algorithm.name=ppo", "algorithm.cloning_coef=0.1"], None),
    ],
)
def test_corrections_are_cloned_and_not_replayed(tmp_path, overrides, message):
    out, _ = corrected(tmp_path, count=2)
    config = rlpipe.load_config(config_of(tmp_path), [f"demos={out}", *overrides])
    if message is None:
        check_demonstrations(config)
        return
    with pytest.raises(ConfigError, match=message):
        check_demonstrations(config)
    with pytest.raises(ConfigError, match="--policy replay repeats demonstrations"):
        check_replay(config)


def test_a_policy_that_decides_for_several_steps_is_not_corrected(tmp_path):
    config = rlpipe.load_config(config_of(tmp_path), ["policy.chunk_size=4"])
    with pytest.raises(ConfigError, match="the policy decides for 4 steps at once"):
        collecting.corrected("clone", lambda _: None, (EXPERT, lambda _: None), 0.0, config, in_chunks=True)


def test_the_command_says_who_corrected_and_how_many_steps_were_interventions(tmp_path):
    arguments = ("--policy", "random", "--local", "--out", str(tmp_path / "out"), "-n", "4")
    answer = command("collect", str(config_of(tmp_path)), *arguments, "--expert", EXPERT, "--beta", "1")
    assert answer.code == 0, answer.err
    assert answer.out.startswith(f"4 episodes of random, corrected by {EXPERT}, in {tmp_path / 'out'}")
    assert ["interventions", "1.00 of steps"] in [line.split(maxsplit=1) for line in answer.out.splitlines()]


@pytest.mark.maniskill
@pytest.mark.parametrize("task", ["PickCube-v1", "PlaceSphere-v1", "StackCube-v1"])
def test_maniskills_planner_succeeds_also_from_where_random_actions_have_gone(task):
    pytest.importorskip("mani_skill", reason="mani_skill is not installed")
    options = {"name": "maniskill", "id": task, "control_mode": "pd_ee_delta_pos", "max_episode_steps": 100}
    simulator = contract.made(options, [3])
    simulator.reset()
    for action in contract.random_actions(simulator.spec, 25):
        simulator.step(action)
    steps = (simulator.step(simulator.expert_action(0)[None]) for _ in range(70))
    assert any(step.success[0] for step in steps)
    simulator.close()


@pytest.mark.maniskill
def test_asking_the_planner_changes_nothing(tmp_path):
    pytest.importorskip("mani_skill", reason="mani_skill is not installed")
    train = "{name: maniskill, id: PickCube-v1, control_mode: pd_ee_delta_pos, max_episode_steps: 8, total_num_envs: 2}"
    plain, _ = collected(tmp_path, into="plain", count=2, train=train)
    out, _ = collected(tmp_path, into="out", count=2, train=train, expert="planner")
    for before, after in zip(episodes(plain), episodes(out), strict=True):
        np.testing.assert_array_equal(before.observations["state"], after.observations["state"])
        np.testing.assert_array_equal(before.actions, after.others[EXECUTED])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"id": "PushCube-v1"}, "has no planner: ManiSkill's tasks with one are PickCube-v1"),
        ({"control_mode": "pd_joint_delta_pos"}, "has a planner for control_mode=pd_ee_delta_pos"),
        ({"kwargs": {"robot_uids": "fetch"}}, "has a planner for robot_uids panda"),
        ({}, ""),
    ],
)
def test_maniskill_says_of_what_it_has_a_planner(options, message):
    config = ManiSkillConfig("maniskill", **{"id": "PickCube-v1", "control_mode": "pd_ee_delta_pos"} | options)
    assert message in why_no_expert(config)
    assert bool(why_no_expert(config)) == bool(message)


@pytest.mark.parametrize("task", ["id: reach-v3", "tasks: [reach-v3, push-v3]"])
def test_metaworlds_own_policies_are_experts(tmp_path, task):
    pytest.importorskip("metaworld", reason="metaworld is not installed")
    train = f"{{name: metaworld, {task}, max_episode_steps: 100, show_goal: false, total_num_envs: 2}}"
    out, collection = collected(tmp_path, count=2, train=train, expert="planner", beta=1.0)
    assert collection.succeeded == 2
    assert all(np.abs(episode.actions).max() <= 1 for episode in episodes(out))
