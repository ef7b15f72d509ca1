"""Nodes that are lost or about to go, on a simulated cluster: their parts move, the numbers stay."""

from __future__ import annotations

import signal
import time

import pytest

from tests.helpers.cluster import Run, simulated
from tests.helpers.faulty import assert_whole, processes
from tests.helpers.runs import scripted

SETTINGS = (
    "rollout.num_workers=2", "cluster.cpus_per_worker=1", "cluster.cpus_per_learner=1", "learner.device=cpu",
    "cluster.strategy=strict_spread", "env.train.step_seconds=0.02", "runner.total_timesteps=1_000_000",
)  # fmt: skip


@pytest.fixture(scope="module")
def story(tmp_path_factory):
    """A run whose worker's node is killed, then its learner's, and whose other worker's is about to go."""
    folder = tmp_path_factory.mktemp("nodes")
    with simulated(nodes=4, cpus=1, lean=True) as cluster:
        run = Run(scripted(folder / "runs", *SETTINGS), folder, cluster.address)
        try:
            run.until(lambda: run.rows())
            told = {}
            for part, kind in [("rollout-0", "restarted"), ("learner", "recovered")]:
                before = len(run.events(kind))
                cluster.kill(run.parts()[part])
                run.until(lambda kind=kind, before=before: len(run.events(kind)) > before)
                told[part] = event = run.events(kind)[before]
                run.until(lambda event=event: [row for row in run.rows() if row["time"] > event["time"]])
                cluster.add()
            cluster.drain(run.parts()["rollout-1"], seconds=600)
            run.until(lambda: run.events("leaving"))
            run.until(lambda: [event for event in run.events("restarted") if event["data"].get("planned")])
            told["events"] = run.events("leaving", "restarted", "recovered")
            run.process.send_signal(signal.SIGTERM)
            told["code"] = run.process.wait(600)
            ends = time.monotonic() + 600
            while (left := processes()) and time.monotonic() < ends:
                time.sleep(0.2)
            return run, told, left
        finally:
            run.process.kill()


@pytest.mark.ray
@pytest.mark.soak
@pytest.mark.timeout(1800)
class TestNodes:
    def test_a_worker_whose_node_is_lost_goes_on_elsewhere(self, story):
        event = story[1]["rollout-0"]
        assert event["data"]["part"] == "rollout-0"
        assert event["data"]["what"] == "was lost with its node"

    def test_a_learner_whose_node_is_lost_is_made_anew_elsewhere_from_the_checkpoint(self, story):
        event = story[1]["learner"]
        assert event["data"]["what"] == "was lost with its node"

    def test_before_a_node_goes_the_run_is_saved_and_its_worker_moves(self, story):
        told = story[1]
        (notice,) = (event for event in told["events"] if event["kind"] == "leaving")
        assert "is draining" in notice["message"]
        (moved,) = (event for event in told["events"] if event["data"].get("planned"))
        assert "had to leave its node" in moved["message"]

    def test_the_run_is_whole_and_leaves_no_process(self, story):
        run, told, left = story
        assert told["code"] == 130
        assert_whole(run.directory, len(run.rows()))
        assert left == []
