"""Checks that demonstrations fit a configuration."""

from __future__ import annotations

from rlpipe.config.schema import Config
from rlpipe.config.selection import algorithm_class
from rlpipe.config.stages import stages
from rlpipe.demonstrations import dataset
from rlpipe.errors import ConfigError


def check_demonstrations(config: Config) -> None:
    """Checks that demonstrations are given where they are learnt from and only there, fit the task, and do not show
    what evaluation asks. A policy that has been trained is evaluated without them.

    Raises:
        ConfigError: one of these is not so.
    """
    algorithm = algorithm_class(config)
    cloned = max(stage.config.algorithm.cloning_coef or 0.0 for stage in stages(config))
    if config.demos is None:
        if algorithm.needs_demonstrations or cloned:
            why = "algorithm.name is" if algorithm.needs_demonstrations else "algorithm.cloning_coef is"
            what = config.algorithm.name if algorithm.needs_demonstrations else cloned
            raise ConfigError(f"{why} {what}, which needs demonstrations: demos=FILE.h5")
        return
    if not (algorithm.needs_demonstrations or cloned):
        raise ConfigError(
            f"demos is {config.demos}, but algorithm.name={config.algorithm.name} learns nothing from it: leave it out"
            + (", or give algorithm.cloning_coef." if config.algorithm.cloning_coef is not None else ".")
        )
    dataset.check(config.demos, config.env.train)
    seeds = config.evaluation.seeds
    if shown := sorted(seed for seed in dataset.seeds(config.demos) if seed in seeds):
        raise ConfigError(
            f"evaluation uses seeds {seeds.start} to {seeds[-1]}, of which {config.demos} shows {len(shown)}, such as "
            f"{shown[0]}: choose another evaluation.first_seed."
        )
