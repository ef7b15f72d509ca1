"""Finds the format of a dataset by looking into it."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from rlpipe import files
from rlpipe.demonstrations.formats import lerobot_v2, lerobot_v3, maniskill, minari, rlinf, robomimic, writing
from rlpipe.demonstrations.formats.episode import Dataset, Format
from rlpipe.demonstrations.layouts import folder_is
from rlpipe.demonstrations.recording import DAMAGE, contents
from rlpipe.errors import ConfigError
from rlpipe.plugins import require

FORMATS: Mapping[str, Format] = {
    form.NAME: form for form in (maniskill, lerobot_v3, lerobot_v2, rlinf, robomimic, minari)
}
"""Formats by their names on the command line."""


def format_called(name: str, key: str) -> Format:
    """Returns a format by its name; ``key`` names it in errors."""
    if name not in FORMATS:
        raise ConfigError(f"{key} is {name}; there are {', '.join(FORMATS)}.")
    return FORMATS[name]


def format_of(path: Path) -> Format | None:
    """Returns the format whose marks a file or folder bears; None if it bears those of none."""
    for form in FORMATS.values():
        with suppress(*DAMAGE):
            if form.recognises(path):
                return form
    return None


def open_dataset(path: Path, key: str) -> Dataset:
    """Opens a dataset of any format.

    Raises:
        ConfigError: there is none, or it is of no format that is read, incomplete or damaged; ``key`` names it.
    """
    require("h5py", "maniskill", key)
    kind = files.kind_of(path)
    if not kind:
        raise ConfigError(f"{key} is {path}, but there is no such file or folder.")
    if writing.is_unfinished(path):
        return writing.open_unfinished(path)
    form = format_of(path)
    if form is not None:
        return form.open_dataset(path, key)
    if kind == "directory":
        raise ConfigError(f"{key} is {path}, but {folder_is(path)}")
    contents(str(path), key)  # says what the file is, or lacks
    raise ConfigError(f"{key}: {path} holds no demonstrations of a format that is read: {', '.join(FORMATS)}.")
