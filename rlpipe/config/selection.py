"""Answers what a configuration selects: metrics of its plug-ins, the pipeline, workers."""

from __future__ import annotations

from typing import Any

from rlpipe.config.schema import AUTO, Config, PipelineKind
from rlpipe.errors import ConfigError
from rlpipe.metrics import CATALOGUE
from rlpipe.metrics.declaration import Metric
from rlpipe.plugins import resolve


def pipeline_kind(config: Config) -> PipelineKind:
    """Returns the pipeline of a run: ``runner.pipeline``, or for ``auto`` the algorithm's own."""
    pipeline = config.runner.pipeline
    return PipelineKind(config.algorithm_class.pipeline if pipeline == AUTO else pipeline)


def declared_metrics(config: Config) -> dict[str, Metric]:
    """Returns every metric that a run may write, by name: the catalogue, and the declarations of its plug-ins.

    Raises:
        ConfigError: two declarations share a name.
    """
    declared = dict(CATALOGUE)
    simulators = {resolve("envs", section.name, "env.train.name") for section in (config.env.train, config.env.eval)}
    classes = {*simulators, config.policy_class, config.algorithm_class, config.curriculum_class}
    for plugin in sorted(classes, key=lambda class_: str(class_.__qualname__)):
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
    best = config.runner.best_metric
    names = ("eval/success_once", "eval/return") if best is None else (best,)
    return [declared_metrics(config)[name] for name in names]


def success_key(section: Any) -> str:
    """Returns the entry of the info that tells success in a section of a simulator; ``success`` where it has none."""
    return str(getattr(section, "success_key", None) or "success")


def number_of_workers(config: Config, room: int) -> int:
    """Returns the number of rollout workers; ``auto`` is the most that share the environments evenly, of those that
    there is room (CPUs) for."""
    workers = config.rollout.num_workers
    if isinstance(workers, int):
        return workers
    environments = config.env.train.total_num_envs
    shared = environments // (config.algorithm.group_size or 1)  # a group stays together
    return max(count for count in range(1, shared + 1) if shared % count == 0 and count <= max(1, room))
