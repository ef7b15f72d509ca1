"""Weights that a new run begins with: those of another policy, or of a base that its policy holds.

The driver alone reads the run or checkpoint that has them. A resume or an evaluation finds everything in its own run.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from rlpipe.config.checks import check
from rlpipe.config.plan import Plan
from rlpipe.config.schema import Config
from rlpipe.config.tree import from_yaml
from rlpipe.errors import ConfigError
from rlpipe.policies.base import Weights, as_base
from rlpipe.run.checkpoint import Checkpoint, find_checkpoint, subtree

_WARM_START, _BASE = "policy.warm_start", "policy.base"


def with_base_policy(config: Plan) -> Plan:
    """Returns a configuration that also says what the base of its policy is, if that holds one; checked.

    Raises:
        ConfigError: there is no such base, or it does not suit the policy.
    """
    if not config.policy.holds_base or config.policy.base_policy:
        return config
    completed_config = replace(config, policy=replace(config.policy, base_policy=_base_policy(*_origin(config))))
    check(completed_config)
    return completed_config


def first_weights(config: Config) -> Weights | None:
    """Returns the weights that a new run begins with, as far as they do not follow from its seed; None for none.

    Those of a policy have its names; what the algorithm continues begins with ``algorithm/``, as in a checkpoint.

    Raises:
        ConfigError: there are none where the configuration says, or those of another base than it says.
    """
    key, state = _origin(config)
    if state is None:
        return None
    if config.policy.holds_base and config.policy.base_policy != _base_policy(key, state):
        raise ConfigError(
            f"policy.base_policy describes another policy than that of {key}, {state.path}: leave policy.base_policy "
            "out, and it is read from there."
        )
    weights = subtree("policy/", state.arrays)
    if key == _BASE:
        return as_base(weights)
    continued = tuple(f"algorithm/{name}" for name in config.algorithm_class.continued)
    of_algorithm = {name: array for name, array in state.arrays.items() if name.startswith(continued)}
    return {**config.policy.continuing(weights), **of_algorithm}


def _origin(config: Config) -> tuple[str, Checkpoint | None]:
    """Returns the key that names another policy, and the checkpoint that it names; None if it names none."""
    policy = config.policy
    key, path = (_WARM_START, policy.warm_start) if policy.base is None else (_BASE, policy.base)
    if path is None:
        return key, None
    try:
        return key, find_checkpoint(Path(path))[0]
    except ConfigError as error:
        raise ConfigError(f"{key} is {path}: {error}") from error


def _base_policy(key: str, state: Checkpoint | None) -> dict[str, Any]:
    """Returns the options of the base in a checkpoint, without where its own weights once came from."""
    assert state is not None  # or the policy's own check would have refused the configuration
    section = from_yaml(state.meta["config"]).get("policy")
    if key == _WARM_START:
        section = section.get("base_policy") if isinstance(section, Mapping) else None
    if not isinstance(section, Mapping) or not section:
        raise ConfigError(
            f"{key} names {state.path}, whose policy holds no base: to correct that policy itself, give policy.base "
            "instead."
        )
    return {name: value for name, value in section.items() if name not in ("warm_start", "base")}
