"""Policies from elsewhere under our protocol: functions, objects and graphs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import rlpipe
from rlpipe.errors import ConfigError, PolicyError
from rlpipe.run import checkpoint
from rlpipe.serving.export import export_policy
from tests.helpers.acting import trained
from tests.helpers.graphs import linear_graph
from tests.helpers.serving import served

EPISODES = 12


@pytest.fixture(scope="module")
def cartpole(tmp_path_factory):
    """A trained run whose actions are sampled, and its own evaluation."""
    overrides = f"evaluation.episodes={EPISODES}", "evaluation.deterministic=false", "env.eval.total_num_envs=3"
    run = trained(tmp_path_factory.mktemp("cartpole"), "CartPole-v1", {"name": "mlp"}, *overrides)
    return run, rlpipe.evaluate(run.directory, local=True)


def evaluated(run, policy, *overrides):
    return rlpipe.evaluate(run.directory, policy=policy, local=True, overrides=overrides)


def outcomes(report):
    return [(episode.seed, episode.length, episode.episode_return) for episode in report.episodes]


def test_a_function_runs_the_episodes_of_the_protocol(cartpole):
    run, ours = cartpole
    report = evaluated(run, "tests.helpers.outside:leaning")
    assert [episode.seed for episode in report.episodes] == [episode.seed for episode in ours.episodes]
    assert report.policy == "tests.helpers.outside:leaning"
    assert json.loads(Path(report.record).read_text())["policy"] == report.policy


def test_an_object_begins_anew_in_each_episode_and_may_answer_several_actions(cartpole):
    run, _ = cartpole
    lengths = [episode.length for episode in evaluated(run, "tests.helpers.outside:Counting").episodes]
    alone = evaluated(run, "tests.helpers.outside:Counting", "env.eval.total_num_envs=1")
    assert lengths == [episode.length for episode in alone.episodes]


def test_observations_are_mapped_in_the_configuration(cartpole):
    run, _ = cartpole
    inputs = "evaluation.external.inputs={state: observation, prompt: '=balance the pole'}"
    assert outcomes(evaluated(run, "tests.helpers.outside:Named", inputs)) == outcomes(
        evaluated(run, "tests.helpers.outside:leaning")
    )


def test_our_graph_has_our_episodes_to_the_last_one(cartpole, tmp_path):
    run, ours = cartpole
    folder, _ = export_policy(checkpoint.load(run.checkpoint), tmp_path / "export")
    assert outcomes(evaluated(run, str(folder / "policy.onnx"))) == outcomes(ours)


def test_a_graph_of_others_is_fed_by_its_only_input(cartpole, tmp_path):
    run, _ = cartpole
    assert outcomes(evaluated(run, linear_graph(tmp_path / "leaning.onnx"))) == outcomes(
        evaluated(run, "tests.helpers.outside:leaning")
    )


@pytest.mark.parametrize("protocol", ["openpi", "vla-eval"])
def test_our_policy_behind_a_socket_has_our_episodes_to_the_last_one(tmp_path, protocol):
    options = {"name": "gru", "memory_size": 6, "chunk_size": 3, "execute": 2}
    run = trained(tmp_path, "Pendulum-v1", options, "evaluation.deterministic=false")
    ours = outcomes(rlpipe.evaluate(run.directory, local=True))
    with served(run.directory, protocol) as url:
        assert outcomes(evaluated(run, url, f"evaluation.external.protocol={protocol}")) == ours


def test_a_server_that_goes_away_is_a_failure_of_the_run(cartpole):
    run, _ = cartpole
    with served(run.directory) as url, pytest.raises(PolicyError) as error:
        evaluated(run, url, "evaluation.external.inputs={nothing: observation}")
    assert str(error.value).startswith(f'the policy {url} answered with a text: "the request lacks observation/state')
    assert not str(error.value).endswith("..")  # nor is the address named twice


def test_an_address_where_nothing_listens_is_refused_before_anything_starts(cartpole):
    run, _ = cartpole
    with served(run.directory) as url:
        pass
    with pytest.raises(ConfigError, match="could not be reached"):
        evaluated(run, url, "evaluation.external.connect_timeout=0.1")


@pytest.mark.parametrize(
    ("policy", "words"),
    [
        ("failing", "raised OSError: the camera is gone while it was to act"),
        ("wordy", "answered <U4 of the shape ()"),
        ("beyond", "answered 7; actions are whole numbers from 0, below 2"),
        ("not_a_number", "not finite"),
    ],
)
def test_a_policy_that_fails_is_a_failure_of_the_run_and_no_failed_episode(cartpole, policy, words):
    run, _ = cartpole
    records = sorted((run.directory / "evaluations").iterdir())
    with pytest.raises(PolicyError) as error:
        evaluated(run, f"tests.helpers.outside:{policy}")
    assert words in str(error.value)
    assert sorted((run.directory / "evaluations").iterdir()) == records


@pytest.mark.parametrize(
    ("policy", "overrides", "words"),
    [
        ("randon", (), "did you mean 'random'?"),
        ("nothing.onnx", (), "no such file"),
        ("tests.helpers.outside:absent", (), "importing it failed"),
        ("tests.helpers.outside:np", (), "must be a function or a class"),
        ("tests.helpers.outside:leaning", ("evaluation.external.inputs={a: stat}",), "There are observation"),
    ],
)
def test_what_is_no_policy_is_refused_before_anything_starts(cartpole, policy, overrides, words):
    with pytest.raises(ConfigError) as error:
        evaluated(cartpole[0], policy, *overrides)
    assert words in str(error.value)


def test_a_graph_of_another_shape_is_refused_before_anything_starts(cartpole, tmp_path):
    with pytest.raises(ConfigError, match=r"the observation has \(4,\)"):
        evaluated(cartpole[0], linear_graph(tmp_path / "wide.onnx", width=5))
    damaged = tmp_path / "damaged.onnx"
    damaged.write_bytes(b"not a graph")
    with pytest.raises(ConfigError, match="cannot be opened as an ONNX graph"):
        evaluated(cartpole[0], str(damaged))
