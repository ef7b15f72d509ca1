"""Checks that an engine can run a configuration."""

from __future__ import annotations

from typing import Any

import torch

from rlpipe.collection.evaluator import check_same_spaces
from rlpipe.config.schema import AUTO, Config
from rlpipe.config.simulators import asking_simulator
from rlpipe.errors import ConfigError
from rlpipe.learning.base import check_device
from rlpipe.policies.base import build_policy
from rlpipe.run.opengl import check_drawing
from rlpipe.training.engine import Engine
from rlpipe.trajectory import SpaceSpec


def check_engine(config: Config, engine: Engine) -> None:
    """Checks that the engine can run what is configured.

    Raises:
        ConfigError: it cannot.
    """
    if not engine.side_by_side:
        _check_alone(config)
    for index, (name, backend) in enumerate(config.backend_classes.items()):
        if backend.place not in engine.places:
            key = f"runner.logger.logger_backends[{index}]"
            raise ConfigError(f"{key} is {name!r}, which works only on Ray: run without --local, or leave it out.")


def check_machine(config: Config) -> None:
    """Checks that this machine, on which everything will run, has the devices that the simulators need.

    Raises:
        ConfigError: it has not.
    """
    for key, section, facts in _simulators(config):
        with asking_simulator(section, key):
            facts.check_machine()
    if config.evaluation.videos:
        check_drawing(f"evaluation.videos={config.evaluation.videos}")


def _simulators(config: Config) -> list[tuple[str, Any, Any]]:
    """Returns key, section and ``TaskFacts`` of the simulators of a run."""
    return [("env.train", config.env.train, config.train_facts), ("env.eval", config.env.eval, config.eval_facts)]


def check_spaces(config: Config) -> SpaceSpec | None:
    """Checks that policy and algorithm suit the spaces of the simulators that are known before anything starts.

    Returns:
        The spaces of the simulator to train in; None if they are not known.
    Raises:
        ConfigError: they do not, or an evaluation has others than the training.
    """
    specs: dict[str, SpaceSpec] = {}
    train, evaluated = config.env.train, config.env.eval
    some_tasks = len(evaluated.tasks) < len(train.tasks)  # of which the policy tells apart as many as env.train has
    for key, section, facts in _simulators(config)[: 1 if some_tasks else 2]:
        with asking_simulator(section, key):
            spec = facts.find_spaces()
        if spec is not None:
            config.algorithm.check_spaces(spec)
            if key == "env.train":
                config.algorithm.check_task(section)
            with torch.device("meta"):  # shapes without numbers
                build_policy(config, spec)
            specs[key] = spec
    if len(specs) == 2:
        check_same_spaces("env.eval", specs["env.eval"], specs["env.train"])
    return specs.get("env.train")


def _check_alone(config: Config) -> None:
    """Checks that a single process can run what is configured, before any simulator loads."""
    config.algorithm.check_one_process()
    if config.learner.num_learners not in (1, AUTO):
        raise ConfigError(
            f"learner.num_learners is {config.learner.num_learners}, but with --local there is one process: leave out "
            "--local, or set learner.num_learners=1."
        )
    if config.rollout.inference == "server":
        raise ConfigError(
            "rollout.inference is server, which answers many workers at once, but with --local one acts at a time: set "
            "rollout.inference=local, which gives the same actions, or run without --local."
        )
    check_device(config.learner.device)
