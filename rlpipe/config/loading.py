"""Loads a configuration: reads it, builds its typed sections, and checks everything before anything starts.

YAML holds only what differs from the defaults; ``key=value`` overrides it. Each plug-in brings its own section (its
``Config``), so ``env.train``, ``policy`` and ``algorithm`` have the fields of the plug-in that they name.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from rlpipe.config.checks import check
from rlpipe.config.plan import Plan
from rlpipe.config.sections import build
from rlpipe.config.tree import container, read_tree


def load_config(source: str | Path | Mapping[str, Any], overrides: Sequence[str] = ()) -> Plan:
    """Reads, completes and checks a configuration.

    Args:
        source: YAML file, or a mapping with the same contents.
        overrides: ``key=value`` with full dotted keys; values are read as YAML.
    Raises:
        ConfigError: the configuration is not usable. Nothing has been started or written.
    """
    plan = build(read_tree(source, overrides), Plan)
    check(plan)
    plan.schedule  # noqa: B018 - checks each stage
    return plan


def load_pretraining(source: str | Path, overrides: Sequence[str] = ()) -> Plan:
    """Loads the configuration of ``rlpipe pretrain``: task and policy of a training run, learnt by behaviour cloning.

    Stages, curriculum and the options of another algorithm are left out, because nothing is collected; ``algorithm.*``
    overrides are those of behaviour cloning.

    Raises:
        ConfigError: the configuration is not usable.
    """
    tree = read_tree(source, [])
    for collected in ("stages", "curriculum"):
        tree.pop(collected, None)
    if OmegaConf.select(tree, "algorithm.name") != "behaviour_cloning":
        tree.algorithm = {"name": "behaviour_cloning"}
        name = OmegaConf.select(tree, "runner.logger.experiment_name") or "experiment"
        OmegaConf.update(tree, "runner.logger.experiment_name", f"{name}_cloning", force_add=True)
    return load_config(container(tree), overrides)
