"""``rlpipe compare``: what runs of several seeds say side by side, and when they may not be put there."""

from __future__ import annotations

import dataclasses
import functools
import json
import re
import shlex
import shutil
import tempfile
from pathlib import Path
from typing import Any

import pytest
from omegaconf import OmegaConf
from typer.testing import CliRunner

import rlpipe
from rlpipe.analysis import comparison
from rlpipe.analysis.comparison import compare
from rlpipe.analysis.diagnosis import diagnose
from rlpipe.analysis.evaluated_run import EvaluatedRun
from rlpipe.cli import app
from rlpipe.errors import ConfigError
from rlpipe.functional.intervals import (
    difference_interval,
    newcombe_interval,
    probability_of_improvement,
    widened_over_runs,
    wilson_interval,
)
from rlpipe.run.directory import RunDirectory, read_jsonl
from tests.helpers.demonstrations import demonstrator
from tests.helpers.runs import sac, scripted
from tests.helpers.simulators import RACE

LENGTH = "eval/episode_len"


def a_run(folder: Path, seed: int, *overrides: str) -> Path:
    """The directory of a finished run of 4 iterations of 24 steps, each evaluated on 6 episodes, 3 successful.

    A test may change it: it is a copy in this folder.
    """
    kept, run = trained(seed, *overrides)
    copy = folder / run.relative_to(kept.name)
    while copy.exists():  # of a seed and a second that it shares with another one
        copy = copy.with_name(f"{copy.name}-2")
    shutil.copytree(run, copy)
    config = (copy / "config.yaml").read_text()
    (copy / "config.yaml").write_text(config.replace(kept.name, str(folder)))
    return copy


@functools.cache
def trained(seed: int, *overrides: str) -> tuple[tempfile.TemporaryDirectory[str], Path]:
    """Trains once for all tests, into a folder that ends with the process; with the directory of the run."""
    kept = tempfile.TemporaryDirectory()
    config = scripted(
        kept.name,
        f"runner.seed={seed}",
        "rollout.horizon=4",
        "algorithm.num_minibatches=2",
        "runner.total_timesteps=96",
        "runner.val_check_interval=1",
        *overrides,
        env=RACE,
    )
    return kept, rlpipe.train(config, local=True).directory


def successes(run: Path, *counts: int) -> Path:
    """The same run, had so many of the 6 episodes of each evaluation been successful. Takes 10 s an iteration."""
    rows = list(read_jsonl(run / "eval_episodes.jsonl"))
    metrics = list(read_jsonl(run / "metrics.jsonl"))
    for iteration, count in enumerate(counts, start=1):
        played = [row for row in rows if row["iteration"] == iteration]
        for index, row in enumerate(played):
            row["success_once"] = index < count
        metrics[iteration - 1]["metrics"] |= {"eval/success_once": count / 6, "time/time_elapsed": 10.0 * iteration}
    for name, lines in (("eval_episodes.jsonl", rows), ("metrics.jsonl", metrics)):
        (run / name).write_text("".join(json.dumps(line) + "\n" for line in lines))
    return run


@pytest.fixture(scope="module")
def runs(tmp_path_factory) -> dict[str, list[Path]]:
    """Three seeds of a good recipe and two of a bad one, all under one protocol."""
    folder = tmp_path_factory.mktemp("compared")
    good = [a_run(folder, seed, "runner.logger.experiment_name=good") for seed in (0, 1, 2)]
    bad = [a_run(folder, seed, "runner.logger.experiment_name=bad", "learner.lr=0") for seed in (0, 1)]
    for run, counts in zip(good, [(0, 6, 6, 6), (0, 3, 6, 6), (1, 2, 3, 5)], strict=True):
        successes(run, *counts)
    for run, counts in zip(bad, [(0, 0, 1, 2), (0, 0, 6, 1)], strict=True):
        successes(run, *counts)
    return {"good": good, "bad": bad}


@pytest.fixture
def alone(tmp_path) -> Path:
    return a_run(tmp_path, 0)


def set_status(run: Path, status: str) -> None:
    directory = RunDirectory(run)
    directory.write_json({**directory.read_json(), "status": status})


# --- What belongs together


def test_runs_that_differ_only_in_their_seed_are_one_group(runs):
    found = compare([*runs["good"], *runs["bad"]])
    assert [(group.label, [run.seed for run in group.runs]) for group in found.groups] == [
        ("good", [0, 1, 2]), ("bad", [0, 1]),
    ]  # fmt: skip


def test_the_order_of_naming_does_not_matter_within_a_group(runs):
    assert compare(runs["good"][::-1]).as_json() == compare(runs["good"]).as_json()


def test_a_run_that_is_named_twice_counts_once(runs):
    assert compare([*runs["good"], runs["good"][0]]).as_json() == compare(runs["good"]).as_json()


def test_groups_of_one_experiment_are_told_apart_by_the_keys_that_differ(tmp_path):
    found = compare([a_run(tmp_path, 0), a_run(tmp_path, 0, "learner.lr=0.02")])
    assert [group.label for group in found.groups] == ["scripted learner.lr=0.0003", "scripted learner.lr=0.02"]


@pytest.mark.parametrize(("overrides", "groups"), [([], 1), (["algorithm.entropy_coef=0.7"], 2)])
def test_a_key_that_a_run_is_too_old_to_have_counts_as_its_default(tmp_path, overrides, groups):
    old, new = a_run(tmp_path, 0), a_run(tmp_path, 1, *overrides)
    lines = (old / "config.yaml").read_text().splitlines()
    kept = [line for line in lines if "entropy_coef" not in line]
    assert len(kept) == len(lines) - 1
    (old / "config.yaml").write_text("\n".join(kept))
    assert len(compare([old, new]).groups) == groups


@pytest.mark.parametrize("key", ["env.train", "policy"])
def test_a_run_whose_configuration_lacks_the_name_of_a_plug_in_is_compared_by_what_it_holds(alone, key):
    config = OmegaConf.load(alone / "config.yaml")
    del OmegaConf.select(config, key)["name"]
    OmegaConf.save(config, alone / "config.yaml")
    (group,) = compare([alone]).groups
    assert group.pooled.episodes == 6


def test_where_a_run_is_logged_makes_it_no_other_kind(tmp_path):
    runs = a_run(tmp_path / "a", 0), a_run(tmp_path / "b", 1, "runner.logger.finish_timeout=9")
    assert len(compare(runs).groups) == 1


@pytest.mark.parametrize(
    ("first", "second", "alike"),
    [
        ("taught/a-seed0", "taught/b-seed1", True),
        ("taught/a-seed0", "other/a-seed0", False),
        ("taught/a-seed0/checkpoints/iteration-000004.npz", "taught/b-seed1/checkpoints/iteration-000004.npz", True),
        ("taught/a-seed0/checkpoints/iteration-000002.npz", "taught/a-seed0/checkpoints/iteration-000004.npz", False),
        ("policies/a.npz", "policies/b.npz", False),
    ],
)
@pytest.mark.parametrize("key", ["policy.warm_start", "policy.base"])
def test_seeds_that_went_on_from_runs_of_one_experiment_belong_together(key, runs, first, second, alike):
    ours, theirs = (
        dataclasses.replace(run, config=run.config | {key: f"runs/{origin}"})
        for run, origin in zip(map(EvaluatedRun.read, runs["good"][:2]), (first, second), strict=True)
    )
    assert (ours.kind == theirs.kind) is alike


@pytest.mark.parametrize(
    ("key", "said"),
    [
        ("warm_start", "environment steps are counted from the warm start on"),
        ("base", "environment steps do not include those of the base"),
    ],
)
def test_a_policy_of_another_run_is_said(key, said, alone):
    assert said not in command(alone)[1]
    text = (alone / "config.yaml").read_text()
    (alone / "config.yaml").write_text(text.replace("warm_start: null", f"{key}: runs/taught/a-seed0"))
    assert said in command(alone)[1]


def test_two_runs_with_one_seed_are_pooled_with_a_warning(tmp_path):
    found = compare([a_run(tmp_path / place, 1) for place in "ab"])
    assert found.groups[0].by_seed == [(1, 0.5), (1, 0.5)]
    assert "more than one run with seed 1" in found.warnings[0]
    assert found.groups[0].run_labels == [f"seed 1, {run.path.name}" for run in found.groups[0].runs]


# --- What is compared


def test_a_groups_value_is_over_the_episodes_of_all_seeds(runs):
    (good,) = compare(runs["good"]).groups
    assert (good.pooled.value, good.pooled.episodes) == (17 / 18, 18)
    assert good.by_seed == [(0, 1.0), (1, 1.0), (2, 5 / 6)]


def test_the_interval_of_one_seed_is_over_its_episodes(runs):
    (good,) = compare(runs["good"][2:]).groups
    assert (good.pooled.low, good.pooled.high) == wilson_interval(5, 6)


def test_the_interval_of_several_seeds_is_never_narrower_than_over_episodes_or_over_seeds(runs):
    (good,) = compare(runs["good"]).groups
    over_episodes = wilson_interval(17, 18)
    runs_of_good = [[1] * 6, [1] * 6, [1] * 5 + [0]]
    over_seeds = widened_over_runs((17 / 18, 17 / 18), runs_of_good, shares=True, shared=True)
    assert good.pooled.low == min(over_episodes[0], over_seeds[0])
    assert good.pooled.high == max(over_episodes[1], over_seeds[1]) < 1.0


def test_seeds_that_differ_widen_the_interval_of_their_mean():
    over_episodes = wilson_interval(200, 400)
    assert widened_over_runs(over_episodes, [[1, 0] * 50] * 4, shares=True) == over_episodes
    assert widened_over_runs(over_episodes, [[1] * 100, [0] * 100] * 2, shares=True) == pytest.approx(
        (0.06, 0.94), abs=0.01
    )


def test_a_difference_is_against_the_first_group(runs):
    (difference,) = compare([*runs["bad"], *runs["good"]]).differences
    assert (difference.label, difference.value) == ("good", pytest.approx(17 / 18 - 3 / 12))
    assert 0 < difference.low < difference.value < difference.high <= 1


def test_the_interval_of_a_difference_is_never_narrower_than_over_episodes_alone(runs):
    (difference,) = compare([*runs["bad"], *runs["good"]]).differences
    low, high = newcombe_interval((17, 18), (3, 12))
    assert difference.low <= low
    assert difference.high >= high


def test_seeds_that_differ_widen_the_interval_of_a_difference():
    alike = difference_interval([[1, 0] * 50] * 4, [[0] * 100] * 4, shares=True)
    unlike = difference_interval([[1] * 100, [0] * 100] * 2, [[0] * 100] * 4, shares=True)
    assert unlike[1] - unlike[0] > 2 * (alike[1] - alike[0])


def test_where_every_run_beats_every_other_the_probability_has_no_bounds(runs):
    (difference,) = compare([*runs["bad"], *runs["good"]]).differences
    assert difference.probability == (1.0, None, None)


def test_probability_of_improvement_counts_pairs_and_ties_half():
    """Among the pairs of (1, 2, 3) with (0, 2), four are won, one is lost, one is a tie."""
    value, low, high = probability_of_improvement([1, 2, 3], [0, 2])
    assert value == pytest.approx((4 + 0.5) / 6)
    assert 0 <= low < value < high <= 1


def test_with_one_seed_there_is_no_probability_of_improvement(runs):
    (difference,) = compare([runs["bad"][0], *runs["good"]]).differences
    assert (difference.over_seeds, difference.probability) == (False, None)


def test_any_estimated_metric_can_be_compared(runs):
    found = compare(runs["good"], metric=LENGTH)
    assert (found.groups[0].pooled.value, found.level, found.groups[0].reached) == (11.0, None, None)


def test_a_metric_that_is_not_estimated_is_refused_with_the_nearest():
    with pytest.raises(ConfigError, match="did you mean 'eval/success_at_end'"):
        compare([], metric="eval/success_at_ends")


def test_without_a_notion_of_success_returns_are_compared(tmp_path):
    run = a_run(tmp_path, 0)
    rows = [row | {"success_once": None} for row in read_jsonl(run / "eval_episodes.jsonl")]
    (run / "eval_episodes.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert compare([run]).metric == "eval/return"
    with pytest.raises(ConfigError, match=r"has no value of eval/success_once: choose another --metric"):
        compare([run], metric="eval/success_once")


# --- When a level was reached


def test_steps_and_wall_clock_to_a_level_are_the_median_over_seeds(runs):
    """Seeds 0 and 1 reach 0.9 in iterations 2 and 3 of 24 steps and 10 s each, seed 2 never."""
    (good,) = compare(runs["good"]).groups
    reached = good.reached
    assert reached is not None
    assert (reached.runs, reached.of) == (2, 3)
    assert (reached.steps, reached.seconds) == (3 * 24, 30.0)


def test_where_half_of_the_seeds_never_got_there_there_is_no_median(runs):
    (bad,) = compare(runs["bad"]).groups
    assert bad.reached is not None
    assert (bad.reached.runs, bad.reached.steps, bad.reached.seconds) == (1, None, None)


def test_a_run_evaluated_only_at_its_end_may_have_been_there_before(tmp_path):
    reached = compare([a_run(tmp_path, 0, "runner.val_check_interval=0")], level=0.5).groups[0].reached
    assert reached is not None
    assert (reached.steps, reached.at_the_latest) == (96, True)


def test_runs_measured_differently_while_training_have_no_level(alone, tmp_path):
    other = a_run(tmp_path, 1, "evaluation.episodes=8")
    rlpipe.evaluate(other, episodes=6, local=True)
    found = compare([alone, other])
    assert (found.level, found.groups[0].reached, len(found.groups)) == (None, None, 1)
    assert f"while training, evaluation.episodes is 6 in {alone.name} and 8 in {other.name}" in found.warnings[0]


# --- Which evaluation speaks for a run


def test_a_record_of_evaluate_comes_before_the_runs_own_evaluation(alone):
    rlpipe.evaluate(alone, episodes=8, local=True)
    found = EvaluatedRun.read(alone)
    assert (len(found.episodes), found.source.name) == (8, "1.json")


def test_an_evaluation_that_lost_an_episode_is_not_compared(alone):
    cut(alone / "eval_episodes.jsonl", 30)
    with pytest.raises(ConfigError, match="holds 5 of the 6 episodes that iteration 4 was evaluated on"):
        compare([alone])


def test_a_torn_last_line_of_a_completed_run_is_told_once_and_of_another_not_at_all(alone, caplog):
    set_status(alone, "interrupted")
    cut(alone / "metrics.jsonl", 100)
    assert len(list(read_jsonl(alone / "metrics.jsonl"))) == 3
    assert not caplog.messages
    set_status(alone, "completed")
    for _ in range(2):
        assert diagnose(alone).reports == 3
    assert caplog.messages == [
        f"The last line of {alone / 'metrics.jsonl'} is torn, although the run completed: one iteration is missing."
    ]


def cut(file: Path, count: int) -> None:
    """Cuts so many bytes off the end."""
    file.write_bytes(file.read_bytes()[:-count])


def test_the_newest_record_speaks(alone):
    for count in (9, 8):
        rlpipe.evaluate(alone, episodes=count, local=True)
    assert len(EvaluatedRun.read(alone).episodes) == 8


def test_a_record_of_an_older_checkpoint_does_not_speak_for_the_run(alone):
    rlpipe.evaluate(alone / "checkpoints" / "iteration-000002.npz", episodes=8, local=True)
    assert EvaluatedRun.read(alone).source.name == "eval_episodes.jsonl"


def test_a_record_of_another_configuration_does_not_speak_for_the_run(alone):
    rlpipe.evaluate(alone, overrides=["runner.seed=5"], local=True)
    assert EvaluatedRun.read(alone).source.name == "eval_episodes.jsonl"


def test_evaluations_by_different_versions_are_compared_with_a_warning(alone, tmp_path):
    other = a_run(tmp_path, 1)
    said = RunDirectory(other).read_json()
    said["versions"] |= {"gymnasium": "0.1", "numpy": "0.1"}
    RunDirectory(other).write_json(said)
    (warning,) = compare([alone, other]).warnings
    assert warning.startswith("gymnasium is '")
    assert f" and '0.1' in {other.name}: with other versions" in warning
    assert "numpy" not in warning


# --- Baselines beside the results


def a_baseline(run: Path, policy: str, *overrides: str) -> Path:
    """The record of a baseline of the configuration of a run."""
    record = rlpipe.evaluate(run / "config.yaml", policy=policy, overrides=overrides, local=True).record
    assert record is not None
    return Path(record)


def baselines(*runs: Path, **how: Any) -> list[tuple[str, int, Path]]:
    """Label, episodes and record of the baselines that are shown beside runs."""
    return [(baseline.label, baseline.result.episodes, baseline.source) for baseline in compare(runs, **how).baselines]


def test_baselines_of_a_configuration_are_shown_beside_its_runs_and_change_nothing_else(alone):
    before = compare([alone]).as_json()
    zero, random = (a_baseline(alone, policy) for policy in ("zero", "random"))
    assert baselines(alone) == [("floor: random", 6, random), ("floor: zero", 6, zero)]
    assert compare([alone]).as_json() | {"floors": []} == before


@pytest.mark.parametrize("episodes", [6, 8])
def test_a_baseline_in_the_directory_of_a_run_does_not_speak_for_it(alone, episodes):
    record = rlpipe.evaluate(alone, policy="zero", episodes=episodes, local=True).record
    assert EvaluatedRun.read(alone).source.name == "eval_episodes.jsonl"
    assert [str(source) for _, _, source in baselines(alone)] == ([record] if episodes == 6 else [])


def test_a_baseline_that_was_evaluated_twice_is_shown_once(alone):
    a_baseline(alone, "zero")
    newest = a_baseline(alone, "zero")
    assert baselines(alone) == [("floor: zero", 6, newest)]


def test_baselines_of_one_run_are_shown_beside_all(alone, tmp_path):
    other = a_run(tmp_path / "elsewhere", 1)
    record = a_baseline(other, "zero")
    assert baselines(alone) == []
    assert baselines(alone, other) == [("floor: zero", 6, record)]


def test_replays_of_different_demonstrations_are_different_baselines(alone, tmp_path):
    for name in "ab":
        (tmp_path / name).mkdir()
        file = Path(demonstrator(tmp_path / name))
        for ending in (".json", ".h5"):
            file.with_suffix(ending).rename(tmp_path / f"{name}{ending}")
        a_baseline(alone, "replay", f"demos={tmp_path / name}.h5")
    assert [label for label, _, _ in baselines(alone)] == ["floor: replay of a.h5", "floor: replay of b.h5"]


def test_replays_of_some_and_of_all_demonstrations_are_different_baselines(alone, tmp_path):
    file = demonstrator(tmp_path)
    a_baseline(alone, "replay", f"demos={file}")
    a_baseline(alone, "replay", f"demos={file}", "num_demos=3")
    assert [label for label, _, _ in baselines(alone)] == [
        "floor: replay of 3 of demos.h5",
        "floor: replay of demos.h5",
    ]


@pytest.mark.parametrize(
    ("override", "shown"),
    [
        ("evaluation.episodes=8", False),
        ("evaluation.first_seed=5", False),
        ("env.eval.ignore_terminations=true", False),
        ("evaluation.deterministic=false", True),
        ("env.eval.total_num_envs=1", True),
        ("runner.seed=5", True),
    ],
)
def test_only_baselines_in_the_same_episodes_are_shown(alone, override, shown):
    a_baseline(alone, "zero", override)
    assert bool(baselines(alone)) is shown


def test_beside_runs_with_different_protocols_there_is_no_baseline(alone, tmp_path):
    other = a_run(tmp_path, 1, "evaluation.episodes=8")
    a_baseline(alone, "zero")
    assert baselines(alone, other, anyway=True) == []


def test_an_experiment_may_have_a_folder_of_several_parts(tmp_path):
    run = a_run(tmp_path, 0, "runner.logger.experiment_name=lab/reach")
    a_baseline(run, "zero")
    assert [label for label, _, _ in baselines(run)] == ["floor: zero"]


def test_the_table_shows_a_baseline_on_a_line_of_its_own(alone):
    a_baseline(alone, "zero")
    code, table = command(alone)
    rows = [re.sub(r"\s{2,}", " | ", line.strip()) for line in table.splitlines()]
    assert code == 0
    assert "floor: zero | 0.500 | [0.188, 0.812] | 6 | - | - | -" in rows
    assert "floor: a policy that has learnt nothing, in the same episodes; in no difference" in table


def test_an_option_that_came_after_a_run_has_its_default_there(alone, tmp_path):
    other = a_run(tmp_path, 1)
    directory = RunDirectory(alone)
    facts = directory.read_json()
    del facts["protocol"]["eval_env"]["discrete"]  # as if a later version had brought it
    directory.write_json(facts)
    (group,) = compare([alone, other]).groups
    assert [run.seed for run in group.runs] == [0, 1]
    a_baseline(other, "zero")
    assert [label for label, _, _ in baselines(alone, other)] == ["floor: zero"]


# --- What is refused


@pytest.mark.parametrize(
    ("override", "told"),
    [
        ("evaluation.episodes=8", "evaluation.episodes is 6 in .* and 8 in"),
        ("evaluation.first_seed=5", "evaluation.first_seed is 1000000 in .* and 5 in"),
        ("evaluation.deterministic=false", "evaluation.deterministic is True in .* and False in"),
        ("env.eval.ignore_terminations=true", "env.eval.ignore_terminations is False in .* and True in"),
    ],
)
def test_different_protocols_are_refused_by_the_key_and_both_values(alone, tmp_path, override, told):
    other = a_run(tmp_path, 1, override)
    with pytest.raises(ConfigError, match=told):
        compare([alone, other])


def test_the_refusal_says_how_to_evaluate_alike(alone, tmp_path):
    other = a_run(tmp_path, 1, "evaluation.episodes=8")
    with pytest.raises(ConfigError) as refused:
        compare([alone, other])
    assert f"rlpipe evaluate {other} evaluation.episodes=6\n" in str(refused.value)
    rlpipe.evaluate(other, overrides=["evaluation.episodes=6"], local=True)
    assert len(compare([alone, other]).groups) == 1


def test_the_refusal_keeps_the_success_of_a_run(alone):
    run = EvaluatedRun.read(alone)
    without, telling = (
        dataclasses.replace(
            run, path=Path(name), protocol=run.protocol | {"eval_env": run.protocol["eval_env"] | {"success_key": key}}
        )
        for name, key in (("without", None), ("telling", "is_success"))
    )
    for runs in ([without, telling], [telling, without]):
        with pytest.raises(ConfigError) as refused:
            comparison._check_protocols(runs, anyway=False)
        assert f"\nrlpipe evaluate {without.path} 'env.eval.success_key=\"is_success\"'\n" in str(refused.value)
        assert f"rlpipe evaluate {telling.path}" not in str(refused.value)


def test_what_the_refusal_says_can_be_pasted_into_a_shell(tmp_path):
    """A value that is null, one that is a mapping, and a path with a space."""
    cart = {"name": "gymnasium", "id": "CartPole-v1", "total_num_envs": 6, "max_episode_steps": 9}
    first, second = (
        rlpipe.train(scripted(tmp_path / "my runs", *changes, env={"train": cart}), local=True).directory
        for changes in ([], ["env.eval.max_episode_steps=8", "env.eval.kwargs={render_mode: rgb_array}"])
    )
    with pytest.raises(ConfigError) as refused:
        compare([second, first])
    (command,) = (line for line in str(refused.value).splitlines() if line.startswith("rlpipe evaluate"))
    rlpipe.evaluate(first, overrides=shlex.split(command)[3:], local=True)
    assert shlex.split(command)[2] == str(first)
    assert len(compare([second, first]).groups) == 1


def test_every_run_that_was_evaluated_differently_is_named(alone, tmp_path):
    others = [a_run(tmp_path, 1, f"evaluation.{what}") for what in ("episodes=8", "first_seed=5")]
    warning = compare([alone, *others], anyway=True).warnings[0]
    assert f"evaluation.episodes is 6 in {alone.name}, {others[1].name} and 8 in {others[0].name}; " in warning
    assert f"evaluation.first_seed is 1000000 in {alone.name}, {others[0].name} and 5 in {others[1].name}." in warning


def test_how_many_were_played_side_by_side_does_not_matter(alone, tmp_path):
    assert len(compare([alone, a_run(tmp_path, 1, "env.eval.total_num_envs=1")]).groups) == 1


def test_anyway_compares_them_apart_and_with_a_warning(alone, tmp_path):
    found = compare([alone, a_run(tmp_path, 1, "evaluation.episodes=8")], anyway=True)
    assert [group.label for group in found.groups] == [
        "scripted evaluation.episodes=6", "scripted evaluation.episodes=8",
    ]  # fmt: skip
    assert "evaluation.episodes is 6" in found.warnings[0]


@pytest.mark.parametrize("status", ["running", "interrupted", "failed", "stopped"])
def test_a_run_that_has_not_reached_its_end_is_refused(alone, status):
    set_status(alone, status)
    with pytest.raises(ConfigError, match=rf"its status is {status}\. Resume it with: rlpipe train --resume"):
        compare([alone])


def test_a_run_without_an_evaluation_of_its_end_is_refused(alone):
    (alone / "eval_episodes.jsonl").unlink()
    with pytest.raises(ConfigError, match=r"has no evaluation of its last iteration, 4\. Evaluate it with"):
        compare([alone])


# --- The command


def command(*arguments: str | Path) -> tuple[int, str]:
    """Exit code and standard output."""
    result = CliRunner().invoke(app, ["compare", *map(str, arguments)])
    if isinstance(result.exception, ConfigError):  # which main() turns into exit code 2
        return 2, str(result.exception)
    return result.exit_code, result.stdout


def test_the_table_shows_groups_differences_and_levels(runs):
    code, table = command(*runs["bad"], *runs["good"])
    rows = [re.sub(r"\s{2,}", " | ", line.strip()) for line in table.splitlines()]
    assert code == 0
    assert "bad | 0.250 | [0.046, 0.697] | 12 | 2 | 0.167 | 0.333" in rows
    assert "good | 0.944* | [0.428, 0.997] | 18 | 3 | 0.833 | 1.000" in rows
    assert "success_once, P(better) than bad" in rows
    assert "good | 1.00 | -" in rows
    row = next(row for row in rows if row.startswith("bad | -0.694")).split(" | ")
    assert row[3:] == ["-", "-", "0.004", "2nd", "-"]
    assert "all pairs of runs agree" in table
    assert "good | 2 of 3 | 72 | 0:00:30" in rows
    assert max(map(len, table.splitlines())) <= 100


def test_json_holds_the_same(runs):
    code, text = command(*runs["bad"], *runs["good"], "--json")
    found = json.loads(text)
    assert code == 0
    assert found == json.loads(json.dumps(compare([*runs["bad"], *runs["good"]]).as_json()))
    assert found["groups"][1]["runs"][2]["value"] == 5 / 6
    assert found["differences"][0]["label"] == "good"


def as_many_as_fit(run: Path, *ratios: float) -> Path:
    """The same run, had it taken so many gradient steps for each environment step of an iteration."""
    config, file = run / "config.yaml", run / "metrics.jsonl"
    config.write_text(config.read_text().replace("update_to_data: 0.5", "update_to_data: null"))
    rows = list(read_jsonl(file))
    for row, ratio in zip(rows, ratios, strict=True):
        row["metrics"]["train/sac/update_to_data"] = ratio
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return run


def test_runs_whose_gradient_steps_depended_on_the_machine_give_a_warning_with_what_each_took(tmp_path):
    one, other = (rlpipe.train(sac(tmp_path, f"runner.seed={seed}"), local=True).directory for seed in (1, 2))
    assert compare([one, other]).warnings == []
    as_many_as_fit(one, 0, 1, 2, 3)  # learns from the second of four equal iterations on
    as_many_as_fit(other, 0, 1, 1, 1)
    (warning,) = compare([one, other]).warnings
    assert f"for each environment step: {one.name} 2, {other.name} 1." in warning
    assert warning.endswith("algorithm.update_to_data=1.5")


def test_a_wrong_protocol_exits_2_unless_anyway(alone, tmp_path):
    other = a_run(tmp_path, 1, "evaluation.episodes=8")
    code, message = command(alone, other)
    assert (code, "different protocols" in message) == (2, True)
    code, table = command(alone, other, "--anyway")
    assert (code, "different protocols" in table) == (0, True)


def test_one_seed_is_said(runs):
    _, table = command(runs["bad"][0], runs["good"][0])
    assert "other training seeds are not covered" in table


def test_the_run_that_is_compared_is_only_read(alone):
    before = {file: file.read_bytes() for file in alone.rglob("*") if file.is_file()}
    assert command(alone)[0] == 0
    assert {file: file.read_bytes() for file in alone.rglob("*") if file.is_file()} == before


def test_a_group_survives_its_way_to_json(runs):
    group = compare(runs["good"]).groups[0]
    assert compare(runs["good"]).as_json()["groups"][0]["pooled"] == dataclasses.asdict(group.pooled)
