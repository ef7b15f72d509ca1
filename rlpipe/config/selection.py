"""The plug-ins that a configuration selects, and the metrics they declare."""

from __future__ import annotations

import dataclasses
from typing import Any

from rlpipe.config.schema import PLUGIN_KINDS, Config
from rlpipe.errors import ConfigError
from rlpipe.metrics import CATALOGUE
from rlpipe.metrics.declaration import Metric
from rlpipe.plugins import resolve


def number_of_workers(config: Config, room: int) -> int:
    """``rollout.num_workers``; ``auto`` is the most that there is room for and that share the environments evenly."""
    wanted = config.rollout.num_workers
    if isinstance(wanted, int):
        return wanted
    environments = config.env.train.total_num_envs
    shared = environments // (config.algorithm.group_size or 1)  # a group stays together
    return max(count for count in range(1, shared + 1) if shared % count == 0 and count <= max(1, room))


def without_learner(config: Config) -> Config:
    """The same for an engine that only evaluates: it needs no place for a learner."""
    cluster = dataclasses.replace(config.cluster, cpus_per_learner=0.0, gpus_per_learner=0.0, learner_nodes={})
    return dataclasses.replace(config, cluster=cluster)


def algorithm_class(config: Config) -> Any:
    """The class that the algorithm's name stands for."""
    return resolve("algorithms", config.algorithm.name, "algorithm.name")


def declared_metrics(config: Config) -> dict[str, Metric]:
    """Every metric a run may write, by name: the catalogue, and what the plug-ins of the configuration declare.

    Raises:
        ConfigError: two declarations share a name.
    """
    declared = dict(CATALOGUE)
    classes = {resolve(kind, value_at(config, key).name, f"{key}.name") for key, kind in PLUGIN_KINDS.items()}
    for plugin in sorted(classes, key=lambda found: str(found.__qualname__)):
        for metric in getattr(plugin, "metrics", ()):  # simulators and algorithms may have some
            if declared.setdefault(metric.name, metric) is not metric or any(
                family.pattern.fullmatch(metric.name) for family in CATALOGUE.values() if family.is_family
            ):
                raise ConfigError(
                    f"{plugin.__module__}.{plugin.__qualname__} declares the metric {metric.name}, which exists "
                    "already: give it another name."
                )
    return declared


def value_at(config: Config, key: str) -> Any:
    """What a key holds; None where a plug-in has no such option."""
    found: Any = config
    for name in key.split("."):
        found = getattr(found, name, None)
    return found


def best_metrics(config: Config) -> list[Metric]:
    """Metrics by which evaluations are ranked; the first that an evaluation has decides. None of them where the best
    checkpoint is not kept."""
    if not config.runner.keep_best:
        return []
    wanted = config.runner.best_metric
    names = ("eval/success_once", "eval/return") if wanted is None else (wanted,)
    return [declared_metrics(config)[name] for name in names]
