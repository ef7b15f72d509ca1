"""Plan of a run: its configuration, and the stages that follow from it."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from omegaconf import OmegaConf

from rlpipe.config.checks import check
from rlpipe.config.fields import options
from rlpipe.config.schema import Config, Stage, StageConfig
from rlpipe.config.sections import build
from rlpipe.config.tree import flat, is_replaced, reason_of
from rlpipe.errors import ConfigError

_STAGED = ("env.train.", "algorithm.", "learner.")
"""Beginnings of the keys that a stage may change."""
_REBUILT = tuple(key.partition(".")[0] for key in _STAGED)
_FIXED = (".name", ".id", ".total_num_envs")
"""Ends of keys that no stage may change, whatever plug-in they belong to: the task, and the work of each worker."""


@dataclass(frozen=True)
class Plan(Config):
    """Everything that a run needs to know before it starts: its configuration, the plug-ins that this names, and its
    stages. ``load_config`` makes it and has checked all of it."""

    @cached_property
    def schedule(self) -> list[Stage]:
        """Stages of the run in turn, each checked; a run without stages is one stage called ``training``.

        Raises:
            ConfigError: a stage is impossible.
        """
        total = -(-self.runner.total_timesteps // self.steps_per_iteration)
        if not self.algorithm_class.collects:
            total = self.algorithm.epochs
        if not self.stages:
            return [Stage("training", total, self)]
        planned: list[Stage] = []
        begin = 0
        for index, stage in enumerate(self.stages):
            key = f"stages[{index}] ({stage.name})"
            if stage.timesteps is None and index < len(self.stages) - 1:
                raise ConfigError(f"{key}.timesteps is missing; only the last stage may leave it out.")
            begin = total if stage.timesteps is None else begin - (-stage.timesteps // self.steps_per_iteration)
            planned.append(Stage(stage.name, begin, _staged(self, stage, key)))
        _check_length(planned, total, self)
        return [dataclasses.replace(stage, until=min(stage.until, total)) for stage in planned]

    def without_learner(self) -> Plan:
        """Returns the plan of an engine that only evaluates, and reserves nothing for a learner."""
        cluster = dataclasses.replace(self.cluster, cpus_per_learner=0.0, gpus_per_learner=0.0, learner_nodes={})
        return dataclasses.replace(self, cluster=cluster)

    def __getstate__(self) -> dict[str, Any]:
        return super().__getstate__() | {"schedule": self.schedule}


def _staged(config: Config, stage: StageConfig, key: str) -> Config:
    """Returns the configuration of the run with the overrides of a stage. ``key`` is that of the stage, for errors."""
    tree = OmegaConf.create({name: dataclasses.asdict(getattr(config, name)) for name in _REBUILT})
    for name, value in flat(stage.overrides):
        _check_override(config, name, key)
        try:
            OmegaConf.update(tree, name, value, force_add=True, merge=not is_replaced(name))
        except Exception as error:  # OmegaConf promises no base of what a key can be wrong in
            raise ConfigError(f"{key}.overrides holds {name}, which is no key: {reason_of(error)}") from error
    built = build(tree, Config)
    names = [field.name for field in dataclasses.fields(Config)]
    staged = Config(**{name: getattr(built if name in _REBUILT else config, name) for name in names})
    check(staged)
    _check_fixed("env.train", staged.env.train, config.env.train, key)
    if config.curriculum_class.chooses_levels and staged.env.train.variations != config.env.train.variations:
        raise ConfigError(
            f"{key}.overrides changes env.train.variations, whose ranges curriculum.name={config.curriculum.name} "
            "widens in the course of the run: leave one of them out."
        )
    _check_fixed("algorithm", staged.algorithm, config.algorithm, key)
    _check_fixed("learner", staged.learner, config.learner, key)
    return staged


def _check_override(config: Config, name: str, key: str) -> None:
    """Checks that a stage may change a key at all."""
    if not name.startswith(_STAGED) or name.endswith(_FIXED):
        raise ConfigError(
            f"{key}.overrides holds {name}; a stage may change keys under env.train, algorithm and learner, "
            "but not the task, the plug-ins or the number of environments."
        )
    if name.startswith("algorithm.") and not config.algorithm_class.staged:
        raise ConfigError(
            f"{key}.overrides holds {name}, but the options of algorithm.name={config.algorithm.name} stay the "
            "same for a run."
        )


def _check_fixed(section: str, staged: Any, whole: Any, key: str) -> None:
    """Checks that a stage leaves the options of a section alone that stay the same for a run."""
    schema: Any = type(whole)
    for name, declared in options(schema).items():
        if declared.fixed and getattr(staged, name) != getattr(whole, name):
            raise ConfigError(f"{key}.overrides changes {section}.{name}, which stays the same for a run.")


def _check_length(planned: list[Stage], total: int, config: Config) -> None:
    """Checks that the stages fill the run, and that the last one begins before its end.

    ``planned`` holds the iterations after which they would end, ``total`` is the number of iterations of the run."""
    if planned[-1].until < total:
        raise ConfigError(
            f"the stages last {planned[-1].until * config.steps_per_iteration} environment steps, but "
            f"runner.total_timesteps is {config.runner.total_timesteps}: leave timesteps out of the last stage, or "
            "lengthen one."
        )
    if len(planned) > 1 and planned[-2].until >= total:
        raise ConfigError(
            f"runner.total_timesteps is {config.runner.total_timesteps}, which ends before stage {planned[-1].name} "
            f"begins, at {planned[-2].until * config.steps_per_iteration} environment steps."
        )
