"""An exported policy: one graph that decides as the policy does, with any number of rows."""

from __future__ import annotations

import json
import subprocess
import sys

import gymnasium
import numpy as np
import pytest

import rlpipe
from rlpipe.errors import ConfigError
from rlpipe.run import checkpoint
from rlpipe.serving.export import export_policy
from tests.helpers.acting import trained


@pytest.fixture(scope="module")
def pendulum(tmp_path_factory):
    """A policy with a memory and chunks whose actions are sampled, its run and its export."""
    folder = tmp_path_factory.mktemp("pendulum")
    policy = {"name": "gru", "memory_size": 6, "chunk_size": 2, "normalize_observations": True}
    run = trained(folder, "Pendulum-v1", policy, "evaluation.deterministic=false")
    report = rlpipe.evaluate(run.directory, local=True)
    return run, report, export_policy(checkpoint.load(run.checkpoint), folder / "export")


@pytest.mark.soak
def test_an_export_has_the_episodes_of_the_evaluation(pendulum):
    _, report, (folder, _) = pendulum
    policy = rlpipe.load_policy(folder)
    env = gymnasium.make("Pendulum-v1", max_episode_steps=30)
    for episode in report.episodes:
        observation, _ = env.reset(seed=episode.seed)
        policy.reset(seed=episode.seed)
        rewards = []
        for _ in range(episode.length):
            observation, reward, *_ = env.step(policy.act(observation))
            rewards.append(reward)
        assert sum(rewards) == pytest.approx(episode.episode_return, rel=1e-4)


def test_an_export_was_checked_on_what_the_policy_meets(pendulum):
    _, _, (folder, check) = pendulum
    assert check.random == 256
    assert check.visited == 64
    assert check.difference <= 1e-5
    assert json.loads((folder / "card.json").read_text())["check"] == vars(check)


def test_the_card_tells_the_task_the_result_and_the_bounds(pendulum):
    _, report, (folder, _) = pendulum
    card, page = json.loads((folder / "card.json").read_text()), (folder / "README.md").read_text()
    assert card["task"] == "Pendulum-v1"
    assert card["spaces"]["action_low"] == [-2.0]
    assert card["estimates"][0]["value"] == report.estimates[0].value
    assert "An action is a number from -2.0 to 2.0, 2 at a time" in page
    assert "256 random and 64 visited observations, largest difference" in page


def test_the_runner_needs_neither_torch_nor_rlpipe(pendulum):
    _, _, (folder, _) = pendulum
    code = (
        "import sys; sys.path.insert(0, sys.argv[1]); import runner, numpy as np;"
        "policy = runner.load(sys.argv[1]); policy.reset(); print(policy.act(np.zeros(3)).shape);"
        "print([name for name in ('torch', 'rlpipe', 'gymnasium') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code, str(folder)], capture_output=True, text=True, cwd="/")
    assert (done.stdout, done.returncode) == ("(1,)\n[]\n", 0), done.stderr


def test_an_export_never_replaces_a_folder(pendulum):
    run, _, (folder, _) = pendulum
    with pytest.raises(ConfigError, match="exists already"):
        export_policy(checkpoint.load(run.checkpoint), folder)
    with pytest.raises(ConfigError, match="sampled actions"):
        rlpipe.load_policy(folder, deterministic=True)


def test_a_policy_that_decides_with_its_own_noise_is_refused_before_anything_is_written(
    pendulum, tmp_path, monkeypatch
):
    run, _, _ = pendulum
    monkeypatch.setattr("rlpipe.policies.gru.GRUPolicy.noise_kinds", ())
    with pytest.raises(ConfigError, match="--deterministic"):
        export_policy(checkpoint.load(run.checkpoint), tmp_path / "export")
    assert list(tmp_path.iterdir()) == []


def test_noise_of_the_runner_is_that_of_the_policies(pendulum):
    from rlpipe.policies import base
    from rlpipe.serving import runner

    for kind, draw in runner.DRAWS.items():
        first, second = (np.random.default_rng(3) for _ in range(2))
        assert (draw(first, 5) == base._DRAWS[kind](second, (1, 5))).all()
    assert runner.DRAWS.keys() == base._DRAWS.keys()
