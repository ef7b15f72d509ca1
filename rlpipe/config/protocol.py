"""What makes two success rates comparable."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from rlpipe.config.schema import Config


def protocol(config: Config) -> dict[str, Any]:
    """What makes two success rates comparable: the simulators with all their options, seeds, episodes, actions."""
    return {
        "train_env": dataclasses.asdict(config.env.train),
        "eval_env": dataclasses.asdict(config.env.eval),
        "auto_reset": "same step, true successor kept",
        "horizon": config.rollout.horizon,
        "seed": config.runner.seed,
        "training_seeds": "from 2^30",
        "evaluation_first_seed": config.evaluation.first_seed,
        "evaluation_episodes": config.evaluation.episodes,
        "deterministic_actions": config.evaluation.deterministic,
        "stages": [dataclasses.asdict(stage) for stage in config.stages],
        "demonstrations": config.demos,
    }


def comparable(protocol: Mapping[str, Any]) -> dict[str, Any]:
    """The part of a protocol that must be equal for two success rates to be compared, by configuration key.

    How a policy was trained may differ: that is what one compares. So may the number of slots and of workers, on which
    no episode of an evaluation depends.
    """
    played = {f"env.eval.{key}": value for key, value in protocol["eval_env"].items() if key != "total_num_envs"}
    return played | {
        "evaluation.episodes": protocol["evaluation_episodes"],
        "evaluation.first_seed": protocol["evaluation_first_seed"],
        "evaluation.deterministic": protocol["deterministic_actions"],
    }
