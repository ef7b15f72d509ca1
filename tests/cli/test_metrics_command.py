"""``rlpipe metrics list`` and ``rlpipe metrics explain``: what they answer, and what they refuse."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

from rlpipe.cli import app
from rlpipe.cli.metrics import explain
from rlpipe.errors import ConfigError
from rlpipe.metrics import CATALOGUE
from rlpipe.metrics.dialects import SYSTEMS, left_out, uses, written


def answer(*arguments: str) -> str:
    """What the command prints, in words separated by single spaces."""
    result = CliRunner().invoke(app, ["metrics", *arguments], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return " ".join(result.output.split())


def data(*arguments: str):
    return json.loads(answer(*arguments, "--json"))


def names(*arguments: str) -> list[str]:
    return [metric["name"] for metric in data("list", *arguments)]


# --- list


def test_the_list_has_every_metric_that_a_row_may_hold_in_its_order():
    assert names() == [name for name, metric in CATALOGUE.items() if not metric.hidden]


def test_a_namespace_ends_at_a_slash():
    assert {name.rpartition("/")[0] for name in names("--namespace", "train/critic/")} == {"train/critic"}
    assert "train/loss" in names("--namespace", "train")
    assert "train/actor/lr" in names("--namespace", "train")


def test_filters_are_combined():
    assert names("--namespace", "env", "--tier", "core") == [
        "env/success_once",
        "env/return",
        "env/reward",
        "env/episode_len",
        "env/truncated_fraction",
        "env/num_trajectories",
    ]


def test_an_algorithm_has_what_is_its_own_and_what_all_have():
    grpo = names("--algorithm", "grpo")
    assert {"rollout/frac_reward_zero_std", "env/return"} <= set(grpo)
    assert "train/critic/value_loss" not in grpo


def test_a_line_names_the_metric_its_unit_and_its_meaning():
    assert "env/return reward Mean undiscounted return of finished episodes." in answer("list", "--namespace", "env")


def test_a_dialect_lists_its_keys_and_why_others_are_left_out():
    text = answer("list", "--dialect", "trl")
    given, _, absent = text.partition("keys that are left out")
    assert "policy/clipfrac_avg train/actor/clip_fraction the same number" in given
    assert "val/ratio train/actor/ratio another number (padding counts as 1)" in absent


@pytest.mark.parametrize("system", SYSTEMS)
def test_every_key_of_a_dialect_is_either_written_or_left_out(system):
    listed = {use["key"]: use["written"] for use in data("list", "--dialect", system)}
    assert listed.keys() == {use.name.key for use in uses(system)}
    assert {key for key, given in listed.items() if given} == written(system).keys()


def test_the_nearest_metric_of_a_key_that_is_left_out_is_the_closest_one():
    assert left_out("trl")["val/ratio_var"].metric.name == "train/actor/ratio_minibatch_var"


@pytest.mark.parametrize(
    ("option", "value", "said"),
    [
        ("--tier", "cor", "did you mean 'core'?"),
        ("--namespace", "train/actr", "did you mean 'train/actor'?"),
        ("--dialect", "sb4", "did you mean 'sb3'?"),
        ("--algorithm", "pppo", "did you mean 'ppo'?"),
    ],
)
def test_an_unknown_filter_is_refused_with_the_nearest_one(option, value, said):
    with pytest.raises(ConfigError) as error:
        answer("list", option, value)
    assert f"{option} is '{value}'" in str(error.value)
    assert said in str(error.value)


# --- explain


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("ppo/policy/clipfrac", "of TRL's legacy PPO is the same number as train/actor/clip_fraction"),
        ("objective/kl", "of TRL is the same number (with kl_estimator k1, the default) as rollout/kl_ref_episode"),
        ("completions/clipped_ratio", "; nearest is env/truncated_fraction."),
        ("train/entropy_loss", "Stable-Baselines3 train/entropy_loss ours with the opposite sign"),
        ("rewards/accuracy/mean", "as env/reward_terms/accuracy/mean"),
        ("env/reward_terms/reach/std", "env/reward_terms/reach/std (standard · reward)"),
        ("rollout/data_staleness_3/ratio", "as rollout/data_staleness/3"),
        ("rollout/advantages_dist", "shown As a distribution: in TensorBoard's histogram tab"),
        (
            "rollout/advantages_mean",
            "merged The mean of all observations, pooled over all minibatches, workers",
        ),
        ("time/fps", "merged Computed once, after time/total_timesteps and time/training_seconds have been merged."),
        ("objective/kl_coef", "needs A frozen reference policy; absent otherwise."),
        ("completions/mean_length", "tokens The length of a completion, in environment steps"),
    ],
)
def test_a_name_of_any_system_is_explained(name, said):
    assert said in answer("explain", name)


def test_an_explanation_has_meaning_formula_unit_band_alerts_signs_and_names():
    text = answer("explain", "train/actor/clip_fraction")
    for part in (
        "Share of decisions whose gradient the clip cuts.",
        "mean_i [-A_i clip(r_i) > -A_i r_i]",
        "unit fraction",
        "merged Sum and count are added up over all minibatches, workers and learners, and divided once.",
        "healthy 0 to 0.2 [band]",
        "warn at most 0.3 (5 reports in a row) [sustained_high]",
        "seen above 0.3 for several iterations because the policy changes too fast",
        "try lower the learning rate",
        "TRL policy/clipfrac_avg the same number (of PPO)",
    ):
        assert part in text


def test_a_name_that_means_two_things_is_explained_as_both():
    asked = [(one["system"], one["relation"]) for one in data("explain", "objective/entropy")["metrics"][0]["asked_as"]]
    assert asked == [("trl_legacy", "exact"), ("trl", "differs")]


def test_a_name_that_is_ours_but_means_another_number_elsewhere_says_so():
    explained = data("explain", "train/loss")
    assert [metric["name"] for metric in explained["metrics"]] == ["train/loss"]
    assert [(one["system"], one["metric"]) for one in explained["see_also"]] == [("sb3", "train/loss_last_minibatch")]


def test_the_closest_metric_is_explained_and_the_others_are_mentioned():
    explained = data("explain", "train/clip_fraction")
    assert [metric["name"] for metric in explained["metrics"]] == ["train/actor/ratio_outside_fraction"]
    assert [one["metric"] for one in explained["see_also"]] == ["train/actor/clip_fraction"]


def test_every_name_has_an_explanation(capsys):
    for name in [*CATALOGUE, *sorted({use.name.key for system in SYSTEMS for use in uses(system)})]:
        explain(name, as_json=True)
        assert json.loads(capsys.readouterr().out)["metrics"], name


@pytest.mark.parametrize(
    ("name", "near"), [("env/retrun", "env/return"), ("clipfrac", "ppo/policy/clipfrac"), ("approx_lk", "approx_kl")]
)
def test_an_unknown_name_is_refused_with_the_nearest_of_all_systems(name, near):
    with pytest.raises(ConfigError, match=near):
        answer("explain", name)
