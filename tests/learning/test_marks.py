"""The parts of an update are timed by the clock of the device, without waiting for it."""

from __future__ import annotations

import time
from typing import ClassVar

import pytest
import torch

from rlpipe.learning.marks import Marks


class Event:
    """Event of a device that is 2 s behind the host."""

    waited: ClassVar[list[float]] = []

    def __init__(self, enable_timing):
        assert enable_timing

    def record(self, stream):
        self.reached = time.perf_counter() + 2.0 * (stream == "busy")

    def elapsed_time(self, other):
        return 1000.0 * (other.reached - self.reached)

    def synchronize(self):
        self.waited.append(self.reached)


@pytest.fixture
def clock(monkeypatch):
    """Returns a function that sets the host's clock, and what is queued on the device."""

    def at(seconds, stream="idle"):
        monkeypatch.setattr(time, "perf_counter", lambda: seconds)
        monkeypatch.setattr(torch.cuda, "current_stream", lambda _: stream)

    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(Event, "waited", [])
    return at


def test_marks_on_a_cpu_are_moments_of_the_host(clock):
    clock(10.0)
    marks = Marks(torch.device("cpu"))
    clock(11.5)
    marks.add()
    assert marks.moments() == [10.0, 11.5]


def test_marks_on_a_gpu_are_when_it_gets_there_and_only_the_last_is_waited_for(clock):
    clock(10.0)
    marks = Marks(torch.device("cuda"))
    for seconds in (11.0, 12.0):
        clock(seconds, "busy")
        marks.add()
    assert Event.waited == []
    assert marks.moments() == [10.0, 13.0, 14.0]
    assert Event.waited == [14.0]


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_gpu_is_timed_by_its_own_clock():
    device = torch.device("cuda")
    torch.cuda.synchronize()
    marks = Marks(device)
    torch.cuda._sleep(10**8)
    marks.add()
    queued = time.perf_counter()
    began, ended = marks.moments()
    assert began < queued < ended < time.perf_counter() + 0.01
