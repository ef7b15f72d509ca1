"""One Ray for all tests of a process, cheap collection of garbage, and the order in which files of tests run."""

from __future__ import annotations

import gc
import itertools
import os
import random
import sys
from collections import Counter
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import settings

from rlpipe.envs.shared import garbage
from tests.helpers import cluster, seconds

gc.disable()  # until all tests are collected: there is no garbage yet
torch.set_num_threads(1)
# An example's time depends on the machine more than on the code. Each run takes the same examples, so that a test fails
# because of a change; RLPIPE_FUZZ looks for new ones.
settings.register_profile("unhurried", deadline=None, derandomize="RLPIPE_FUZZ" not in os.environ)
settings.load_profile("unhurried")
# Ray passes gauges on every 10 s by default, and forgets a gauge that was not set for twice as long.
os.environ.setdefault("RAY_metrics_report_interval_ms", "2000")


@pytest.fixture(scope="module")
def ray_cluster():
    """Starts a Ray with two CPUs, which all tests of a process share: a run joins the Ray that its process is in."""
    cluster.start_shared_ray()  # it ends with the process, or when a file of tests must be outside of any Ray


@pytest.fixture(scope="module")
def outside_ray():
    """Ends the Ray of this process, which a command that is called in it would join."""
    cluster.end_shared_ray()


@pytest.fixture(scope="module", autouse=True)
def _garbage_is_sought_among_young_objects_alone():
    """Exempts what a module of tests leaves behind from the collection of garbage, which looked at all of it hundreds
    of times: a quarter of all time.

    Closing a ManiSkill simulator ends the exemption for a moment; here it does not.
    """
    with pytest.MonkeyPatch.context() as patch:
        young = SimpleNamespace(collect=gc.collect, freeze=gc.freeze, unfreeze=lambda: None)
        patch.setattr(garbage, "gc", young)
        yield
    garbage.exempt_from_collection()


@pytest.fixture(scope="module", autouse=True)
def _exits_are_pythons():
    """Takes back what each run of W&B wraps around the end of a process: its frames hide where sys.exit was called."""
    with pytest.MonkeyPatch.context() as patch:
        for name in ("exit", "excepthook"):
            patch.setattr(sys, name, getattr(sys, name))
        yield


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--write-seconds", action="store_true", help="write the seconds of every file of tests")
    parser.addoption("--shuffle-files", type=int, metavar="SEED", help="run the files of tests in a random order")


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    """Counts the reasons of skipped tests on one line, and writes what the tests took if that was asked for."""
    reports = [
        report
        for report in itertools.chain(*terminalreporter.stats.values())
        if isinstance(report, pytest.TestReport | pytest.CollectReport)
    ]
    reasons = Counter(
        str(report.longrepr[2]).removeprefix("Skipped: ")
        for report in reports
        if report.skipped and isinstance(report.longrepr, tuple)
    )
    if reasons:
        told = "; ".join(f"{count} {reason}" for reason, count in reasons.most_common())
        terminalreporter.write_line(f"Skipped: {told}")
    if config.getoption("--write-seconds"):
        taken: Counter[str] = Counter()
        for report in reports:
            if isinstance(report, pytest.TestReport):
                taken[report.nodeid] += report.duration
        seconds.write(taken)


def pytest_collection_finish() -> None:
    garbage.exempt_from_collection()
    gc.enable()


def pytest_collection_modifyitems(items: list[pytest.Item], config: pytest.Config) -> None:
    """Marks the tests on the shared Ray, and puts the longest files first, so that all processes end together.

    A file stays together (``--dist loadfile``), because its tests share runs and clusters.
    """
    files = sorted({seconds.file_of(item.nodeid) for item in items})
    files = seconds.longest_first(files, seconds.read()["files"])
    if (seed := config.getoption("--shuffle-files")) is not None:
        random.Random(seed).shuffle(files)
    places = {file: place for place, file in enumerate(files)}
    items.sort(key=lambda item: places[seconds.file_of(item.nodeid)])  # stable: a file's tests keep their order
    for item in items:
        if "ray_cluster" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.ray)
