"""Finds the plug-in class that a name in a configuration refers to.

The folder of each kind, such as ``rlpipe/envs/``, holds the interface in ``base``, what plug-ins share in ``shared``,
and the plug-ins: every other file or folder is one. ``rlpipe/envs/maniskill`` is ``maniskill``, and its class is the
only name in its ``__all__``. A plug-in that needs Ray lies in ``rlpipe/distributed/<kind>/``. Code outside this package
is named ``package.module:Class``, or as an installed distribution names it in its entry points of the group
``rlpipe.<kind>``. There is no registry to edit.
"""

from __future__ import annotations

import difflib
import importlib
import importlib.util
import json
import os
import pkgutil
import re
import sys
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from rlpipe.errors import ConfigError, how_it_failed
from rlpipe.foreign import foreign_code

if TYPE_CHECKING:
    from importlib.metadata import Distribution

_INTERFACES = {
    "envs": "Simulator",
    "policies": "Policy",
    "policies.encoders": "Encoder",
    "algorithms": "Algorithm",
    "backends": "Backend",
    "curricula": "Curriculum",
}
"""Class in the ``base`` of each kind from which its plug-ins derive."""
KINDS = tuple(_INTERFACES)
"""Kinds of plug-ins: folders of this package, and after ``rlpipe.`` groups of entry points."""
_PACKAGE = Path(__file__).parent
WHERE_MODULES_ARE = "It is looked for among the installed packages, in the present folder, and beside the configuration"
_searched: list[str] = []
"""Folders that ``find_modules_in`` has added."""


@dataclass(frozen=True)
class InstalledPlugin:
    """Plug-in that an installed distribution declares as an entry point.

    Attributes:
        kind: as of ``resolve``; empty where the entry points of the distribution could not be read.
        name: name in a configuration, if no other plug-in of its kind has it.
        target: ``package.module:Class``.
        distribution: name of the distribution.
        version: version of the distribution.
        folder: its sources, where it is installed in place or lies outside any Python installation; else empty.
        problem: why the entry point cannot be read, as a sentence; empty if it can.
    """

    kind: str
    name: str
    target: str
    distribution: str
    version: str
    folder: str
    problem: str = ""

    @property
    def origin(self) -> str:
        """Distribution and version, as in ``reach-lab 1.2``."""
        return f"{self.distribution} {self.version}".rstrip()

    def load(self) -> type[Any]:
        """Imports its class.

        Raises:
            ConfigError: that failed; the message is the reason alone.
        """
        if self.problem:
            raise ConfigError(self.problem)
        class_ = _imported(self.target, f"importing {self.target}")
        if not _is_plugin(self.kind, class_):
            raise ConfigError(f"{self.target} is not a class with the interface of {_folder(self.kind)}/base.py.")
        return class_  # type: ignore[no-any-return]


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
    """Names of the plug-ins of a kind, sorted: those of this package, and those of installed distributions."""
    return sorted({*shipped(kind), *(plugin.name for plugin in installed(kind))})


def shipped(kind: str) -> list[str]:
    """Names of the plug-ins of a kind in this package, sorted."""
    return sorted(_modules(kind))


def installed(kind: str | None = None) -> list[InstalledPlugin]:
    """Plug-ins of a kind, or of all, that installed distributions declare, also those that another one hides."""
    return [plugin for plugin in _installed(tuple(sys.path)) if kind is None or plugin.kind == kind]


def provider(kind: str, name: str) -> InstalledPlugin | None:
    """Returns what ``resolve`` loads for a name, if an installed distribution declares it; None for any other name."""
    if ":" in name or name in _modules(kind):
        return None
    return next((plugin for plugin in installed(kind) if plugin.name == name), None)


@cache
def _installed(path: tuple[str, ...]) -> tuple[InstalledPlugin, ...]:
    """Plug-ins of the distributions on a path for imports. Looks only at files, so that none is imported.

    Of several distributions of one name, the first counts, as for imports.
    """
    from importlib.metadata import distributions  # half the time of ``import rlpipe``, and few need it

    plugins: dict[str, list[InstalledPlugin]] = {}
    for distribution in distributions(path=[*path]):
        try:
            declares = "[rlpipe." in (distribution.read_text("entry_points.txt") or "")
        except (OSError, ValueError):  # not ours, or nobody can read it
            continue
        if declares:
            name = _metadata_of(distribution, "Name") or "a distribution without a name"
            plugins.setdefault(re.sub(r"[-_.]+", "-", name).lower(), _declared(distribution, name))
    return tuple(plugin for group in plugins.values() for plugin in group)


def _declared(distribution: Distribution, name: str) -> list[InstalledPlugin]:
    """Returns the plug-ins that a distribution declares; one with a problem if its entry points cannot be read."""
    origin = name, _metadata_of(distribution, "Version"), _sources(distribution)
    kinds, plugins = {f"rlpipe.{kind}": kind for kind in _INTERFACES}, []
    try:
        for entry in distribution.entry_points:
            if entry.group in kinds:
                is_class = re.fullmatch(r"[\w.]+:[\w.]+", target := re.sub(r"\s|\[.*", "", entry.value))
                problem = "" if is_class else f"its entry point is {entry.value!r}; it must be package.module:Class."
                plugins.append(InstalledPlugin(kinds[entry.group], entry.name, target, *origin, problem))
    except Exception as error:  # a line without "=" is a TypeError, and other versions of Python have other ones
        return [InstalledPlugin("", "", "", *origin, f"its entry_points.txt cannot be read: {how_it_failed(error)}.")]
    return plugins


def _metadata_of(distribution: Distribution, field: str) -> str:
    """Returns a field of a distribution's metadata; empty if it has none."""
    with suppress(Exception):  # a file that is missing or damaged: each version of Python has its own error
        return str(distribution.metadata[field] or "")
    return ""


def _sources(distribution: Distribution) -> str:
    """Returns the folder of a distribution that is installed in place, or outside any Python installation."""
    with suppress(OSError, ValueError, TypeError, AttributeError, KeyError):  # PEP 610; older tools write none
        source = json.loads(distribution.read_text("direct_url.json") or "")
        if source["dir_info"]["editable"] and source["url"].startswith("file://"):
            return unquote(source["url"].removeprefix("file://"))
    folder = str(Path(str(distribution.locate_file(""))).resolve())
    return folder if folder in own_folders() else ""


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
    return _imported(name, f"{key} is {name!r}, but importing it")


def _imported(name: str, request: str) -> Any:
    """Returns an object of code outside this package; ``request`` begins the sentence of an error."""
    module_name, _, object_name = name.partition(":")
    try:
        with foreign_code(f"importing {module_name}"):
            return attrgetter(object_name)(importlib.import_module(module_name))
    except BaseException as error:  # a module outside the package may raise anything
        missing = isinstance(error, ModuleNotFoundError) and error.name == module_name.partition(".")[0]
        raise ConfigError(
            f"{request} failed: it {how_it_failed(error)}.{f' {WHERE_MODULES_ARE}.' if missing else ''}"
        ) from error


def _is_plugin(kind: str, class_: Any) -> bool:
    interface = getattr(importlib.import_module(f"rlpipe.{kind}.base"), _INTERFACES[kind])
    return isinstance(class_, type) and issubclass(class_, interface)


def resolve(kind: str, name: str, key: str) -> type[Any]:
    """Returns the class of a plug-in.

    A name of this package means its own plug-in, whatever is installed beside it, and needs no look at the installed
    distributions.

    Args:
        kind: folder of the plug-in: envs, policies, policies.encoders, algorithms, curricula or backends.
        name: ``maniskill``, the name of an entry point, or ``package.module:Class`` for any code outside this package.
        key: configuration key that names it, for the error.
    Raises:
        ConfigError: there is no such plug-in, several distributions provide it, or it cannot be imported.
    """
    if ":" in name:
        class_ = imported(name, key)
        if not _is_plugin(kind, class_):
            raise ConfigError(f"{key} is {name!r}, which is not a class with the interface of {_folder(kind)}/base.py.")
        return class_  # type: ignore[no-any-return]
    modules = _modules(kind)
    if name not in modules:
        plugin = _only(kind, name, key)
        try:
            return plugin.load()
        except ConfigError as error:
            raise ConfigError(f"{key} is {name!r} of {plugin.origin}: {error}") from error
    module = importlib.import_module(modules[name])
    (class_name,) = module.__all__
    return getattr(module, class_name)  # type: ignore[no-any-return]


def _only(kind: str, name: str, key: str) -> InstalledPlugin:
    """Returns the only installed plug-in of a name.

    Raises:
        ConfigError: there is none, or there are several.
    """
    plugins = [plugin for plugin in installed(kind) if plugin.name == name]
    if len(plugins) == 1:
        return plugins[0]
    if plugins:
        provided = " and ".join(f"{plugin.origin} provides as {plugin.target}" for plugin in plugins)
        raise ConfigError(
            f"{key} is {name!r}, which {provided}: write which one is meant, such as {key}={plugins[0].target}."
        )
    names, others = shipped(kind), sorted({plugin.name for plugin in installed(kind)})
    beside = f", and installed packages provide {', '.join(others)}" if others else ""
    unread = "".join(f" Of {plugin.origin}, {plugin.problem}" for plugin in installed("") if plugin.problem)
    raise ConfigError(
        f"{key} is {name!r}, but {_folder(kind)}/ has no {name}; it has {', '.join(names)}{beside}"
        f"{nearest(name, [*names, *others])} For your own file write 'package.module:Class'.{unread}"
    )


def require(package: str, extra: str, key: str) -> None:
    """Checks that an optional package is installed, without importing it.

    Raises:
        ConfigError: the package is missing; the message holds the command that installs it.
    """
    if importlib.util.find_spec(package) is None:
        raise ConfigError(f"{key} needs the package {package}, which is not installed: pip install 'rlpipe[{extra}]'")
