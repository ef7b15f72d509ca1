"""Gives each option the value that was typed, where YAML would make something else of its spelling.

YAML reads ``007`` as 7, ``on`` as true, ``#1`` as nothing, ``1:30`` as 90 and ``1e3`` as a number with a fraction. An
option that is declared as text takes the text; one that is declared as a number, the decimal number.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import is_dataclass
from decimal import Decimal, InvalidOperation
from typing import Any, TypeAlias, get_args, get_origin

import yaml
from omegaconf import DictConfig, ListConfig, OmegaConf

from rlpipe.config.fields import kinds_of, types_of
from rlpipe.config.schema import DEFAULT_NAMES, PLUGIN_KINDS, Config
from rlpipe.errors import ConfigError
from rlpipe.plugins import resolve

Path: TypeAlias = tuple[str | int, ...]
"""Keys and indices from the top of a tree to one of its leaves."""
_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_MOST_DIGITS = 300
"""Digits of a whole number that are written out."""
_NULL = ("", "~", "null", "Null", "NULL")
"""Spellings of None in YAML."""


def path_of(key: str) -> Path:
    """Returns the path of a full key, such as ``stages[0].timesteps``."""
    return tuple(int(part) if part.isdigit() else part for part in re.findall(r"[^.\[\]]+", key))


def spelled(text: str) -> dict[Path, str]:
    """Returns the text of each scalar in readable YAML."""
    loader = _LOADER(text)
    try:
        node = loader.get_single_node()
        return {} if node is None else dict(_scalars(loader, node, ()))
    finally:
        loader.dispose()


def _scalars(loader: Any, node: yaml.Node, path: Path) -> Iterator[tuple[Path, str]]:
    if isinstance(node, yaml.MappingNode):
        loader.flatten_mapping(node)  # takes in what << refers to
        for key, value in node.value:
            yield from _scalars(loader, value, (*path, str(key.value)))
    elif isinstance(node, yaml.SequenceNode):
        for index, entry in enumerate(node.value):
            yield from _scalars(loader, entry, (*path, index))
    else:
        yield path, str(node.value)


def unquoted(text: str) -> str:
    """Returns the text that an override gives: what is inside YAML's quotes, else all of it."""
    if text.strip()[:1] in ("'", '"'):
        try:
            node = yaml.compose(text, Loader=_LOADER)
        except yaml.YAMLError:
            return text
        if isinstance(node, yaml.ScalarNode):
            return str(node.value)
    return text


def respell(tree: DictConfig, texts: Mapping[Path, str], schema: type[Any] | None = None) -> set[Path]:
    """Sets the leaves of a tree to what was typed, as far as the declarations of their options say how to read it.

    Args:
        tree: is changed.
        texts: text of leaves.
        schema: dataclass that declares the options; None for a whole configuration.
    Returns:
        Paths whose options take any text.
    Raises:
        ConfigError: a text is OmegaConf's mark of a missing value.
    """
    as_text = set()
    for path, text in texts.items():
        kinds = set(kinds_of(_declaration(tree, path) if schema is None else _inside(schema, path)))
        if not kinds <= {str, int, float, type(None)} or (type(None) in kinds and text in _NULL):
            continue
        if str in kinds and not kinds & {int, float}:
            if text == "???":
                raise ConfigError(f"{'.'.join(map(str, path))} is '???', which stands for a missing value: give one.")
            as_text.add(path)
        elif text in _NULL or _has_keys(tree, path):
            continue
        value = text if path in as_text else _number(text)
        if isinstance(value, int) and int not in kinds and re.search("[.eE]", text):
            value = float(value)  # as YAML reads it: results of benchmarks are known by what was written
        _set(tree, path, value)
    return as_text


def _number(text: str) -> int | float | str:
    """Returns the decimal number that a text stands for, whole if its value is; else the text."""
    try:
        value = Decimal(text.replace(".inf", "inf").replace(".nan", "nan"))
    except InvalidOperation:
        return int(text, 16) if re.fullmatch(r"0x[0-9a-fA-F]+", text) else text
    whole = value.is_finite() and value.adjusted() < _MOST_DIGITS and value == value.to_integral_value()
    return int(value) if whole else float(value)


def _has_keys(tree: Any, path: Path) -> bool:
    """True for keys and values, or a list, in the place of a single value."""
    *steps, last = path
    owner = _inner(tree, steps)
    key = last if isinstance(owner, ListConfig) else str(last)
    return not OmegaConf.is_interpolation(owner, key) and OmegaConf.is_config(owner[key])


def _inner(tree: Any, steps: Sequence[str | int]) -> Any:
    for step in steps:
        tree = tree[step if isinstance(tree, ListConfig) else str(step)]
    return tree


def _set(tree: Any, path: Path, value: Any) -> None:
    *steps, last = path
    tree = _inner(tree, steps)
    tree[last if isinstance(tree, ListConfig) else str(last)] = value


def _declaration(tree: DictConfig, path: Path) -> Any:
    """Returns the type of an option of a configuration; None where nothing declares it."""
    for section, kind in PLUGIN_KINDS.items():
        steps = path_of(section)
        if path[: len(steps)] == steps:
            rest = path[len(steps) :]
            if rest[:1] == ("tasks",) and len(rest) > 1:  # an id, or options of the same plug-in
                rest = rest[2:] or ("id",)
            return _inside(_plugin(kind, plugin_name(tree, section)), rest)
    options = path_of("runner.logger.options")
    if path[: len(options)] == options and len(path) > len(options):
        return _inside(_plugin("backends", str(path[len(options)])), path[len(options) + 1 :])
    return _inside(Config, path)


def plugin_name(tree: DictConfig, section: str) -> Any:
    """Returns the name of the plug-in of a section, which may be left out."""
    usual = OmegaConf.select(tree, "env.train.name") if section == "env.eval" else DEFAULT_NAMES.get(section)
    return OmegaConf.select(tree, f"{section}.name", default=usual)


def _plugin(kind: str, name: Any) -> Any:
    """Returns the dataclass of a plug-in's options; None if there is no such plug-in, which is reported elsewhere."""
    try:
        return resolve(kind, name, "").Config if isinstance(name, str) else None
    except ConfigError:
        return None


def _inside(hint: Any, path: Path) -> Any:
    """Returns the type at the end of a path that begins in a value of a type; None where nothing declares it."""
    for step in path:
        inner = next(
            (kind for kind in kinds_of(hint) if is_dataclass(kind) or get_origin(kind) in (list, dict, tuple)), None
        )
        if inner is None:
            return None
        entries = get_args(inner)
        fields = types_of(inner) if is_dataclass(inner) else {}  # type: ignore[arg-type] # a type can be hashed
        hint = fields.get(str(step)) if is_dataclass(inner) else entries[get_origin(inner) is dict]
    return hint
