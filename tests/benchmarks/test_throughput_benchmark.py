"""Tables of ``benchmarks/throughput.py``, and the versions of the libraries it compares with."""

from __future__ import annotations

import argparse
import json
import sys
import time

import pytest
from rich.console import Console

from benchmarks.peers import install, task
from benchmarks.speed import ours, peers, report
from benchmarks.throughput import Contender, learn, success_target
from rlpipe.config.loading import load_config

pytestmark = pytest.mark.extras


def test_rounds_become_medians_with_their_range():
    rounds = [{"rate": rate, "ratio": rate / 1000, "first_step": 9.0} for rate in (500.0, 800.0, 600.0)]
    found = report.summarize(rounds)
    assert found["rate"] == {"median": 600.0, "range": [500.0, 800.0], "values": [500.0, 800.0, 600.0]}
    assert found["ratio"]["median"] == 0.6
    assert report.shown(found["rate"], 0) == "600 (500 to 800)"


@pytest.mark.parametrize("name", task.CONTROL_MODES)
def test_a_run_has_the_batch_that_the_peers_have(name):
    config = load_config(ours.configuration(name))
    assert config.steps_per_iteration == task.STEPS
    assert (config.algorithm.update_epochs, config.algorithm.num_minibatches) == (task.EPOCHS, task.MINIBATCHES)
    assert config.env.train.control_mode == task.CONTROL_MODES[name]


def test_every_peer_has_an_adapter_and_a_name():
    for peer in install.PEERS:
        assert (install.CONSTRAINTS.parent / "benchmarks" / "peers" / f"{peer}.py").is_file()
        assert peers.NAMES[peer]


def test_the_versions_of_a_peer_replace_those_of_the_constraints():
    lines = install.constraints("sample_factory").splitlines()
    assert not [line for line in lines if line.startswith(("numpy==", "gymnasium==", "opencv-python=="))]
    assert [line for line in lines if line.startswith("torch==")]


def test_training_success_is_reached_once_the_last_hundred_episodes_have_it():
    journal = task.Journal(0.5)
    task.note(journal.path, {"first": 12.0})
    for n in range(150):
        task.note(journal.path, {"success": n >= 99})  # 51 of the last 100
    deadline = time.time() + 600
    while journal.reached is None and time.time() < deadline:
        time.sleep(0.05)
    assert journal.first == 12.0
    assert journal.reached is not None


def test_half_of_99_episodes_is_not_enough():
    journal = task.Journal(0.5)
    for _ in range(99):
        journal._read({"success": True})
    assert journal.reached is None


def test_an_adapter_leaves_out_its_first_iteration(capsys):
    task.report(task.Journal(None), [0.0, 100.0, 102.0, 104.0], "numpy")
    assert json.loads(capsys.readouterr().out)["end_to_end"] == task.STEPS / 2.0


def test_the_target_of_time_to_names_success():
    assert success_target("success=0.5") == 0.5
    with pytest.raises(argparse.ArgumentTypeError, match=r"success=0\.5"):
        success_target("return=3")


def test_a_contender_that_fails_to_learn_does_not_stop_the_others():
    def fail(_target, _seed):
        raise RuntimeError("no memory")

    contenders = [
        Contender("broken", dict, fail),
        Contender("fine", dict, lambda _target, seed: {"seconds_to_success": 60.0 + seed}),
    ]
    assert learn(contenders, 0.5, 2, Console(file=sys.stderr)) == {"fine": [60.0, 61.0]}
