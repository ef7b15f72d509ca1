"""Names that a user knows from elsewhere: other systems, another algorithm, another value."""

from __future__ import annotations

import shlex

import pytest

from rlpipe.config.loading import load_config
from rlpipe.config.other_systems import VALUES
from rlpipe.errors import ConfigError
from tests.helpers.commands import command
from tests.helpers.runs import scripted


@pytest.mark.parametrize(
    ("override", "ours"),
    [
        ("n_steps=128", "what Stable-Baselines3 calls n_steps is rollout.horizon here"),
        ("learner.learning_rate=1", "Stable-Baselines3, CleanRL, TRL call learning_rate is learner.lr here"),
        ("algorithm.gamma=0.9", "call gamma is algorithm.discount here"),
        ("num-envs=8", "what CleanRL calls num-envs is env.train.total_num_envs here"),
        ("env.num_envs=8", "env.train.total_num_envs here"),
        ("total-timesteps=8", "runner.total_timesteps here"),
        ("rollout.rollout_fragment_length=8", "what RLlib calls rollout_fragment_length is rollout.horizon here"),
        ("algorithm.lambda_=1", "algorithm.gae_lambda here"),
        ("algorithm.clip_range=0.1", "algorithm.clip_ratio_low and algorithm.clip_ratio_high here"),
        ("runner.max_epochs=3", "what RLinf calls max_epochs is runner.total_timesteps here"),
    ],
)
def test_the_name_of_another_system_is_answered_with_ours(tmp_path, override, ours):
    with pytest.raises(ConfigError, match=r"^unknown key ") as refused:
        scripted(tmp_path, override)
    assert ours in str(refused.value)


@pytest.mark.parametrize(
    ("option", "told"),
    [
        ("--num-envs", "--num-envs is no option; what CleanRL calls num-envs is env.train.total_num_envs here"),
        (
            "--runner.seed",
            "--runner.seed is no option. Keys of the configuration are written key=value, such as runner.se",
        ),
        ("--nonsense", "No such option: --nonsense"),
    ],
)
def test_an_option_that_is_a_key_is_answered_with_how_to_write_it(option, told):
    answer = command("train", "ppo_cartpole", option, "8")
    assert answer.code == 2
    assert told in answer.err


def test_an_option_without_its_value_is_still_an_option():
    answer = command("submit", "ppo_cartpole", "--env")  # RLlib has an option of this name
    assert answer.code == 2
    assert "Option '--env' requires an argument" in answer.err


def test_a_misspelt_name_of_ours_is_still_recognised(tmp_path):
    with pytest.raises(ConfigError, match="did you mean 'value_clip'"):
        scripted(tmp_path, "algorithm.value_clp=1")


def test_a_section_without_keys_says_so(tmp_path):
    with pytest.raises(ConfigError, match=r"Keys of runner\.logger\.options\.csv: none\.$"):
        scripted(tmp_path, "runner.logger.logger_backends=[csv]", "runner.logger.options.csv.path=x")


def test_an_option_of_another_algorithm_is_told_as_such(tmp_path):
    with pytest.raises(ConfigError, match=r"is an option of algorithm\.name=rlpd and sac"):
        scripted(tmp_path, "algorithm.replay_capacity=1000")


def test_a_value_that_does_not_exist_is_answered_with_those_that_do(tmp_path):
    with pytest.raises(ConfigError, match=r"^learner.lr_schedule is 'steps'\. Allowed values: constant, linear\.$"):
        scripted(tmp_path, "learner.lr_schedule=steps")


@pytest.mark.parametrize(
    ("override", "ours"),
    [
        ("learner.lr_schedule=Cosine", "linear"),
        ("policy.activation=gelu", "silu"),
        ("learner.precision=bf16", "bfloat16"),
    ],
)
def test_a_value_that_is_usual_elsewhere_is_answered_with_the_nearest(tmp_path, override, ours):
    with pytest.raises(ConfigError, match=rf"; the nearest here is '{ours}'\. Allowed values: "):
        scripted(tmp_path, override)


@pytest.mark.parametrize("key", VALUES)
def test_every_nearest_value_is_a_value(tmp_path, key):
    for value in set(VALUES[key].values()):
        scripted(tmp_path, f"{key}={value}")


def test_another_algorithm_on_a_file_says_what_to_do_and_that_works(tmp_path):
    file = tmp_path / "task.yaml"
    file.write_text(
        "env: {train: {name: scripted}}\npolicy: {name: squashed_gaussian}\n"
        "algorithm: {name: ppo, gae_lambda: 0.9, update_epochs: 2}\n"
    )
    for change in ("algorithm.name=sac", "algorithm={name: sac}"):
        with pytest.raises(ConfigError, match=r"gae_lambda, update_epochs, which sac does not have") as refused:
            load_config(file, [change])
        assert "write 'algorithm={}' algorithm.name=sac" in str(refused.value)
    assert load_config(file, ["algorithm={}", "algorithm.name=sac"]).algorithm.name == "sac"


def test_another_algorithm_names_the_policy_that_it_needs_and_all_of_it_works_as_typed(tmp_path):
    file = tmp_path / "task.yaml"
    file.write_text(
        "env: {train: {name: scripted}}\npolicy: {name: mlp, initial_log_std: -1.0}\nalgorithm: {gae_lambda: 0.9}\n"
    )
    with pytest.raises(ConfigError) as refused:
        load_config(file, ["algorithm.name=sac"])
    typed = str(refused.value).partition(": write ")[2].partition(" to leave out")[0]
    assert shlex.split(typed) == [
        "policy={}", "policy.name=squashed_gaussian", "algorithm={}", "algorithm.name=sac",
    ]  # fmt: skip
    assert load_config(file, shlex.split(typed)).policy.name == "squashed_gaussian"
