"""Configuration of a run: all keys, and those that differ from their defaults."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from rlpipe.config.defaults import changed, completed
from rlpipe.errors import ConfigError
from rlpipe.run.directory import RunDirectory


@dataclass(frozen=True)
class Settings:
    """Configuration of a run.

    Attributes:
        values: all keys, dotted; those that came after the run have their defaults
        changed: keys whose value is not their default, with it: (value, default); None if the defaults are unknown,
            because a plug-in is not installed here
    """

    values: dict[str, Any]
    changed: dict[str, tuple[Any, Any]] | None


def read_settings(directory: RunDirectory, missing: list[str]) -> Settings:
    """Reads ``config.yaml``.

    Args:
        directory: of the run
        missing: takes a sentence if the defaults are unknown
    Raises:
        ConfigError: the file is damaged.
    """
    tree = directory.read_config()
    values = completed(tree)
    try:
        return Settings(values, changed(tree))
    except (ConfigError, ImportError) as error:
        missing.append(f"Which keys differ from their defaults is unknown: {error}")
        return Settings(values, None)
