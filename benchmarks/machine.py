"""Where a benchmark ran: processor, cores, GPU, versions and commit, for its JSON and the first line of its output."""

from __future__ import annotations

import json
import os
import platform
import subprocess
from importlib import metadata
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent


def processor() -> str:
    """Name of the processor."""
    cpuinfo = Path("/proc/cpuinfo")
    for line in cpuinfo.read_text().splitlines() if cpuinfo.exists() else []:
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def commit() -> str | None:
    """Commit of the checkout, with ``+changes`` where files differ from it; None outside a checkout."""
    git = ["git", "-C", str(ROOT)]
    try:
        head = subprocess.run([*git, "rev-parse", "HEAD"], capture_output=True, text=True, check=True).stdout.strip()
        changed = subprocess.run([*git, "diff", "--quiet", "HEAD"], check=False).returncode
    except (OSError, subprocess.CalledProcessError):
        return None
    return f"{head}+changes" if changed else head


def describe(*packages: str) -> dict[str, Any]:
    """Describes the machine and the versions of those packages that are installed."""
    versions = {"python": platform.python_version()}
    for package in packages:
        try:
            versions[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return {
        "processor": processor(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_gib": round(memory, 1),
        "versions": versions,
        "commit": commit(),
    }


def sentence(machine: dict[str, Any]) -> str:
    """Description of a machine in one line."""
    versions = ", ".join(f"{name} {version}" for name, version in machine["versions"].items())
    gpu = f", {machine['gpu']}" if machine.get("gpu") else ""
    return f"{machine['processor']}, {machine['cores']} cores{gpu}; {versions}; commit {machine['commit']}"


def call(command: list[str]) -> dict[str, Any]:
    """Runs a command in the checkout. Returns the JSON on the last line of its output.

    Raises:
        RuntimeError: the command failed.
    """
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if ended.returncode != 0:
        raise RuntimeError(f"{' '.join(command)} failed with exit code {ended.returncode}: {ended.stderr[-800:]}")
    answer: dict[str, Any] = json.loads(ended.stdout.splitlines()[-1])
    return answer


def write(file: Path | None, result: dict[str, Any]) -> None:
    """Writes the result of a benchmark as JSON, if a file was given."""
    if file is not None:
        file.write_text(json.dumps(result, indent=1, allow_nan=False) + "\n")
