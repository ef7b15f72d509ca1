"""``benchmarks/driver.py``: the line through small sizes that predicts large ones, and an iteration without Ray."""

from __future__ import annotations

import pytest

from benchmarks import driver


def test_a_line_through_the_sizes_up_to_a_tenth_of_the_largest_predicts_the_others():
    seconds = {10: 0.5 + 1.0, 20: 0.5 + 2.0, 200: 99.0, 500: 99.0}
    assert driver.prediction(seconds) == pytest.approx({200: 0.5 + 20.0, 500: 0.5 + 50.0})


def test_an_iteration_of_the_engine_runs_on_the_stand_in(monkeypatch):
    monkeypatch.setattr(driver, "MOMENT_SECONDS", 0.0)
    config, window = driver.observed_window()
    (phases,) = driver.on_stand_in(config, window, count=3, iterations=1)
    assert set(phases) == {*driver.PHASES, "all", "main thread"}
