"""A simulator in a process of its own: the same numbers, and what happens when the process fails."""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import psutil
import pytest

import rlpipe
from rlpipe.config.loading import load_config
from rlpipe.config.simulators import simulator_class
from rlpipe.envs.base import Simulator
from rlpipe.envs.gymnasium.options import GymnasiumConfig
from rlpipe.envs.scripted import ScriptedConfig
from rlpipe.envs.shared.child_process import start
from rlpipe.envs.shared.child_process.channel import LARGE, Channel, shared_file
from rlpipe.envs.shared.make import make_simulator
from rlpipe.errors import ConfigError, SimulatorProcessError
from rlpipe.trajectory import ChosenStart, Tree
from rlpipe.trajectory.tree import leaves_of
from tests.helpers.faulty import events
from tests.helpers.processes import MEASURED, Curious, CuriousConfig, FragileConfig
from tests.helpers.runs import lines, scripted, without_timings

HERE = sys.executable
STORY = [
    [{"length": 5, "end": "terminated", "success_at": [5], "reward": 1.0, "fail_at": [2], "reward_terms": {"a": 0.5}}]
]


def seeds():
    """Seeds that count up, for each slot by itself."""
    asked: dict[int, int] = {}

    def next_seed(n: int) -> int:
        asked[n] = asked.get(n, 0) + 1
        return 100 * n + asked[n]

    return next_seed


@contextlib.contextmanager
def simulator(config, num_envs=2, next_start=None):
    made = make_simulator(config, num_envs, seeds(), next_start)
    try:
        yield made
    finally:
        made.close()


def zeros(made: Simulator):
    return made.spec.actions(made.num_envs)


def same(one, other):
    """Compares two values of the step contract to the last bit."""
    if dataclasses.is_dataclass(one):
        return all(same(getattr(one, field.name), getattr(other, field.name)) for field in dataclasses.fields(one))
    if isinstance(one, Tree):
        return one.leaves.keys() == other.leaves.keys() and all(map(same, leaves_of(one), leaves_of(other)))
    if isinstance(one, np.ndarray):
        return one.dtype == other.dtype and np.array_equal(one, other, equal_nan=one.dtype.kind == "f")
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if isinstance(one, tuple):
        return len(one) == len(other) and all(map(same, one, other))
    return one == other


CONFIGS = {
    "vector": ScriptedConfig("scripted", script=STORY),
    "discrete actions": GymnasiumConfig("gymnasium", id="CartPole-v1"),
    "vectorised by Gymnasium": GymnasiumConfig("gymnasium", id="CartPole-v1", vectorized=True),
    "tree with a picture": GymnasiumConfig(
        "gymnasium", id="tests.helpers.gym_trees:Sides-v0", success_key="is_success"
    ),
}


@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
def test_steps_are_the_same_to_the_last_bit(config):
    generator = np.random.default_rng(0)
    with simulator(config) as here, simulator(dataclasses.replace(config, python=HERE)) as there:
        assert psutil.Process(there._process._process.pid).environ()["PYTHONHASHSEED"] == "0"  # so sets have one order
        assert here.spec.same_as(there.spec)
        assert (here.has_success, here.notes, here.can_wait) == (there.has_success, there.notes, there.can_wait)
        first = there.reset()
        beginning = copy.deepcopy(first)
        assert same(here.reset(), first)
        for _ in range(40):
            actions = zeros(here)
            actions[:] = generator.integers(0, 2, actions.shape) if here.spec.num_actions else generator.uniform(-1, 1)
            assert same(here.step(actions), there.step(actions))
        assert same(beginning, first)  # no array is written to afterwards
        if here.can_wait:
            only = np.array([True, False])
            step = there.step(actions, only)
            assert same(here.step(actions, only), step)
            assert step.valid.tolist() == [True, False]
        assert (there.reset_seconds is None) == (here.reset_seconds is None)


def test_one_of_several_tasks_can_have_a_python_of_its_own():
    tasks = ["CartPole-v1", {"id": "CartPole-v1", "label": "short", "max_episode_steps": 9}]
    here = GymnasiumConfig("gymnasium", tasks=tasks)
    there = dataclasses.replace(here, tasks=[tasks[0], {**tasks[1], "python": HERE}])
    with simulator(here) as one, simulator(there) as other:
        assert same(one.reset(), other.reset())
        for _ in range(12):
            assert same(one.step(zeros(one)), other.step(zeros(one)))


def test_starts_states_and_metrics_of_a_simulator_cross_the_boundary():
    chosen = ChosenStart(seed=3, state={"place": np.full((2, 600), 0.25)}, demonstration=1, limit=4)
    starts = iter([None, chosen, *[None] * 10])
    config = CuriousConfig("tests.helpers.processes:Curious", python=HERE)
    with simulator(config, next_start=lambda _: next(starts)) as made:
        _, beginnings = made.reset()
        assert beginnings[0].chosen is None
        assert beginnings[1].seed == 3
        assert same(beginnings[1].chosen, chosen)
        assert made.state(1)["place"].tolist() == chosen.state["place"].tolist()
        assert [made.expert_action(n).tolist() for n in (0, 1)] == [[0.0], [0.25]]
        metric, name = made.step(zeros(made)).observed
        assert name == MEASURED.name  # a number of the same name, which is summarised over the episode
        assert metric is MEASURED
        assert metric is Curious.metrics[0]


def test_large_and_small_arrays_of_all_kinds_cross_a_channel():
    import socket

    one, other = socket.socketpair()
    there, back = shared_file(), shared_file()
    left, right = Channel(one, there, back), Channel(other, os.dup(back), os.dup(there))
    large = np.arange(LARGE, dtype=np.int16).reshape(2, -1)
    message = {
        "large": large, "transposed": large.T, "twice": [large, large], "none": np.zeros((0, 3), np.float32),
        "scalar": np.float64(0.1), "flag": np.bool_(True), "no dimensions": np.array(3), "words": np.array(["a", "bc"]),
    }  # fmt: skip
    for grown in (1, 20):  # memory grows
        message["large"] = np.tile(large, grown)
        left.send(message)
        found = right.receive(1.0)
        assert found.keys() == message.keys()
        assert found["twice"][0] is found["twice"][1]
        for name in message.keys() - {"twice"}:
            assert type(found[name]) is type(message[name])
            assert found[name].dtype == message[name].dtype
            assert np.array_equal(found[name], message[name])
    with pytest.raises(TimeoutError):
        left.receive(0.01)
    left.close()
    right.close()


# --- whole runs


def recorded(run):
    """Everything that a run says about its numbers."""
    return without_timings(run), lines(run, "episodes.jsonl"), lines(run, "eval_episodes.jsonl")


def test_a_run_and_its_evaluation_are_the_same_to_the_last_bit_also_when_it_is_resumed(tmp_path, monkeypatch):
    runs, started = [], []
    popen = subprocess.Popen

    def noted(command, *args, **options):
        started.append(command[1] == start.__file__)
        return popen(command, *args, **options)

    monkeypatch.setattr(subprocess, "Popen", noted)
    for name, option in (("here", "null"), ("there", HERE)):
        options = (f"env.train.python={option}",)
        stopped = rlpipe.train(scripted(tmp_path / name, *options, "runner.total_timesteps=128"), local=True).directory
        assert serving() == []
        started.clear()
        whole = rlpipe.train(scripted(tmp_path / name, *options), local=True, resume=stopped).directory
        assert serving() == []
        runs.append((recorded(whole), sum(started)))
    assert runs[0][0] == runs[1][0]
    assert len(runs[0][0][0]) == 4
    assert [processes for _, processes in runs] == [0, 2]  # one trains, one evaluates


@pytest.mark.soak
@pytest.mark.usefixtures("ray_cluster")
def test_a_run_with_two_workers_on_ray_is_the_same_and_leaves_no_process(tmp_path):
    here = rlpipe.train(scripted(tmp_path / "here", "rollout.num_workers=2"), local=True).directory
    options = ("rollout.num_workers=2", "cluster.cpus_per_worker=0.5", f"env.train.python={HERE}")
    there = rlpipe.train(scripted(tmp_path / "there", *options)).directory
    assert recorded(there) == recorded(here)
    deadline = time.monotonic() + 600
    while left := serving():
        assert time.monotonic() < deadline, left
        time.sleep(0.1)


def descriptors_of(pid):
    """Pipes and shared memories that a process holds."""
    found = set()
    for file in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(OSError):  # closed meanwhile
            if os.readlink(file).startswith(("pipe:", "/memfd:rlpipe-simulator")):
                found.add(os.stat(file).st_ino)
    return found


def serving():
    """Processes of simulators below this process, whose Ray is below it too."""
    found = []
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.Error):
            line = process.cmdline()
            if len(line) > 1 and line[0] == HERE and line[1] == start.__file__:
                found.append(process)
    return found


# --- failures


def fragile(fault: str, **options):
    return FragileConfig("tests.helpers.processes:Fragile", fault=fault, python=HERE, **options)


def no_longer_wait_for(made, monkeypatch):
    """Lets the deadline of the next answer pass as soon as the process has said its last word."""
    receive = Channel.receive

    def received(channel, seconds):
        while "a last word" not in "".join(made._process._last):
            time.sleep(0.01)
        return receive(channel, 0.01)

    monkeypatch.setattr(Channel, "receive", received)


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        ("exit", ["ended with exit code 7", "a last word"]),
        ("crash", ["signal 11 (SIGSEGV)", "Fatal Python error: Segmentation fault"]),
        ("hang", ["did not answer for 60 s", "answer_timeout", "in fail"]),
        ("stop", ["did not answer for 60 s"]),
    ],
)
def test_a_process_that_fails_is_an_error_that_says_how_and_leaves_nothing(fault, words, monkeypatch):
    with simulator(fragile(fault, answer_timeout=60.0)) as made:
        made.reset()
        if fault in ("hang", "stop"):
            no_longer_wait_for(made, monkeypatch)
        (child,) = serving()
        shared = descriptors_of(child.pid)
        with pytest.raises(SimulatorProcessError) as error:
            made.step(zeros(made))
        message = str(error.value)
        assert [word for word in words if word not in message] == []
        with pytest.raises(SimulatorProcessError, match="ended before"):
            made.step(zeros(made))
    assert serving() == []
    assert len(shared) >= 4  # two memories, the lifeline, and what it prints
    assert shared & descriptors_of(os.getpid()) == set()


def test_what_a_simulator_raises_is_an_error_that_says_so_and_no_end_of_its_process():
    with simulator(fragile("raise sys.exit interrupt print")) as made:
        made.reset()
        for words in (
            "the simulator raised ArithmeticError: the solver diverged",
            r"the simulator called sys\.exit\(7\)",
            "the simulator raised KeyboardInterrupt",
        ):
            with pytest.raises(SimulatorProcessError, match=words):
                made.step(zeros(made))
        assert made.step(zeros(made)).valid.all()


def test_the_start_of_a_process_imports_included_has_a_deadline_of_its_own(monkeypatch):
    deadlines: list[float] = []
    receive = Channel.receive

    def noted(channel, seconds=None):
        deadlines.append(seconds)
        return receive(channel, seconds)

    monkeypatch.setattr(Channel, "receive", noted)
    with simulator(ScriptedConfig("scripted", python=HERE, start_timeout=70.0, answer_timeout=60.0)) as made:
        assert {*deadlines} == {70.0}
        deadlines.clear()
        made.reset()
        made.step(zeros(made))
        assert {*deadlines} == {60.0}


def test_what_a_simulator_prints_disturbs_nothing_and_reaches_the_errors_of_the_worker(capfd):
    with simulator(fragile("print")) as made:
        made.reset()
        for _ in range(3):
            assert made.step(zeros(made)).valid.all()
    out, err = capfd.readouterr()
    assert out == ""
    assert err.count("printed") == 3
    assert err.count("written by C") == 3


@pytest.mark.soak
def test_the_process_ends_when_its_worker_is_killed_whatever_it_is_doing():
    """``busy`` holds Python's lock and never reads from the channel."""
    code = (
        "import sys\n"
        "from rlpipe.envs.shared.make import make_simulator\n"
        "from tests.helpers.processes import FragileConfig\n"
        "config = FragileConfig('tests.helpers.processes:Fragile', fault='busy', python=sys.executable)\n"
        "made = make_simulator(config, 1, int)\n"
        "made.reset()\n"
        "print(made._process._process.pid, flush=True)\n"
        "made.step(made.spec.actions(1))\n"
    )
    command = [sys.executable, "-c", code]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as worker:
        child = psutil.Process(int(worker.stdout.readline()))
        assert any("a last word" in line for line in worker.stderr)  # it is in the step
        worker.kill()
    child.wait(600)
    assert not child.is_running()


@pytest.mark.soak
def test_the_process_ends_with_an_abandoned_simulator():
    made = make_simulator(fragile("print"), 1, seeds())
    child = psutil.Process(made._process._process.pid)
    del made
    assert not child.is_running()


def faulty_run(tmp_path, fault, *overrides):
    train = {"name": "tests.helpers.processes:Fragile", "total_num_envs": 2, "fault": fault, "python": HERE,
             "folder": str(tmp_path), "at": 2}  # fmt: skip
    return scripted(tmp_path, "rollout.num_workers=1", "rollout.horizon=4", "runner.total_timesteps=24", *overrides,
                    env={"train": train, "eval": {"fault": "", "python": None}})  # fmt: skip


@pytest.mark.soak
def test_a_run_replaces_a_simulator_whose_process_fails(tmp_path):
    run = rlpipe.train(faulty_run(tmp_path, "kill"), local=True).directory
    (event,) = events(run, "simulator")
    assert lines(run, "metrics.jsonl")[0]["metrics"]["rollout/discarded_trajectories"] == 2
    assert "(1 of 3)" in str(event)
    assert "SIGKILL" in str(event)


# --- before anything starts


@pytest.mark.parametrize(
    ("python", "words"),
    [
        ("no/such/python", ["env.train.python", "no/such/python", "No such file"]),
        ("/bin/true", ["env.train.python", "/bin/true", "does not behave like a Python"]),
        (__file__, ["env.train.python", "test_process_simulator.py", "cannot be run"]),
    ],
)
def test_a_python_that_is_none_is_an_error_before_anything_starts(python, words):
    with pytest.raises(ConfigError) as error:
        load_config({"env": {"train": {"name": "scripted", "total_num_envs": 2, "python": python}}})
    assert [word for word in words if word not in str(error.value)] == []


def test_a_python_that_is_slow_to_start_is_told_from_one_that_is_none(tmp_path):
    slow = tmp_path / "python"
    slow.write_text("#!/bin/sh\nexec sleep 60\n")
    slow.chmod(0o755)
    train = {"name": "scripted", "total_num_envs": 2, "python": str(slow), "start_timeout": 0.2}
    with pytest.raises(ConfigError, match=r"it is '.*python', which did not start within 0.2 s \(start_timeout\)"):
        load_config({"env": {"train": train}})


def test_a_python_that_a_worker_lacks_is_named_by_its_key():
    task = {"label": "elsewhere", "python": "no/such/python"}
    evaluated = ScriptedConfig("scripted", tasks=[{"label": "here"}, task])
    with pytest.raises(ConfigError, match=r"env.eval.tasks\[1\].python: .*no/such/python"):
        make_simulator(evaluated, 2, lambda n: n, key="env.eval")


def test_a_python_without_numpy_is_an_error_that_says_what_it_lacks(tmp_path):
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / "bare"], check=True)
    python = str(tmp_path / "bare" / "bin" / "python")
    with pytest.raises(ConfigError, match=r"env.train.python: .*bare/bin/python lacks numpy: install it there"):
        load_config({"env": {"train": {"name": "scripted", "total_num_envs": 2, "python": python}}})


def test_a_python_without_what_the_simulator_imports_is_an_error_that_says_what_it_lacks(tmp_path):
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / "bare"], check=True)
    (packages,) = (tmp_path / "bare" / "lib").glob("python*/site-packages")
    for part in Path(np.__file__).parents[1].glob("numpy*"):
        (packages / part.name).symlink_to(part)
    train = {"name": "gymnasium", "id": "CartPole-v1", "total_num_envs": 2}
    train["python"] = str(tmp_path / "bare" / "bin" / "python")
    with pytest.raises(ConfigError, match=r"bare/bin/python lacks gymnasium: install it there"):
        load_config({"env": {"train": train}})


def test_what_a_simulator_says_before_it_is_made_is_asked_of_its_own_python():
    config = GymnasiumConfig("gymnasium", id="CartPole-v1", max_episode_steps=30, python=HERE)
    plugin = simulator_class(config, "env.train")
    facts = plugin.describe(config, "env.train")
    assert (facts.time_limit, facts.waits, facts.states) == (30, True, False)
    assert facts.find_spaces().observation_dim == 4


def test_a_mistake_that_only_the_other_python_can_find_names_the_key_and_the_python():
    train = {"name": "gymnasium", "id": "CartPol-v1", "total_num_envs": 2, "python": HERE}
    with pytest.raises(ConfigError) as error:
        load_config({"env": {"train": train}})
    assert "env.train.id" in str(error.value)
    assert HERE in str(error.value)


def test_hindsight_is_refused(tmp_path):
    config = GymnasiumConfig("gymnasium", id="CartPole-v1", python=HERE)
    with pytest.raises(ConfigError, match=r"env\.train\.python.*algorithm\.hindsight=0"):
        simulator_class(config, "env.train").goal_task(config)
