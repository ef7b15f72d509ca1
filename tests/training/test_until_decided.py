"""``rlpipe evaluate A --against B --until-decided``: both in the same episodes, looked at after every pair."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

import rlpipe
from rlpipe.analysis.comparison import compare
from rlpipe.analysis.evaluated_run import EvaluatedRun
from rlpipe.cli.exit_codes import ExitCode
from rlpipe.collection.baselines import Random
from rlpipe.config.loading import load_config
from rlpipe.config.tree import from_yaml, to_yaml
from rlpipe.errors import ConfigError
from rlpipe.functional.paired import anytime_interval
from rlpipe.training import until_decided
from rlpipe.training.until_decided import Tally, Verdict, blocks
from rlpipe.trajectory import SpaceSpec
from tests.helpers.commands import command
from tests.helpers.runs import gru, scripted
from tests.helpers.simulated_ray.trials import on_a_simulated_cluster

CART = {"train": {"name": "gymnasium", "id": "CartPole-v1", "total_num_envs": 4, "max_episode_steps": 30}}
REACH = {"train": {"name": "tests.helpers.reach:Reach", "total_num_envs": 4}}


# --- deciding


def looks(pairs: str, margin: float | None = None) -> Tally:
    """Tally after pairs: w for a win, l for a loss, t for neither; stops at the one that decides."""
    tally = Tally(margin)
    for pair in pairs:
        if tally.add(pair == "w", pair == "l") is not Verdict.UNDECIDED:
            break
    return tally


def test_eight_wins_and_no_loss_decide_and_seven_do_not():
    assert looks("w" * 7).verdict is Verdict.UNDECIDED
    tally = looks("w" * 20)
    assert (tally.verdict, tally.pairs, tally.wins, tally.losses) == (Verdict.FIRST, 8, 8, 0)
    assert (tally.low, tally.high) == anytime_interval(8, 8, 0)


def test_losses_decide_for_the_second():
    assert looks("l" * 20).verdict is Verdict.SECOND


def test_ties_decide_nothing_without_a_margin_and_equality_with_one():
    assert looks("t" * 200).verdict is Verdict.UNDECIDED
    tally = looks("t" * 200, margin=0.1)
    assert tally.verdict is Verdict.EQUAL
    assert -0.1 <= tally.low < tally.high <= 0.1
    assert anytime_interval(tally.pairs - 1, 0, 0)[1] > 0.1  # one look before, it was not


def test_a_difference_comes_before_equality():
    assert looks("w" * 8, margin=0.999).verdict is Verdict.FIRST


# --- blocks


def blocks_of(episodes: int, environments: int, *overrides: str) -> list[tuple[int, int]]:
    config = load_config(
        {"env": {"train": {"name": "scripted", "total_num_envs": environments}}},
        [f"evaluation.episodes={episodes}", *overrides],
    )
    return [(block.start, block.stop) for block in blocks(config)]


def test_a_block_keeps_every_environment_busy_and_the_last_one_takes_the_rest():
    assert blocks_of(100, 40) == [(0, 40), (40, 100)]
    assert blocks_of(30, 4) == [(0, 12), (12, 30)]
    assert blocks_of(3, 4) == [(0, 3)]


# --- evaluating


def trained(folder: Path, name: str, *overrides: str, make=scripted, **tree) -> Path:
    changes = ["rollout.horizon=4", "algorithm.num_minibatches=1", "runner.total_timesteps=32",
               f"runner.logger.experiment_name={name}", "evaluation.episodes=26", *overrides]  # fmt: skip
    return rlpipe.train(make(folder, *changes, **tree), local=True).directory


@pytest.fixture(scope="module")
def run_of_reach(tmp_path_factory) -> Path:
    return trained(tmp_path_factory.mktemp("reach"), "one", env=REACH)


@pytest.fixture
def run(run_of_reach, tmp_path) -> Path:
    """A copy of it, without evaluations after its end."""
    return shutil.copytree(run_of_reach, tmp_path / "one")


def outcomes(report) -> list[tuple]:
    return [(one.seed, one.episode_return, one.length, one.success_once) for one in report.episodes]


def test_each_record_is_the_evaluation_that_the_policy_has_by_itself(tmp_path):
    """Two kinds of policies, of which one has a memory, with sampled actions and noise of seeds of their own."""
    common = {"env": REACH}
    one = trained(tmp_path, "one", "evaluation.deterministic=false", "runner.seed=1", **common)
    other = trained(tmp_path, "other", "evaluation.deterministic=false", "runner.seed=2", make=gru, **common)
    decision = rlpipe.evaluate_until_decided(one, other, local=True)
    assert decision.tally.verdict is Verdict.UNDECIDED
    assert decision.tally.pairs == 26
    for run, report in zip((one, other), decision.reports, strict=True):
        alone = rlpipe.evaluate(run, local=True)
        assert outcomes(report) == outcomes(alone)
        assert report.protocol == alone.protocol
        assert report.metrics == pytest.approx(alone.metrics)


def test_several_tasks_are_evaluated_as_each_policy_has_them_by_itself(tmp_path):
    """Two tasks on four environments: a block has six episodes of each, and the last one takes the rest."""
    easy = {"label": "easy", "script": [[{"length": 2, "success_at": [2], "reward": 1.0}]]}
    hard = {"label": "hard", "script": [[{"length": 3}]]}
    run = trained(tmp_path, "tasks", env={"train": {"name": "scripted", "total_num_envs": 4, "tasks": [easy, hard]}})
    decision = rlpipe.evaluate_until_decided(run, "zero", episodes=30, local=True)
    assert (decision.tally.pairs, decision.tally.wins, decision.tally.losses) == (30, 0, 0)

    def by_task(report) -> list[tuple]:
        return sorted((one.task, one.seed, one.length, one.success_once) for one in report.episodes)

    assert by_task(decision.reports[0]) == by_task(rlpipe.evaluate(run, episodes=30, local=True))


def test_on_ray_the_same_pairs_decide(run, tmp_path):
    here = rlpipe.evaluate_until_decided(run, "random", local=True)
    with on_a_simulated_cluster(tmp_path, stubs=False):
        there = rlpipe.evaluate_until_decided(run, "random", overrides=["rollout.num_workers=2"])
    assert here.tally == there.tally
    assert [outcomes(report) for report in here.reports] == [outcomes(report) for report in there.reports]


def test_it_ends_with_the_block_in_which_it_is_decided_and_the_records_hold_what_was_run(run, monkeypatch):
    monkeypatch.setattr(until_decided, "outcomes_of", always(True, False))
    decision = rlpipe.evaluate_until_decided(run, "zero", episodes=100, local=True)
    assert (decision.tally.verdict, decision.tally.pairs) == (Verdict.FIRST, 8)
    ours, theirs = decision.reports
    assert len(ours.episodes) == len(theirs.episodes) == ours.protocol["evaluation_episodes"] == 12
    assert (ours.against, theirs.against, theirs.policy) == ("zero", str(run), "zero")


def test_both_run_as_many_environments_side_by_side_which_both_records_say(tmp_path):
    """Of a task in which an episode depends on those that its environment ran before, so that it matters."""
    env = {"train": {"name": "tests.helpers.reach:WornReach", "total_num_envs": 4}}
    one, other = (trained(tmp_path, f"with_{count}", f"env.eval.total_num_envs={count}", env=env) for count in (4, 2))
    decision = rlpipe.evaluate_until_decided(one, other, episodes=12, local=True)
    assert [report.protocol["eval_env"]["total_num_envs"] for report in decision.reports] == [4, 4]
    comparison = compare([Path(report.record) for report in decision.reports if report.record])
    assert not any("side by side" in warning for warning in comparison.warnings)


def always(*success: bool):
    """What takes the place of the outcomes of the two policies in turn."""
    calls = iter(success * 100)

    def replaced(window):
        succeeds = next(calls)
        return {(episode.seed, ""): succeeds for episode in window.eval_episodes}

    return replaced


def test_the_simulators_are_made_once_for_both_policies_and_all_blocks(run, monkeypatch):
    from rlpipe.collection import evaluator

    simulators = []
    original = evaluator.make_simulator
    monkeypatch.setattr(evaluator, "make_simulator", lambda *a, **k: simulators.append(1) or original(*a, **k))
    rlpipe.evaluate_until_decided(run, "random", local=True)
    assert len(simulators) == 1


def test_a_policy_from_elsewhere_is_one_to_compare_with(run):
    """One that always steps towards the goal; what is learnt in 32 steps does not."""
    decision = rlpipe.evaluate_until_decided(run, "tests.training.test_until_decided:towards_the_goal", local=True)
    assert decision.tally.verdict is Verdict.SECOND
    assert decision.reports[1].policy == "tests.training.test_until_decided:towards_the_goal"
    (pair,) = compare([Path(report.record) for report in decision.reports if report.record]).pairs
    assert (pair.second, pair.is_decided) == (decision.second, True)


def towards_the_goal(observation):
    point, goal, _ = observation
    return [5 * (goal - point)]


# --- its records


def test_a_record_that_ended_once_it_was_decided_does_not_speak_for_its_run(run):
    decision = rlpipe.evaluate_until_decided(run, "zero", episodes=12, local=True)
    assert EvaluatedRun.read(run).source.name == "eval_episodes.jsonl"
    records = [Path(report.record) for report in decision.reports if report.record]
    assert [record.name for record in records] == ["1.json", "2.json"]
    comparison = compare(records)
    assert comparison.pairs[0].pairs == 12
    assert "ended once it was decided (--until-decided)" in comparison.warnings[0]


# --- what is refused


def test_policies_that_meet_in_other_episodes_are_refused_by_the_key_and_both_values(run, tmp_path):
    other = trained(tmp_path, "two", "evaluation.deterministic=false", env=REACH)
    with pytest.raises(ConfigError, match=r"evaluation.deterministic is True and False\. Name a value for both"):
        rlpipe.evaluate_until_decided(run, other, local=True)
    assert not (run / "evaluations").exists()
    rlpipe.evaluate_until_decided(run, other, overrides=["evaluation.deterministic=true"], local=True)


def test_a_policy_for_other_observations_is_refused(run, tmp_path):
    changed = from_yaml(to_yaml(load_config(run / "config.yaml")))
    other = trained(tmp_path, "two", env={"train": changed["env"]["train"] | {"name": "scripted"}})
    with pytest.raises(ConfigError, match=r"not evaluated in the same episodes: env.eval.name is"):
        rlpipe.evaluate_until_decided(run, other, local=True)


def test_a_task_without_success_is_refused(tmp_path):
    run = trained(tmp_path, "cart", env=CART)
    with pytest.raises(ConfigError, match="CartPole-v1 tells no success"):
        rlpipe.evaluate_until_decided(run, "random", local=True)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--against", "zero"], "--against needs --until-decided"),
        (["--until-decided"], "--until-decided needs --against"),
        (["--margin", "0.1"], "--margin needs --against"),
        (["--against", "zero", "--until-decided", "--policy", "random"], "write --against random instead of"),
        (["--against", "zero", "--until-decided", "--margin", "1"], "--margin is 1.0; it must be above 0 and below 1"),
    ],
)
def test_options_that_do_not_go_together_are_refused(tmp_path, options, said):
    answer = command("evaluate", str(tmp_path), *options)
    assert answer.code == ExitCode.REFUSED
    assert said in " ".join(answer.err.split())


@pytest.mark.parametrize(
    ("policy", "said"),
    [
        ("nothing.onnx", "--against is nothing.onnx, but there is no such file"),
        ("tests.helpers.outside:np", "--against tests.helpers.outside:np is module; it must be a function or a class"),
        ("tests.helpers.outside:absent", "--against is 'tests.helpers.outside:absent', but importing it failed"),
        ("ws://127.0.0.1:1", "--against ws://127.0.0.1:1 could not be reached"),
        ("ppo_cartpole", "such as with --against random"),
    ],
)
def test_an_error_names_the_option_that_was_typed(policy, said, run_of_reach):
    with pytest.raises(ConfigError) as error:
        rlpipe.evaluate_until_decided(
            run_of_reach, policy, overrides=["evaluation.external.connect_timeout=0.1"], local=True
        )
    assert said in str(error.value)
    assert "--policy" not in str(error.value)


def test_actions_without_bounds_are_refused_under_the_option_that_names_the_baseline():
    bound = np.full(2, np.inf, np.float32)
    with pytest.raises(ConfigError, match=r"--against is random, .* --against zero needs none"):
        Random(SpaceSpec(3, 2, None, -bound, bound), "--against")


# --- the command


def test_the_command_says_that_it_cannot_be_told_and_exits_with_4(run):
    answer = command("evaluate", str(run), "--against", str(run), "--until-decided", "--local")
    assert answer.code == ExitCode.UNDECIDED == 4
    assert answer.out.startswith("It cannot be told after 26 pairs.")
    assert "0.000  95 % [-0.178, +0.178], however often one looks" in answer.out
    report = json.loads(command("evaluate", str(run), "--against", "zero", "--until-decided", "--local", "--json").out)
    assert (report["verdict"], report["pairs"], report["most"]) == ("undecided", 26, 26)


def test_the_command_says_which_is_better_and_exits_with_0(run, monkeypatch):
    monkeypatch.setattr(until_decided, "outcomes_of", always(False, True))
    answer = command("evaluate", str(run), "--against", "random", "--until-decided", "--local")
    assert answer.code == 0
    assert answer.out.startswith(f"random is better than {run}: decided after 8 pairs.")
    assert "the records also hold the rest of the last block" in answer.out


def test_the_command_says_that_they_are_equal_within_the_margin(run):
    answer = command("evaluate", str(run), "--against", str(run), "--until-decided", "--margin", "0.5", "--local")
    assert answer.code == 0
    assert f"{run} and {run} are equal within 0.5: decided after" in answer.out
