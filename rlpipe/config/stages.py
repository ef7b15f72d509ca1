"""The stages of a run."""

from __future__ import annotations

import dataclasses

from omegaconf import OmegaConf

from rlpipe.config.checks import check
from rlpipe.config.schema import Config, Stage
from rlpipe.config.selection import algorithm_class
from rlpipe.config.tree import build, flat, reason_of
from rlpipe.errors import ConfigError

_STAGE_KEYS = ("env.train.", "algorithm.", "learner.")


def stages(config: Config) -> list[Stage]:
    """The stages of a run in turn, each checked; a run without stages is one stage called ``training``.

    Raises:
        ConfigError: a stage is impossible.
    """
    algorithm = algorithm_class(config)
    total = -(-config.runner.total_timesteps // config.steps_per_iteration)
    if not algorithm.collects:
        total = config.algorithm.epochs
    if not config.stages:
        return [Stage("training", total, config)]
    found: list[Stage] = []
    begin = 0
    base = dataclasses.asdict(config)
    for index, stage in enumerate(config.stages):
        key = f"stages[{index}] ({stage.name})"
        if stage.timesteps is None and index < len(config.stages) - 1:
            raise ConfigError(f"{key}.timesteps is missing; only the last stage may leave it out.")
        if stage.timesteps is not None and stage.timesteps < 1:
            raise ConfigError(f"{key}.timesteps is {stage.timesteps}; it must be at least 1.")
        until = total if stage.timesteps is None else begin - (-stage.timesteps // config.steps_per_iteration)
        tree = OmegaConf.create(base)
        for name, value in flat(stage.overrides):
            if not name.startswith(_STAGE_KEYS) or name.endswith((".name", ".total_num_envs", ".id")):
                raise ConfigError(
                    f"{key}.overrides holds {name}; a stage may change keys under env.train, algorithm and learner, "
                    "but not the task, the plug-ins or the number of environments."
                )
            if name.startswith("algorithm.") and not algorithm.staged:
                raise ConfigError(
                    f"{key}.overrides holds {name}, but the options of algorithm.name={config.algorithm.name} stay the "
                    "same for a run."
                )
            try:
                OmegaConf.update(tree, name, value, force_add=True)
            except Exception as error:  # OmegaConf promises no base of what a key can be wrong in
                raise ConfigError(f"{key}.overrides holds {name}, which is no key: {reason_of(error)}") from error
        staged = build(tree)
        check(staged)
        for name in ("device", "num_learners", "num_threads", "adam_eps", "precision", "compile"):
            if getattr(staged.learner, name) != getattr(config.learner, name):
                raise ConfigError(f"{key}.overrides changes learner.{name}, which stays the same for a run.")
        found.append(Stage(stage.name, until, staged))
        begin = until
    if begin < total:
        raise ConfigError(
            f"the stages last {begin * config.steps_per_iteration} environment steps, but runner.total_timesteps is "
            f"{config.runner.total_timesteps}: leave timesteps out of the last stage, or lengthen one."
        )
    if len(found) > 1 and found[-2].until >= total:
        raise ConfigError(
            f"runner.total_timesteps is {config.runner.total_timesteps}, which ends before stage {found[-1].name} "
            f"begins, at {found[-2].until * config.steps_per_iteration} environment steps."
        )
    return [dataclasses.replace(stage, until=min(stage.until, total)) for stage in found]
