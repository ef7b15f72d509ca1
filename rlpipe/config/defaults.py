"""Defaults of every key of a configuration, for the plug-ins that it names."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import MISSING
from functools import cache
from typing import Any

from omegaconf import OmegaConf

from rlpipe.config.schema import DEFAULT_NAMES, PLUGIN_KINDS, Config
from rlpipe.config.sections import build, evaluation_defaults
from rlpipe.config.tree import container, leaves
from rlpipe.errors import ConfigError
from rlpipe.plugins import resolve

REQUIRED = "required"
"""In place of the default of a key that has none."""


def changed(tree: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    """Returns the dotted keys of a complete configuration whose value is not their default, with it: (value, default).

    Raises:
        ConfigError: a plug-in is unknown here, or a section names none.
        ImportError: a plug-in lacks a package.
    """
    defaults = _defaults(tree)
    return {
        key: (value, defaults.get(key, REQUIRED))
        for key, value in leaves(tree)
        if key not in defaults or defaults[key] != value
    }


def completed(tree: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the values of all dotted keys; one that an earlier version did not have yet has its default, as it had.

    Where the defaults are unknown, because a plug-in is not installed here or not named, only keys of the tree are
    in it."""
    try:
        defaults = _defaults(tree)
    except (ConfigError, ImportError):
        defaults = {}
    return defaults | dict(leaves(tree))


def _defaults(tree: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the defaults of all keys for the plug-ins in a tree; ``env.eval`` has the values of ``env.train``."""
    bare: dict[str, Any] = {}
    without_default = {"env.train.name"}
    for key, kind in PLUGIN_KINDS.items():
        section = _at(tree, key)
        if key == "env.eval" or not section:
            continue
        needed = _without_default(resolve(kind, _name_of(section, key), f"{key}.name").Config)
        options = {name: section[name] for name in ("name", *needed)}
        bare |= {"env": {"train": options}} if key == "env.train" else {key: options}
        without_default |= {f"{key}.{name}" for name in needed}
    defaults = {key: value for key, value in _completed(bare).items() if key not in without_default}
    defaults |= {f"{section}.name": name for section, name in DEFAULT_NAMES.items()}
    simulator = _at(tree, "env.eval").get("name") or _name_of(_at(tree, "env.train"), "env.train")
    usual = resolve("envs", simulator, "env.eval.name").evaluation_options
    evaluated = evaluation_defaults(_at(tree, "env.train"), usual)
    return defaults | {f"env.eval.{key}": value for key, value in leaves(evaluated)}


def _name_of(section: Mapping[str, Any], key: str) -> str:
    """Returns the plug-in that a section names; one in a damaged file may name none."""
    if "name" not in section:
        raise ConfigError(f"{key}.name is missing")
    return str(section["name"])


def _without_default(schema: type[Any]) -> list[str]:
    """Lists the options that a configuration must give."""
    fields = dataclasses.fields(schema)
    return [
        field.name for field in fields
        if field.name != "name" and field.default is MISSING and field.default_factory is MISSING
    ]  # fmt: skip


def _completed(tree: Mapping[str, Any]) -> dict[str, Any]:
    """Completes a tree with defaults and returns its leaves, with lists in place of tuples, as in the file."""
    return _completed_json(json.dumps(tree, sort_keys=True))


@cache  # a comparison asks for the same defaults with every run
def _completed_json(tree: str) -> dict[str, Any]:
    complete = OmegaConf.create(dataclasses.asdict(build(OmegaConf.create(json.loads(tree)), Config)))
    return dict(leaves(container(complete)))


def _at(tree: Mapping[str, Any], key: str) -> dict[str, Any]:
    section: Any = tree
    for name in key.split("."):
        section = (section or {}).get(name)
    return section or {}
