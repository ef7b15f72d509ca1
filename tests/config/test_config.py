"""Configuration: what is refused, before anything starts, and with which words."""

from __future__ import annotations

import os
import pickle
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis.strategies import characters, sampled_from, text

import rlpipe
from rlpipe.config.fields import Affects, affected_by, check_fields, option, options
from rlpipe.config.loading import load_config
from rlpipe.config.schema import Config
from rlpipe.config.sections import options_of, typed
from rlpipe.config.tree import from_yaml, to_yaml
from rlpipe.errors import ConfigError
from rlpipe.plugins import require, resolve, shipped
from rlpipe.training.checks import check_spaces
from tests.helpers.runs import scripted


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("runner.totl_timesteps=1", ["runner.totl_timesteps", "'total_timesteps'"]),
        ("algoritm.discount=1", ["algoritm", "'algorithm'"]),
        ("env.trian.id=x", ["env.trian", "env.train"]),
        ("policy.hiden_sizes=[8]", ["policy.hiden_sizes", "'hidden_sizes'"]),
        ("runner.logger.log_paht=x", ["runner.logger.log_paht", "'log_path'"]),
        ("runner.seed=many", ["runner.seed", "whole number", "many"]),
        ("runner.seed=-1", ["runner.seed is -1", "at least 0"]),
        ("algorithm.discount=1.5", ["algorithm.discount is 1.5", "at least 0 and at most 1"]),
        ("algorithm.dual_clip=0.5", ["algorithm.dual_clip is 0.5", "greater than 1"]),
        ("algorithm.name=pqo", ["'pqo'", "'ppo'"]),
        ("env.train.name=scriptd", ["'scriptd'", "'scripted'"]),
        ("policy.name=my.module:Policy", ["my.module:Policy", "importing it failed"]),
        ("algorithm.num_minibatches=7", ["64 decisions", "7 equal minibatches"]),
        ("rollout.num_workers=3", ["4 environments", "3 workers"]),
        ("rollout.num_workers=none", ["rollout.num_workers", "auto"]),
        ("learner.lr_schedule=linaer", ["'linaer'", "'linear'"]),
        ("learner.device=tpu", ["'tpu'", "auto, cpu and cuda"]),
        ("runner.logger.logger_backends=[tensorbord]", ["'tensorbord'", "'tensorboard'"]),
        ("evaluation.first_seed=1073741824", ["training seeds begin"]),
        ("evaluation.episodes=0", ["evaluation.episodes is 0", "at least 1"]),
        ("cluster.cpus_per_worker=0", ["cluster.cpus_per_worker is 0", "greater than 0"]),
        ("learner.max_grad_norm=-1", ["learner.max_grad_norm is -1", "greater than 0"]),
        ("algorithm.value_clip=-1", ["algorithm.value_clip is -1", "greater than 0"]),
        ("runner.seed", ["'runner.seed' is no override", "key=value"]),
        ("rollout.num_workers={min:2,max:8}", ["rollout.num_workers.min has its value", "a space after each colon"]),
        ("env.train.variations={mass:{uniform:[1,2]}}", ["column 13", "a space after each colon"]),
    ],
)
def test_a_mistake_is_named_with_what_was_found_and_what_is_legal(tmp_path, override, words):
    with pytest.raises(ConfigError) as refused:
        scripted(tmp_path, override)
    for word in words:
        assert word in str(refused.value)
    assert list(tmp_path.iterdir()) == []


def test_a_backend_of_ones_own_needs_no_options(tmp_path):
    """Its name has a colon, and is no key that lacks the space after one."""
    name = "tests.helpers.short_names:ShortNames"
    scripted(tmp_path, f"runner.logger.logger_backends=[{name}]", f"runner.logger.options={{{name}: null}}")


def test_a_configuration_file_that_is_not_there_names_the_nearest():
    with pytest.raises(ConfigError, match=r"did you mean 'ppo_cartpole\.yaml'"):
        load_config("configs/ppo_cartpol.yaml")


@pytest.mark.parametrize("name", ["ppo_push_cube", "ppo_pick_cube", "ppo_cartpole"])
def test_every_configuration_of_the_project_loads(name):
    assert load_config(f"configs/{name}.yaml").runner.logger.experiment_name == name


def test_a_configuration_survives_being_written_and_read(tmp_path):
    config = scripted(tmp_path, "runner.seed=3", "rollout.num_workers=2")
    assert load_config(from_yaml(to_yaml(config))) == config


LIKE_OTHER_VALUES = ("1e3", ".5e1", "1_0", "0x1F", "0o7", "nan", "+.inf", "on", "~", "", "2020-01-01", "1:3", "é\u2028")


@pytest.fixture(scope="module")
def config_of_defaults():
    return load_config({"env": {"train": {"name": "scripted"}}, "policy": {"name": "mlp"}})


@settings(max_examples=30)
@given(text=sampled_from(LIKE_OTHER_VALUES) | text(characters(codec="utf-8")).filter(lambda drawn: "${" not in drawn))
def test_a_text_survives_being_written_and_read(config_of_defaults, text):
    cluster = replace(config_of_defaults.cluster, worker_nodes={"label": text})
    config = replace(config_of_defaults, cluster=cluster)
    assert from_yaml(to_yaml(config))["cluster"]["worker_nodes"] == {"label": text}


@dataclass
class Free:
    values: dict[str, Any] = field(default_factory=dict)


def test_what_was_built_before_changes_no_section():
    typed(Free, {"values": {"one": 1}}, "free").values["two"] = 2
    assert typed(Free, {"values": {"one": 1}}, "free").values == {"one": 1}
    assert typed(Free, {"values": {"one": True}}, "free").values["one"] is True  # which equals 1


def test_evaluation_repeats_the_training_simulator_where_it_says_nothing(tmp_path):
    config = scripted(tmp_path, "env.eval.total_num_envs=2")
    assert (config.env.eval.match_actions, config.env.eval.total_num_envs) == (True, 2)


def two_stages(tmp_path, **second):
    return scripted(
        tmp_path,
        stages=[
            {"name": "first", "timesteps": 100, "overrides": {"algorithm.discount": 0.5}},
            {"name": "second", **second},
        ],
    )


def test_a_stage_lasts_whole_iterations_and_the_last_one_to_the_end(tmp_path):
    plan = two_stages(tmp_path).schedule  # an iteration has 64 steps
    assert [(stage.name, stage.until, stage.config.algorithm.discount) for stage in plan] == [
        ("first", 2, 0.5),
        ("second", 4, 0.99),
    ]


def test_a_plan_travels_with_its_stages_and_without_the_plugins_it_has_looked_up(tmp_path):
    plan = two_stages(tmp_path)
    sent = pickle.loads(pickle.dumps(plan))
    assert (sent, sent.schedule) == (plan, plan.schedule)
    assert {"algorithm_class", "train_facts"} <= vars(plan).keys()
    assert not {"algorithm_class", "train_facts"} & vars(sent).keys()
    assert sent.algorithm_class is plan.algorithm_class


def test_a_plan_with_another_section_has_stages_of_its_own(tmp_path):
    plan = two_stages(tmp_path)
    longer = replace(plan, runner=replace(plan.runner, total_timesteps=2 * plan.runner.total_timesteps))
    assert longer.schedule[-1].until == 2 * plan.schedule[-1].until


@pytest.mark.parametrize(
    ("second", "words"),
    [
        ({"overrides": {"algorithm.discont": 1.0}}, "discont"),
        ({"overrides": {"policy.activation": "relu"}}, "may change keys under env.train, algorithm and learner"),
        ({"overrides": {"env.train.total_num_envs": 8}}, "number of environments"),
        ({"overrides": {"learner.adam_eps": 1.0}}, "learner.adam_eps, which stays the same"),
        ({"timesteps": 10}, "lengthen one"),
    ],
)
def test_an_impossible_stage_is_refused_at_once(tmp_path, second, words):
    with pytest.raises(ConfigError, match=words):
        two_stages(tmp_path, **second)


def test_videos_are_refused_without_the_replays_that_they_are_made_from(tmp_path):
    with pytest.raises(ConfigError, match=r"evaluation.videos is 2, but evaluation.replays is 0"):
        scripted(tmp_path, "evaluation.videos=2", "evaluation.replays=0")


def test_a_run_that_ends_before_its_last_stage_begins_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="before stage second begins"):
        scripted(tmp_path, "runner.total_timesteps=100", stages=[{"name": "a", "timesteps": 128}, {"name": "second"}])


def test_a_learner_on_cuda_without_a_gpu_is_a_contradiction(tmp_path):
    with pytest.raises(ConfigError, match=r"learner\.device is 'cuda', but cluster\.gpus_per_learner is 0"):
        scripted(tmp_path, "learner.device=cuda", "cluster.gpus_per_learner=0")


def test_a_device_that_only_another_machine_has_is_no_mistake_of_the_configuration(tmp_path):
    assert scripted(tmp_path, "learner.device=cuda").learner.device == "cuda"


def test_an_empty_mapping_takes_away_what_the_file_says(tmp_path):
    given = ["cluster.worker_nodes={role: sim}", "cluster.worker_nodes={}"]
    assert [scripted(tmp_path, *given[:count]).cluster.worker_nodes for count in (1, 2)] == [{"role": "sim"}, {}]


def test_observations_that_no_policy_can_use_are_refused_before_ray_is_asked(tmp_path):
    task = {"name": "gymnasium", "id": "tests.helpers.gym_trees:Words-v0", "total_num_envs": 4}
    config = scripted(tmp_path, env={"train": task})
    with pytest.raises(ConfigError, match="has the observation mission/words in Text"):
        rlpipe.train(config, ray_address="nobody:here")


def test_a_simulator_that_cannot_be_made_on_this_machine_is_left_to_the_workers(tmp_path):
    task = {"name": "gymnasium", "id": "CartPole-v1", "total_num_envs": 4, "kwargs": {"no_such_argument": 1}}
    check_spaces(scripted(tmp_path, env={"train": task}))


def test_a_missing_package_is_named_with_the_command_that_installs_it():
    with pytest.raises(
        ConfigError, match=r"no_such_simulator, which is not installed: pip install 'rlpipe\[maniskill\]'"
    ):
        require("no_such_simulator", "maniskill", "env.train")


# --- A key in one place


@dataclass(frozen=True)
class Dose:
    """A section with every kind of key."""

    amount: float = option(1.0, above=0, most=2, unit="ml")
    times: int | str = option("daily", least=1, below=2**31, choices=("daily",))
    colour: str | None = option(None, choices=("red", "blue"))
    sizes: list[int] = option([4, 2], least=1)
    label: str = "anything"


@dataclass(frozen=True)
class StrongDose(Dose):
    """Other defaults under the same limits."""

    amount: float = 1.5
    sizes: list[int] = field(default_factory=lambda: [8])


@pytest.mark.parametrize("legal", [{}, {"amount": 2.0}, {"times": 1}, {"colour": "red"}, {"sizes": []}, {"label": "?"}])
def test_a_value_within_its_limits_is_legal(legal):
    check_fields(Dose(**legal), "dose")


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ({"amount": 0.0}, r"dose\.amount is 0\.0; it must be greater than 0 and at most 2\."),
        ({"amount": float("nan")}, r"dose\.amount is nan; it must be a finite number\."),
        ({"times": 2**31}, r"dose\.times is 2147483648; it must be at least 1 and below 2\^31, or daily\."),
        ({"times": "dayly"}, r"'dayly'; it must be a number, at least 1 and below 2\^31, or daily\."),
        ({"colour": "rde"}, r"'rde'; did you mean 'red'\? Allowed values: red, blue, null\."),
        ({"sizes": [4, 0]}, r"dose\.sizes\[1\] is 0; it must be at least 1\."),
        ({"label": "a\0b"}, r"dose\.label .* which contains a NUL character: remove it\."),
    ],
)
@pytest.mark.parametrize("section", [Dose, StrongDose])
def test_a_value_beyond_its_limits_is_refused_also_where_a_subclass_declares_the_field_again(section, value, words):
    with pytest.raises(ConfigError, match=words):
        check_fields(section(**value), "dose")


@pytest.mark.parametrize(
    ("key", "affects"),
    [
        ("algorithm.discount", Affects.EVERYTHING),
        ("runner.total_timesteps", Affects.EVERYTHING),
        ("runner.seed", Affects.RESULTS | Affects.EVALUATION),
        ("learner.lr", Affects.RESULTS | Affects.COMPARISON),
        ("evaluation.episodes", Affects.RESULTS),
        ("env.eval.max_episode_steps", Affects.RESULTS),
        ("cluster.worker_nodes.role", Affects.COMPARISON),
        ("runner.logger.options.wandb.mode", Affects.NOTHING),
        ("runner.a_key_of_another_version", Affects.EVERYTHING),
    ],
)
def test_a_key_affects_what_its_field_says_and_everything_if_it_says_nothing(key, affects):
    assert affected_by(Config, key) == affects


@pytest.mark.parametrize("kind", ["envs", "policies", "algorithms"])
def test_no_option_of_a_plug_in_declares_an_effect_which_only_its_section_does(kind):
    schemas = [resolve(kind, name, "name").Config for name in shipped(kind)]
    declared = [option.affects for schema in schemas for option in options(schema).values()]
    assert set(declared) == {Affects.EVERYTHING}


def test_options_of_an_algorithm_without_groups_do_not_mention_groups(tmp_path):
    config = scripted(tmp_path)
    assert config.algorithm.group_size is None
    assert "group_size" not in to_yaml(config)


@dataclass(frozen=True)
class _FromEnvironment:
    mode: str = field(default_factory=lambda: os.environ["A_MODE"])


def test_a_default_of_the_environment_is_what_it_says_now(monkeypatch):
    for mode in ("online", "offline"):
        monkeypatch.setenv("A_MODE", mode)
        assert options_of("made_up", _FromEnvironment, {}).mode == mode


@dataclass(frozen=True)
class _Reach:
    distance: float  # in m


def test_an_option_without_a_default_must_be_given():
    with pytest.raises(ConfigError, match=r"made_up\.distance has no default; give it a value\."):
        options_of("made_up", _Reach, {})
    assert options_of("made_up", _Reach, {"distance": "0.5"}) == _Reach(0.5)
