"""Reads files safely: JSON of a known shape, text, lines, and the kind of a path."""

from __future__ import annotations

import errno
import os
import re
import reprlib
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, TypeVar

from rlpipe.errors import ConfigError

if TYPE_CHECKING:
    from pydantic import TypeAdapter, ValidationError

T = TypeVar("T")
Watch = Callable[[Path, int, int], object]
"""Takes a file, the bytes that have been read of it, and its size in bytes."""
WATCHED_BYTES = 2**20
"""Bytes from one call of a watch to the next."""
_watch: ContextVar[Watch] = ContextVar("watch", default=lambda *_: None)

# Pydantic is imported where it is used: a simulator in a Python of its own does without.


def line(shape: type[T]) -> type[T]:
    """Decorates the shape of a line: unknown keys, which a later version may add, are dropped."""
    from pydantic import ConfigDict, with_config

    return with_config(ConfigDict(strict=True, allow_inf_nan=False))(shape)


def whole_file(shape: type[T]) -> type[T]:
    """Decorates the shape of a whole file, which may be written back: unknown keys are kept."""
    from pydantic import ConfigDict, with_config

    return with_config(ConfigDict(strict=True, allow_inf_nan=False, extra="allow"))(shape)


@cache
def _adapter(shape: Any) -> TypeAdapter[Any]:
    from pydantic import TypeAdapter

    return TypeAdapter(shape)


def parsed(text: bytes, shape: type[T], where: str) -> T:
    """Parses JSON of a known shape.

    Args:
        where: where the text comes from, for the error.
    Raises:
        ConfigError: the text is not JSON, or has another shape.
    """
    return _validated(shape, where, lambda adapter: adapter.validate_json(text))


def checked(value: Any, shape: type[T], where: str) -> T:
    """Checks the shape of a value that was read in another way, such as from YAML.

    Args:
        where: where the value comes from, for the error.
    Raises:
        ConfigError: the value has another shape.
    """
    return _validated(shape, where, lambda adapter: adapter.validate_python(value))


def _validated(shape: type[T], where: str, validate: Callable[[TypeAdapter[T]], T]) -> T:
    from pydantic import ValidationError

    try:
        return validate(_adapter(shape))  # type: ignore[arg-type] # a type can be hashed
    except ValidationError as error:
        raise ConfigError(_first_mistake(error, where)) from error


def _first_mistake(error: ValidationError, where: str) -> str:
    """Describes the first mistake: where it is, what was found, what is expected."""
    first = error.errors(include_url=False)[0]
    if first["type"] == "json_invalid":
        return f"{where} is not JSON: {first['ctx']['error'].replace('at line 1 column', 'at column')}."
    place = ""
    for step in first["loc"]:
        place += f"[{step}]" if isinstance(step, int) else f"{'.' * bool(place)}{step}"
    subject = f"{where}: {_short(place)}" if place else where
    if first["type"] == "missing":
        return f"{subject} is missing."
    demand = first["msg"].replace("Input should", "it must").removeprefix("Value error, ")
    return f"{subject} is {reprlib.repr(first['input'])}; {demand}."


def _short(text: str) -> str:
    """Shortens a text to a part of one line; it may be as long as a file and hold line breaks."""
    printable = text if text.isprintable() else repr(text)[1:-1]
    return printable if len(printable) <= 100 else f"{printable[:70]}...{printable[-20:]}"


def read(path: Path, shape: type[T]) -> T:
    """Reads a JSON file of a known shape.

    Raises:
        ConfigError: the file cannot be read, is not JSON, or has another shape.
    """
    return parsed(content(path), shape, str(path))


def content(path: Path) -> bytes:
    """Reads the bytes of a file.

    Raises:
        ConfigError: the file cannot be read.
    """
    try:
        return path.read_bytes()
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror or error}.") from error


def first_line(path: Path) -> bytes:
    """Reads the first line of a file; empty for an empty file.

    Raises:
        ConfigError: the file cannot be read.
    """
    try:
        with path.open("rb") as file:
            return file.readline()
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror or error}.") from error


def text(path: Path) -> str:
    """Reads a text file in UTF-8.

    Raises:
        ConfigError: the file cannot be read, or has another encoding.
    """
    try:
        return content(path).decode()
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path} is not text in UTF-8: {error.reason} at byte {error.start}.") from error


def lines(file: BinaryIO, path: Path) -> Iterator[bytes]:
    """Yields the lines of an open file from its position on; the last one may lack its end.

    Args:
        path: its path, for whoever watches (``watched``)
    """
    watch, offset, size = _watch.get(), file.tell(), os.fstat(file.fileno()).st_size
    due = offset + WATCHED_BYTES
    try:
        for line in file:
            yield line
            offset += len(line)
            if offset >= due:
                watch(path, min(offset, size - 1), size)  # a run may write meanwhile
                due = offset + WATCHED_BYTES
    finally:  # also where nobody needs the rest
        watch(path, size, size)


@contextmanager
def watched(watch: Watch) -> Iterator[None]:
    """Calls a function with the progress of every file whose lines are read meanwhile."""
    token = _watch.set(watch)
    try:
        yield
    finally:
        _watch.reset(token)


def user_path(text: str, key: str) -> Path:
    """Returns the path that a user means: ``~`` and ``~name`` are home folders, ``$NAME`` is a variable.

    Args:
        key: where it was given, for the error.
    Raises:
        ConfigError: there is no such user or variable.
    """
    path = os.path.expandvars(os.path.expanduser(text))
    unknown = re.match(r"~[^/]*", path) or re.search(r"\$(\w+|\{[^}]*\})", path)
    if unknown and not os.path.lexists(path):
        what = "user has such a home folder" if path.startswith("~") else "variable of the environment is called so"
        raise ConfigError(f"{key} is {text!r}, but {unknown[0]} is unknown: no {what}. Write the path out.")
    return Path(path)


@contextmanager
def replacing(path: Path, *, sync: bool = False) -> Iterator[BinaryIO]:
    """Opens a file that takes its name once it is complete, in the place of an older one; a failure leaves nothing.

    Args:
        sync: wait until the file and its name are on the disk.
    """
    partial = path.with_name(f".{path.name}.partial")
    try:
        with partial.open("wb") as file:
            yield file
            if sync:
                file.flush()
                os.fsync(file.fileno())
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)
    if sync:
        fsync_folder(path.parent)


def fsync_folder(folder: Path) -> None:
    """Waits until the names in a folder are on the disk too. Some network file systems refuse; the files are safe."""
    with suppress(OSError):
        number = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(number)
        finally:
            os.close(number)


def kind_of(path: Path) -> str:
    """Returns ``file``, ``directory``, or an empty string where nothing exists.

    Raises:
        ConfigError: the path cannot be examined: its name is too long, or access to a folder above it is denied.
    """
    try:
        mode = os.stat(path).st_mode
    except ValueError as error:
        raise ConfigError(f"{_short(str(path))} cannot name a file: {error}.") from error
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.ENOTDIR):
            return ""
        raise ConfigError(f"{_short(str(path))} cannot be examined: {error.strerror}.") from error
    return "directory" if stat.S_ISDIR(mode) else "file"
