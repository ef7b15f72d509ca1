"""Finds the configurations and demonstrations that come with the package."""

from __future__ import annotations

import logging
from pathlib import Path

from rlpipe import files
from rlpipe.errors import ConfigError
from rlpipe.plugins import nearest

log = logging.getLogger("rlpipe")
_FOLDER = "configs"


def folder() -> Path:
    """Folder of the shipped files: inside the installed package, beside the package in a checkout."""
    package = Path(__file__).parent.parent
    installed = package / _FOLDER
    return installed if installed.is_dir() else package.parent / _FOLDER


def names() -> list[str]:
    """Names of the shipped configurations, sorted."""
    return sorted(file.stem for file in folder().glob("*.yaml"))


def file_of(name: str) -> Path:
    """Returns the file of a shipped configuration."""
    if name not in names():
        raise ConfigError(
            f"no configuration named {name!r} is shipped{nearest(name, names())} rlpipe configs lists all of them."
        )
    return folder() / f"{name}.yaml"


def configuration_file(source: str | Path) -> Path:
    """Returns the file that a user means: the one at this path, else the shipped configuration of this name or path."""
    path = located(files.user_path(str(source), "CONFIG"))
    kind = files.kind_of(path)
    if kind == "file":
        if path.is_relative_to(folder()) and not Path(source).exists():
            log.info("%s is not here; the one that comes with rlpipe is taken.", source)
        return path
    if str(source) in names():
        return file_of(str(source))
    local = sorted(file.name for file in (path if kind else path.parent).glob("*.yaml"))
    if kind:
        example = f", such as {path / local[0]}." if local else ", or, of a run, --resume."
        raise ConfigError(f"{source} is a directory; name a configuration file{example}")
    raise ConfigError(
        f"there is no configuration file {source}, and none is shipped under this name"
        f"{nearest(path.name, [*local, *names()])} rlpipe configs lists the shipped ones."
    )


def located(path: Path) -> Path:
    """Returns the shipped file for a path below ``configs/`` that is missing in the working directory, else the path.

    So a shipped configuration, or a copy of one, finds its demonstrations wherever a run is started."""
    if path.parts[:1] == (_FOLDER,) and not path.exists():
        shipped = folder().joinpath(*path.parts[1:])
        return shipped if shipped.is_file() else path
    return path
