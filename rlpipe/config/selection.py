"""Answers what a configuration selects: plug-ins, their metrics, workers."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from rlpipe.config.schema import AUTO, PLUGIN_KINDS, Config, PipelineKind
from rlpipe.errors import ConfigError, how_it_failed
from rlpipe.foreign import foreign_code
from rlpipe.metrics import CATALOGUE
from rlpipe.metrics.declaration import Metric
from rlpipe.plugins import resolve


def algorithm_class(config: Config) -> Any:
    """Returns the class that ``algorithm.name`` stands for."""
    return resolve("algorithms", config.algorithm.name, "algorithm.name")


def curriculum_class(config: Config) -> Any:
    """Returns the class that ``curriculum.name`` stands for."""
    return resolve("curricula", config.curriculum.name, "curriculum.name")


def simulator_class(section: Any, key: str) -> Any:
    """Returns the simulator class of a section: the plug-in, or its wrapper for several tasks or another Python.

    Args:
        section: a ``SimulatorConfig``.
        key: key of the section, for the error.
    """
    named = resolve("envs", section.name, f"{key}.name")
    if section.tasks:
        return resolve("envs", "rlpipe.envs.shared.tasks:SeveralTasks", key)
    return (
        named
        if section.python is None
        else resolve("envs", "rlpipe.envs.shared.child_process.simulator:ProcessSimulator", key)
    )


def simulator_name(section: Any) -> str:
    """Returns what to call a simulator in a sentence, such as ``the simulator CartPole-v1``."""
    return f"the simulator {section.task_name}"


@contextmanager
def asking_simulator(section: Any, key: str) -> Iterator[None]:
    """Calls class methods of a simulator before anything starts. What they raise is an error of the configuration.

    Args:
        section: a ``SimulatorConfig``.
        key: key of the section, for the error.
    """
    try:
        with foreign_code(simulator_name(section)):
            yield
    except ConfigError:
        raise
    except BaseException as error:
        raise ConfigError(
            f"{key} cannot be checked before the start: {simulator_name(section)} {how_it_failed(error)}."
        ) from error


def task_facts(section: Any, key: str) -> Any:
    """Checks, without starting anything, that a simulator can be made, and returns its ``TaskFacts``.

    Args:
        section: a ``SimulatorConfig``.
        key: key of the section, for errors.
    Raises:
        ConfigError: it cannot be made.
    """
    with asking_simulator(section, key):
        return simulator_class(section, key).describe(section, key)


def pipeline_kind(config: Config) -> PipelineKind:
    """Returns the pipeline of a run: ``runner.pipeline``, or for ``auto`` the algorithm's own."""
    wanted = config.runner.pipeline
    return PipelineKind(algorithm_class(config).pipeline if wanted == AUTO else wanted)


def declared_metrics(config: Config) -> dict[str, Metric]:
    """Returns every metric that a run may write, by name: the catalogue, and the declarations of its plug-ins.

    Raises:
        ConfigError: two declarations share a name.
    """
    declared = dict(CATALOGUE)
    sections = {
        "env.train": config.env.train,
        "env.eval": config.env.eval,
        "policy": config.policy,
        "algorithm": config.algorithm,
        "curriculum": config.curriculum,
    }
    classes = {resolve(PLUGIN_KINDS[key], section.name, f"{key}.name") for key, section in sections.items()}
    for plugin in sorted(classes, key=lambda found: str(found.__qualname__)):
        for metric in getattr(plugin, "metrics", ()):  # a policy need not have any
            if declared.setdefault(metric.name, metric) is not metric or any(
                family.pattern.fullmatch(metric.name) for family in CATALOGUE.values() if family.is_family
            ):
                raise ConfigError(
                    f"{plugin.__module__}.{plugin.__qualname__} declares the metric {metric.name}, which exists "
                    "already: give it another name."
                )
    return declared


def best_metrics(config: Config) -> list[Metric]:
    """Returns the metrics that rank evaluations, where the first that an evaluation has decides; none if the best
    checkpoint is not kept."""
    if not config.runner.keep_best:
        return []
    wanted = config.runner.best_metric
    names = ("eval/success_once", "eval/return") if wanted is None else (wanted,)
    return [declared_metrics(config)[name] for name in names]


def success_key(section: Any) -> str:
    """Returns the entry of the info that tells success in a section of a simulator; ``success`` where it has none."""
    return str(getattr(section, "success_key", None) or "success")


def number_of_workers(config: Config, room: int) -> int:
    """Returns the number of rollout workers; ``auto`` is the most that share the environments evenly.

    Args:
        config: configuration of the run.
        room: workers that there are CPUs for.
    """
    wanted = config.rollout.num_workers
    if isinstance(wanted, int):
        return wanted
    environments = config.env.train.total_num_envs
    shared = environments // (config.algorithm.group_size or 1)  # a group stays together
    return max(count for count in range(1, shared + 1) if shared % count == 0 and count <= max(1, room))


def without_learner(config: Config) -> Config:
    """Returns the configuration for an engine that only evaluates, and reserves nothing for a learner."""
    cluster = dataclasses.replace(config.cluster, cpus_per_learner=0.0, gpus_per_learner=0.0, learner_nodes={})
    return dataclasses.replace(config, cluster=cluster)
