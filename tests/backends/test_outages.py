"""A backend that fails costs a run neither time nor rows; every backend and every fault: ``benchmarks/outages.py``."""

from __future__ import annotations

import pytest

from tests.helpers.outages import run

pytestmark = pytest.mark.soak


@pytest.mark.parametrize(
    "faults",
    [
        {"tensorboard": "raises later", "wandb": "raises at start"},
        {"csv": "killed", "swanlab": "back after 20"},
    ],
    ids=["for good", "for a while"],
)
def test_nothing_is_missing_after_an_outage(tmp_path, faults):
    for backend, outcome in run(tmp_path, faults, iterations=35, patient=True).items():
        assert (backend, outcome.code, outcome.after_sync, outcome.told) == (backend, 0, 0, ["backend"])
