"""Reads configuration trees: YAML, overrides, typed sections."""

from __future__ import annotations

import dataclasses
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, get_args, get_origin, get_type_hints

import yaml
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import ConfigKeyError, OmegaConfBaseException, ValidationError

from rlpipe import files
from rlpipe.config import shipped
from rlpipe.config.schema import (
    PLUGIN_KINDS,
    ClusterConfig,
    Config,
    EnvConfig,
    EvaluationConfig,
    LearnerConfig,
    RolloutConfig,
    RunnerConfig,
    StageConfig,
)
from rlpipe.errors import ConfigError
from rlpipe.plugins import available, nearest, resolve
from rlpipe.secrets import check_no_secrets

_GROUPS: dict[str, type[Any]] = {
    "cluster": ClusterConfig,
    "runner": RunnerConfig,
    "evaluation": EvaluationConfig,
    "rollout": RolloutConfig,
    "learner": LearnerConfig,
}


def to_yaml(config: Config) -> str:
    """The whole configuration, defaults included; ``load_config`` reads it back."""
    return OmegaConf.to_yaml(OmegaConf.create(dataclasses.asdict(config)))


def from_yaml(text: str, where: str = "the configuration") -> dict[str, Any]:
    """What ``to_yaml`` gave, as the mapping that ``load_config`` takes.

    Args:
        text: YAML.  where: it stands, for the error.
    Raises:
        ConfigError: it is not YAML, or no mapping.
    """
    return {str(key): value for key, value in _container(_parsed(text, where)).items()}


def _parsed(text: str, where: str) -> DictConfig:
    try:
        tree = OmegaConf.create(text)
    except Exception as error:  # YAML's own errors have no common base that OmegaConf promises
        lines, mark = text.splitlines(), getattr(error, "problem_mark", None)
        tab = mark is not None and mark.line < len(lines) and "\t" in lines[mark.line]
        hint = " Indent with spaces: YAML takes no tabs." if tab else ""
        raise ConfigError(f"{where} is not readable as YAML: {reason_of(error)}{hint}") from error
    if not isinstance(tree, DictConfig):
        raise ConfigError(f"{where} must hold keys and values at its top level, but holds a list.")
    return tree


def _container(tree: DictConfig, *, resolve: bool = False) -> dict[Any, Any]:
    """Plain dictionaries, lists and values."""
    try:
        found = OmegaConf.to_container(tree, resolve=resolve)
    except (OmegaConfBaseException, RecursionError) as error:
        raise ConfigError(reason_of(error)) from error
    assert isinstance(found, dict)
    return found


def reason_of(error: Exception) -> str:
    """What YAML or OmegaConf has to say, in a line."""
    if isinstance(error, RecursionError):
        return "it is nested too deeply."
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    if isinstance(error, yaml.MarkedYAMLError) and error.problem_mark is not None:
        mark = error.problem_mark
        return f"line {mark.line + 1}, column {mark.column + 1}: {error.problem}."
    return lines[0] if lines else type(error).__name__


def leaves(tree: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Leaves of nested mappings under dotted keys; an empty mapping is one."""
    if isinstance(tree, Mapping) and tree:
        for name, value in tree.items():
            yield from leaves(value, f"{prefix}.{name}" if prefix else str(name))
    else:
        yield prefix, tree


def flat(tree: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Leaves of a nested mapping under dotted keys; keys may be dotted themselves."""
    for name, value in tree.items():
        if isinstance(value, Mapping) and value and not f"{prefix}{name}".endswith("kwargs"):
            yield from flat(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


def read_tree(source: str | Path | Mapping[str, Any], overrides: Sequence[str]) -> DictConfig:
    """Reads a configuration (a file, the name of a shipped one, or a mapping) and applies overrides.

    Raises:
        ConfigError: the file is missing or unreadable, or an override is malformed.
    """
    if isinstance(source, Mapping):
        tree = OmegaConf.create(dict(source))
    else:
        tree = _parsed(files.text(shipped.configuration_file(source)), str(source))
    return overridden(tree, overrides)


_KEY = re.compile(r"[^\s.\[\]]+(\.[^\s.\[\]]+|\[[^\s.\[\]]+\])*")
"""``runner.seed``, ``stages[0].timesteps``."""


def overridden(tree: DictConfig, overrides: Sequence[str]) -> DictConfig:
    """The tree with ``key=value`` applied, in turn; values are read as YAML.

    Raises:
        ConfigError: one is no such thing.
    """
    for override in overrides:
        key, equals, value = override.partition("=")
        if not equals or not _KEY.fullmatch(key):
            raise ConfigError(f"{override!r} is no override; write key=value, such as runner.seed=1.")
        try:
            given = OmegaConf.create(f"value: {value}").value if value else None
            OmegaConf.update(tree, key, given, force_add=True, merge=given != {})  # {} takes away what was there
        except Exception as error:
            raise ConfigError(f"the override {override!r} cannot be applied: {reason_of(error)}") from error
    return tree


def _resolved(tree: DictConfig) -> dict[str, Any]:
    """The tree without references to other keys or to the environment, and without credentials. The first of all
    checks, because an error about a value shows the value.

    Raises:
        ConfigError: a reference leads nowhere, or there is a credential.
    """
    found = {str(key): value for key, value in _container(tree, resolve=True).items()}
    check_no_secrets(found, os.environ)
    return found


def _mapping(tree: Mapping[str, Any], key: str) -> dict[str, Any]:
    """What the last part of a key holds in a mapping; nothing where it is absent.

    Raises:
        ConfigError: it holds something else than keys and values.
    """
    found = tree.get(key.rpartition(".")[2])
    if found is None:
        return {}
    if not isinstance(found, dict):
        raise ConfigError(f"{key} is {found!r}; it must hold keys and values, such as {key}.name=...")
    return found


def build(tree: DictConfig) -> Config:
    """Builds the typed configuration from a tree.

    Raises:
        ConfigError: a key is unknown or a value has the wrong type.
    """
    found = _resolved(tree)
    known = [*(f.name for f in dataclasses.fields(Config))]
    for name in found:
        if name not in known:
            raise ConfigError(f"unknown key {name!s}{nearest(str(name), known)} Legal are {', '.join(known)}.")
    env = _mapping(found, "env")
    for name in env:
        if name not in ("train", "eval"):
            raise ConfigError(f"unknown key env.{name!s}; legal are env.train and env.eval.")
    train = _mapping(env, "env.train")
    groups: dict[str, Any] = {
        name: _typed(schema, found[name], name) for name, schema in _GROUPS.items() if name in found
    }
    demos, stages = found.get("demos"), found.get("stages") or []
    if not isinstance(demos, str | None):
        raise ConfigError(f"demos is {demos!r}; it must name a file.")
    if not isinstance(stages, list | tuple):
        raise ConfigError(f"stages is {stages!r}; it must be a list, such as [{{name: first, timesteps: 1000}}, ...].")
    return Config(
        env=EnvConfig(_plugin("env.train", train), _plugin("env.eval", _merged(train, _mapping(env, "env.eval")))),
        policy=_plugin("policy", _mapping(found, "policy") or {"name": "mlp"}),
        algorithm=_plugin("algorithm", _mapping(found, "algorithm") or {"name": "ppo"}),
        demos=None if demos is None else _absolute(demos, "demos"),
        stages=tuple(_typed(StageConfig, stage, f"stages[{index}]") for index, stage in enumerate(stages)),
        **groups,
    )


def _absolute(path: str, key: str) -> str:
    try:
        return str(shipped.located(Path(path).expanduser()).resolve())
    except (OSError, RuntimeError, ValueError) as error:
        raise ConfigError(f"{key} is {path!r}, which names no file: {error}.") from error


def _merged(first: dict[str, Any], second: dict[str, Any]) -> dict[str, Any]:
    """The first with what the second says."""
    _check_mergeable(first, second, "")
    return _container(OmegaConf.merge(first, second))  # type: ignore[arg-type] # two mappings make a mapping


def _check_mergeable(train: Mapping[str, Any], evaluated: Mapping[str, Any], below: str) -> None:
    """Whether ``env.eval`` holds keys where ``env.train`` does, and a list where that holds one."""
    for name, value in evaluated.items():
        before = train.get(name)
        if isinstance(before, dict) and isinstance(value, dict):
            _check_mergeable(before, value, f"{below}.{name}")
        elif isinstance(before, list | dict) and isinstance(value, list | dict) and type(before) is not type(value):
            what = "a list" if isinstance(before, list) else "keys and values"
            raise ConfigError(f"env.eval{below}.{name} is {value!r}; it must hold {what}, as env.train{below}.{name}.")


def _plugin(key: str, tree: Mapping[str, Any]) -> Any:
    kind = PLUGIN_KINDS[key]
    name = tree.get("name")
    if not isinstance(name, str):
        found = "missing" if name is None else repr(name)
        raise ConfigError(f"{key}.name is {found}; rlpipe/{kind}/ has {', '.join(available(kind))}.")
    return _typed(resolve(kind, name, f"{key}.name").Config, tree, key)


def _typed(schema: type[Any], tree: Any, key: str) -> Any:
    """An instance of a dataclass from a part of the tree."""
    _check_groups(schema, tree, key)
    try:
        merged = OmegaConf.merge(OmegaConf.structured(schema), tree if tree is not None else {})
        return OmegaConf.to_object(merged)
    except ConfigError:
        raise
    except ConfigKeyError as error:
        unknown = str(error.full_key or error.key)
        owner, _, last = unknown.rpartition(".")
        known = _fields(schema, owner)
        raise ConfigError(
            f"unknown key {key}.{unknown}{nearest(last, known)} Legal under {'.'.join(filter(None, (key, owner)))} are "
            f"{', '.join(known)}."
        ) from error
    except ValidationError as error:
        reason = str(error).splitlines()[0]
        raise ConfigError(f"{key}.{error.full_key} has the wrong type: {reason}") from error
    except (OmegaConfBaseException, OverflowError, RecursionError, TypeError) as error:  # what OmegaConf raises
        raise ConfigError(f"{key}: {reason_of(error)}") from error


def _check_groups(schema: type[Any], tree: Any, key: str) -> None:
    """Whether there are keys and values wherever a dataclass has fields."""
    if not isinstance(tree, dict | None):
        raise ConfigError(f"{key} is {tree!r}; it must hold keys and values: {', '.join(_fields(schema, ''))}.")
    for name, hint in get_type_hints(schema).items():
        if not tree or name not in tree:
            continue
        if dataclasses.is_dataclass(hint) and isinstance(hint, type):
            _check_groups(hint, tree[name], f"{key}.{name}")
        container = get_origin(hint)
        if container in (list, dict) and not isinstance(tree[name], container):
            what = "a list" if container is list else "keys and values"
            raise ConfigError(f"{key}.{name} is {tree[name]!r}; it must hold {what}.")
        if container is list and get_args(hint)[0] in (str, int, float):  # OmegaConf lets lists in lists through
            for index, value in enumerate(tree[name]):
                if isinstance(value, list | dict):
                    raise ConfigError(f"{key}.{name}[{index}] is {value!r}; it must be a single value.")


def options_of(name: str, schema: type[Any], given: Mapping[str, Any] | None) -> Any:
    """A backend's options, complete and typed.

    Raises:
        ConfigError: one is unknown, has the wrong type, or is a secret.
    """
    check_no_secrets({"runner": {"logger": {"options": {name: given}}}}, os.environ)
    return _typed(schema, given, f"runner.logger.options.{name}")


def _fields(schema: type[Any], owner: str) -> list[str]:
    node: Any = OmegaConf.structured(schema)
    for name in filter(None, owner.split(".")):
        node = node[name]
    return sorted(str(name) for name in node)
