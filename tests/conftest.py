"""One Ray for all tests of a process, and the order in which files of tests run."""

from __future__ import annotations

import itertools
import os
import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import settings

from tests.helpers.cluster import TOKEN

SLOWEST = Path(__file__).with_name("slowest.txt")
"""Written by ``make slowest``."""

torch.set_num_threads(1)
settings.register_profile("unhurried", deadline=None)  # an example's time depends on the machine more than on the code
settings.load_profile("unhurried")
# Ray passes gauges on every 10 s by default, and forgets a gauge that was not set for twice as long.
os.environ.setdefault("RAY_metrics_report_interval_ms", "3000")


@pytest.fixture(scope="module")
def ray_cluster():
    """Starts a Ray with two CPUs, which all tests of a process share: a run joins the Ray that its process is in."""
    import ray

    if ray.is_initialized():
        return
    os.environ.setdefault("RAY_AUTH_TOKEN", TOKEN)
    # Ray starts its workers at niceness 15, so they would starve beside the other test process.
    os.environ.setdefault("RAY_worker_niceness", "0")
    ray.init(
        address="local",
        num_cpus=2,
        include_dashboard=False,
        object_store_memory=150_000_000,
        log_to_driver=False,
        namespace="rlpipe",
    )  # it ends with the process, or when a file of tests must be outside of any Ray


@pytest.fixture(scope="module")
def outside_ray():
    """Ends the Ray of this process, which a command that is called in it would join."""
    import ray

    ray.shutdown()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--slowest", type=Path, metavar="FILE", help="write the slowest 30 tests with their seconds there")


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    """Writes the slowest tests to the file of ``--slowest``."""
    if (file := config.getoption("--slowest")) is None:
        return
    seconds: Counter[str] = Counter()
    for report in itertools.chain(*terminalreporter.stats.values()):
        if isinstance(report, pytest.TestReport):
            seconds[report.nodeid] += report.duration
    lines = [f"{taken:6.1f} s  {name}" for name, taken in seconds.most_common(30)]
    file.write_text(
        "\n".join(["Seconds of the slowest tests, with set-up and clean-up. Made by `make slowest`.", *lines, ""])
    )


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Marks the tests on the shared Ray, and puts the slowest files first, so that both processes end together.

    A file stays together (``--dist loadfile``), because its tests share runs and clusters.
    """
    seconds = seconds_of_files()
    items.sort(key=lambda item: -seconds[item.nodeid.partition("::")[0]])  # stable: a file's tests keep their order
    for item in items:
        if "ray_cluster" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.ray)


def seconds_of_files() -> Counter[str]:
    """Returns the seconds that the tests in ``slowest.txt`` took, by file."""
    found: Counter[str] = Counter()
    if SLOWEST.is_file():
        for seconds, file in re.findall(r"^ *([\d.]+) s  ([^:\s]+)::", SLOWEST.read_text(), re.MULTILINE):
            found[file] += float(seconds)
    return found
