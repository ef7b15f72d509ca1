"""Records what makes two success rates comparable."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import MISSING
from typing import Any

from rlpipe.config.schema import Config
from rlpipe.config.tree import tasks_without
from rlpipe.errors import ConfigError
from rlpipe.plugins import resolve

BASELINE_NAMES = ("random", "zero", "replay")
"""Policies that have learnt nothing, by the names of ``--policy``."""
_OF_SEVERAL_TASKS = ("tasks", "observe_task", "pad_observations")
"""Options that say nothing where there is one task, and that older runs do not have."""


def protocol(config: Config) -> dict[str, Any]:
    """Returns the protocol that ``run.json`` records.

    It holds the simulators with all their options, seeds, episodes and actions, whether an episode depends on nothing
    that ran before it (``TaskFacts.independent``), and whether the number of gradient steps follows from the
    configuration or from the time that they take.
    """
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
        "num_demos": config.num_demos,
        "curriculum": dataclasses.asdict(config.curriculum),
        "independent_episodes": config.eval_facts.independent,
        "gradient_steps": "fixed" if config.algorithm.fixes_gradient_steps else "as many as fit",
    }


WHERE_IT_RUNS = ("total_num_envs", "python", "start_timeout", "answer_timeout")
"""Options of a simulator on which no episode depends; but ``total_num_envs`` where they are not independent
(``TaskFacts``)."""


def comparable(protocol: Mapping[str, Any]) -> dict[str, Any]:
    """Returns what must be equal in two protocols for their success rates to be compared, by configuration key.

    Training may differ, because it is what one compares. So may the number of slots and of workers, and the process
    that runs the simulator: no episode of an evaluation depends on them. What a policy observes of variations is its
    own method. An option that an earlier version did not have
    yet has its default, as it had.
    """
    options = option_defaults(protocol["eval_env"]["name"]) | protocol["eval_env"]
    without = {*WHERE_IT_RUNS, "observe_variations", *(() if options.get("tasks") else _OF_SEVERAL_TASKS)}
    simulator = {f"env.eval.{key}": value for key, value in options.items() if key not in without}
    if tasks := options.get("tasks"):
        simulator["env.eval.tasks"] = tasks_without(tasks, {*WHERE_IT_RUNS, "share"})
    return simulator | {
        "evaluation.episodes": protocol["evaluation_episodes"],
        "evaluation.first_seed": protocol["evaluation_first_seed"],
        "evaluation.deterministic": protocol["deterministic_actions"],
    }


def option_defaults(simulator: str) -> dict[str, Any]:
    """Returns the defaults of a simulator's options as JSON has them; none of one that is not installed here."""
    try:
        fields = dataclasses.fields(resolve("envs", simulator, "env.eval.name").Config)
    except (ConfigError, ImportError):
        return {}
    values = {field.name: field.default for field in fields if field.default is not MISSING}
    values |= {field.name: field.default_factory() for field in fields if field.default_factory is not MISSING}
    defaults: dict[str, Any] = json.loads(json.dumps(values))
    return defaults
