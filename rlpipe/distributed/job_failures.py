"""Causes of a failed Ray job that can be read from its log."""

from __future__ import annotations

import re
from importlib import metadata

from rlpipe.doctor.versions import requirements

_WRONG_PYTHON = re.compile(r"^(\S*python\S*): No module named '?(\w+)", re.MULTILINE)
"""Line of a Python that lacks rlpipe, written by itself, or something rlpipe needs, written by ``rlpipe.__main__``."""
_MISSING_MODULE = re.compile(r"ModuleNotFoundError: No module named '(\w+)")
_NO_PYTHON = re.compile(r"\bpython: (command )?not found")
_ADVICE = (
    "A job runs with the first python in the PATH of `ray start`, so Ray was started outside the environment of "
    "rlpipe. Activate it on every node before Ray starts, such as `source .venv/bin/activate && ray start --head`, or "
    "give this job its own: --env PATH=/path/to/.venv/bin:/usr/bin:/bin."
)


def advice_on(log: str) -> str:
    """Returns what to do about a job that ran in the wrong environment, by the end of its log; else empty."""
    if match := _WRONG_PYTHON.search(log):
        return f"The cluster ran the job with {match[1]}, which has no package {match[2]}. {_ADVICE}"
    if (match := _MISSING_MODULE.search(log)) and _is_required(match[1]):
        return f"The cluster ran the job with a Python that has no package {match[1]}. {_ADVICE}"
    if _NO_PYTHON.search(log):
        return f"The cluster found no python for the job. {_ADVICE}"
    return ""


def _is_required(module: str) -> bool:
    """True if a top-level module belongs to a package that rlpipe requires."""
    return any(module in _top_level_modules(requirement.name) for requirement in requirements())


def _top_level_modules(package: str) -> set[str]:
    """Returns the modules of an installed package; ``packages_distributions`` reads those of all packages."""
    try:
        distribution = metadata.distribution(package)
    except metadata.PackageNotFoundError:
        return set()
    modules = (distribution.read_text("top_level.txt") or "").split()
    return {*modules} or {file.parts[0].removesuffix(".py") for file in distribution.files or ()}
