"""Reference of the configuration: a page for each section, from the fields that declare its keys."""

from __future__ import annotations

import dataclasses
import enum
import inspect
import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import yaml

from docs.generate.markdown import code, prose, table, wrapped
from docs.generate.source import body_of, texts_below
from rlpipe.algorithms.base import AlgorithmConfig, OnPolicyConfig
from rlpipe.algorithms.sac import SACConfig
from rlpipe.algorithms.shared.off_policy import OffPolicyConfig
from rlpipe.config.fields import Affects, Option, options
from rlpipe.config.schema import Config, StageConfig
from rlpipe.curricula.base import ChoosingConfig, CurriculumConfig
from rlpipe.envs.base import SimulatorConfig
from rlpipe.plugins import resolve, shipped
from rlpipe.policies.base import PolicyConfig
from rlpipe.policies.encoders.base import EncoderConfig
from rlpipe.policies.shared.perceptron import PerceptronConfig

FOLDER = "reference/configuration"
DEPTH = 2
INTRODUCTION = "[How to read the table](../../configuration.md#how-to-read-the-reference) · [all sections](../index.md)"


@dataclass(frozen=True)
class Kind:
    """Section of the configuration whose keys come from plug-ins.

    Attributes:
        page: name of its page.
        prefix: of its keys, with ``{name}`` for that of the plug-in.
        package: folder of the plug-ins.
        bases: heading of the options that several plug-ins share, by the class that declares them.
    """

    page: str
    prefix: str
    package: str
    bases: dict[type[Any], str] = dataclasses.field(default_factory=dict)


KINDS = (
    Kind("env", "env.train.", "envs", {SimulatorConfig: "Every simulator"}),
    Kind(
        "policy",
        "policy.",
        "policies",
        {PolicyConfig: "Every policy", PerceptronConfig: "Every policy made of perceptrons"},
    ),
    Kind("policy", "policy.encoders.LEAF.", "policies.encoders", {EncoderConfig: "Every encoder"}),
    Kind(
        "algorithm",
        "algorithm.",
        "algorithms",
        {
            AlgorithmConfig: "Every algorithm",
            OnPolicyConfig: "Every algorithm that learns from fresh trajectories",
            OffPolicyConfig: "Every algorithm that learns from a replay buffer",
            SACConfig: "Soft actor-critic",
        },
    ),
    Kind(
        "curriculum",
        "curriculum.",
        "curricula",
        {CurriculumConfig: "Every curriculum", ChoosingConfig: "Every curriculum that chooses starts"},
    ),
    Kind("backends", "runner.logger.options.{name}.", "backends"),
)
GUIDES = {
    "env": "[Simulators](../../simulators.md) · [several tasks](../../tasks.md)",
    "policy": "[Observations and actions](../../policies.md#observations)",
    "algorithm": "[Writing an algorithm](../../extending.md#an-algorithm)",
    "curriculum": "[Curricula](../../demonstrations.md#curricula)",
    "backends": "[Backends](../../backends.md)",
    "cluster": "[From a laptop to a cluster](../../cluster.md)",
    "demos": "[Demonstrations](../../demonstrations.md)",
    "evaluation": "[Evaluation](../../exactness.md#evaluation)",
    "stages": "[What a stage can change](../../configuration.md#stages)",
}


@dataclass(frozen=True)
class Key:
    """A configuration key.

    Attributes:
        name: full dotted key.
        default: value where none is given; ``MISSING`` for a key that must be given.
        meaning: text below the field.
        option: what the field declares.
    """

    name: str
    default: Any
    meaning: str
    option: Option


@dataclass(frozen=True)
class Part:
    """Keys of one table.

    Attributes:
        heading: above the table; empty on a page of one table.
        text: below the heading.
        keys: rows of the table.
    """

    heading: str
    text: str
    keys: Sequence[Key]


def meanings(schema: type[Any]) -> dict[str, str]:
    """Reads the text below each field of a dataclass, in its class or the nearest base that has one."""
    texts: dict[str, str] = {}
    for owner in reversed([owner for owner in schema.__mro__ if dataclasses.is_dataclass(owner)]):
        texts |= {name: " ".join(text.split()) for name, text in texts_below(body_of(owner)).items()}
    return texts


def default(field: dataclasses.Field[Any]) -> Any:
    """Returns the value of a field where none is given."""
    return field.default if field.default_factory is dataclasses.MISSING else field.default_factory()


def keys(schema: type[Any], prefix: str) -> Iterator[Key]:
    """Yields the keys of a section, and those of the sections in it."""
    texts = meanings(schema)
    for field in dataclasses.fields(schema):
        value, name = default(field), f"{prefix}{field.name}"
        if dataclasses.is_dataclass(value):
            yield from keys(type(value), f"{name}.")
        elif field.name in texts:  # a plug-in's section, such as env, has none
            yield Key(name, value, texts[field.name], options(schema)[field.name])


def added(schema: type[Any], base: type[Any], prefix: str) -> list[Key]:
    """Returns the keys that a plug-in adds to a base, or gives another default."""
    common = {key.name: key.default for key in keys(base, prefix)}
    return [key for key in keys(schema, prefix) if key.name not in common or common[key.name] != key.default]


def parts() -> dict[str, list[Part]]:
    """Returns the tables of each page."""
    pages: dict[str, list[Part]] = {}
    for field in dataclasses.fields(Config):
        if dataclasses.is_dataclass(schema := default(field)) and (rows := list(keys(type(schema), f"{field.name}."))):
            pages[field.name] = [Part("", first_paragraph(str(type(schema).__doc__)), rows)]
    pages["demos"] = [Part("", "Demonstrations.", [key for key in keys(Config, "") if "." not in key.name])]
    pages["stages"] = [Part("", first_paragraph(str(StageConfig.__doc__)), list(keys(StageConfig, "stages[i].")))]
    for kind in KINDS:
        pages.setdefault(kind.page, []).extend(part for part in parts_of(kind) if part.keys)
    return pages


def parts_of(kind: Kind) -> Iterator[Part]:
    """Yields the tables of a kind of plug-ins: what several share, then what each adds or gives another default."""
    plugins = {name: resolve(kind.package, name, "name") for name in shipped(kind.package)}
    for schema, heading in kind.bases.items():
        users = [name for name, plugin in plugins.items() if schema in plugin.Config.__mro__]
        text = "" if len(users) == len(plugins) else f"{', '.join(map(code, users))}. {remark(schema)}"
        yield Part(heading, text, own_keys(schema, kind, kind.prefix))
    for name, plugin in plugins.items():
        if plugin.Config not in kind.bases:
            heading = code(name if "{name}" in kind.prefix else f"{kind.prefix}name: {name}")
            yield Part(heading, described(plugin), own_keys(plugin.Config, kind, kind.prefix.format(name=name)))


def own_keys(schema: type[Any], kind: Kind, prefix: str) -> list[Key]:
    """Returns the keys that a class declares or gives another default, beyond those of the base with a table."""
    base = next((owner for owner in schema.__mro__[1:] if owner in kind.bases), None)
    return list(keys(schema, prefix)) if base is None else added(schema, base, prefix)


def described(plugin: type[Any]) -> str:
    """Describes a plug-in by the first paragraph of its module, and what its options say beside their name."""
    return f"{first_paragraph(str(sys.modules[plugin.__module__].__doc__))}\n\n{remark(plugin.Config)}"


def remark(schema: type[Any]) -> str:
    """Returns what the docstring of options says after its first sentence."""
    return "".join(re.split(r"(?<=\.)\s+", first_paragraph(str(schema.__doc__)), maxsplit=1)[1:])


def first_paragraph(docstring: str) -> str:
    """Returns the first paragraph of a docstring."""
    return inspect.cleandoc(docstring).split("\n\n")[0]


def written(value: Any) -> str:
    """Writes a default as YAML in one line."""
    if value is dataclasses.MISSING:
        return "required"
    plain = value.name if isinstance(value, enum.Enum) else value
    first, *_ = yaml.safe_dump(plain, default_flow_style=True, width=1000).splitlines()
    return code(first)


def legal(option: Option) -> str:
    """Writes the limits and the legal words of a key."""
    words = [code(word) for word in option.words]
    if option.limits:
        return ", or ".join([option.limits.replace(" and ", ", "), *words])
    return ", ".join(words)


def affects(option: Option) -> str:
    """Writes what another value of a key changes; empty for everything."""
    if option.affects == Affects.EVERYTHING:
        return ""
    if option.affects == Affects.NOTHING:
        return "nothing"
    return ", ".join(str(effect.name).lower() for effect in option.affects)


def table_of(rows: Sequence[Key]) -> str:
    """Writes the keys of a section."""
    head = ("key", "default", "unit", "legal", "meaning", "affects")
    return table(
        head,
        [
            (
                code(key.name),
                written(key.default),
                key.option.unit,
                legal(key.option),
                prose(key.meaning.replace("None", "null"), DEPTH),
                affects(key.option),
            )
            for key in rows
        ],
    )


def page(section: str, tables: Sequence[Part]) -> str:
    """Writes the page of a section."""
    lines = [f"# `{section}`\n", f"{INTRODUCTION}{' · ' + GUIDES[section] if section in GUIDES else ''}\n"]
    for part in tables:
        lines += [f"## {part.heading}\n"] if part.heading else []
        lines += [wrapped(prose(text, DEPTH)) for text in part.text.split("\n\n") if text]
        lines += [table_of(part.keys)]
    return "\n".join(lines)


def pages() -> dict[str, str]:
    """Writes all pages, by their path below docs/."""
    return {f"{FOLDER}/{section}.md": page(section, tables) for section, tables in sorted(parts().items())}
