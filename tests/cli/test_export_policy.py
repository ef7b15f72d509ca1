"""``rlpipe export --format onnx``: a policy in a folder of its own, and what was done about it in a few lines."""

from __future__ import annotations

import re

import numpy as np
import pytest
from typer.testing import CliRunner

import rlpipe
from rlpipe.cli import app
from rlpipe.errors import ConfigError
from rlpipe.policies.mlp import MLPPolicy
from tests.helpers.acting import trained


@pytest.fixture(scope="module")
def pendulum(tmp_path_factory):
    return trained(tmp_path_factory.mktemp("pendulum"), "Pendulum-v1", {"name": "mlp"})


def exported(path, *options: str) -> str:
    """Output of the command, without line breaks of a terminal."""
    result = CliRunner().invoke(app, ["export", str(path), *options], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output


def test_a_run_becomes_a_folder_and_the_command_says_what_it_holds_and_how_it_was_checked(pendulum, tmp_path):
    printed = exported(pendulum.directory, "--format", "onnx", "--out", str(tmp_path / "reach"))
    assert sorted(file.name for file in (tmp_path / "reach").iterdir()) == [
        "README.md", "card.json", "policy.onnx", "runner.py",
    ]  # fmt: skip
    assert "mlp, most likely actions, iteration 2 of" in printed
    assert re.search(r"256 random and 64 visited observations, largest difference \de-\d\d of half the range", printed)
    line = re.search(r"rlpipe\.load_policy\('(.*)'\)", printed)
    assert line is not None
    assert rlpipe.load_policy(line[1]).act(np.zeros(3)).shape == (1,)


def test_a_checkpoint_becomes_a_policy_that_samples_where_asked_and_the_card_says_what_was_evaluated(
    pendulum, tmp_path
):
    printed = exported(pendulum.checkpoint, "--format", "onnx", "--out", str(tmp_path / "reach"), "--sampled")
    assert "mlp, sampled actions" in printed
    policy = rlpipe.load_policy(tmp_path / "reach")
    assert policy.act(np.zeros(3)) != policy.act(np.zeros(3))
    page = (tmp_path / "reach" / "README.md").read_text()
    assert "Its evaluation took most likely actions, unlike this export." in page


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--format", "onnx"], "needs --out"),
        (["--format", "onnx", "--out", "."], "exists already"),
        (["--format", "onyx"], "legal are parquet, csv, onnx; did you mean 'onnx'?"),
        (["--format", "csv", "--sampled"], "leave them out with --format csv"),
        (["--best"], "leave them out with --format parquet"),
    ],
)
def test_a_wrong_request_is_refused_by_what_to_do(pendulum, monkeypatch, tmp_path, options, words):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match=re.escape(words)):
        exported(pendulum.directory, *options)
    assert list(tmp_path.iterdir()) == []


def test_a_policy_that_computes_outside_of_torch_is_refused_before_it_is_made(pendulum, monkeypatch, tmp_path):
    monkeypatch.setattr(MLPPolicy, "outside_torch", "It asks an oracle.")
    monkeypatch.setattr(MLPPolicy, "__init__", lambda *_: pytest.fail("made"))
    with pytest.raises(ConfigError, match=r"policy.name=mlp cannot be written as an ONNX graph. It asks an oracle."):
        exported(pendulum.directory, "--format", "onnx", "--out", str(tmp_path / "reach"))


def test_a_vision_language_action_policy_says_why_it_is_no_graph():
    from rlpipe.policies.vla import VLAPolicy

    assert "with Pillow, outside of torch" in VLAPolicy.outside_torch
