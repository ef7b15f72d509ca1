"""A backend that fails costs a run neither time nor rows; every backend and every fault: ``benchmarks/outages.py``."""

from __future__ import annotations

import pytest

from tests.helpers.outages import run

pytestmark = pytest.mark.soak

FAULTS = {"csv": "killed", "jsonl": "back after 20"}


def test_nothing_is_missing_after_outages_for_good_and_for_a_while(tmp_path):
    for backend, outcome in run(tmp_path, FAULTS, iterations=35, patient=True).items():
        assert (backend, outcome.code, outcome.after_sync, outcome.told) == (backend, 0, 0, ["backend"])
