"""Reads files safely: JSON of a known shape, text, and what a path names."""

from __future__ import annotations

import errno
import os
import reprlib
import stat
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

from pydantic import ConfigDict, TypeAdapter, ValidationError, with_config

from rlpipe.errors import ConfigError

T = TypeVar("T")

line = with_config(ConfigDict(strict=True, allow_inf_nan=False))
"""Decorates the shape of a line: keys that a later version may add are dropped."""
whole_file = with_config(ConfigDict(strict=True, allow_inf_nan=False, extra="allow"))
"""Decorates the shape of a file that is written back: unknown keys are kept."""


@cache
def _adapter(shape: Any) -> TypeAdapter[Any]:
    return TypeAdapter(shape)


def parsed(text: bytes, shape: type[T], where: str) -> T:
    """The value that JSON stands for.

    Args:
        text: JSON.  shape: it must have.  where: it stands, for the error.
    Raises:
        ConfigError: it is not JSON, or has another shape.
    """
    try:
        found: T = _adapter(shape).validate_json(text)  # type: ignore[arg-type] # a type can be hashed
    except ValidationError as error:
        raise ConfigError(_told(error, where)) from error
    return found


def checked(value: Any, shape: type[T], where: str) -> T:
    """A value that was read in another way, such as from YAML.

    Raises:
        ConfigError: it has another shape.
    """
    try:
        found: T = _adapter(shape).validate_python(value)  # type: ignore[arg-type] # a type can be hashed
    except ValidationError as error:
        raise ConfigError(_told(error, where)) from error
    return found


def _told(error: ValidationError, where: str) -> str:
    """The first thing that is wrong: where, what was found, what belongs there."""
    first = error.errors(include_url=False)[0]
    if first["type"] == "json_invalid":
        return f"{where} is not JSON: {first['ctx']['error'].replace('at line 1 column', 'at column')}."
    place = ""
    for step in first["loc"]:
        place += f"[{step}]" if isinstance(step, int) else f"{'.' * bool(place)}{step}"
    what = f"{where}: {_short(place)}" if place else where
    if first["type"] == "missing":
        return f"{what} is missing."
    demand = first["msg"].replace("Input should", "it must").removeprefix("Value error, ")
    return f"{what} is {reprlib.repr(first['input'])}; {demand}."


def _short(text: str) -> str:
    """A text that may be as long as a file, and hold what would end the line."""
    printable = text if text.isprintable() else repr(text)[1:-1]
    return printable if len(printable) <= 100 else f"{printable[:70]}...{printable[-20:]}"


def read(path: Path, shape: type[T]) -> T:
    """The value that a JSON file holds.

    Raises:
        ConfigError: it cannot be read, is not JSON, or has another shape.
    """
    return parsed(content(path), shape, str(path))


def content(path: Path) -> bytes:
    """The bytes of a file.

    Raises:
        ConfigError: the system does not give them.
    """
    try:
        return path.read_bytes()
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror or error}.") from error


def text(path: Path) -> str:
    """The text of a file, in UTF-8.

    Raises:
        ConfigError: the system does not give it, or it is another encoding.
    """
    try:
        return content(path).decode()
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path} is not text in UTF-8: {error.reason} at byte {error.start}.") from error


def kind_of(path: Path) -> str:
    """``file``, ``directory``, or nothing where nothing is.

    Raises:
        ConfigError: the system does not say: the name is too long, or a folder on the way may not be entered.
    """
    try:
        mode = os.stat(path).st_mode
    except ValueError as error:
        raise ConfigError(f"{_short(str(path))} names no file: {error}.") from error
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.ENOTDIR):
            return ""
        raise ConfigError(f"{_short(str(path))} cannot be looked at: {error.strerror}.") from error
    return "directory" if stat.S_ISDIR(mode) else "file"
