"""The configuration: a tree of frozen dataclasses, and the one function that makes it.

YAML holds only what differs from the defaults; ``key=value`` overrides it. Each plug-in brings its own part of the tree
(its ``Config``), so ``env.train``, ``policy`` and ``algorithm`` have the fields of whatever they name. Everything is
checked here, before anything starts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from rlpipe.config.checks import check
from rlpipe.config.schema import Config
from rlpipe.config.stages import stages
from rlpipe.config.tree import build, from_yaml, read_tree


def load_config(source: str | Path | Mapping[str, Any], overrides: Sequence[str] = ()) -> Config:
    """Reads, completes and checks a configuration.

    Args:
        source: YAML file, or the same as a mapping.
        overrides: ``key=value`` with full dotted keys; values are read as YAML.
    Raises:
        ConfigError: anything at all is wrong with it. Nothing has been started or written.
    """
    tree = read_tree(source, overrides)
    config = build(tree)
    check(config)
    stages(config)
    return config


def load_pretraining(source: str | Path, overrides: Sequence[str] = ()) -> Config:
    """The configuration of ``rlpipe pretrain``: the task and the policy of a training run, learnt by cloning.

    Options of the run's own algorithm are left out; ``algorithm.*`` overrides are those of behaviour cloning.

    Raises:
        ConfigError: it is unusable.
    """
    tree = read_tree(source, [])
    tree.algorithm = {"name": "behaviour_cloning"}
    tree.pop("stages", None)
    name = OmegaConf.select(tree, "runner.logger.experiment_name") or "experiment"
    OmegaConf.update(tree, "runner.logger.experiment_name", f"{name}_cloning", force_add=True)
    return load_config(from_yaml(OmegaConf.to_yaml(tree)), overrides)
