"""Spelling: an option has the value that was typed, whatever YAML would make of it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlpipe.config.fields import whole_number
from rlpipe.config.loading import load_config
from rlpipe.config.schema import Config
from rlpipe.config.sections import build, options_of
from rlpipe.config.tree import from_yaml, read_tree, to_yaml
from rlpipe.errors import ConfigError
from rlpipe.plugins import resolve

SCRIPTED = "env: {train: {name: scripted}}\npolicy: {name: mlp}\n"
ODD = ["007", "0x1f", "7e3", "12e45678", "on", "no", "null", "1_000", "2026-01-01", "1:30", "a:b", "1.10"]
"""Texts of which YAML makes numbers, truth values, nothing, or dates."""
COMMANDS_ONLY = ["#1", "[x]", "{x", "a: b", "*x", "@x", "- x", "x # y"]
"""Texts that are no single value in a file."""


def experiment(*overrides: str, text: str = SCRIPTED, folder=None) -> str:
    """Name of the experiment that a file and overrides give."""
    source = from_yaml(text)
    if folder is not None:
        source = folder / "task.yaml"
        source.write_text(text, encoding="utf-8")
    return load_config(source, overrides).runner.logger.experiment_name


@pytest.mark.parametrize("name", [*ODD, *COMMANDS_ONLY])
def test_a_text_option_of_the_command_line_takes_the_text(name):
    assert experiment(f"runner.logger.experiment_name={name}") == name


@pytest.mark.parametrize("name", ODD)
def test_a_text_option_of_a_file_takes_the_text(tmp_path, name):
    assert experiment(text=f"{SCRIPTED}runner: {{logger: {{experiment_name: {name}}}}}\n", folder=tmp_path) == name


def test_quotes_are_not_part_of_a_text():
    assert experiment("runner.logger.experiment_name='007'") == "007"


def test_the_last_text_counts(tmp_path):
    file = f"{SCRIPTED}runner: {{logger: {{experiment_name: 007, log_path: 1.10}}}}\n"
    assert experiment("runner.logger.experiment_name=x", text=file, folder=tmp_path) == "x"
    assert experiment('runner.logger={experiment_name: "x"}', text=file, folder=tmp_path) == "x"


def test_texts_in_lists_and_mappings_are_taken_as_they_were_typed():
    logger = "runner.logger.logger_backends=[memory]"
    config = load_config(from_yaml(SCRIPTED), [logger, "cluster.worker_nodes={role: on, rack: 007}"])
    assert config.cluster.worker_nodes == {"role": "on", "rack": "007"}
    config = load_config(from_yaml(SCRIPTED), ["cluster.worker_nodes.1=on", "stages=[{name: 1e1}]", "stages.0.name=no"])
    assert (config.cluster.worker_nodes, config.stages[0].name) == ({"1": "on"}, "no")


def test_null_is_none_where_none_is_allowed():
    assert load_config(from_yaml(SCRIPTED), ["runner.best_metric=null"]).runner.best_metric is None


@pytest.mark.parametrize("text", ["null", "Null"])
def test_a_path_that_must_be_given_is_not_null(text):
    with pytest.raises(ConfigError, match=rf"runner.logger.log_path is {text}; give it a path, or leave it out"):
        load_config(from_yaml(SCRIPTED), [f"runner.logger.log_path={text}"])


def test_a_text_is_the_same_after_it_was_stored():
    config = load_config(from_yaml(SCRIPTED), ["runner.logger.experiment_name=7e3"])
    assert load_config(from_yaml(to_yaml(config))) == config


@pytest.mark.parametrize("number", ["1e3", "1000.0", "1_000", "01000", "0x3e8", "+1000", "'1e3'", "0.1e4"])
def test_a_whole_number_counts_by_its_value(tmp_path, number):
    file = tmp_path / "task.yaml"
    file.write_text(f"{SCRIPTED}runner: {{total_timesteps: {number}}}\n", encoding="utf-8")
    assert load_config(file).runner.total_timesteps == 1000
    assert load_config(from_yaml(SCRIPTED), [f"runner.total_timesteps={number}"]).runner.total_timesteps == 1000


def test_whole_numbers_in_lists_and_beside_words_count_by_their_value():
    config = load_config(from_yaml(SCRIPTED), ["policy={name: mlp, hidden_sizes: [6.4e1]}", "rollout.num_workers=1e0"])
    assert (config.policy.hidden_sizes, config.rollout.num_workers) == ([64], 1)


@pytest.mark.parametrize("number", ["1.5", "1e400", "1e99999999", "nan", ".inf", "on", "1:30", "1,000", "1k"])
def test_what_is_no_whole_number_is_refused(number):
    with pytest.raises(ConfigError, match=r"^runner.seed is .*; it must be a whole number\.$"):
        load_config(from_yaml(SCRIPTED), [f"runner.seed={number}"])


@given(st.integers(-(2**53), 2**53))
def test_every_spelling_of_a_whole_number_is_that_number(number):
    spellings = [number, str(number), f"{number:_}", f"{number}.0", f"{number}0e-1"]
    assert {whole_number(spelling, "x") for spelling in spellings} == {number}


@given(st.floats().filter(lambda value: not value.is_integer()))
def test_no_number_with_a_fraction_is_whole(number):
    with pytest.raises(ConfigError, match="must be a whole number"):
        whole_number(number, "x")


@pytest.mark.parametrize(
    ("override", "backends"),
    [
        ("runner={logger: {logger_backends: [console]}}", ["console"]),
        ("runner={logger: {logger_backends: []}}", []),
        ("runner={logger: {experiment_name: x}}", ["memory", "csv"]),
    ],
)
def test_nothing_is_left_of_a_list_that_an_override_replaces(tmp_path, override, backends):
    file = tmp_path / "task.yaml"
    file.write_text(f"{SCRIPTED}runner: {{logger: {{logger_backends: [memory, csv]}}}}\n", encoding="utf-8")
    assert load_config(file, [override]).runner.logger.logger_backends == backends


# --- paths

PATHS = ["runner.logger.log_path", "demos", "policy.warm_start", "env.train.python"]


def value_of(config, key):
    for name in key.split("."):
        config = getattr(config, name)
    return config


@pytest.mark.parametrize("key", PATHS)
@pytest.mark.parametrize("typed", ["~/x", "$HOME/x", "${oc.env:HOME}/x"])
def test_every_path_knows_the_home_folder(tmp_path, monkeypatch, key, typed):
    monkeypatch.setenv("HOME", str(tmp_path))
    assert value_of(build(read_tree(from_yaml(SCRIPTED), [f"{key}={typed}"]), Config), key) == str(tmp_path / "x")


@pytest.mark.parametrize("key", PATHS)
@pytest.mark.parametrize("typed", ["~nobody_here/x", "$NOT_SET/x", "${NOT_SET}/x"])
def test_a_path_through_an_unknown_home_or_variable_is_refused(key, typed):
    with pytest.raises(ConfigError, match=r"NOT_SET|nobody_here"):
        build(read_tree(from_yaml(SCRIPTED), [f"{key}={typed}"]), Config)


def test_a_backends_path_knows_the_home_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    assert (
        options_of("jsonl", resolve("backends", "jsonl", "").Config, {"path": "~/{run}"}).path == f"{tmp_path}/{{run}}"
    )


@pytest.mark.parametrize("name", ["../up", "..", ".", "/tmp/x", "a/../b", "a//b", "~", "~/x", "a\nb", "x" * 256])
def test_the_name_of_an_experiment_stays_within_the_folder_of_runs(name):
    with pytest.raises(ConfigError, match=r"^runner.logger.experiment_name is "):
        load_config({**from_yaml(SCRIPTED), "runner": {"logger": {"experiment_name": name}}})


@pytest.mark.parametrize("name", ["lab/reach", "#1", "two words", "-x", "é", ".hidden", "x" * 255])
def test_the_name_of_an_experiment_may_be_whatever_a_folder_may_be_called(name):
    assert experiment(f"runner.logger.experiment_name={name}") == name
