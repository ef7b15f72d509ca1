"""``benchmarks/growth.py``: growth and its interval from samples, and names of the processes of a run."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import psutil
import pytest

from benchmarks import growth, memory


def test_a_steady_growth_is_found_with_an_interval_of_no_width():
    iterations = np.arange(0, 10_000, 50)
    result = growth.growth(iterations, 100.0 + 2.0 * iterations / 1000, blocks=20)
    assert (result.rate, result.half_width) == pytest.approx((2.0, 0.0))


def test_one_step_counts_once_and_widens_the_interval_so_that_it_includes_none():
    iterations = np.arange(0, 10_000, 50)
    result = growth.growth(iterations, np.where(iterations < 5_000, 100.0, 119.0), blocks=20)
    assert result.rate == pytest.approx(19.0 / 9.5)  # in the 9,500 iterations between the middles of the end blocks
    assert result.half_width > result.rate


def test_the_interval_covers_the_growth_of_a_memory_that_wanders_as_often_as_it_says():
    generator, iterations = np.random.default_rng(0), np.arange(400)
    wandering = np.cumsum(0.5 + generator.normal(size=(300, 400)), axis=1)
    results = [growth.growth(iterations, memory, blocks=20) for memory in wandering]
    covered = np.mean([abs(result.rate / 1000 - 0.5) < result.half_width / 1000 for result in results])
    assert 0.9 < covered < 0.999


def test_a_process_that_did_not_live_all_the_time_has_no_row():
    samples = [growth.Sample("driver", moment, 100.0, 200.0, 30, 20) for moment in range(100)]
    samples += [growth.Sample("passing", moment, 1.0, 2.0, 3, 1) for moment in range(90)]
    assert [*growth.table(samples).columns[0].cells] == ["driver"]


@pytest.mark.parametrize(
    ("words", "name"),
    [
        (["ray::rollout-12.call"], "rollout"),
        (["ray::metric-logger"], "metric-logger"),
        (["/x/ray/core/src/ray/gcs/gcs_server", "--log_dir=y"], "gcs_server"),
        (["python", "-m", "rlpipe", "sync", "RUN", "--to", "csv", "--watch"], "backend csv"),
        (["python", "-P", "-m", "rlpipe.distributed.template_server", "3"], "process template"),
    ],
)
def test_processes_are_named_by_their_command(words, name):
    process = SimpleNamespace(pid=2, cmdline=lambda: words)
    assert memory.title(process, driver=1) == name
    assert memory.title(psutil.Process(), driver=psutil.Process().pid) == "driver"
