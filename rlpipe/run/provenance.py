"""Provenance of a run: the software, the machines, the seeds and the protocol behind its numbers."""

from __future__ import annotations

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

_PACKAGES = ("rlpipe", "ray", "torch", "numpy", "gymnasium", "mani_skill", "sapien")


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
    packages = {package: version for package in _PACKAGES if (version := installed_version(package))}
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
