"""Reads configurations as trees: YAML files and mappings, overrides, leaves under dotted keys."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import yaml
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from rlpipe import files
from rlpipe.config import shipped
from rlpipe.config.schema import BOUNDED_POLICY, PLUGIN_KINDS, Config
from rlpipe.config.spelling import Path as SpelledPath
from rlpipe.config.spelling import path_of, plugin_name, respell, spelled, unquoted
from rlpipe.errors import ConfigError
from rlpipe.plugins import find_modules_in, resolve


class _Dumper(getattr(yaml, "CSafeDumper", yaml.SafeDumper)):  # type: ignore[misc]
    """Writes plain values as OmegaConf does and reads them, without building its tree first, which takes 20 times as
    long."""

    def ignore_aliases(self, _data: Any) -> bool:
        return True


def _text(dumper: Any, text: str) -> yaml.ScalarNode:
    """Quotes text that OmegaConf would read as a number, such as ``1e3``; the dumper quotes what YAML 1.1 would."""
    try:
        float(text)
    except ValueError:
        style = None
    else:
        style = "'"
    node: yaml.ScalarNode = dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)
    return node


_Dumper.add_representer(str, _text)


def to_yaml(config: Config) -> str:
    """Writes the whole configuration, defaults included; ``load_config`` reads it back."""
    written: str = yaml.dump(dataclasses.asdict(config), Dumper=_Dumper, allow_unicode=True, sort_keys=False)
    return written


def from_yaml(text: str, where: str = "the configuration") -> dict[str, Any]:
    """Reads YAML, such as that of ``to_yaml``, as the mapping that ``load_config`` takes; ``where`` is for errors."""
    return container(_parsed(text, where))


def _parsed(text: str, where: str) -> DictConfig:
    """Parses YAML that must hold keys and values. The tree is shared: nobody may change it."""
    try:
        tree = _tree(text)
    except Exception as error:  # YAML's own errors have no common base that OmegaConf promises
        lines, mark = text.splitlines(), getattr(error, "problem_mark", None)
        tab = mark is not None and mark.line < len(lines) and "\t" in lines[mark.line]
        hint = " Indent with spaces: YAML takes no tabs." if tab else ""
        raise ConfigError(f"{where} is not readable as YAML: {reason_of(error)}{hint}") from error
    if not isinstance(tree, DictConfig):
        raise ConfigError(f"{where} must hold keys and values at its top level, but holds a list.")
    return tree


@lru_cache(maxsize=32)
def _tree(text: str) -> Any:
    """Returns YAML as a tree; whoever resumes or compares runs reads the same text several times."""
    return OmegaConf.create(text)


def container(tree: DictConfig, *, resolve: bool = False) -> dict[str, Any]:
    """Returns a tree as plain dictionaries, lists and values; ``resolve`` also replaces references to other keys and to
    the environment."""
    try:
        values = OmegaConf.to_container(tree, resolve=resolve)
    except (OmegaConfBaseException, RecursionError) as error:
        raise ConfigError(reason_of(error)) from error
    assert isinstance(values, dict)
    return {str(key): value for key, value in values.items()}


def tasks_without(tasks: Sequence[Any], keys: Collection[str]) -> list[Any]:
    """Returns entries of a simulator's ``tasks`` without some of their keys; an id alone has none."""
    return [
        {key: value for key, value in task.items() if key not in keys} if isinstance(task, Mapping) else task
        for task in tasks
    ]


_SPACE = "YAML wants a space after each colon, as in {name: value}."


def reason_of(error: Exception) -> str:
    """Returns the message of YAML or OmegaConf in one line."""
    if isinstance(error, RecursionError):
        return "it is nested too deeply."
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    if isinstance(error, yaml.MarkedYAMLError) and error.problem_mark is not None:
        mark, hint = error.problem_mark, f" {_SPACE}" if error.problem == "found unexpected ':'" else ""
        return f"line {mark.line + 1}, column {mark.column + 1}: {error.problem}.{hint}"
    return lines[0] if lines else type(error).__name__


def check_colons(tree: Mapping[str, Any]) -> None:
    """Checks that no key swallowed its value, as YAML reads ``{name:value}``.

    A backend without options may be called ``module:Class``.
    """
    for path, value in leaves(tree):
        if value is None and ":" in path.rpartition(".")[2] and not path.startswith("runner.logger.options."):
            raise ConfigError(f"{path.rpartition(':')[0]} has its value right behind the colon: {_SPACE}")


def leaves(tree: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yields the leaves of nested mappings under dotted keys; an empty mapping is a leaf."""
    if isinstance(tree, Mapping) and tree:
        for name, value in tree.items():
            yield from leaves(value, f"{prefix}.{name}" if prefix else str(name))
    else:
        yield prefix, tree


def flat(tree: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yields the overrides of a stage under full keys. Their own keys may be dotted; a mapping of keyword arguments or
    of variations is one value."""
    for name, value in tree.items():
        if isinstance(value, Mapping) and value and not f"{prefix}{name}".endswith(("kwargs", REPLACED)):
            yield from flat(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


def read_tree(source: str | Path | Mapping[str, Any], overrides: Sequence[str]) -> DictConfig:
    """Reads a configuration (a file, the name of a shipped one, or a mapping) and applies overrides. Modules beside a
    file can be imported from then on.

    Raises:
        ConfigError: the file is missing or unreadable, or an override is malformed.
    """
    if isinstance(source, Mapping):
        return overridden(OmegaConf.create(dict(source)), overrides)
    file = shipped.configuration_file(source)
    if file.parent != shipped.folder() and not (file.parent / "run.json").exists():
        find_modules_in(file.parent)
    text = files.text(file)
    before = _parsed(text, str(source))
    tree = overridden(before.copy(), overrides, texts=spelled(text))
    _check_renamed(before, tree, source)
    return tree


def _check_renamed(before: DictConfig, after: DictConfig, source: str | Path) -> None:
    """Checks that sections whose plug-in was changed by an override keep no options that only the one before has. The
    error holds all that is to be typed, with the policy that another algorithm needs."""
    names = {section: (plugin_name(before, section), plugin_name(after, section)) for section in PLUGIN_KINDS}
    changed = {
        section: now
        for section, (was, now) in names.items()
        if isinstance(was, str) and isinstance(now, str) and was != now
    }
    policy, needs = names["policy"][1], ""
    bounds = "algorithm" in changed and _class_of("algorithm", changed["algorithm"]).needs_bounds
    if bounds and isinstance(policy, str) and not _class_of("policy", policy).bounded:
        needs = f"; {changed['algorithm']} also needs policy.name={BOUNDED_POLICY}"
        changed["policy"] = BOUNDED_POLICY
    stale, typed = [], {"policy": f"policy.name={BOUNDED_POLICY}"} if needs else {}
    for section, now in changed.items():
        options = {field.name for field in dataclasses.fields(_class_of(section, now).Config)}
        old, new = (OmegaConf.select(tree, section) or {} for tree in (before, after))
        if left := [str(name) for name in old if name in new and name not in options]:
            was = names[section][0]
            stale.append(f"{section}.name={was} and gives it {', '.join(left)}, which {now} does not have")
            typed[section] = f"'{section}={{}}' {section}.name={now}"
    if stale:
        raise ConfigError(
            f"{source} names {'; '.join(stale)}{needs}: write {' '.join(typed.values())} to leave out what the file "
            "says of them, or remove these options from the file."
        )


def _class_of(section: str, name: str) -> Any:
    """Returns the class of a plug-in that a section names."""
    return resolve(PLUGIN_KINDS[section], name, f"{section}.name")


REPLACED = "variations"
"""Option whose mapping, and what it holds, replaces the one before: axes that vary are named together."""


def is_replaced(key: str) -> bool:
    """True for a full key whose keys and values replace those before, instead of being merged into them."""
    return REPLACED in key.split(".")


_KEY = re.compile(r"[^\s.\[\]]+(\.[^\s.\[\]]+|\[[^\s.\[\]]+\])*")
"""A full key, such as ``runner.seed`` or ``stages[0].timesteps``."""


def overridden(
    tree: DictConfig,
    overrides: Sequence[str],
    *,
    texts: Mapping[SpelledPath, str] | None = None,
    schema: type[Any] | None = None,
) -> DictConfig:
    """Applies overrides ``key=value`` to a tree in turn, and returns it. Values are read as YAML, but text options take
    the text as it was typed, and numbers count by their value.

    Args:
        tree: is changed.
        overrides: ``key=value`` with full dotted keys.
        texts: text of the leaves of the tree.
        schema: dataclass that declares the options; None for a whole configuration.
    Raises:
        ConfigError: an override is malformed, or does not fit the tree.
    """
    typed, unreadable = dict(texts or {}), dict[SpelledPath, ConfigError]()
    for override in overrides:
        key, equals, value = override.partition("=")
        if not equals or not _KEY.fullmatch(key):
            raise ConfigError(f"{override!r} is no override; write key=value, such as runner.seed=1.")
        path, parts = path_of(key), dict[SpelledPath, str]()
        content: Any = value or None
        unreadable.pop(path, None)
        try:
            content = OmegaConf.create(f"value: {value}").value if value else None
            parts = spelled(value)
        except Exception as error:  # YAML's own errors have no common base that OmegaConf promises
            unreadable[path] = ConfigError(f"the override {override!r} cannot be applied: {reason_of(error)}")
        try:
            merge = content != {} and not is_replaced(key)  # {} removes what was there
            OmegaConf.update(tree, key, content, force_add=True, merge=merge)
        except Exception as error:
            raise ConfigError(f"the override {override!r} cannot be applied: {reason_of(error)}") from error
        for replaced in _replaced(content, path):
            typed = {other: text for other, text in typed.items() if other[: len(replaced)] != replaced}
        typed |= {(*path, *part): text for part, text in parts.items()} | {path: unquoted(value)}
    as_text = respell(tree, typed, schema)
    for path, refusal in unreadable.items():
        if path not in as_text:
            raise refusal
    return tree


def _replaced(content: Any, path: SpelledPath) -> Iterator[SpelledPath]:
    """Yields the paths at which an override leaves nothing of what was there; keys and values are merged with it."""
    values = OmegaConf.to_container(content) if isinstance(content, DictConfig) else content
    if not isinstance(values, dict) or not values or REPLACED in path:
        yield path
        return
    for key, value in leaves(values):
        if value != {}:
            yield (*path, *path_of(key))
