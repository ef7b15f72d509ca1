"""Writes the tables of docs/configuration.md:  python docs/generate_configuration.py

The fields of the configuration say what stands in them; edit only the prose on the page. A test compares the two.
"""

from __future__ import annotations

import ast
import dataclasses
import functools
import inspect
import itertools
import re
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from rlpipe.algorithms.base import AlgorithmConfig, OnPolicyConfig
from rlpipe.algorithms.sac import SACConfig
from rlpipe.algorithms.shared.off_policy import OffPolicyConfig
from rlpipe.config.fields import Affects, Option, options
from rlpipe.config.schema import Config, StageConfig
from rlpipe.curricula.base import ChoosingConfig, CurriculumConfig
from rlpipe.envs.base import SimulatorConfig
from rlpipe.plugins import available, resolve
from rlpipe.policies.base import PolicyConfig
from rlpipe.policies.encoders.base import EncoderConfig
from rlpipe.policies.shared.perceptron import PerceptronConfig

PAGE = Path(__file__).parent / "configuration.md"
MARK = r"<!-- keys: (.+) -->\n(?:\n?\|.*\n)*\n?"
"""A comment that names a section, and the table of its keys below it, with an empty line before and after it."""
PLUGINS = {
    "env.train": ("envs", {SimulatorConfig: "Every env.train"}),
    "policy": ("policies", {PolicyConfig: "Every policy", PerceptronConfig: "Every policy made of perceptrons"}),
    "policy.encoders.LEAF": ("policies.encoders", {EncoderConfig: "Every encoder"}),
    "algorithm": (
        "algorithms",
        {
            AlgorithmConfig: "Every algorithm",
            OnPolicyConfig: "Every algorithm that learns from fresh trajectories",
            OffPolicyConfig: "Every algorithm that learns from a replay buffer",
            SACConfig: "Soft actor-critic",
        },
    ),
    "curriculum": (
        "curricula",
        {CurriculumConfig: "Every curriculum", ChoosingConfig: "Every curriculum that chooses starts"},
    ),
}
"""Sections that plug-ins bring: their folder, and the headings of what several plug-ins share."""


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


@functools.cache
def meanings(schema: type[Any]) -> dict[str, str]:
    """Reads the text below each field of a dataclass, in its class or the nearest base that has one."""
    found: dict[str, str] = {}
    for owner in reversed([owner for owner in schema.__mro__ if dataclasses.is_dataclass(owner)]):
        (definition,) = ast.parse(textwrap.dedent(inspect.getsource(owner))).body
        assert isinstance(definition, ast.ClassDef)
        for declared, text in itertools.pairwise(definition.body):
            if isinstance(declared, ast.AnnAssign) and isinstance(text, ast.Expr):
                assert isinstance(declared.target, ast.Name)
                assert isinstance(text.value, ast.Constant)
                found[declared.target.id] = " ".join(str(text.value.value).split())
    return found


def default(field: dataclasses.Field[Any]) -> Any:
    """Returns the value of a field where none is given."""
    return field.default if field.default_factory is dataclasses.MISSING else field.default_factory()


def keys(schema: type[Any], prefix: str) -> Iterator[Key]:
    """Yields the keys of a section, and those of the sections in it."""
    for field in dataclasses.fields(schema):
        value, name = default(field), f"{prefix}{field.name}"
        if dataclasses.is_dataclass(value):
            yield from keys(type(value), f"{name}.")
        elif field.name in (written := meanings(schema)):  # a plug-in's section, such as env, has none
            yield Key(name, value, written[field.name], options(schema)[field.name])


def added(schema: type[Any], base: type[Any], prefix: str) -> list[Key]:
    """Returns the keys that a plug-in adds to a base, or gives another default."""
    common = {key.name: key.default for key in keys(base, prefix)}
    return [key for key in keys(schema, prefix) if key.name not in common or common[key.name] != key.default]


def sections() -> dict[str, list[Key]]:
    """Returns all keys, by the heading that they stand under."""
    found: dict[str, list[Key]] = {}
    for field in dataclasses.fields(Config):
        if dataclasses.is_dataclass(value := default(field)):
            found[field.name] = list(keys(type(value), f"{field.name}."))
    found["stages"] = list(keys(StageConfig, "stages[i]."))
    found["demos"] = [key for key in keys(Config, "") if key.name in ("demos", "num_demos")]
    for section, (kind, bases) in PLUGINS.items():
        plugins = {resolve(kind, name, "name").Config: f"`{section}.name: {name}`" for name in available(kind)}
        for schema, heading in {**plugins, **bases}.items():
            base = next((one for one in schema.__mro__[1:] if one in bases), None)
            prefix = f"{section}."
            found[heading] = list(keys(schema, prefix)) if base is None else added(schema, base, prefix)
    return {heading: rows for heading, rows in found.items() if rows}


def written(value: Any) -> str:
    """Writes a default as YAML in one line."""
    if value is dataclasses.MISSING:
        return "required"
    first, *_ = yaml.safe_dump(value, default_flow_style=True, width=1000).splitlines()
    return f"`{first}`"


def legal(option: Option) -> str:
    """Writes the limits and the legal words of a key."""
    words = [f"`{word}`" for word in option.words]
    if option.limits:
        return ", or ".join([option.limits.replace(" and ", ", "), *words])
    return ", ".join(words)


def affects(option: Option) -> str:
    """Writes what another value of a key makes different."""
    if option.affects in (Affects.NOTHING, Affects.EVERYTHING):
        return str(option.affects.name).lower()
    return ", ".join(str(one.name).lower() for one in option.affects)


def marked(text: str) -> str:
    """Turns the text below a field into Markdown in one line."""
    text = text.replace("``", "`").replace("None", "null").replace("|", "\\|")
    return re.sub(r"\bdocs/([\w.]+\.md)(#[\w-]+)?", r"[\1](\1\2)", text)


def table(rows: Sequence[Key]) -> str:
    """Writes the keys of a section; columns that would be empty are left out."""
    columns: Mapping[str, list[str]] = {
        "key": [f"`{key.name}`" for key in rows],
        "default": [written(key.default) for key in rows],
        "unit": [key.option.unit for key in rows],
        "legal": [legal(key.option) for key in rows],
        "meaning": [marked(key.meaning) for key in rows],
        "affects": [affects(key.option) for key in rows],
    }
    if set(columns["affects"]) == {"everything"}:
        columns = {name: cells for name, cells in columns.items() if name != "affects"}
    shown = {name: cells for name, cells in columns.items() if any(cells)}
    lines = [list(shown), ["---"] * len(shown), *map(list, zip(*shown.values(), strict=True))]
    return "".join(f"| {' | '.join(cells)} |\n" for cells in lines)


def page(text: str) -> str:
    """Returns a page with the tables that the fields say in place of those that were there."""
    found = sections()
    return re.sub(MARK, lambda mark: f"<!-- keys: {mark[1]} -->\n\n{table(found[mark[1]])}\n", text).rstrip("\n") + "\n"


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
