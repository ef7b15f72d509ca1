"""A backend that fails costs a run neither time nor rows; every backend and every fault: ``benchmarks/outages.py``."""

from __future__ import annotations

import importlib

import pytest

from tests.helpers.outages import run

pytestmark = pytest.mark.soak


@pytest.mark.parametrize(
    ("backend", "fault"),
    [("tensorboard", "raises later"), ("csv", "killed"), ("swanlab", "back after 20"), ("mlflow", "raises at start")],
)
def test_nothing_is_missing_after_an_outage(tmp_path, backend, fault):
    outcome = run(tmp_path, backend, importlib.import_module(f"tests.helpers.stores.{backend}"), fault)
    assert (outcome.code, outcome.after_sync, outcome.told) == (0, 0, ["backend"])
