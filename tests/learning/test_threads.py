"""The number of threads of a learner: chosen by measurement, without a trace in what is learnt."""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from rlpipe.collection.worker import RolloutWorker
from rlpipe.learning import base, threads
from rlpipe.learning.base import learner_class
from rlpipe.learning.threads import LearnerThreads, choose_threads, passive_waiting, thread_candidates
from tests.helpers.runs import sac, scripted


@pytest.fixture(autouse=True)
def restore_threads():
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.fixture
def now(monkeypatch) -> list[float]:
    """The seconds of a clock that only steps move on."""
    moment = [0.0]
    monkeypatch.setattr(threads, "time", SimpleNamespace(perf_counter=lambda: moment[0]))
    return moment


def seconds(now, by_threads):
    """A step that takes so many seconds with so many threads."""
    return lambda: now.__setitem__(0, now[0] + by_threads[torch.get_num_threads()])


def test_the_quickest_number_of_threads_is_chosen_and_set(now):
    assert choose_threads([1, 2, 4], seconds(now, {1: 0.02, 2: 0.005, 4: 0.02})) == 2
    assert torch.get_num_threads() == 2


def test_of_about_equal_numbers_the_smallest_is_chosen(now):
    assert choose_threads([1, 2], seconds(now, {1: 0.02, 2: 0.0195})) == 1


def test_a_slow_step_is_measured_in_few_rounds(now):
    step = seconds(now, {1: threads.BUDGET, 2: threads.BUDGET})
    calls = []
    choose_threads([1, 2], lambda: calls.append(step()))
    assert len(calls) == 4  # once each to warm up, once each that counts


@pytest.mark.parametrize(("most", "expected"), [(1, [1]), (2, [1, 2]), (6, [1, 2, 4, 6]), (8, [1, 2, 4, 8])])
def test_candidates_are_the_powers_of_two_and_the_most(most, expected):
    assert thread_candidates(most) == expected


def test_a_configured_number_is_never_measured():
    chosen = LearnerThreads(3, 8)
    chosen.measure_if_due(lambda: pytest.fail("measured"))
    assert chosen.count == 3


def test_it_is_measured_first_then_after_a_while_and_sooner_once_updates_have_become_slow(monkeypatch):
    now, measured = [0.0], []
    monkeypatch.setattr(threads.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(threads, "choose_threads", lambda *_: measured.append(now[0]) or 1)
    chosen = LearnerThreads("auto", 2)
    for moment, pace in ((0, None), (5, 1.0), (9, 9.0), (11, 1.0), (12, 2.5), (20, 1.0), (71, 1.0), (73, 1.0)):
        now[0] = moment
        chosen.measure_if_due(lambda: None, pace)
    # At 9 s the last measurement is too recent. At 12 s an update took more than twice as long as the quickest.
    # At 73 s another minute has passed since.
    assert measured == [0, 12, 73]


def test_threads_wait_passively_unless_the_user_says_otherwise(monkeypatch):
    monkeypatch.delenv("OMP_WAIT_POLICY", raising=False)
    monkeypatch.setenv("KMP_BLOCKTIME", "7")
    assert passive_waiting() == {"OMP_WAIT_POLICY": "PASSIVE", "KMP_BLOCKTIME": "7"}


def test_the_command_line_sets_it_before_torch_is_loaded():
    code = "import os, sys, rlpipe.cli as cli; sys.argv = ['rlpipe', 'configs']; early = 'torch' not in sys.modules\n"
    code += "try: cli.main()\nexcept SystemExit: pass\nprint(early, os.environ['OMP_WAIT_POLICY'])"
    environment = {name: value for name, value in os.environ.items() if name != "OMP_WAIT_POLICY"}
    found = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert found.stdout.endswith("True PASSIVE\n")


def rehearsed_state(monkeypatch, config):
    """State after two iterations of a learner that measures before each update, and goes on with one thread."""
    rehearsals = []

    def rehearse(_, step):
        rehearsals.extend([step(), step()])
        torch.set_num_threads(1)
        return 1

    monkeypatch.setattr(base, "_most_threads", lambda *_: 2)
    monkeypatch.setattr(threads, "INTERVAL", -1.0)
    monkeypatch.setattr(threads, "choose_threads", rehearse)
    return learnt_state(config), len(rehearsals)


def learnt_state(config):
    plan = config.schedule
    worker = RolloutWorker(plan, 0, 1)
    learner = learner_class(config)(plan, worker.ready().spec)
    for iteration in (1, 2):
        learner.update(0, iteration, worker.collect(learner.snapshot(), 0)[0])
    return learner.state()


@pytest.mark.parametrize("make", [sac, scripted])
def test_measuring_leaves_no_trace_in_what_is_learnt(tmp_path, monkeypatch, make):
    fixed = make(tmp_path / "fixed")
    auto = dataclasses.replace(fixed, learner=dataclasses.replace(fixed.learner, num_threads="auto"))
    expected = learnt_state(fixed)
    found, rehearsals = rehearsed_state(monkeypatch, auto)
    assert rehearsals == 4
    assert found.keys() == expected.keys()
    assert all(np.array_equal(found[name], array) for name, array in expected.items())
