"""Policies that have learnt for a moment, to act with."""

from __future__ import annotations

import rlpipe


def trained(tmp_path, task: str, policy: dict, *overrides: str):
    """A run of two short iterations."""
    config = {
        "env": {"train": {"name": "gymnasium", "id": task, "total_num_envs": 2, "max_episode_steps": 30}},
        "policy": {"hidden_sizes": [8], **policy},
        "algorithm": {"name": "ppo", "update_epochs": 1, "num_minibatches": 1},
        "learner": {"num_threads": 1},
        "rollout": {"horizon": 8},
        "evaluation": {"episodes": 3},
        "runner": {
            "total_timesteps": 32, "report": False,
            "logger": {"log_path": str(tmp_path), "experiment_name": "short", "logger_backends": []},
        },
    }  # fmt: skip
    return rlpipe.train(rlpipe.load_config(config, overrides), local=True)
