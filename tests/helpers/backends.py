"""Runs that show in a backend, and whether its own store holds all of them."""

from __future__ import annotations

import importlib
import pkgutil
import subprocess
import sys
from pathlib import Path

import pytest

import rlpipe
from rlpipe.run.directory import RunDirectory, read_jsonl
from tests.helpers import stores
from tests.helpers.runs import scripted

STORES = {
    found.name: importlib.import_module(f"tests.helpers.stores.{found.name}")
    for found in pkgutil.iter_modules(stores.__path__)
}


def trained(folder: Path, name: str, *overrides: str) -> RunDirectory:
    """A finished run that fed a backend while it ran, and waited for it at the end however busy the machine was."""
    patient = "runner.logger.finish_timeout=200"
    config = scripted(folder, f"runner.logger.logger_backends=[{name}]", patient, *STORES[name].OPTIONS, *overrides)
    return RunDirectory(rlpipe.train(config, local=True).directory)


def sync(run: RunDirectory, name: str, *options: str) -> subprocess.CompletedProcess[str]:
    """``rlpipe sync`` as a user types it."""
    command = [sys.executable, "-m", "rlpipe", "sync", str(run.path), "--to", name, *options]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


def assert_shows_everything(run: RunDirectory, name: str) -> None:
    """The store holds each iteration of ``metrics.jsonl`` once, with the same numbers under the same names."""
    store = STORES[name]
    held = store.numbers(run)
    rows = {row["iteration"]: row for row in read_jsonl(run.path / "metrics.jsonl")}
    assert sorted(held) == sorted(rows)
    for iteration, row in rows.items():
        apart = {f"workers/{r}/{key}": v for r, found in row.get("workers", {}).items() for key, v in found.items()}
        assert held[iteration] == pytest.approx({**row["metrics"], **apart}, rel=store.TOLERANCE, abs=0)
