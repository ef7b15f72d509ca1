"""Formats by their names on the command line."""

from __future__ import annotations

from rlpipe.demonstrations.formats import maniskill
from rlpipe.demonstrations.formats.episode import Format
from rlpipe.errors import ConfigError
from rlpipe.plugins import nearest

FORMATS: tuple[Format, ...] = (maniskill,)


def format_named(name: str, key: str) -> Format:
    """Returns the format of a name; ``key`` is the option that gives it.

    Raises:
        ConfigError: there is none of that name.
    """
    for form in FORMATS:
        if name == form.NAME:
            return form
    names = [form.NAME for form in FORMATS]
    raise ConfigError(f"{key} is {name!r}{nearest(name, names)} Allowed values: {', '.join(names)}.")
