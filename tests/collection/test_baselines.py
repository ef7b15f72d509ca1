"""Baselines, which have learnt nothing, in the very episodes in which learnt ones are evaluated."""

from __future__ import annotations

import dataclasses
import json
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import rlpipe
from rlpipe.analysis.evaluation_report import EvaluationReport
from rlpipe.collection.baselines import Random, Zero
from rlpipe.config.protocol import BASELINE_NAMES
from rlpipe.config.tree import to_yaml
from rlpipe.errors import ConfigError
from rlpipe.trajectory import Episode, SpaceSpec
from tests.helpers.commands import command
from tests.helpers.demonstrations import write
from tests.helpers.runs import scripted
from tests.helpers.simulators import ECHO, RACE

CARTPOLE = {"train": {"name": "gymnasium", "id": "CartPole-v1", "total_num_envs": 6}}


def task(folder: Path, *overrides: str, **tree: Any) -> str:
    """A configuration file of the simulator that echoes actions: 6 episodes of 4 steps."""
    folder.mkdir(exist_ok=True)
    file = folder / "task.yaml"
    file.write_text(to_yaml(scripted(folder / "runs", *overrides, **({"env": ECHO} | tree))))
    return str(file)


def demonstrations(folder: Path) -> str:
    """Two demonstrations, of two actions and of one, and between them a trajectory without success."""
    shown = [([0.5, 0.25], True), ([1.0], False), ([0.75], True)]
    return write(
        folder,
        [(np.zeros((len(taken) + 1, 4)), np.array(taken)[:, None], [won] * len(taken)) for taken, won in shown],
    )


def evaluated(source: str | Path, policy: str, *overrides: str) -> EvaluationReport:
    return rlpipe.evaluate(source, policy=policy, overrides=overrides, local=True)


def returns(report: EvaluationReport) -> list[float]:
    return [episode.episode_return for episode in report.episodes]


def played(report: EvaluationReport) -> list[Episode]:
    """The episodes without where they were played."""
    return [dataclasses.replace(episode, worker=0, slot=0, step=0) for episode in report.episodes]


# --- The actions


@given(low=st.floats(-1e3, 1e3), width=st.floats(0, 1e3), seed=st.integers(0, 99))
def test_random_actions_lie_within_their_bounds(low, width, seed):
    bounds = (np.array([bound], np.float32) for bound in (low, low + width))
    spec = SpaceSpec(1, 1, None, *bounds)
    action = Random(spec).action(0, 0, np.random.default_rng(seed)).astype(np.float32)
    assert spec.action_low is not None
    assert spec.action_high is not None
    assert spec.action_low <= action <= spec.action_high


def test_random_actions_are_uniform():
    spec = SpaceSpec(1, 2, None, np.array([-1, 0], np.float32), np.array([1, 10], np.float32))
    generator = np.random.default_rng(0)
    drawn = np.array([Random(spec).action(0, step, generator) for step in range(2000)])
    for column, (low, high) in enumerate([(-1, 1), (0, 10)]):
        counts, _ = np.histogram(drawn[:, column], bins=4, range=(low, high))
        assert counts.sum() == 2000
        assert counts == pytest.approx(np.full(4, 500), abs=80)


def test_random_discrete_actions_take_every_choice_of_every_part():
    one, parts = (
        {tuple(np.atleast_1d(Random(spec).action(0, 0, np.random.default_rng(seed)))) for seed in range(99)}
        for spec in (SpaceSpec(1, 1, 3), SpaceSpec(1, 2, (2, 3)))
    )
    assert one == {(0,), (1,), (2,)}
    assert parts == {(a, b) for a in range(2) for b in range(3)}


def test_zero_takes_the_first_of_discrete_actions():
    generator = np.random.default_rng(0)
    assert Zero(SpaceSpec(1, 1, 3)).action(0, 0, generator) == 0
    assert Zero(SpaceSpec(1, 2, (2, 3))).action(0, 0, generator).tolist() == [0, 0]


@pytest.mark.parametrize(("simulator", "expected"), [("Echo", 0.0), ("EchoAboveHalf", 0.5 * (1 + 2 + 3 + 4))])
def test_zero_is_clipped_into_the_bounds(tmp_path, simulator, expected):
    report = evaluated(task(tmp_path), "zero", f"env.eval.name='tests.helpers.simulators:{simulator}'")
    assert returns(report) == [expected] * 6


def test_random_actions_have_the_bounds_of_the_evaluation_and_not_of_the_training(tmp_path):
    """Four actions of 0.5 would pay 5, as actions below the bounds do."""
    report = evaluated(task(tmp_path), "random", "env.eval.name='tests.helpers.simulators:EchoAboveHalf'")
    assert min(returns(report)) > 5.0


@pytest.mark.parametrize("slots", [1, 2, 6])
def test_replay_takes_the_actions_of_one_demonstration_after_the_other_and_then_zeros(tmp_path, slots):
    """Demonstration 0 pays 1 * 0.5 + 2 * 0.25, demonstration 1 pays 1 * 0.75."""
    how = [f"demos={demonstrations(tmp_path)}", f"env.eval.total_num_envs={slots}"]
    assert returns(evaluated(task(tmp_path), "replay", *how)) == [1.0, 0.75] * 3


@pytest.mark.maniskill
@pytest.mark.soak
def test_a_replay_succeeds_in_the_episodes_in_which_it_was_demonstrated(tmp_path):
    """The shipped file, without its seeds: 0, 1, 2 and so on, in the order of the demonstrations."""
    shipped = Path("configs/demonstrations/PickCube-v1")
    sidecar = json.loads(shipped.with_suffix(".json").read_text())
    (tmp_path / "demos.json").write_text(json.dumps({"env_info": sidecar["env_info"]}))
    shutil.copy(shipped.with_suffix(".h5"), tmp_path / "demos.h5")
    how = [f"demos={tmp_path}/demos.h5", "evaluation.first_seed=0", "evaluation.episodes=2"]
    report = evaluated("sparse_pick_cube", "replay", *how, f"runner.logger.log_path={tmp_path}")
    assert report.metrics["eval/success_once"] == 1.0


# --- The episodes are those of any evaluation, and a baseline depends on nothing else


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A finished run of a race, and an evaluation of its policy."""
    config = scripted(tmp_path_factory.mktemp("trained"), "runner.total_timesteps=64", env=RACE)
    run = rlpipe.train(config, local=True).directory
    return run, rlpipe.evaluate(run, local=True)


@pytest.mark.parametrize("policy", BASELINE_NAMES)
def test_a_baseline_has_the_episodes_and_the_protocol_of_a_trained_policy(tmp_path, trained, policy):
    run, report = trained
    given = evaluated(run, policy, f"demos={demonstrations(tmp_path)}")
    assert [(episode.seed, episode.slot) for episode in given.episodes] == [
        (episode.seed, episode.slot) for episode in report.episodes
    ]
    assert given.protocol | {"demonstrations": None} == report.protocol
    assert given.metrics["eval/success_once"] == 0.5


@pytest.fixture(scope="module")
def seven_random(tmp_path_factory):
    """A configuration of CartPole, and the baseline of random actions in seven episodes of it."""
    file = task(tmp_path_factory.mktemp("seven"), "evaluation.episodes=7", env=CARTPOLE)
    return file, evaluated(file, "random")


@pytest.mark.parametrize(
    "how",
    [
        ["rollout.num_workers=2", "env.eval.total_num_envs=7"],
        ["rollout.num_workers=3"],
        ["env.eval.total_num_envs=1", "evaluation.deterministic=false"],
    ],
)
def test_no_random_episode_depends_on_workers_or_slots_or_how_a_policy_would_act(seven_random, how):
    file, before = seven_random
    after = evaluated(file, "random", *how)
    assert played(before) == played(after)
    assert before.metrics == after.metrics


def test_random_episodes_differ_from_one_to_the_next_and_with_the_seed_of_the_run(tmp_path):
    first, second = (evaluated(task(tmp_path), "random", f"runner.seed={seed}") for seed in (0, 1))
    assert len({*returns(first), *returns(second)}) == 12


def test_more_episodes_only_add_episodes(tmp_path):
    file = task(tmp_path)
    few, many = (evaluated(file, "random", f"evaluation.episodes={count}") for count in (4, 9))
    assert played(many)[:4] == played(few)


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    """Returns of each baseline where the policy is a network that acts at every step, and the demonstrations of all."""
    folder = tmp_path_factory.mktemp("plain")
    demos = f"demos={demonstrations(folder)}"
    return {kind: returns(evaluated(task(folder), kind, demos)) for kind in BASELINE_NAMES}, demos


@pytest.mark.parametrize("policy", BASELINE_NAMES)
@pytest.mark.parametrize(
    "tree",
    [
        {
            "policy": {"name": "mlp", "hidden_sizes": [8], "chunk_size": 3, "execute": 2},
            "stages": [{"name": "first", "timesteps": 64, "overrides": {"learner.lr": 0.1}}, {"name": "second"}],
        },
        {
            "policy": {"name": "gru", "memory_size": 6, "hidden_sizes": [8]},
            "rollout": {"horizon": 16, "inference": "server"},
        },
    ],
    ids=["chunks and stages", "memory and servers"],
)
def test_a_baseline_acts_one_step_at_a_time_whatever_the_policy_does(tmp_path, plain, policy, tree):
    expected, demos = plain
    assert returns(evaluated(task(tmp_path, **tree), policy, demos)) == expected[policy]


@pytest.mark.soak
@pytest.mark.usefixtures("ray_cluster")
def test_a_baseline_is_the_same_on_ray(tmp_path):
    how = [f"demos={demonstrations(tmp_path)}", "rollout.num_workers=2", "rollout.inference=server"]
    on_ray = rlpipe.evaluate(task(tmp_path), policy="replay", overrides=how)
    assert on_ray.episodes == evaluated(task(tmp_path), "replay", *how).episodes


# --- What it leaves behind


def contents(folder: Path) -> dict[str, bytes]:
    return {str(file.relative_to(folder)): file.read_bytes() for file in folder.rglob("*") if file.is_file()}


def test_a_baseline_of_a_run_is_a_marked_record_beside_those_of_its_policy(tmp_path):
    run = rlpipe.train(scripted(tmp_path, "runner.total_timesteps=64", env=ECHO), local=True).directory
    before = contents(run)
    report = evaluated(run, "zero")
    after = contents(run)
    assert sorted(after.keys() - before.keys()) == ["evaluations/1.json"]
    assert {name: after[name] for name in before} == before
    record = json.loads(after["evaluations/1.json"])
    assert (record["policy"], record["checkpoint"], record["iteration"]) == ("zero", None, 0)
    assert record == json.loads(json.dumps(report.as_json()))


def test_a_baseline_of_a_configuration_is_a_record_beside_its_experiments(tmp_path):
    file = task(tmp_path)
    reports = [evaluated(file, policy) for policy in ("random", "zero")]
    folder = tmp_path / "runs" / "floors"
    assert [report.record for report in reports] == [str(folder / "1.json"), str(folder / "2.json")]
    assert sorted(contents(tmp_path / "runs")) == ["floors/1.json", "floors/2.json"]


# --- What is refused, before anything is written


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--policy", "randon"], r"--policy is 'randon'; did you mean 'random'\? Allowed values: random, zero, replay"),
        (["--policy", "zero", "--best"], "--best names a checkpoint, but --policy zero needs none"),
        (["--policy", "replay"], r"repeats demonstrations, but demos is not set: add demos=FILE\.h5"),
        (["--policy", "replay", "demos=none.h5"], "there is no such file"),
        (["--policy", "replay", "demos=DEMOS", "env.eval.discrete=true"], "demonstrations need continuous ones"),
        (["--policy", "replay", "demos=DEMOS", "evaluation.first_seed=7"], r"demonstrates 1 of them, such as 7"),
    ],
)
def test_what_cannot_be_a_baseline_is_refused(tmp_path, arguments, told):
    demos = demonstrations(tmp_path)
    sidecar = Path(demos).with_suffix(".json")
    known = json.loads(sidecar.read_text()) | {"episodes": [{"episode_seed": seed} for seed in (0, 1, 7)]}
    sidecar.write_text(json.dumps(known))
    file = task(tmp_path, env={"train": {"name": "scripted", "total_num_envs": 6}})
    given = [argument.replace("DEMOS", demos) for argument in arguments]
    answer = command("evaluate", file, *given, "--local")
    assert answer.code == 2
    assert re.search(told, " ".join(answer.err.split()))
    assert not (tmp_path / "runs").exists()


def test_demonstrations_in_another_control_mode_than_the_evaluations_are_refused(tmp_path):
    cube = {"train": {"name": "maniskill", "id": "PushCube-v1", "control_mode": "pd_joint_delta_pos"}}
    demos = "demos=configs/demonstrations/PushCube-v1.h5"
    with pytest.raises(ConfigError, match=r"control_mode pd_ee_delta_pos, but env\.eval\.control_mode is pd_joint"):
        evaluated(task(tmp_path, env=cube), "replay", demos)


def test_a_checkpoint_is_refused(tmp_path):
    with pytest.raises(ConfigError, match=r"is a checkpoint, but --policy zero needs none: name a run or a config"):
        evaluated(tmp_path / "policy.npz", "zero")


def test_random_actions_need_bounds():
    spec = SpaceSpec(1, 2, None, np.array([-1, -np.inf], np.float32), np.array([1, np.inf], np.float32))
    with pytest.raises(ConfigError, match="number 1 of them lies between -inf and inf: where the task is made"):
        Random(spec)


# --- The command


def test_the_command_takes_a_shipped_name_and_says_what_it_ran(tmp_path):
    where = [f"runner.logger.log_path={tmp_path}", "env.train.total_num_envs=4"]
    answer = command("evaluate", "ppo_cartpole", "--policy", "zero", "--episodes", "3", "--local", *where)
    assert answer.code == 0
    assert "3 whole episodes, seeds 1000000 to 1000002, actions of zeros" in answer.out
    assert str(tmp_path / "floors" / "1.json") in answer.out
    assert "checkpoint" not in answer.out


def test_the_command_prints_json(tmp_path):
    answer = command("evaluate", task(tmp_path), "--policy", "zero", "--json", "--local")
    assert json.loads(answer.out)["policy"] == "zero"
