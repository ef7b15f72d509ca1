"""What is left of a run on this machine once it is over, however it ended: nothing of ours."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time

import psutil
import pytest

from rlpipe.config.tree import to_yaml
from tests.helpers.cluster import REPOSITORY
from tests.helpers.faulty import TWO_WORKERS, faulty
from tests.helpers.runs import scripted, wait_for_rows

pytestmark = [pytest.mark.ray, pytest.mark.slow, pytest.mark.timeout(400)]


def sign(environment: dict[str, str]) -> list[int]:
    """Processes of the run, which have its sign in their environment."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            if process.environ().get("LEAK_TEST") == environment["LEAK_TEST"]:
                found.append(process.pid)
    return found


def left_behind(environment: dict[str, str], before: set[str], patience: float = 60.0) -> tuple[list[int], set[str]]:
    """Processes and shared memory of a run that is over, once they are gone or had time enough."""
    ends = time.monotonic() + patience
    while True:
        memory = set(os.listdir("/dev/shm")) - before
        left = sign(environment), {name for name in memory if belongs(name)}
        if left == ([], set()) or time.monotonic() > ends:
            return left
        time.sleep(0.5)


def belongs(name: str) -> bool:
    """Whether nobody else has this shared memory open."""
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            if any(name in mapped.path for mapped in process.memory_maps()):
                return False
    return True


@pytest.mark.parametrize("end", ["success", "failure", "Ctrl-C", "SIGTERM", "SIGKILL"])
def test_a_run_leaves_no_process_no_shared_memory_and_no_temporary_folder(tmp_path, end):
    # Ray's own folder, /tmp/ray, keeps its logs, as Ray means it to.
    if end == "failure":
        settings = ("env.train.times=1000", "rollout.max_restarts=0", "rollout.simulator_retries=0")
        config = faulty(tmp_path, "raise", *settings)
    else:
        steps = 128 if end == "success" else 1_000_000
        config = scripted(tmp_path, *TWO_WORKERS, f"runner.total_timesteps={steps}", "env.train.step_seconds=0.01",
                          "runner.logger.logger_backends=[csv]")  # fmt: skip
    file = tmp_path / "config.yaml"
    file.write_text(to_yaml(config))
    (own := tmp_path / "temporary").mkdir()
    environment = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    environment |= {"LEAK_TEST": str(tmp_path), "TMPDIR": str(own), "RAY_TMPDIR": "/tmp", "PYTHONPATH": str(REPOSITORY)}
    environment["TORCHINDUCTOR_CACHE_DIR"] = str(tmp_path / "cache")  # torch's, one for all that a user runs
    before = set(os.listdir("/dev/shm"))
    process = subprocess.Popen(
        [sys.executable, "-m", "rlpipe", "train", str(file)], cwd=REPOSITORY, env=environment,
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        if end in ("Ctrl-C", "SIGTERM", "SIGKILL"):
            wait_for_rows(tmp_path, 3)
            process.send_signal({"Ctrl-C": signal.SIGINT, "SIGTERM": signal.SIGTERM, "SIGKILL": signal.SIGKILL}[end])
        expected = {"success": 0, "failure": 1, "Ctrl-C": 130, "SIGTERM": 130, "SIGKILL": -9}[end]
        assert process.wait(240) == expected
    finally:
        process.kill()
    assert left_behind(environment, before) == ([], set())
    assert list(own.iterdir()) == []
