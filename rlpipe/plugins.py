"""Finds the plug-in class that a name in a configuration refers to.

The folder of each kind, such as ``rlpipe/envs/``, holds the interface in ``base``, what plug-ins share in ``shared``,
and the plug-ins: every other file or folder is one. ``rlpipe/envs/maniskill`` is ``maniskill``, and its class is the
only name in its ``__all__``. A plug-in that needs Ray lies in ``rlpipe/distributed/<kind>/``. Code outside this package
is named ``package.module:Class``. There is no registry to edit.
"""

from __future__ import annotations

import difflib
import importlib
import importlib.util
import os
import pkgutil
import re
import sys
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any

from rlpipe.errors import ConfigError, how_it_failed
from rlpipe.foreign import foreign_code

_INTERFACES = {
    "envs": "Simulator",
    "policies": "Policy",
    "policies.encoders": "Encoder",
    "algorithms": "Algorithm",
    "backends": "Backend",
    "curricula": "Curriculum",
}
"""Class in the ``base`` of each kind from which its plug-ins derive."""
_PACKAGE = Path(__file__).parent
WHERE_MODULES_ARE = "It is looked for among the installed packages, in the present folder, and beside the configuration"
_searched: list[str] = []
"""Folders that ``find_modules_in`` has added."""


def find_modules_in(*folders: str | Path) -> None:
    """Lets ``import`` find modules in folders, behind the standard library and everything that is installed."""
    present = {os.path.abspath(folder) for folder in sys.path}
    for folder in map(os.path.abspath, folders):
        if folder not in present and os.path.isdir(folder):
            sys.path.append(folder)
            _searched.append(folder)


def searched_folders() -> list[str]:
    """Returns the folders that ``find_modules_in`` has added, for other processes of the run."""
    return list(_searched)


def own_folders() -> list[str]:
    """Folders of the import path outside any Python installation: the working directory, checkouts, ``PYTHONPATH``."""
    installed = tuple({str(Path(prefix).resolve()) + os.sep for prefix in (sys.prefix, sys.base_prefix)})
    folders = [str(Path(folder).resolve()) for folder in sys.path]
    return [
        folder
        for folder in dict.fromkeys(folders)
        if os.path.isdir(folder)
        and not f"{folder}{os.sep}".startswith(installed)
        and not re.search(r"(site|dist)-packages", folder)
    ]


def python_process(*arguments: str) -> tuple[list[str], dict[str, str]]:
    """Returns the command and the environment of a process that finds the same modules in the same order.

    Without ``-P``, modules of the working directory would come before all others.
    """
    package = [] if str(_PACKAGE.parent) in sys.path else [str(_PACKAGE.parent)]  # an editable installation
    path = os.pathsep.join([*package, *filter(None, sys.path)])
    return [sys.executable, "-P", *arguments], {**os.environ, "PYTHONPATH": path}


def closest(name: str, names: Iterable[str], similarity: float = 0.5) -> str | None:
    """Returns the most similar known name, in any case; None if none is as similar (from 0 to 1) as asked."""
    spelled = {candidate.lower(): candidate for candidate in names}
    matches = difflib.get_close_matches(name.lower(), list(spelled), n=1, cutoff=similarity)
    return spelled[matches[0]] if matches else None


def nearest(name: str, names: Iterable[str], similarity: float = 0.5) -> str:
    """End of a sentence: ``; did you mean 'x'?`` with the most similar known name, or a full stop if there is none."""
    match = closest(name, names, similarity)
    return "." if match is None else f"; did you mean {match!r}?"


def available(kind: str) -> list[str]:
    """Names of the plug-ins of a kind, sorted."""
    return sorted(_modules(kind))


@cache
def _modules(kind: str) -> dict[str, str]:
    """Module of each plug-in, by name. Looks only at file names, so that Ray is not loaded."""
    root, way = _PACKAGE, kind.split(".")
    folders = {
        f"rlpipe.{kind}": root.joinpath(*way),
        f"rlpipe.distributed.{kind}": root.joinpath("distributed", *way),
    }
    return {
        plugin.name: f"{package}.{plugin.name}"
        for package, folder in folders.items()
        for plugin in pkgutil.iter_modules([str(folder)])
        if plugin.name not in ("base", "shared") and f"{kind}.{plugin.name}" not in _INTERFACES
    }


def _folder(kind: str) -> str:
    return f"rlpipe/{kind.replace('.', '/')}"


def imported(name: str, key: str) -> Any:
    """Returns an object of code outside this package.

    Args:
        name: ``package.module:name``.
        key: configuration key or option that names it, for the error.
    Raises:
        ConfigError: importing it failed.
    """
    module_name, _, object_name = name.partition(":")
    try:
        with foreign_code(f"importing {module_name}"):
            return getattr(importlib.import_module(module_name), object_name)
    except BaseException as error:  # a module outside the package may raise anything
        missing = isinstance(error, ModuleNotFoundError) and error.name == module_name.partition(".")[0]
        raise ConfigError(
            f"{key} is {name!r}, but importing it failed: it {how_it_failed(error)}."
            f"{f' {WHERE_MODULES_ARE}.' if missing else ''}"
        ) from error


def resolve(kind: str, name: str, key: str) -> type[Any]:
    """Returns the class of a plug-in.

    Args:
        kind: folder of the plug-in: envs, policies, policies.encoders, algorithms, curricula or backends.
        name: ``maniskill``, or ``package.module:Class`` for code outside this package.
        key: configuration key that names it, for the error.
    Raises:
        ConfigError: there is no such plug-in.
    """
    if ":" in name:
        class_ = imported(name, key)
        interface = getattr(importlib.import_module(f"rlpipe.{kind}.base"), _INTERFACES[kind])
        if not isinstance(class_, type) or not issubclass(class_, interface):
            raise ConfigError(f"{key} is {name!r}, which is not a class with the interface of {_folder(kind)}/base.py.")
        return class_
    modules = _modules(kind)
    if name not in modules:
        names = sorted(modules)
        raise ConfigError(
            f"{key} is {name!r}, but {_folder(kind)}/ has no {name}; it has {', '.join(names)}"
            f"{nearest(name, names)} For your own file write 'package.module:Class'."
        )
    module = importlib.import_module(modules[name])
    (class_name,) = module.__all__
    return getattr(module, class_name)  # type: ignore[no-any-return]


def require(package: str, extra: str, key: str) -> None:
    """Checks that an optional package is installed, without importing it.

    Raises:
        ConfigError: the package is missing; the message holds the command that installs it.
    """
    if importlib.util.find_spec(package) is None:
        raise ConfigError(f"{key} needs the package {package}, which is not installed: pip install 'rlpipe[{extra}]'")
