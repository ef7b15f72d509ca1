"""Runs that show in a backend, and whether its own store holds all of them."""

from __future__ import annotations

import importlib
import pkgutil
import subprocess
import sys

import pytest

from rlpipe.run.directory import RunDirectory, read_jsonl
from rlpipe.run.follower import Follower
from tests.helpers import stores

STORES = {
    found.name: importlib.import_module(f"tests.helpers.stores.{found.name}")
    for found in pkgutil.iter_modules(stores.__path__)
}


def sync(run: RunDirectory, name: str, *options: str, after: str = "pass") -> subprocess.CompletedProcess[str]:
    """``rlpipe sync`` as a user types it, after a statement that may shorten what a library waits for."""
    program = f"{after}\nimport runpy\nrunpy.run_module('rlpipe', run_name='__main__')"
    command = [sys.executable, "-c", program, "sync", str(run.path), "--to", name, *options]
    return subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)


def catch_up(run: RunDirectory, name: str) -> bool:
    """``rlpipe sync`` in this process, which loads the library of a backend only once."""
    options = (option.removeprefix(f"runner.logger.options.{name}.") for option in STORES[name].OPTIONS)
    given = dict(option.split("=") for option in options)
    if name == "trackio":
        STORES[name].storage(run.path.parents[1])  # it read its folder when it was imported, for another run perhaps
    follower = Follower(run, name, given, patience=600.0)  # the process of a run that was killed notices it soon
    try:
        return follower.catch_up()
    finally:
        follower.close()


def assert_shows_everything(run: RunDirectory, name: str) -> None:
    """The store holds each iteration of ``metrics.jsonl`` once, with the same numbers under the same names."""
    store = STORES[name]
    held = store.numbers(run)
    rows = {row["iteration"]: row for row in read_jsonl(run.path / "metrics.jsonl")}
    assert sorted(held) == sorted(rows)
    for iteration, row in rows.items():
        apart = {f"workers/{r}/{key}": v for r, found in row.get("workers", {}).items() for key, v in found.items()}
        assert held[iteration] == pytest.approx({**row["metrics"], **apart}, rel=store.TOLERANCE, abs=0)


def assert_shows_the_end(run: RunDirectory, name: str) -> None:
    """The store says that the run completed, if it says how runs end."""
    store = STORES[name]
    if hasattr(store, "status"):
        assert store.status(run) == store.STATUS_COMPLETED
