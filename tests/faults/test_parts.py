"""Learner, metric logger and inference server that are killed: the run goes back to its checkpoint and on."""

from __future__ import annotations

import json

import pytest

import rlpipe
from rlpipe.errors import RunError
from tests.helpers.faulty import TWO_WORKERS, assert_whole, events, killed, rows
from tests.helpers.runs import scripted

pytestmark = [pytest.mark.ray, pytest.mark.slow, pytest.mark.usefixtures("ray_cluster")]
SLOW = ("env.train.step_seconds=0.02", "runner.total_timesteps=768", *TWO_WORKERS)


@pytest.mark.parametrize("name", ["learner", "metric-logger", "inference-0"])
def test_a_part_that_is_killed_is_made_anew_and_the_run_is_whole(tmp_path, name):
    served = ["rollout.inference=server", "cluster.cpus_per_inference_server=0.5"] if name == "inference-0" else []
    with killed(name, tmp_path, after=5):
        run = rlpipe.train(scripted(tmp_path, *SLOW, *served)).directory
    assert_whole(run, 12)
    (event,) = events(run, "recovered")
    assert event["data"]["part"] == name
    assert event["data"]["what"] == "died without a message, as after SIGKILL"
    contents = json.loads((run / "run.json").read_text())
    assert contents["status"] == "completed"
    assert contents["incarnation"] == 1
    assert contents["resumed_after"] == [event["iteration"]]
    assert rows(run)[-1]["metrics"]["time/total_timesteps"] == 768


def test_before_the_first_checkpoint_it_begins_again_with_the_weights_of_the_seed(tmp_path):
    with killed("learner", tmp_path, after=3):
        run = rlpipe.train(scripted(tmp_path, *SLOW, "runner.save_interval=100")).directory
    assert_whole(run, 12)
    assert [event["iteration"] for event in events(run, "recovered")] == [0]
    for row in rows(run):  # who acts has the learner's weights, not those of before
        assert abs(row["metrics"]["train/actor/rollout_train_kl"]) < 1e-6


def test_a_part_that_is_killed_again_and_again_ends_the_run_which_can_be_resumed(tmp_path):
    config = scripted(tmp_path, *SLOW, "runner.max_recoveries=1")
    with (
        killed("learner", tmp_path, after=4, times=2),
        pytest.raises(RunError, match=r"runner\.max_recoveries") as raised,
    ):
        rlpipe.train(config)
    (run,) = (file.parent for file in tmp_path.glob("*/*/run.json"))
    assert "learner" in str(raised.value)
    assert f"resume with: rlpipe train --resume {run}" in str(raised.value)
    assert json.loads((run / "run.json").read_text())["cause"]["part"] == "learner"
    rlpipe.train(config, resume=run)
    assert_whole(run, 12)
