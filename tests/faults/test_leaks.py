"""A run that is over leaves nothing on this machine, however it ended."""

from __future__ import annotations

import contextlib
import os
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest
import ray

from rlpipe.config.schema import Config
from rlpipe.config.tree import to_yaml
from rlpipe.run import checkpoint
from tests.helpers import REPOSITORY
from tests.helpers.faulty import TWO_WORKERS, faulty
from tests.helpers.runs import lines, scripted, wait_for_rows

pytestmark = [pytest.mark.ray, pytest.mark.timeout(1800)]

PATIENCE = 600.0
"""Seconds that what a run started has to end; only what stays for good needs them all."""


def sign(environment: dict[str, str]) -> list[str]:
    """Processes of the run, which have its sign in their environment: number and command."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            if process.environ().get("LEAK_TEST") == environment["LEAK_TEST"]:
                found.append(f"{process.pid} {shlex.join(process.cmdline())[:200]}")
    return found


def left_behind(environment: dict[str, str], before: set[str]) -> tuple[list[str], set[str]]:
    """Processes and shared memory of a run that is over, once they are gone or had time enough."""
    ends = time.monotonic() + PATIENCE
    while True:
        memory = set(os.listdir("/dev/shm")) - before
        left = sign(environment), {name for name in memory if belongs(name)}
        if left == ([], set()) or time.monotonic() > ends:
            return left
        time.sleep(0.3)


def belongs(name: str) -> bool:
    """True if no process of another has this shared memory open."""
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            if any(name in mapped.path for mapped in process.memory_maps()):
                return False
    return True


@dataclass(frozen=True)
class Command:
    """``rlpipe`` with a Ray of its own, and what tells its processes from others."""

    folder: Path
    environment: dict[str, str]

    @classmethod
    def of(cls, folder: Path, **changes: str) -> Command:
        (folder / "temporary").mkdir()
        environment = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
        environment |= {"LEAK_TEST": str(folder), "TMPDIR": str(folder / "temporary"), "RAY_TMPDIR": "/tmp"}
        environment |= {"TORCHINDUCTOR_CACHE_DIR": str(folder / "cache")}  # torch's, one for all that a user runs
        return cls(folder, environment | {"PYTHONPATH": str(REPOSITORY)} | changes)

    @property
    def output(self) -> Path:
        return self.folder / "output"

    def start(self, *arguments: str) -> subprocess.Popen[bytes]:
        with self.output.open("ab") as output:
            return subprocess.Popen(
                [sys.executable, "-m", "rlpipe", "train", *arguments], cwd=REPOSITORY, env=self.environment,
                stdout=output, stderr=output,
            )  # fmt: skip

    def train(self, config: Config, number: signal.Signals | None = None) -> int:
        """Trains, sends a signal after three iterations, checks that nothing is left, and returns the exit code."""
        file = self.folder / "config.yaml"
        file.write_text(to_yaml(config))
        before = set(os.listdir("/dev/shm"))
        process = self.start(str(file))
        try:
            if number is not None:
                wait_for_rows(self.folder, 3)
                process.send_signal(number)
            code = process.wait(PATIENCE)
        finally:
            process.kill()
        assert left_behind(self.environment, before) == ([], set())
        assert list((self.folder / "temporary").iterdir()) == []  # Ray's own folder, /tmp/ray, keeps its logs
        return code


def endless(folder: Path, *overrides: str) -> Config:
    """A run that continues until it is stopped."""
    options = ("runner.total_timesteps=1_000_000", "env.train.step_seconds=0.01", "runner.logger.logger_backends=[csv]")
    return scripted(folder, *TWO_WORKERS, *options, *overrides)


def test_a_run_that_is_asked_to_end_saves_a_checkpoint_and_leaves_nothing_behind(tmp_path):
    assert Command.of(tmp_path).train(endless(tmp_path), signal.SIGINT) == 130
    assert_saved(tmp_path)


@pytest.mark.soak
def test_a_run_that_is_killed_leaves_nothing_behind(tmp_path):
    assert Command.of(tmp_path).train(endless(tmp_path), signal.SIGKILL) == -signal.SIGKILL


def assert_saved(folder: Path) -> None:
    """Checks that the only run in a folder has a checkpoint of its last iteration."""
    (run,) = (file.parent for file in folder.glob("*/*/run.json"))
    assert checkpoint.newest(run).meta["iteration"] == lines(run, "metrics.jsonl")[-1]["iteration"]


@pytest.mark.soak
def test_a_run_that_is_killed_while_it_starts_leaves_nothing_that_looks_for_it(tmp_path):
    """Ray's agents would look for their node for up to a minute; the kernel ends even one that does nothing."""
    command, before = Command.of(tmp_path), set(os.listdir("/dev/shm"))
    (tmp_path / "config.yaml").write_text(to_yaml(endless(tmp_path)))
    process = command.start(str(tmp_path / "config.yaml"))
    frozen: list[int] = []
    try:
        while not frozen:
            assert process.poll() is None, command.output.read_text()
            agents = [found for found in sign(command.environment) if "agent.py" in found]
            for found in agents:
                if "worker_entry.py" not in found:  # it has become an agent
                    frozen.append(int(found.split()[0]))
                    os.kill(frozen[-1], signal.SIGSTOP)
    finally:
        process.kill()
    assert process.wait(PATIENCE) == -signal.SIGKILL
    try:
        assert left_behind(command.environment, before) == ([], set())
    finally:
        for pid in frozen:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)


@pytest.mark.soak
def test_a_run_that_fails_leaves_nothing_behind_whatever_others_left_or_run(tmp_path, ray_cluster):
    """Beside the Ray of the tests, on the leftovers of a dead one, with a home folder where no token can be kept."""
    settings = ("env.train.times=1000", "rollout.max_restarts=0", "rollout.simulator_retries=0")
    with tempfile.TemporaryDirectory(prefix="rlpipe-", dir="/tmp", ignore_cleanup_errors=True) as short:
        leftover = Path(short, "ray", "ray_current_cluster")
        leftover.parent.mkdir()
        leftover.write_text("127.0.0.1:1")  # where nothing answers
        command = Command.of(tmp_path, RAY_TMPDIR=short, HOME="/dev/null")
        assert command.train(faulty(tmp_path, "raise", *settings)) == 1
    output = command.output.read_text()
    assert "Starting Ray on this machine" in output
    assert "the solver diverged" in output  # it failed for its own reason
    assert ray.cluster_resources()["CPU"] == 2  # the Ray of the tests is as it was
