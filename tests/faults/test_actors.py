"""Learner, metric logger and inference server are killed: the run returns to its checkpoint and continues."""

from __future__ import annotations

import json

import psutil
import pytest

import rlpipe
from rlpipe.distributed import launcher
from rlpipe.distributed.actors import Actor
from tests.helpers.faulty import TWO_WORKERS, assert_whole, events, killed, rows
from tests.helpers.hosts import PATIENCE
from tests.helpers.runs import scripted

pytestmark = pytest.mark.usefixtures("ray_cluster")
SLOW = ("env.train.step_seconds=0.02", "runner.total_timesteps=512", *TWO_WORKERS)


@pytest.mark.soak
class TestActorsThatAreKilled:
    """The learner, the metric logger and the inference server in turn, in one run of 8 iterations."""

    names = ("learner", "metric-logger", "inference-0")

    @pytest.fixture(scope="class")
    def run(self, ray_cluster, tmp_path_factory):
        folder = tmp_path_factory.mktemp("actors")
        served = ("rollout.inference=server", "cluster.cpus_per_inference_server=0.5")
        with killed(self.names, folder, after=2):
            return rlpipe.train(scripted(folder, *SLOW, *served)).directory

    def test_the_run_is_whole(self, run):
        assert_whole(run, 8)
        assert rows(run)[-1]["metrics"]["time/total_timesteps"] == 512

    def test_each_loss_is_reported_with_its_cause(self, run):
        losses = [event["data"] for event in events(run, "recovered")]
        assert [data["part"] for data in losses] == [*self.names]
        assert {data["what"] for data in losses} == {"died without a message, as after SIGKILL"}

    def test_the_run_directory_knows_where_the_run_returned_to(self, run):
        contents = json.loads((run / "run.json").read_text())
        assert contents["status"] == "completed"
        assert contents["incarnation"] == 3
        assert contents["resumed_after"] == [event["iteration"] for event in events(run, "recovered")]


@pytest.mark.soak
def test_actors_that_die_before_they_are_ready_are_replaced(tmp_path, monkeypatch):
    """A worker and the inference server end as soon as they have a process, before they can answer anything."""
    names = ["inference-0", "rollout-0"]
    pending = list(names)

    def started(role, name, *arguments, **options):
        actor = Actor(role, name, *arguments, **options)
        if name in pending:
            pending.remove(name)
            psutil.Process(actor.location(timeout=PATIENCE).pid).kill()
        return actor

    monkeypatch.setattr(launcher, "Actor", started)
    served = ("rollout.inference=server", "cluster.cpus_per_inference_server=0.5")
    run = rlpipe.train(scripted(tmp_path, *TWO_WORKERS, *served)).directory
    assert_whole(run, 4)
    losses = [event["data"]["part"] for kind in ("recovered", "restarted") for event in events(run, kind)]
    assert losses == names
