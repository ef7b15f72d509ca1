"""Runs on every kind of observation, action and decision, and in combination."""

from __future__ import annotations

import functools
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import rlpipe
from rlpipe.config.schema import Config
from tests.helpers.runs import sac, scripted

CHUNK = 3
"""Actions of a decision. Episodes have 8 steps, so each last decision is cut short."""
SHORT = ("runner.total_timesteps=128",)
"""Four iterations of single actions; in chunks, one takes three times as many steps."""
ENCODERS = {"camera/rgb": {"name": "drq_cnn", "channels": 4, "width": 8}}
PERCEPTRON = {"name": "mlp", "hidden_sizes": [8]}
TOKENS = {"name": "tokens", "hidden_sizes": [8], "bins": 4, "slot_width": 4, "chunk_size": CHUNK}
PPO = {"name": "ppo", "update_epochs": 2, "num_minibatches": 2}
GRPO = {**PPO, "name": "grpo", "group_size": 2}
GRU = {"name": "gru", "memory_size": 6, "hidden_sizes": [8], "encoders": ENCODERS}
BY_TOKEN = {"logprob_level": "token", "entropy_level": "token", "entropy_coef": 0.01}


class Kind(NamedTuple):
    """A task, and what differs from the usual run.

    ``alike`` is the number of iterations that do not depend on the number of workers; None for all. A replay buffer
    holds the fragments of one worker after those of the other, so what SAC draws depends on it, and with it all that
    the third iteration acts with.
    """

    task: str
    algorithm: dict[str, Any] | None = None
    policy: dict[str, Any] | None = None
    make: Callable[..., Config] = scripted
    overrides: tuple[str, ...] = ()
    alike: int | None = None

    def config(self, folder: Path, *overrides: str) -> Config:
        """Configuration of a run on four environments that takes a second."""
        train = {"name": "gymnasium", "id": f"tests.helpers.gym_trees:{self.task}-v0", "total_num_envs": 4}
        tree = {"env": {"train": {**train, "success_key": "is_success"}}}
        tree |= {key: value for key in ("algorithm", "policy") if (value := getattr(self, key)) is not None}
        return self.make(folder, "rollout.horizon=8", "runner.total_timesteps=256", *self.overrides, *overrides, **tree)


def correcting(folder: Path, *overrides: str, **tree: Any) -> Config:
    """Soft actor-critic that corrects a policy of PPO, which learns for an iteration, once for all runs."""
    _, base = corrected(tree["env"]["train"]["id"])
    policy = {"name": "residual", "hidden_sizes": [8], "chunk_size": CHUNK, "progressive_exploration": 200}
    return sac(folder, f"policy.base={base}", *overrides, **tree, policy=policy)


@functools.cache
def corrected(task: str) -> tuple[tempfile.TemporaryDirectory[str], Path]:
    """A run of that policy, in a folder that ends with the process."""
    kept = tempfile.TemporaryDirectory()
    train = {"name": "gymnasium", "id": task, "total_num_envs": 4, "success_key": "is_success"}
    tree = {"env": {"train": train}, "algorithm": PPO, "policy": {**PERCEPTRON, "chunk_size": CHUNK}}
    config = scripted(kept.name, "rollout.horizon=8", "runner.total_timesteps=96", "evaluation.episodes=1", **tree)
    return kept, rlpipe.train(config, local=True).directory


KINDS = {
    "tree, ppo": Kind(
        "Signs", PPO, {**PERCEPTRON, "encoders": ENCODERS, "normalize_observations": True}, overrides=SHORT
    ),
    "tree, several parts, chunks, ppo": Kind("Parts", PPO, {**PERCEPTRON, "encoders": ENCODERS, "chunk_size": CHUNK}),
    "tree, chunks, grpo": Kind("Signs", GRPO, {**PERCEPTRON, "encoders": ENCODERS, "chunk_size": CHUNK}),
    "tree, chunks, sac": Kind(
        "Reach", make=sac, overrides=(f"policy.chunk_size={CHUNK}", "runner.total_timesteps=384"), alike=2
    ),
    "tree, residual, chunks, sac": Kind("Reach", make=correcting, overrides=("runner.total_timesteps=384",), alike=2),
    "tree, levels observed, ppo": Kind(
        "Reach",
        PPO,
        PERCEPTRON,
        overrides=(
            "env.train.variations={action_latency: {choice: [0, 1, 2]}, action_noise: 0.1, observation_dropout: 0.2}",
            "env.train.observe_variations=true",
            *SHORT,
        ),
    ),
    "goals in hindsight, sac": Kind("Place", make=sac, overrides=("algorithm.hindsight=0.8", *SHORT), alike=2),
    "tree, gru, shared encoder, ppo": Kind("Signs", PPO, {**GRU, "shared_encoder": True}, overrides=SHORT),
    "tree, gru, chunks, reward of each action, ppo": Kind(
        "Signs", {**PPO, "logprob_level": "action", "reward_level": "action"}, {**GRU, "chunk_size": CHUNK}
    ),
    "tree, autoregressive tokens, ppo": Kind(
        "Signs", {**PPO, **BY_TOKEN}, {**TOKENS, "encoders": ENCODERS, "decoding": "autoregressive"}
    ),
    "tree, tokens, grpo": Kind("Reach", {**GRPO, **BY_TOKEN}, TOKENS),
}
