"""Checks of versions: the same on all nodes, and the ones that rlpipe needs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from importlib import metadata

from packaging.requirements import Requirement
from packaging.version import Version

from rlpipe.doctor.facts import DECIDES_NUMBERS, Facts, installed_version
from rlpipe.doctor.results import CheckResult, fail, ok, warn

_NAMED = ("ray", "torch", "gymnasium", "mani_skill")
"""Packages whose versions are shown when all is in order."""


def requirements() -> list[Requirement]:
    """Returns what this rlpipe requires without its extras; empty if it was not installed as a package."""
    try:
        lines = metadata.requires("rlpipe") or []
    except metadata.PackageNotFoundError:
        return []
    found = [Requirement(line) for line in lines]
    return [one for one in found if one.marker is None or one.marker.evaluate({"extra": ""})]


def check_versions(own: Facts, nodes: Mapping[str, Facts], needed: Sequence[Requirement]) -> list[CheckResult]:
    """Checks that all nodes run what this machine runs, and that it is what rlpipe needs.

    Args:
        own: facts about this machine.
        nodes: facts about each node.
        needed: requirements of rlpipe.
    """
    problems = [
        replace(problem, node=node)
        for node, facts in nodes.items()
        for problem in [*_differences(own, facts), *_unmet(facts, needed)]
    ]
    if problems:
        return problems
    versions = [f"Python {own.python}", *(f"{name} {own.packages[name]}" for name in _NAMED if name in own.packages)]
    same = f", the same on {len(nodes)} nodes" if len(nodes) > 1 else ""
    rlpipe = f"rlpipe {installed_version('rlpipe') or 'from source'} ({own.source})"
    return [ok("versions", f"{', '.join(versions)}, {rlpipe}{same}")]


def _differences(own: Facts, other: Facts) -> list[CheckResult]:
    """Compares packages and source. Builds of one torch version are equal, and so are patches of one Python."""

    def minor(python: str) -> str:
        return ".".join(python.split(".")[:2])

    both = [name for name in DECIDES_NUMBERS if name in own.packages and name in other.packages]  # else see `_unmet`
    pairs = [
        ("Python", minor(own.python), minor(other.python)),
        *((name, Version(own.packages[name]).public, Version(other.packages[name]).public) for name in both),
    ]
    found = [
        fail(
            "versions",
            f"{name} is {theirs}, but {ours} on the driver's machine.",
            f"install {name} {ours} on it, or use one image everywhere.",
        )
        for name, ours, theirs in pairs
        if ours != theirs
    ]
    if other.source != own.source:  # a warning, because somebody may be editing it
        different = f"the source of rlpipe differs ({other.source}) from the driver's machine ({own.source})."
        found.append(warn("versions", different, "install the same source there, or share it."))
    return found


def _unmet(facts: Facts, needed: Sequence[Requirement]) -> list[CheckResult]:
    unmet = [one for one in needed if _is_unmet(one, facts.packages.get(one.name))]
    if not unmet:
        return []
    installed = ", ".join(f"{one.name} {facts.packages.get(one.name, 'is missing')}" for one in unmet)
    command = f"pip install {' '.join(map(repr, map(str, unmet)))}"
    return [fail("versions", f"{installed}; rlpipe needs other versions.", command)]


def _is_unmet(requirement: Requirement, version: str | None) -> bool:
    return version is None or not requirement.specifier.contains(version, prereleases=True)
