"""Processes of rollout workers that die, crash or are stopped: the others continue, they are replaced, nothing is
counted twice. `test_schedules.py` has everything that needs no real process."""

from __future__ import annotations

import subprocess
import sys
from types import SimpleNamespace

import psutil
import pytest

import rlpipe
from rlpipe.distributed import actors
from tests.helpers.faulty import Hurried, assert_whole, events, faulty, rows

pytestmark = pytest.mark.usefixtures("ray_cluster")
TOLD = {
    "kill": "died without a message, as after SIGKILL",
    "crash": "crashed (Segmentation fault)",
    "exit": "raised SimulatorError: the simulator called os._exit(7) while taking step",
    "stop": "gave no answer within 2 s (rollout.timeout)",
}


class WorkersThatFail:
    """Each fault in turn, in one run of 6 iterations with two workers."""

    faults: tuple[str, ...]
    overrides: tuple[str, ...] = ()

    @pytest.fixture(scope="class")
    def run(self, ray_cluster, tmp_path_factory):
        return self.trained(tmp_path_factory.mktemp("workers"))

    def trained(self, folder):
        options = ("env.train.at=20", "rollout.simulator_retries=0", "runner.total_timesteps=384", *self.overrides)
        return rlpipe.train(faulty(folder, " ".join(self.faults), *options)).directory

    def test_the_run_is_whole(self, run):
        assert_whole(run, 6)
        last = rows(run)[-1]["metrics"]
        assert last["time/worker_restarts"] == len(self.faults)
        assert last["time/total_timesteps"] == 384

    def test_each_failure_is_reported_with_its_cause(self, run):
        failures = [event["data"] for event in events(run, "restarted")]
        assert len(failures) == len(self.faults)
        for fault in self.faults:
            data = next(data for data in failures if data["what"].startswith(TOLD[fault]))
            assert data["part"] in ("rollout-0", "rollout-1")
            assert data["doing"] == "collect"
            if fault == "crash":
                assert "faulty.py" in "\n".join(data["log"])

    def test_only_the_unfinished_episodes_of_the_failed_worker_are_lost(self, run):
        discarded = [row["metrics"].get("rollout/discarded_trajectories", 0) for row in rows(run)]
        assert sum(discarded) == 2 * len(self.faults)

    def test_every_iteration_has_two_fragments(self, run):
        assert [row["metrics"]["time/total_timesteps"] for row in rows(run)] == list(range(64, 385, 64))


class TestWorkersThatDie(WorkersThatFail):
    faults = ("kill", "crash", "exit")

    def test_the_replacement_acts_with_the_weights_of_the_iteration(self, run):
        for metrics in (row["metrics"] for row in rows(run)):
            assert metrics["time/workers_reporting"] == 2
            assert metrics["rollout/policy_lag_max"] == 0
            assert abs(metrics["train/actor/rollout_train_kl"]) < 1e-6


@pytest.mark.soak
class TestWorkersThatFallSilent(WorkersThatFail):
    faults = ("stop",)
    overrides = ("rollout.timeout=2",)

    def trained(self, folder):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("rlpipe.distributed.engine.RayAnswers", lambda: Hurried(folder))
            return super().trained(folder)


_CHILD = "data = b'x' * 2**26; print('ready', flush=True); input()"
_PARENT = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {_CHILD!r}])"


def test_memory_is_that_of_the_process_and_of_those_that_it_has_started(monkeypatch):
    pipe = subprocess.PIPE
    with subprocess.Popen([sys.executable, "-c", _PARENT], stdin=pipe, stdout=pipe) as parent:
        assert parent.stdout.readline() == b"ready\n"  # the child has its 64 MiB
        process = psutil.Process(parent.pid)
        monkeypatch.setattr(
            actors, "psutil", SimpleNamespace(Process=lambda: process, NoSuchProcess=psutil.NoSuchProcess)
        )
        assert actors.ActorProcess.memory(object()) > process.memory_info().rss + 2**26
        parent.communicate(b"\n")
