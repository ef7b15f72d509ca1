"""A trained policy in a loop of its user."""

from __future__ import annotations

import re
import subprocess
import sys

import gymnasium
import numpy as np
import pytest

import rlpipe
from rlpipe.errors import ConfigError
from rlpipe.run import checkpoint
from rlpipe.serving.runner import batch_of
from tests.helpers.acting import trained

KINDS = {
    "discrete actions": ("CartPole-v1", {"name": "mlp"}, True),
    "memory, sampled": ("CartPole-v1", {"name": "gru", "memory_size": 6}, False),
    "bounds": ("Pendulum-v1", {"name": "mlp", "normalize_observations": True}, True),
    "chunks of tokens, sampled": ("Pendulum-v1", {"name": "tokens", "chunk_size": 3, "execute": 2}, False),
}


@pytest.fixture(scope="module")
def cartpole(tmp_path_factory):
    return trained(tmp_path_factory.mktemp("cartpole"), "CartPole-v1", {"name": "mlp"})


@pytest.mark.parametrize(("task", "options", "deterministic"), KINDS.values(), ids=KINDS)
def test_a_loop_of_the_user_has_the_episodes_of_the_evaluation(tmp_path, task, options, deterministic):
    run = trained(tmp_path, task, options, f"evaluation.deterministic={deterministic}")
    episodes = rlpipe.evaluate(run.directory, local=True).episodes
    policy = rlpipe.load_policy(run.directory)
    env = gymnasium.make(task, max_episode_steps=30)
    for episode in episodes:
        observation, _ = env.reset(seed=episode.seed)
        policy.reset(seed=episode.seed)
        rewards, ended = [], False
        while not ended:
            observation, reward, terminated, truncated, _ = env.step(policy.act(observation))
            rewards.append(reward)
            ended = terminated or truncated
        assert (len(rewards), sum(rewards)) == (episode.length, pytest.approx(episode.episode_return, rel=1e-12))


def test_rows_of_a_batch_act_as_each_would_alone(tmp_path):
    run = trained(tmp_path, "CartPole-v1", {"name": "gru", "memory_size": 6, "chunk_size": 2})
    observations = np.random.default_rng(0).normal(size=(5, 3, 4)).astype(np.float32)
    batch = rlpipe.load_policy(run.directory, deterministic=False, seed=7)
    together = [batch.act(step) for step in observations]
    for row in range(3):
        alone = rlpipe.load_policy(run.directory, deterministic=False, seed=7 + row)
        assert [alone.act(step[row]) for step in observations] == [actions[row] for actions in together]


def test_a_reset_of_one_row_leaves_the_others_where_they_are(tmp_path):
    run = trained(tmp_path, "CartPole-v1", {"name": "gru", "memory_size": 6})
    policy, other = (rlpipe.load_policy(run.directory) for _ in range(2))
    first, second = np.ones((2, 4)), np.full((2, 4), 0.5)
    for each in (policy, other):
        each.act(first)
    policy.reset([True, False])
    actions = policy.act(second)
    assert actions[1] == other.act(second)[1]
    assert actions[0] == rlpipe.load_policy(run.directory).act(second[0])


def test_the_chunk_of_a_decision_is_what_act_takes_one_by_one(tmp_path):
    run = trained(tmp_path, "Pendulum-v1", {"name": "mlp", "chunk_size": 4})
    observation = np.array([1.0, 0.0, 0.5], dtype=np.float32)
    chunk = rlpipe.load_policy(run.directory).act_chunk(observation)
    policy = rlpipe.load_policy(run.directory)
    assert chunk.shape == (4, 1)
    assert (np.stack([policy.act(observation) for _ in range(4)]) == chunk).all()


def test_what_is_no_observation_is_refused_by_what_is_wrong_with_it(cartpole):
    policy = rlpipe.load_policy(cartpole.directory)
    for wrong, words in (
        (np.zeros(3), "shape (3,); the policy takes (4,)"),
        (np.array([0, 0, 0, np.nan]), "not finite"),
        (np.array(["a"] * 4), "holds <U1"),
    ):
        with pytest.raises(ValueError, match=re.escape(words)):
            policy.act(wrong)
    policy.act(np.zeros((2, 4)))
    with pytest.raises(ValueError, match="call reset"):
        policy.act(np.zeros(4))


@pytest.mark.parametrize("word", [[3, 0], [0, -1], [[0, 0], [0, 5]]])
def test_a_category_that_does_not_exist_is_refused(word):
    assert batch_of([2, 4], (2,), "int64", "word", (3, 5))[0].tolist() == [[2, 4]]
    with pytest.raises(ValueError, match=r"counted from 0, and there are \[3, 5\]"):
        batch_of(word, (2,), "int64", "word", (3, 5))


def test_a_checkpoint_of_an_earlier_version_says_how_to_get_a_newer_one(cartpole, tmp_path):
    state = checkpoint.load(cartpole.checkpoint)
    old = checkpoint.save(tmp_path, state.arrays, {k: v for k, v in state.meta.items() if k != "spaces"})
    with pytest.raises(ConfigError, match="resume its run"):
        rlpipe.load_policy(old)


def test_neither_ray_nor_a_simulator_is_loaded(cartpole):
    code = (
        "import sys, rlpipe, numpy as np; policy = rlpipe.load_policy(sys.argv[1]); policy.act(np.zeros(4));"
        "print([name for name in ('ray', 'gymnasium', 'mani_skill', 'sapien') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code, str(cartpole.checkpoint)], capture_output=True, text=True)
    assert (done.stdout, done.returncode) == ("[]\n", 0), done.stderr
