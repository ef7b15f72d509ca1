"""The ``sb3`` dialect against Stable-Baselines3 itself: both learn from one rollout, and write the same numbers."""

from __future__ import annotations

import gymnasium
import numpy as np
import pytest
import torch

import rlpipe
from rlpipe.config.loading import load_config
from rlpipe.learning.on_policy import Learner
from rlpipe.metrics import CATALOGUE, MetricWindow
from rlpipe.metrics import catalogue as m
from rlpipe.metrics.dialects import Dialect, uses
from rlpipe.metrics.window import merged
from rlpipe.run.directory import read_jsonl
from rlpipe.trajectory import Episode, SpaceSpec
from rlpipe.trajectory.batch import TrajectoryBatch

STEPS, EPOCHS, MINIBATCHES = 512, 3, 4
CONFIG = {
    "env": {"train": {"name": "gymnasium", "id": "CartPole-v1", "total_num_envs": 1}},
    "policy": {"name": "mlp", "hidden_sizes": [16, 16]},
    "algorithm": {
        "name": "ppo",
        "update_epochs": EPOCHS,
        "num_minibatches": MINIBATCHES,
        "normalize_advantages": False,  # they do it for each minibatch, we for the whole batch
        "value_coef": 1.0,  # of half the squared error, as 0.5 is of the whole
        "entropy_coef": 0.01,
    },
    "learner": {"lr": 1e-2, "max_grad_norm": None, "num_threads": 1, "device": "cpu"},
    "rollout": {"horizon": STEPS},
    "evaluation": {"episodes": 4},
    "runner": {"total_timesteps": 2 * STEPS, "logger": {"logger_backends": [], "dialects": ["sb3"]}},
}


COMPARED = (
    "rollout/ep_rew_mean",
    "rollout/ep_len_mean",
    "train/approx_kl",
    "train/clip_fraction",
    "train/clip_range",
    "train/entropy_loss",
    "train/explained_variance",
    "train/learning_rate",
    "train/loss",
    "train/n_updates",
    "train/policy_gradient_loss",
    "train/value_loss",
)


class Theirs:
    """Two iterations of Stable-Baselines3's PPO: what it wrote, and what the first one learnt from."""

    def __init__(self) -> None:
        from stable_baselines3 import PPO
        from stable_baselines3.common.callbacks import BaseCallback
        from stable_baselines3.common.env_util import make_vec_env
        from stable_baselines3.common.logger import KVWriter, Logger

        written: list[dict[str, float]] = []

        class Writer(KVWriter):
            def write(self, key_values, key_excluded, step=0):
                written.append(dict(key_values))

            def close(self):
                """Holds nothing."""

        theirs = self
        self.episodes: list[tuple[int, int, float, int]] = []

        class Recorder(BaseCallback):
            def _on_step(self):
                if not hasattr(theirs, "weights"):
                    infos = self.locals["infos"]
                    ended = [(slot, info["episode"]) for slot, info in enumerate(infos) if "episode" in info]
                    theirs.episodes += [(self.n_calls, slot, e["r"], int(e["l"])) for slot, e in ended]
                return True

            def _on_rollout_end(self):
                if not hasattr(theirs, "weights"):
                    buffer = self.model.rollout_buffer
                    theirs.observations = np.concatenate([buffer.observations, self.locals["new_obs"][None]])
                    theirs.actions, theirs.rewards = buffer.actions[..., 0].astype(np.int64), buffer.rewards.copy()
                    theirs.log_probs = buffer.log_probs.copy()
                    theirs.ended = np.concatenate([buffer.episode_starts[1:], self.locals["dones"][None]]) > 0
                    theirs.weights = {k: v.clone() for k, v in self.model.policy.state_dict().items()}

        torch.manual_seed(0)
        model = PPO(
            "MlpPolicy",
            make_vec_env("CartPole-v1", 1, seed=0),
            n_steps=STEPS,
            batch_size=STEPS // MINIBATCHES,
            n_epochs=EPOCHS,
            learning_rate=1e-2,
            ent_coef=0.01,
            normalize_advantage=False,
            vf_coef=0.5,
            max_grad_norm=1e9,
            policy_kwargs={"net_arch": {"pi": [16, 16], "vf": [16, 16]}},
            device="cpu",
            seed=0,
        )
        model.set_logger(Logger(folder=None, output_formats=[Writer()]))
        model.learn(2 * STEPS, callback=Recorder())
        self.first, self.second = written  # train/* of an iteration is written with the next


@pytest.fixture(scope="module")
def in_order():
    """Both take the samples of each epoch in the order in which they were collected."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(np.random, "permutation", np.arange)
        patch.setattr(torch, "randperm", lambda count, **_: torch.arange(count))
        yield


@pytest.fixture(scope="module")
def theirs(in_order) -> Theirs:
    return Theirs()


@pytest.fixture(scope="module")
def ours(theirs: Theirs) -> dict[str, float]:
    """Numbers of our learner and our episode metrics for the same data, in the terms of Stable-Baselines3."""
    learner = Learner(load_config(CONFIG).schedule, SpaceSpec(4, 1, 2))
    names = {"actor": "policy_net", "critic": "value_net"}
    heads = {"actor": "action_net", "critic": "value_net"}
    weights = {}
    for part in ("actor", "critic"):
        for kind in ("weight", "bias"):
            for layer in (0, 2):
                weights[f"{part}.{layer}.{kind}"] = theirs.weights[f"mlp_extractor.{names[part]}.{layer}.{kind}"]
            weights[f"{part}.4.{kind}"] = theirs.weights[f"{heads[part]}.{kind}"]
    learner._policy.load_weights({name: tensor.numpy() for name, tensor in weights.items()})
    ends = np.flatnonzero(theirs.ended)
    batch = TrajectoryBatch(
        observations=theirs.observations,
        actions=theirs.actions,
        log_probs=theirs.log_probs,
        rewards=theirs.rewards,
        terminated=theirs.ended,
        truncated=np.zeros_like(theirs.ended),
        valid=np.ones_like(theirs.ended),
        final_observations=np.zeros((len(ends), 4), dtype=np.float32),  # never looked at: nothing was truncated
        final_index=ends,
        policy_version=0,
    )
    _, learnt = learner.update(0, 1, batch)
    collected = MetricWindow()
    rows = [
        Episode(0, slot, None, 0, total, length, None, None, None, True, False, step=step)
        for step, slot, total, length in theirs.episodes
    ]
    m.ENV.observe(collected, rows)
    window = merged([collected, learnt])
    return Dialect("sb3").write(window.read(list(CATALOGUE.values())), window.states)


def test_the_rollout_has_what_the_comparison_needs(theirs):
    assert len(theirs.episodes) > 10
    assert theirs.rewards.shape == (STEPS, 1)
    limit = gymnasium.spec("CartPole-v1").max_episode_steps
    assert max(length for *_, length in theirs.episodes) < limit  # so that nothing was truncated


@pytest.mark.parametrize("key", COMPARED)
def test_a_key_has_the_value_that_stable_baselines3_writes(key, theirs, ours):
    expected = theirs.first[key] if key.startswith("rollout/") else theirs.second[key]
    assert ours[key] == pytest.approx(expected, rel=2e-4, abs=2e-6)


def test_every_key_that_stable_baselines3_writes_is_written(theirs, tmp_path):
    result = rlpipe.train(load_config(CONFIG, [f"runner.logger.log_path={tmp_path}"]), local=True)
    *_, last = read_jsonl(result.directory / "metrics.jsonl")
    assert theirs.second.keys() <= last["dialects"]["sb3"].keys()


def test_no_key_of_its_own_ppo_is_left_uncompared(theirs):
    by_the_clock = {"time/fps", "time/iterations", "time/time_elapsed", "time/total_timesteps"}
    assert theirs.second.keys() == set(COMPARED) | by_the_clock
    assert {use.name.key for use in uses("sb3")} >= theirs.second.keys()
