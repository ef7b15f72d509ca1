"""Declares a configuration key completely: everything that is known of a key stands on its dataclass field.

The annotation is its type, the assigned value its default, and the text below it its meaning. ``option`` adds its
unit, its legal values and what another value of it affects::

    horizon: int = option(200, least=1, unit="environment steps", affects=Affects.RESULTS | Affects.COMPARISON)
    "Steps that each environment takes in an iteration."

A field without ``option`` accepts every value of its type and affects everything. A subclass that declares a field
again, without ``option``, changes its default and keeps the rest.
"""

from __future__ import annotations

import copy
import dataclasses
import functools
import math
import operator
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import MISSING, dataclass, field
from decimal import Decimal, InvalidOperation
from enum import Flag, auto
from pathlib import Path
from types import UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

from rlpipe import files
from rlpipe.config.other_systems import nearest_value
from rlpipe.errors import ConfigError
from rlpipe.plugins import nearest

_METADATA = "rlpipe"
_ALIKE = 0.6
"""Similarity from which a legal word is taken for what was meant."""
_BOOLEANS = ("true", "false")
_LONGEST_NAME = 255
_LARGEST = 10**300
"""Numbers from here on are refused before they are written out, digit by digit."""


class Affects(Flag):
    """Differences that another value of a key makes.

    Attributes:
        NOTHING: where a run is shown, how long something may take.
        RESULTS: what a run learns or measures. ``runner.auto_resume`` continues only a run with the same value.
        EVALUATION: what a checkpoint was evaluated with, beside the protocol. ``rlpipe compare`` does not use an
            evaluation with another value as the run's own.
        COMPARISON: which runs are alike but for their seed. ``rlpipe compare`` puts a run with another value into
            another group.
        EVERYTHING: all of these, which is the safe default.
    """

    NOTHING = 0
    RESULTS = auto()
    EVALUATION = auto()
    COMPARISON = auto()
    EVERYTHING = RESULTS | EVALUATION | COMPARISON


Check = Callable[[str, Any], None]
"""Takes the full key and its value; raises ``ConfigError`` if the value is not legal."""


@dataclass(frozen=True)
class Option:
    """Declaration of a key by ``option``. Limits of a list apply to each entry.

    Attributes:
        least: smallest legal number.
        above: number that a legal one exceeds.
        most: largest legal number.
        below: number that a legal one does not reach.
        choices: legal words; beside limits, the words that are legal in place of a number; ``true`` and ``false`` are
            the two values of a bool.
        checks: further demands on the whole value.
        unit: unit of the value, empty for none.
        affects: what another value makes different. A plug-in's section declares it for all its options.
        fixed: True if no stage may change the key.
        nullable: True if the type of the key allows null, which then needs no other limit.
    """

    least: float | None = None
    above: float | None = None
    most: float | None = None
    below: float | None = None
    choices: tuple[str, ...] = ()
    checks: tuple[Check, ...] = ()
    unit: str = ""
    affects: Affects = Affects.EVERYTHING
    fixed: bool = False
    nullable: bool = False

    @property
    def words(self) -> tuple[str, ...]:
        """Legal words, with null where it is legal."""
        return (*self.choices, "null") if self.choices and self.nullable else self.choices

    @property
    def limits(self) -> str:
        """The limits of a number as the rest of the sentence "it must be ..."; empty for none."""
        return " and ".join(f"{words} {_written(bound)}" for words, bound, _ in self._bounds())

    def within_limits(self, number: float) -> bool:
        """True if a number keeps to all limits."""
        return all(holds(number, bound) for _, bound, holds in self._bounds())

    def _bounds(self) -> Iterator[tuple[str, float, Callable[[float, float], bool]]]:
        """Yields the words, the number and the comparison of each limit that is given."""
        bounds = (
            ("at least", self.least, operator.ge),
            ("greater than", self.above, operator.gt),
            ("at most", self.most, operator.le),
            ("below", self.below, operator.lt),
        )
        yield from ((words, bound, holds) for words, bound, holds in bounds if bound is not None)


def option(
    default: Any = MISSING,
    *,
    least: float | None = None,
    above: float | None = None,
    most: float | None = None,
    below: float | None = None,
    choices: tuple[str, ...] = (),
    checks: tuple[Check, ...] = (),
    unit: str = "",
    affects: Affects = Affects.EVERYTHING,
    fixed: bool = False,
) -> Any:
    """Declares a dataclass field as a configuration key.

    Args:
        default: value where none is given; a list or a dictionary is copied. Left out for a key that must be given.
        least, above, most, below, choices, checks, unit, affects, fixed: as in ``Option``.
    """
    declared = Option(least, above, most, below, choices, checks, unit, affects, fixed)
    metadata = {_METADATA: declared}
    if isinstance(default, list | dict):
        return field(default_factory=lambda: copy.deepcopy(default), metadata=metadata)
    return field(default=default, metadata=metadata)


@functools.cache
def options(schema: Any) -> dict[str, Option]:
    """Returns what is declared of each field of a dataclass, by name."""
    return {
        name: dataclasses.replace(_declared(schema, name), nullable=type(None) in get_args(types_of(schema)[name]))
        for name in (field.name for field in dataclasses.fields(schema))
    }


def _declared(schema: Any, name: str) -> Option:
    """Returns the nearest declaration of a field, in its class or a base of it."""
    for owner in schema.__mro__:
        declaration = vars(owner).get("__dataclass_fields__", {}).get(name)
        if declaration is not None and _METADATA in declaration.metadata:
            declared: Option = declaration.metadata[_METADATA]
            return declared
    return Option()


def affected_by(schema: Any, key: str) -> Affects:
    """Returns what another value of a dotted key affects; everything, for a key that no field declares."""
    name, _, rest = key.partition(".")
    declared = options(schema).get(name, Option())
    section = types_of(schema).get(name)
    if rest and isinstance(section, type) and dataclasses.is_dataclass(section):
        return affected_by(section, rest)
    return declared.affects


@functools.cache
def types_of(schema: type[Any]) -> dict[str, Any]:
    """Returns the type of each field of a dataclass."""
    return get_type_hints(schema)


def check_fields(section: Any, key: str = "") -> None:
    """Checks every value of a section, and of the sections in it, for itself.

    Args:
        section: instance of a dataclass.
        key: full key of the section, for the error; empty for the whole configuration.
    Raises:
        ConfigError: a value is not legal.
    """
    schema: Any = type(section)
    for name, declared in options(schema).items():
        full_key, value = f"{key}.{name}" if key else name, getattr(section, name)
        _check_storable(full_key, value)
        is_list = isinstance(value, list | tuple)
        for index, entry in enumerate(value if is_list else [value]):
            entry_key = f"{full_key}[{index}]" if is_list else full_key
            if dataclasses.is_dataclass(entry):
                check_fields(entry, entry_key)
            elif entry is not None:
                _check_legal(entry_key, entry, declared)
        for check in declared.checks if value is not None else ():
            check(full_key, value)


def _check_storable(key: str, value: Any) -> None:
    """Checks that the files of a run can hold a value. Lists are left to their plug-in: a script of rewards may hold
    anything.
    """
    if isinstance(value, float) and not math.isfinite(value):
        raise ConfigError(f"{key} is {value}; it must be a finite number.")
    if isinstance(value, str) and "\0" in value:
        raise ConfigError(f"{key} is {value!r}, which contains a NUL character: remove it.")
    if isinstance(value, Mapping):
        for name, inner in value.items():
            _check_storable(f"{key}.{name}", inner)


def _check_legal(key: str, value: Any, declared: Option) -> None:
    """Checks one value against the limits and the legal words of its key."""
    texts = [word for word in declared.choices if word not in _BOOLEANS]  # the text "true" is none of the two
    if value in texts or (isinstance(value, bool) and str(value).lower() in declared.choices):
        return
    if declared.limits and declared.choices and isinstance(value, str):
        words = " or ".join(declared.choices)
        raise ConfigError(f"{key} is {value!r}; it must be a number, {declared.limits}, or {words}.")
    if declared.limits and not declared.within_limits(value):
        words = "".join(f", or {word}" for word in declared.choices)
        raise ConfigError(f"{key} is {value}; it must be {declared.limits}{words}.")
    if declared.choices and not declared.limits:
        meant = nearest_value(key, str(value)) or nearest(str(value), declared.choices, _ALIKE)
        raise ConfigError(f"{key} is {value!r}{meant} Allowed values: {', '.join(declared.words)}.")


def kinds_of(hint: Any) -> tuple[Any, ...]:
    """Returns the types of a union, or the type itself."""
    return get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)


def whole_number(value: Any, key: str) -> int:
    """Returns a whole number by its value: ``1000``, ``1e3``, ``1000.0`` and ``1_000`` are the same.

    Raises:
        ConfigError: it has a fraction, or is no number.
    """
    try:
        number: Any = Decimal(value) if isinstance(value, str) else value
    except InvalidOperation:
        number = math.nan
    finite = isinstance(number, int | float | Decimal) and not isinstance(number, bool) and math.isfinite(number)
    if not finite or abs(number) >= _LARGEST or number != int(number):
        raise ConfigError(f"{key} is {value!r}; it must be a whole number.")
    return int(number)


def check_not_empty(key: str, value: Any) -> None:
    """Checks that a name has letters, or a list entries."""
    if not (value.strip() if isinstance(value, str) else value):
        raise ConfigError(f"{key} is empty; give it {'a name' if isinstance(value, str) else 'at least one entry'}.")


def check_texts(key: str, value: Mapping[str, Any]) -> None:
    """Checks that the values of a mapping are texts."""
    for name, text in value.items():
        if not isinstance(text, str):
            raise ConfigError(f"{key}.{name} is {text!r}; it must be a text.")


def check_path(key: str, value: str) -> None:
    """Checks that the file system accepts a path; there need not be anything. Marks the option as a path, in which
    ``~`` is the home folder."""
    if value.lower() == "null":
        raise ConfigError(f"{key} is {value}; give it a path, or leave it out. A folder of that name is ./{value}.")
    files.kind_of(Path(value))


def check_folder_name(key: str, value: str) -> None:
    """Checks that a text names a folder inside another one, perhaps in a folder there, such as ``lab/reach``."""
    parts = value.split("/")
    if not all(parts) or {".", ".."} & {*parts} or value.startswith("~"):
        raise ConfigError(
            f"{key} is {value!r}, which leads out of its folder: give a name, such as reach, or lab/reach."
        )
    if not value.isprintable() or max(len(os.fsencode(part)) for part in parts) > _LONGEST_NAME:
        raise ConfigError(
            f"{key} is {value!r}, which cannot be the name of a folder: leave out line breaks and control characters, "
            f"and use at most {_LONGEST_NAME} bytes."
        )


def _written(number: float) -> str:
    """Writes a limit briefly: 1, 0.5, 2^31, 1e9."""
    exponent = math.log2(number) if number >= 1024 else 0.0
    return f"2^{exponent:.0f}" if exponent and exponent.is_integer() else f"{number:g}".replace("e+0", "e")
