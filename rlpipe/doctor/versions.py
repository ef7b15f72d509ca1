"""Checks of versions: the same on all nodes, and the ones that rlpipe needs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from importlib import metadata

from packaging.requirements import Requirement
from packaging.version import Version

from rlpipe.doctor.facts import Facts
from rlpipe.doctor.results import CheckResult, fail, ok, warn
from rlpipe.run.provenance import DECIDES_NUMBERS, installed_version

_NAMED = ("ray", "torch", "gymnasium", "mani_skill")
"""Packages whose versions are shown when all is in order."""


def requirements() -> list[Requirement]:
    """Returns what this rlpipe requires without its extras; empty if it was not installed as a package."""
    try:
        lines = metadata.requires("rlpipe") or []
    except metadata.PackageNotFoundError:
        return []
    named = map(Requirement, lines)
    return [needed for needed in named if needed.marker is None or needed.marker.evaluate({"extra": ""})]


def check_versions(driver: Facts, nodes: Mapping[str, Facts], needed: Sequence[Requirement]) -> list[CheckResult]:
    """Checks that all nodes run what the driver's machine runs, and that it is what rlpipe needs."""
    problems = [
        replace(problem, node=node)
        for node, facts in nodes.items()
        for problem in [*_differences(driver, facts), *_unmet(facts, needed)]
    ]
    if problems:
        return problems
    named = [f"{name} {driver.packages[name]}" for name in _NAMED if name in driver.packages]
    same = f", the same on {len(nodes)} nodes" if len(nodes) > 1 else ""
    rlpipe = f"rlpipe {installed_version('rlpipe') or 'from source'} ({driver.source})"
    return [ok("versions", ", ".join([f"Python {driver.python}", *named, f"{rlpipe}{same}"]))]


def _differences(driver: Facts, other: Facts) -> list[CheckResult]:
    """Compares packages and source. Builds of one torch version are equal, and so are patches of one Python."""

    def minor(python: str) -> str:
        return ".".join(python.split(".")[:2])

    both = [name for name in DECIDES_NUMBERS if name in driver.packages and name in other.packages]  # else see `_unmet`
    pairs = [
        ("Python", minor(driver.python), minor(other.python)),
        *((name, Version(driver.packages[name]).public, Version(other.packages[name]).public) for name in both),
    ]
    results = [
        fail(
            "versions",
            f"{name} is {theirs}, but {ours} on the driver's machine.",
            f"install {name} {ours} on it, or use one image everywhere.",
        )
        for name, ours, theirs in pairs
        if ours != theirs
    ]
    if other.source != driver.source:  # a warning, because somebody may be editing it
        different = f"the source of rlpipe differs ({other.source}) from the driver's machine ({driver.source})."
        results.append(warn("versions", different, "install the same source there, or share it."))
    return results


def _unmet(facts: Facts, needed: Sequence[Requirement]) -> list[CheckResult]:
    unmet = [requirement for requirement in needed if _is_unmet(requirement, facts.packages.get(requirement.name))]
    if not unmet:
        return []
    names = [requirement.name for requirement in unmet]
    installed = ", ".join(f"{name} {facts.packages.get(name, 'is missing')}" for name in names)
    command = f"pip install {' '.join(map(repr, map(str, unmet)))}"
    return [fail("versions", f"{installed}; rlpipe needs other versions.", command)]


def _is_unmet(requirement: Requirement, version: str | None) -> bool:
    return version is None or not requirement.specifier.contains(version, prereleases=True)
