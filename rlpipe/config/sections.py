"""Builds the typed sections of a configuration from a tree, those of plug-ins included."""

from __future__ import annotations

import copy
import dataclasses
import os
from collections.abc import Mapping, Sequence
from dataclasses import is_dataclass
from functools import cache, lru_cache
from typing import Any, TypeVar, get_args, get_origin

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import ConfigKeyError, OmegaConfBaseException, ValidationError

from rlpipe import files
from rlpipe.config import shipped
from rlpipe.config.fields import check_path, kinds_of, options, types_of, whole_number
from rlpipe.config.other_systems import translation
from rlpipe.config.schema import DEFAULT_NAMES, PLUGIN_KINDS, Config, EnvConfig, StageConfig
from rlpipe.config.tree import REPLACED, check_colons, container, reason_of, tasks_without
from rlpipe.errors import ConfigError
from rlpipe.plugins import available, closest, nearest, resolve
from rlpipe.secrets import check_no_secrets

C = TypeVar("C", bound=Config)
_SECTIONS: dict[str, Any] = {
    name: schema for name, schema in types_of(Config).items() if is_dataclass(schema) and name != "env"
}
"""Sections that are the same whatever the plug-ins."""


def build(tree: DictConfig, schema: type[C]) -> C:
    """Builds the typed configuration from a tree.

    Raises:
        ConfigError: a key is unknown, a value has the wrong type or is a credential, or a reference leads nowhere.
    """
    values = container(tree, resolve=True)
    check_no_secrets(values, os.environ)  # before all other checks, because an error about a value shows the value
    names = [field.name for field in dataclasses.fields(Config)]
    check_colons(values)
    _spell_out_processes(values)
    for name in values:
        if name not in names:
            hint = translation(name) or nearest(name, names)
            raise ConfigError(f"unknown key {name}{hint} Known keys: {', '.join(names)}.")
    sections = {name: typed(schema, values[name], name) for name, schema in _SECTIONS.items() if name in values}
    sections["env"] = _simulators(_mapping(values, "env"))
    sections |= {key: _plugin(key, _mapping(values, key) or {"name": name}) for key, name in DEFAULT_NAMES.items()}
    return schema(
        demos=_demonstrations(values.get("demos")),
        demo_leaves=_fitted(dict[str, str], values.get("demo_leaves") or {}, "demo_leaves"),
        num_demos=_fitted(int | None, values.get("num_demos"), "num_demos"),
        stages=_stage_configs(values.get("stages") or []),
        **sections,
    )


def _spell_out_processes(values: dict[str, Any]) -> None:
    """Replaces ``rollout.num_workers: {min: 2, max: 8}`` by the two keys that it stands for."""
    rollout = values.get("rollout")
    span = rollout.get("num_workers") if isinstance(rollout, dict) else None
    if isinstance(span, dict):
        if {*span} != {"min", "max"}:
            raise ConfigError(f"rollout.num_workers is {span!r}; as keys and values it must have min and max.")
        assert isinstance(rollout, dict)
        values["rollout"] = {**rollout, "num_workers": span["max"], "min_processes": span["min"]}


def acting_sections(tree: Mapping[str, Any]) -> tuple[type[Any], Any, Any]:
    """Builds what a policy needs to act, of a resolved configuration: its simulator need not exist here.

    Returns:
        Class and options of the policy, and options of the algorithm.
    Raises:
        ConfigError: a key is unknown or a value has the wrong type, or the policy does not exist here.
    """
    policy, algorithm = (
        _plugin(key, _mapping(tree, key) or {"name": DEFAULT_NAMES[key]}) for key in ("policy", "algorithm")
    )
    return resolve("policies", policy.name, "policy.name"), policy, algorithm


def options_of(name: str, schema: type[Any], options: Mapping[str, Any] | None) -> Any:
    """Builds the options of a backend, complete and typed, from its ``Config`` and what the configuration gives.

    Raises:
        ConfigError: an option is unknown, has the wrong type, or is a credential.
    """
    check_no_secrets({"runner": {"logger": {"options": {name: options}}}}, os.environ)
    return typed(schema, options, f"runner.logger.options.{name}")


def _mapping(tree: Mapping[str, Any], key: str) -> dict[str, Any]:
    """Returns the keys and values of a section, named by its full key; none where the section is absent."""
    section = tree.get(key.rpartition(".")[2])
    if section is None:
        return {}
    if not isinstance(section, dict):
        raise ConfigError(f"{key} is {section!r}; it must hold keys and values, such as {key}.name=...")
    return section


def _simulators(env: Mapping[str, Any]) -> EnvConfig:
    for name in env:
        if name not in ("train", "eval"):
            hint = translation(f"env.{name}")
            raise ConfigError(f"unknown key env.{name!s}{hint or '.'} Legal are env.train and env.eval.")
    train, evaluated = _spell_out_axes(_mapping(env, "env.train"), _mapping(env, "env.eval"))
    trained = _plugin("env.train", train)
    name = evaluated.get("name", train["name"])
    usual = resolve("envs", name, "env.eval.name").evaluation_options if isinstance(name, str) else {}
    defaults = evaluation_defaults(train, usual)
    _check_mergeable(defaults, evaluated, "")
    merged: Any = OmegaConf.merge(defaults, evaluated)
    replaced = {REPLACED: evaluated[REPLACED]} if REPLACED in evaluated else {}
    return EnvConfig(trained, _plugin("env.eval", container(merged) | replaced))


def _spell_out_axes(train: dict[str, Any], evaluated: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Replaces ``observe_variations: true`` in both sections by the names of the axes that vary in training."""
    varied = [task.get("variations") for task in (train, *(train.get("tasks") or [])) if isinstance(task, dict)]
    names = list(dict.fromkeys(str(name) for axes in varied if isinstance(axes, dict) for name in axes))
    if train.get("observe_variations") is True and not names:
        raise ConfigError(
            "env.train.observe_variations is true, but env.train.variations names no axis, so there is nothing to "
            "observe: name one, such as env.train.variations.action_latency.choice=[0,1,2], or leave it out."
        )

    def spelled(section: dict[str, Any]) -> dict[str, Any]:
        observed = section.get("observe_variations")
        return {**section, "observe_variations": names if observed else []} if isinstance(observed, bool) else section

    return spelled(train), spelled(evaluated)


def evaluation_defaults(train: Mapping[str, Any], usual: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the options of an evaluation where ``env.eval`` does not give them: those of ``env.train``, and those
    usual for an evaluation in any case, so that single tasks do not bring others."""
    options = {**train, **usual}
    if isinstance(tasks := train.get("tasks"), list) and usual:
        options["tasks"] = tasks_without(tasks, usual)
    return options


def _stage_configs(stages: Any) -> tuple[StageConfig, ...]:
    if not isinstance(stages, list | tuple):
        raise ConfigError(f"stages is {stages!r}; it must be a list, such as [{{name: first, timesteps: 1000}}, ...].")
    return tuple(typed(StageConfig, stage, f"stages[{index}]") for index, stage in enumerate(stages))


def _demonstrations(path: Any) -> str | None:
    """Returns the absolute path of the demonstrations, so that a resume elsewhere finds them."""
    if path is None:
        return None
    if not isinstance(path, str):
        raise ConfigError(f"demos is {path!r}; it must name a file.")
    try:
        return str(shipped.located(files.user_path(path, "demos")).resolve())
    except ConfigError:
        raise
    except (OSError, RuntimeError, ValueError) as error:
        raise ConfigError(f"demos is {path!r}, which names no file: {error}.") from error


def _check_mergeable(train: Mapping[str, Any], evaluated: Mapping[str, Any], below: str) -> None:
    """Checks that ``env.eval`` holds keys where ``env.train`` holds keys, and a list where that holds a list."""
    for name, value in evaluated.items():
        before = train.get(name)
        if isinstance(before, dict) and isinstance(value, dict):
            _check_mergeable(before, value, f"{below}.{name}")
        elif isinstance(before, list | dict) and isinstance(value, list | dict) and type(before) is not type(value):
            what = "a list" if isinstance(before, list) else "keys and values"
            raise ConfigError(f"env.eval{below}.{name} is {value!r}; it must hold {what}, as env.train{below}.{name}.")


def _plugin(key: str, tree: Mapping[str, Any]) -> Any:
    """Builds the section of a plug-in from its keys and values."""
    kind = PLUGIN_KINDS[key]
    name = tree.get("name")
    if not isinstance(name, str):
        value = "missing" if name is None else repr(name)
        raise ConfigError(f"{key}.name is {value}; there are {', '.join(available(kind))}.")
    return typed(resolve(kind, name, f"{key}.name").Config, tree, key)


def typed(schema: type[Any], tree: Any, key: str) -> Any:
    """Builds a section from its keys and values: an instance of its dataclass.

    Args:
        schema: the dataclass.
        tree: keys and values that are given; None for none.
        key: of the section, for errors.
    """
    tree = _fitted_section(schema, tree, key)
    try:
        values = copy.deepcopy(_typed_values(schema, _GivenValues(tree)))  # type: ignore[arg-type] # can be hashed
        for field in dataclasses.fields(schema):
            if field.name not in values and field.default is field.default_factory:  # both are MISSING
                raise ConfigError(f"{key}.{field.name} has no default; give it a value.")
        return schema(**values)
    except ConfigError:
        raise
    except ConfigKeyError as error:
        unknown = str(error.full_key or error.key)
        owner = unknown.rpartition(".")[0]
        names = _fields(schema, owner)
        raise ConfigError(
            f"unknown key {key}.{unknown}{_hint(key, unknown, names)} Keys of "
            f"{'.'.join(filter(None, (key, owner)))}: {', '.join(names) or 'none'}."
        ) from error
    except ValidationError as error:
        reason = str(error).splitlines()[0]
        raise ConfigError(f"{key}.{error.full_key} has the wrong type: {reason}") from error
    except (OmegaConfBaseException, OverflowError, RecursionError, TypeError) as error:  # what OmegaConf raises
        raise ConfigError(f"{key}: {reason_of(error)}") from error


def _hint(key: str, unknown: str, names: Sequence[str]) -> str:
    """Returns what is known of an unknown key of a section, as the end of a sentence."""
    name = unknown.rpartition(".")[2]
    if said := translation(f"{key}.{unknown}"):
        return said
    kind = PLUGIN_KINDS.get(key, "")
    owners = [other for other in available(kind) if kind and unknown in _option_names(kind, other)]
    if owners and closest(name, names, 0.8) is None:
        return f", which is an option of {key}.name={' and '.join(owners)}: remove it, or name that one."
    return nearest(name, names)


def _option_names(kind: str, name: str) -> list[str]:
    """Returns the options of a plug-in; none where it cannot be imported here."""
    try:
        return [field.name for field in dataclasses.fields(resolve(kind, name, "").Config)]
    except (ConfigError, ImportError):
        return []


class _GivenValues(dict[str, Any]):
    """Keys and values that differ from others as soon as they are written differently: 1 is not 1.0, nor True."""

    def __hash__(self) -> int:  # type: ignore[override]
        return hash(repr(self))

    def __eq__(self, other: object) -> bool:
        return repr(self) == repr(other)


@lru_cache(maxsize=1024)
def _typed_values(schema: type[Any], values: _GivenValues) -> dict[str, Any]:
    """Returns what is given with the types that the dataclass declares. It is shared: nobody may change it.

    Stages, resumes and comparisons build the same sections again and again, and OmegaConf takes milliseconds for each.
    """
    section = _section(schema)  # type: ignore[arg-type] # a type can be hashed
    # Only what is given is copied: the dataclass itself has the other values. A whole copy names unknown keys.
    part = OmegaConf.masked_copy(section, list(values)) if values.keys() <= section.keys() else section.copy()
    converted: Any = OmegaConf.to_object(OmegaConf.unsafe_merge(part, dict(values)))
    return converted  # type: ignore[no-any-return]


@cache
def _section(schema: type[Any]) -> DictConfig:
    """Returns a section with nothing but defaults. It is shared: merging copies it, and nothing else may change it."""
    section: DictConfig = OmegaConf.structured(schema)
    return section


def _fitted_section(schema: type[Any], tree: Any, key: str) -> dict[str, Any]:
    """Returns the keys and values of a dataclass, with its whole numbers as such, and home folders in its paths."""
    if not isinstance(tree, dict | None):
        raise ConfigError(f"{key} is {tree!r}; it must hold keys and values: {', '.join(_fields(schema, ''))}.")
    hints, values = types_of(schema), dict(tree or {})  # type: ignore[arg-type] # a type can be hashed
    for name, declared in options(schema).items():  # type: ignore[arg-type] # a type can be hashed
        if name in values:
            value = _fitted(hints[name], values[name], f"{key}.{name}")
            if check_path in declared.checks and value and isinstance(value, str):
                value = str(files.user_path(value, f"{key}.{name}"))
            values[name] = value
    return values


def _fitted(hint: Any, value: Any, key: str) -> Any:
    """Returns a value of a declared type as ``_fitted_section`` does."""
    kinds = kinds_of(hint)
    kind: Any = next((kind for kind in kinds if get_origin(kind) in (list, dict) or is_dataclass(kind)), None)
    if value is None and (kind is None or type(None) in kinds):
        if {*kinds} <= {str, int, float, bool}:
            raise ConfigError(f"{key} is null; give it a value, or leave it out.")
        return None
    if kind is None:
        if str in kinds and isinstance(value, str):  # such as auto
            return value
        if int in kinds and float not in kinds:
            return whole_number(value, key)
        if float in kinds and not isinstance(value, float):
            try:
                float(value if not isinstance(value, bool) else "")
            except (TypeError, ValueError) as error:
                raise ConfigError(f"{key} is {value!r}; it must be a number.") from error
        return value
    if is_dataclass(kind):
        return _fitted_section(kind, value, key)  # type: ignore[arg-type] # a type, not an instance
    if not isinstance(value, get_origin(kind)):
        if len(kinds) > 1 and str in kinds:
            return value
        what = "a list" if get_origin(kind) is list else "keys and values"
        raise ConfigError(f"{key} is {value!r}; it must hold {what}.")
    if get_origin(kind) is dict:
        return value
    (entries,) = get_args(kind)
    for index, entry in enumerate(value if entries in (str, int, float) else ()):
        if isinstance(entry, list | dict):  # OmegaConf lets lists in lists through
            raise ConfigError(f"{key}[{index}] is {entry!r}; it must be a single value.")
    return [_fitted(entries, entry, f"{key}[{index}]") for index, entry in enumerate(value)]


def _fields(schema: type[Any], owner: str) -> list[str]:
    """Returns the names of the fields below a dotted key of a dataclass; an empty key is the dataclass itself."""
    node: Any = _section(schema)  # type: ignore[arg-type] # a type can be hashed
    for name in filter(None, owner.split(".")):
        node = node[name]
    return sorted(str(name) for name in node)
