"""`rlpipe verify` of baselines and of policies from elsewhere: the reader, not the record, says what is opened."""

from __future__ import annotations

import json
import shlex
import shutil
from pathlib import Path

import numpy as np
import pytest

import rlpipe
from rlpipe.analysis.evaluation_report import protocol_digest, root_of
from rlpipe.analysis.verification import Verdict, Verification
from rlpipe.config.tree import to_yaml
from rlpipe.errors import ConfigError
from tests.helpers.acting import trained
from tests.helpers.demonstrations import write
from tests.helpers.graphs import linear_graph
from tests.helpers.runs import scripted
from tests.helpers.serving import served
from tests.helpers.simulators import ECHO

EPISODES = 12
LEANING = "tests.helpers.outside:leaning"
CARTPOLE = {"train": {"name": "gymnasium", "id": "CartPole-v1", "total_num_envs": 3, "max_episode_steps": 30}}


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> Path:
    """A run of CartPole, whose episodes have at most 30 steps."""
    return trained(tmp_path_factory.mktemp("cartpole"), "CartPole-v1", {"name": "mlp"}).directory


@pytest.fixture
def alone(tmp_path) -> Path:
    """The configuration of such a run, which may be evaluated without one."""
    file = tmp_path / "config.yaml"
    file.write_text(to_yaml(scripted(tmp_path / "runs", "runner.seed=7", env=CARTPOLE)))
    return file


def record_of(source: Path, policy: str, *overrides: str) -> Path:
    report = rlpipe.evaluate(source, policy=policy, episodes=EPISODES, overrides=overrides, local=True)
    return Path(str(report.record))


def verified(record: Path, policy: str | Path | None = None, config: Path | None = None) -> Verification:
    return rlpipe.verify(record, policy=policy, config=config, local=True)


def rejections(result: Verification) -> list[str]:
    return [finding.part for finding in result.findings if finding.rejects]


def changed(record: Path, **changes) -> Path:
    """Changes a record, as a forger would who makes all digests anew."""
    contents = json.loads(record.read_text()) | changes
    contents["episodes_root"] = root_of(contents["episodes"])
    contents["protocol_sha256"] = protocol_digest(contents["protocol"])
    del contents["estimates"]
    record.write_text(json.dumps(contents))
    return record


# --- Baselines


@pytest.mark.parametrize("policy", ["random", "zero"])
def test_a_baseline_needs_nothing_more_than_its_name(run, alone, policy):
    for source in (run, alone):
        result = verified(record_of(source, policy))
        assert (result.verdict, result.identical, result.policy) == (Verdict.VERIFIED, EPISODES, policy)


def test_a_flipped_episode_of_a_baseline_is_found(alone):
    record = record_of(alone, "random")
    rows = json.loads(record.read_text())["episodes"]
    rows[7]["return"] += 1
    assert rejections(verified(changed(record, episodes=rows))) == ["outcome"]


@pytest.mark.parametrize(
    "simulator",
    [{"name": "planted:Simulator"}, {"name": "planted"}, {"id": "planted:Task-v0"}, {"kwargs": {"name": "planted"}}],
)
def test_a_record_alone_names_no_code_that_would_be_imported(alone, simulator):
    record = record_of(alone, "random")
    protocol = json.loads(record.read_text())["protocol"]
    protocol["eval_env"] |= simulator
    result = verified(changed(record, protocol=protocol))
    assert result.verdict is Verdict.UNCHECKED
    assert shlex.split(result.hint.command)[-4:] == ["verify", str(record), "--config", "CONFIG"]


def test_a_simulator_that_is_code_is_that_of_the_configuration_which_the_reader_names(tmp_path):
    file = tmp_path / "config.yaml"
    file.write_text(to_yaml(scripted(tmp_path / "runs", env={"train": {"name": "tests.helpers.reach:Reach"}})))
    record = record_of(file, "random")
    assert verified(record).verdict is Verdict.UNCHECKED
    assert verified(record, config=file).verdict is Verdict.VERIFIED


def demonstrations(folder: Path, action: float) -> str:
    """Two demonstrations of two equal actions."""
    return write(folder, [(np.zeros((3, 4)), np.full((2, 1), action), [False, True])] * 2)


def test_other_demonstrations_than_replay_repeated_are_named(tmp_path):
    demos, file = demonstrations(tmp_path, 0.5), tmp_path / "config.yaml"
    file.write_text(to_yaml(scripted(tmp_path / "runs", env=ECHO)))
    record = record_of(file, "replay", f"demos={demos}")
    assert verified(record, config=file).hint is not None  # which names no demonstrations
    result = rlpipe.verify(record, config=file, overrides=[f"demos={demos}"], local=True)
    assert result.verdict is Verdict.VERIFIED
    demonstrations(tmp_path, 0.25)
    assert rejections(rlpipe.verify(record, config=file, overrides=[f"demos={demos}"], local=True)) == ["weights"]


# --- Policies from elsewhere


def test_the_policy_of_a_record_is_opened_only_where_the_reader_names_it(run, alone):
    for source in (run, alone):
        record = changed(record_of(source, LEANING), policy="planted:policy")
        result = verified(record)
        assert (result.verdict, result.drawn) == (Verdict.UNCHECKED, 0)
        assert shlex.split(result.hint.command)[-4:] == ["verify", str(record), "--policy", "planted:policy"]
        result = verified(record, LEANING)
        assert (result.verdict, result.identical, result.policy) == (Verdict.VERIFIED, EPISODES, LEANING)


def test_a_name_that_no_terminal_should_print_is_left_out_of_the_command(alone):
    record = changed(record_of(alone, LEANING), policy="a:b\x1b[2J")
    assert verified(record).hint.command.endswith("--policy POLICY")


def test_how_a_policy_was_shown_the_task_stands_in_its_record(alone):
    inputs = "evaluation.external.inputs={state: observation, prompt: '=balance the pole'}"
    record = record_of(alone, "tests.helpers.outside:Named", inputs)
    assert verified(record, "tests.helpers.outside:Named").verdict is Verdict.VERIFIED
    changed(record, external={"inputs": {"prompt": "=${oc.env:HOME}"}})
    with pytest.raises(ConfigError, match="a record names values"):
        verified(record, "tests.helpers.outside:Named")


def test_another_source_of_a_function_is_named_and_rejects_only_where_it_acts_otherwise(alone, tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    for name, condition in (("first", "> 0"), ("rewritten", "> 0 / 2"), ("other", "< 0")):
        (tmp_path / f"{name}.py").write_text(f"def act(observation):\n    return int(observation[2] {condition})\n")
    record = record_of(alone, "first:act")
    assert verified(record, "first:act").findings == []
    rewritten, other = (verified(record, f"{name}:act") for name in ("rewritten", "other"))
    assert [(finding.part, finding.rejects) for finding in rewritten.findings] == [("source", False)]
    assert (rewritten.verdict, rejections(other)) == (Verdict.VERIFIED, ["weights"])


def test_swapped_weights_of_a_graph_are_named_before_anything_is_simulated(alone, tmp_path):
    record = record_of(alone, linear_graph(tmp_path / "ours.onnx"))
    moved = (tmp_path / "ours.onnx").rename(tmp_path / "moved.onnx")
    assert verified(record, moved).verdict is Verdict.VERIFIED
    result = verified(record, linear_graph(tmp_path / "swapped.onnx", weight=2))
    assert (rejections(result), result.drawn) == (["weights"], 0)


def test_other_bits_of_a_server_prove_nothing_because_nobody_knows_its_weights_and_its_machine(run):
    with served(run) as address:
        record = record_of(run, address)
        same = verified(record, address)
        rows = [row | {"commitment": "0" * 64} for row in json.loads(record.read_text())["episodes"]]
        other = verified(changed(record, episodes=rows), address)
    assert [(finding.part, finding.rejects) for finding in same.findings] == [("server", False)]
    assert (same.verdict, other.verdict) == (Verdict.VERIFIED, Verdict.STATISTICALLY)


@pytest.mark.parametrize(
    ("recorded", "policy", "words"),
    [
        ("random", "zero", "is of the baseline random"),
        ("random", LEANING, "is of the baseline random"),
        (LEANING, "zero", "is of a policy from elsewhere"),
        (LEANING, "tests.helpers.outside:missing", "importing it failed"),
        (LEANING, "missing.onnx", "there is no such file"),
    ],
)
def test_a_policy_of_another_kind_is_refused(alone, recorded, policy, words):
    record = record_of(alone, recorded)
    with pytest.raises(ConfigError, match=words):
        verified(record, policy)


def test_changes_need_a_configuration_that_they_change(alone):
    with pytest.raises(ConfigError, match="--config"):
        rlpipe.verify(record_of(alone, "random"), overrides=["runner.seed=1"], local=True)


def test_a_record_away_from_its_run_is_verified_by_what_it_says_of_a_simulator_of_ours(run, tmp_path):
    moved = Path(shutil.copy(record_of(run, "random"), tmp_path))
    assert verified(moved).verdict is Verdict.VERIFIED
