"""What code outside this package changes in the process is undone, and told once."""

from __future__ import annotations

import contextlib
import locale
import logging
import multiprocessing
import os
import signal
import sys
import tempfile
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch

import rlpipe
from rlpipe import foreign
from rlpipe.cli.train import _listen
from rlpipe.envs.gymnasium.options import GymnasiumConfig
from rlpipe.envs.shared.make import make_simulator
from rlpipe.errors import UserInterrupt, how_it_failed
from rlpipe.foreign import foreign_code, take_notes
from tests.helpers.faulty import Faulty, FaultyConfig, events, faulty, rows

SHORT = ("runner.total_timesteps=128", "rollout.num_workers=1", "evaluation.episodes=1",
         "algorithm.num_minibatches=2")  # fmt: skip
CHANGES = {
    "the working directory": lambda: os.chdir("/"),
    "sys.stdout": lambda: setattr(sys, "stdout", sys.stderr),
    "sys.stderr": lambda: setattr(sys, "stderr", None),
    "the handler of SIGINT": lambda: signal.signal(signal.SIGINT, lambda *_: os._exit(0)),
    "the handler of SIGTERM": lambda: signal.signal(signal.SIGTERM, signal.SIG_IGN),
    "the alarm of SIGALRM": lambda: signal.setitimer(signal.ITIMER_REAL, 3600),
    "logging": lambda: logging.disable(logging.CRITICAL),
    "which warnings are raised": lambda: warnings.simplefilter("error"),
    "the locale": lambda: locale.setlocale(locale.LC_ALL, "C.UTF-8"),
    "environment variables": lambda: os.environ.update(CUDA_VISIBLE_DEVICES="7"),
    "NumPy's treatment of floating-point errors": lambda: np.seterr(under="raise"),
    "torch's default dtype": lambda: torch.set_default_dtype(torch.float64),
    "torch's default device": lambda: torch.set_default_device("meta"),
    "torch's number of threads": lambda: torch.set_num_threads(torch.get_num_threads() + 1),
    "torch's recording of gradients": lambda: torch.set_grad_enabled(False),
    "torch's deterministic algorithms": lambda: torch.set_deterministic_debug_mode("warn"),
}


@pytest.fixture(autouse=True)
def _untold():
    foreign.begin_notes()
    foreign._left.clear()
    take_notes()
    running = signal.setitimer(signal.ITIMER_REAL, 0)  # the time limit of tests
    yield
    signal.setitimer(signal.ITIMER_REAL, *running)


@pytest.mark.parametrize("part", CHANGES)
def test_the_state_is_set_back_and_told_once(part):
    before = foreign._read()
    for _ in range(2):
        with foreign_code("the simulator Line-v0"):
            CHANGES[part]()
        assert foreign._read() == before
    assert take_notes() == [f"The simulator Line-v0 changed {part}; that was undone for the rest of the run."]


def test_a_simulator_that_loads_torch_first_leaves_its_default_dtype_alone(monkeypatch):
    monkeypatch.setattr(foreign, "_states", dict(foreign._PROCESS))
    loaded = sys.modules.pop("torch")
    try:
        with foreign_code("the simulator Line-v0"):
            sys.modules["torch"] = loaded
            torch.set_default_dtype(torch.float64)
        assert torch.get_default_dtype() is torch.float32
    finally:
        sys.modules["torch"] = loaded
        torch.set_default_dtype(torch.float32)
    assert take_notes() == [
        "The simulator Line-v0 changed torch's default dtype; that was undone for the rest of the run."
    ]


def test_every_part_of_the_state_is_tried_here():
    assert [*foreign._read()] == [*CHANGES]


def test_code_that_raises_is_undone_too():
    before = os.getcwd()
    with contextlib.suppress(ArithmeticError), foreign_code("the simulator Line-v0"):
        os.chdir("/")
        raise ArithmeticError
    assert os.getcwd() == before


def test_a_simulator_finds_its_folder_and_dtype_again(tmp_path):
    with foreign_code("the simulator Line-v0"):
        os.chdir(tmp_path)
        torch.set_default_dtype(torch.float64)
    with foreign_code("the simulator Line-v0"):
        assert (Path.cwd(), torch.get_default_dtype()) == (tmp_path, torch.float64)
    with foreign_code("the simulator Other-v0"):
        assert torch.get_default_dtype() == torch.float32


def test_a_folder_that_was_removed_does_no_harm(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with foreign_code("the simulator Line-v0"):
        scratch = tmp_path / "scratch"
        scratch.mkdir()
        os.chdir(scratch)
        scratch.rmdir()
    assert Path.cwd() == tmp_path


def test_the_filters_that_a_library_sets_for_its_own_warnings_stay():
    with warnings.catch_warnings():
        with foreign_code("the simulator Line-v0"):
            warnings.filterwarnings("ignore", message="its own")
        assert warnings.filters[0][0] == "ignore"
    assert take_notes() == []


def test_ctrl_c_still_interrupts_after_a_simulator_took_its_handler():
    before = [(number, signal.getsignal(number)) for number in (signal.SIGINT, signal.SIGTERM)]
    try:
        interruption = _listen()
        with foreign_code("the simulator Line-v0"):
            signal.signal(signal.SIGINT, signal.SIG_IGN)
        interruption.polled = True
        os.kill(os.getpid(), signal.SIGINT)
        assert interruption.reason == "Ctrl-C"
        with pytest.raises(UserInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
    finally:
        for number, handler in before:
            signal.signal(number, handler)


def test_os_exit_is_an_error_of_the_simulator():
    with pytest.raises(SystemExit) as raised, foreign_code("the simulator Line-v0"):
        os._exit(3)
    assert how_it_failed(raised.value) == "called os._exit(3)"


def test_os_exit_still_ends_a_fork():
    with foreign_code("the simulator Line-v0"):
        child = os.fork()
        if not child:
            os._exit(3)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 3


class Moves(Faulty):
    """Goes to another folder and changes torch's dtype in each step."""

    Config = FaultyConfig

    def step(self, actions):
        os.chdir("/")
        torch.set_default_dtype(torch.float64)
        torch.set_grad_enabled(False)
        return super().step(actions)


@pytest.mark.parametrize("policy", [{"name": "mlp", "hidden_sizes": [8]}, {"name": "gru", "memory_size": 6}])
def test_a_run_beside_a_simulator_that_changes_the_process_has_the_same_numbers(policy, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    told = {}
    for name in ("helpers.faulty:Faulty", "faults.test_foreign_state:Moves"):
        log_path = name.partition(":")[2]  # relative
        config = faulty(Path(log_path), "", f"env.train.name=tests.{name}", *SHORT, policy=policy)
        run = rlpipe.train(config, local=True).directory
        assert run.parents[2] == tmp_path
        told[log_path] = [event["message"] for event in events(run, "simulator")]
        metrics = [{k: v for k, v in row["metrics"].items() if not k.startswith("time/")} for row in rows(run)]
        told.setdefault("metrics", metrics)
        assert told["metrics"] == metrics
    assert told["Faulty"] == []
    parts = "the working directory and torch's default dtype"
    assert told["Moves"] == [
        f"The simulator tests.faults.test_foreign_state:Moves changed {parts}; that was undone for the rest of the run."
    ]


@pytest.fixture
def long_tmpdir(tmp_path, monkeypatch):
    """Makes a folder of temporary files of at least 120 bytes; afterwards, sockets go where they went before."""
    folder = tmp_path / ("x" * max(1, 119 - len(str(tmp_path))))
    folder.mkdir()
    monkeypatch.setenv("TMPDIR", str(folder))
    monkeypatch.setattr(tempfile, "tempdir", None)
    monkeypatch.setitem(multiprocessing.current_process()._config, "tempdir", None)
    foreign.keep_sockets_short.cache_clear()
    yield folder
    foreign.keep_sockets_short.cache_clear()


@pytest.mark.parametrize("python", [None, sys.executable])
def test_a_simulator_with_a_manager_of_its_own_can_be_made_below_a_long_tmpdir(long_tmpdir, python):
    config = GymnasiumConfig("gymnasium", id="tests.helpers.gym_trees:Managed-v0", python=python)
    make_simulator(config, 1, lambda n: n).close()
    notes = [note for note in take_notes() if str(long_tmpdir) in note]
    assert len(notes) == 1
    assert f"has {len(str(long_tmpdir))} bytes" in notes[0]
    assert "room for 75; those of simulators are in /tmp/rlpipe-sockets-" in notes[0]


def test_a_folder_of_sockets_that_is_a_link_is_not_used(tmp_path):
    path = Path(foreign._own_folder(str(tmp_path)))
    assert path.is_dir()
    path.rmdir()
    path.symlink_to(tmp_path)
    assert not foreign._own_folder(str(tmp_path))
