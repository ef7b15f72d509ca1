"""Faults in virtual time: the real engine, pool, recovery, loop and logger on a simulated cluster.

Schedules are drawn from seeds and checked against docs/reliability.md as a whole; below them, single faults with what
a run says about each.
"""

from __future__ import annotations

import json
import os

import pytest

import rlpipe
from rlpipe.errors import LostRowsError, RunError
from rlpipe.run import checkpoint
from tests.helpers.faulty import assert_whole, events, faulty, rows
from tests.helpers.kinds import KINDS
from tests.helpers.runs import scripted, without_timings
from tests.helpers.simulated_ray.trials import failures, on_a_simulated_cluster
from tests.helpers.simulated_ray.world import ProcessKilledError

SCHEDULES = int(os.environ.get("RLPIPE_SCHEDULES", "20"))
"""Number of seeds; `make schedules` tries 1,000."""
CASES = 4
BASE = ("rollout.num_workers=2", "cluster.cpus_per_worker=1", "rollout.timeout=20", "learner.device=cpu")


@pytest.mark.parametrize("first", range(CASES))
def test_a_run_keeps_its_promises_through_the_faults_of_a_seed(first):
    if reports := failures(range(first, SCHEDULES, CASES)):
        pytest.fail("\n\n".join(reports))


# --- on the simulated cluster, a run is the same as elsewhere


@pytest.mark.parametrize(
    ("kind", "pipeline"),
    [
        ("tree, several parts, chunks, ppo", "ahead"),
        ("tree, chunks, sac", "sync"),
        ("tree, levels observed, ppo", "sync"),
    ],
    ids=["ppo, which collects ahead", "sac", "variations"],
)
def test_without_a_fault_a_run_has_the_rows_of_one_in_this_process(tmp_path, kind, pipeline):
    options = (*BASE, f"runner.pipeline={pipeline}", "evaluation.episodes=2")
    here = rlpipe.train(KINDS[kind].config(tmp_path / "here", *options), local=True).directory
    with on_a_simulated_cluster(tmp_path, stubs=False):
        there = rlpipe.train(KINDS[kind].config(tmp_path / "there", *options)).directory
    assert without_timings(there) == without_timings(here)
    assert rows(there, "episodes.jsonl") == rows(here, "episodes.jsonl")


def test_a_slow_worker_holds_up_no_stream(tmp_path):
    train = {
        "name": "tests.helpers.simulators:Uneven", "total_num_envs": 4, "script": [[{"length": 3}], [{"length": 7}]],
        "match_actions": True, "folder": str(tmp_path), "slow_seconds": 0.5,
    }  # fmt: skip
    options = (*BASE, "runner.pipeline=stream", "runner.total_timesteps=1024")
    with on_a_simulated_cluster(tmp_path, stubs=False):
        run = rlpipe.train(scripted(tmp_path, *options, env={"train": train, "eval": {"slow_seconds": 0.0}})).directory
    assert_whole(run, 16)
    assert [row["total_timesteps"] for row in rows(run)] == [64 * n for n in range(1, 17)]
    assert 1 < max(row["metrics"]["rollout/policy_lag_max"] for row in rows(run)) <= 4
    ledger = rows(run, "episodes.jsonl")
    steps = [max(row["step"] for row in ledger if row["worker"] == worker) for worker in (0, 1)]
    assert max(steps) > 3 * min(steps)


@pytest.mark.parametrize("pipeline", ["sync", "ahead"])
def test_equal_seeds_give_equal_rows(tmp_path, pipeline):
    runs = []
    for name in ("first", "second"):
        with on_a_simulated_cluster(tmp_path, stubs=False, seed=name):  # with other durations
            runs.append(rlpipe.train(scripted(tmp_path / name, *BASE, f"runner.pipeline={pipeline}")).directory)
    assert without_timings(runs[0]) == without_timings(runs[1])


# --- workers


def test_a_worker_that_falls_silent_is_replaced_after_its_time_limit(tmp_path):
    with on_a_simulated_cluster(tmp_path) as world:
        world.fates["rollout", "collect", 3] = "silent"
        run = rlpipe.train(scripted(tmp_path, *BASE)).directory
    assert_whole(run, 4)
    (event,) = events(run, "restarted")
    assert event["data"]["what"] == "gave no answer within 20 s (rollout.timeout)"
    assert event["data"]["doing"] == "collect"


@pytest.mark.parametrize("fate", ["before", "after", "raise"])
@pytest.mark.parametrize("pipeline", ["sync", "stream"])
def test_only_the_unfinished_episodes_of_a_failed_worker_are_lost(tmp_path, fate, pipeline):
    with on_a_simulated_cluster(tmp_path) as world:
        world.fates["rollout", "collect", 3] = fate
        run = rlpipe.train(scripted(tmp_path, *BASE, f"runner.pipeline={pipeline}")).directory
    assert_whole(run, 4)
    assert [row["metrics"]["time/total_timesteps"] for row in rows(run)] == [64, 128, 192, 256]
    assert sum(row["metrics"].get("rollout/discarded_trajectories", 0) for row in rows(run)) == 2  # one an environment


def test_a_spare_takes_the_place_of_a_worker(tmp_path):
    with on_a_simulated_cluster(tmp_path) as world:
        world.fates["rollout", "collect", 7] = "before"
        run = rlpipe.train(scripted(tmp_path, *BASE, "rollout.spares=always", "runner.total_timesteps=512")).directory
        spares = {actor.pid for actor in world.actors if actor.name == "rollout-spare"}
    assert_whole(run, 8)
    (event,) = events(run, "restarted")
    assert event["data"]["successor"] in spares


def test_no_spare_waits_unasked(tmp_path):
    with on_a_simulated_cluster(tmp_path) as world:
        world.fates["rollout", "collect", 3] = "before"
        rlpipe.train(scripted(tmp_path, *BASE, "rollout.spares=never"))
        assert [actor.name for actor in world.actors if actor.name == "rollout-spare"] == []


def test_with_fewer_workers_allowed_an_iteration_continues_with_what_arrived(tmp_path):
    with on_a_simulated_cluster(tmp_path) as world:
        world.fates["rollout", "collect", 3] = "before"
        run = rlpipe.train(scripted(tmp_path, *BASE, "rollout.min_workers=1", "runner.total_timesteps=512")).directory
    assert_whole(run, 8)
    reporting = [row["metrics"]["time/workers_reporting"] for row in rows(run)]
    assert (reporting[0], reporting[1], reporting[-1]) == (2, 1, 2)
    assert rows(run)[-1]["metrics"]["time/total_timesteps"] == 32 * sum(reporting)


def test_a_worker_that_leaks_is_replaced_and_no_budget_pays_for_it(tmp_path):
    with on_a_simulated_cluster(tmp_path) as world:
        world.after(5.0, lambda: world.memory.update({actor.pid: 2**30 for actor in world.actors[:1]}))
        run = rlpipe.train(scripted(tmp_path, *BASE, "rollout.max_memory=0.5", "rollout.max_restarts=0")).directory
    assert_whole(run, 4)
    (event,) = events(run, "restarted")
    assert event["data"]["what"] == "held 1.00 GiB, more than rollout.max_memory=0.5"


def test_a_worker_that_dies_in_an_evaluation_changes_no_number_of_it(tmp_path):
    expected = rlpipe.train(scripted(tmp_path / "quiet", *BASE), local=True).directory
    with on_a_simulated_cluster(tmp_path, stubs=False) as world:
        world.fates["rollout", "evaluate", 1] = "after"
        run = rlpipe.train(scripted(tmp_path / "disturbed", *BASE)).directory
    assert [event["data"]["doing"] for event in events(run, "restarted")] == ["evaluate"]
    assert rows(run, "eval_episodes.jsonl") == rows(expected, "eval_episodes.jsonl")


def test_a_simulator_that_raises_is_replaced_in_place_and_groups_stay_with_one_worker(tmp_path):
    grpo = {"name": "grpo", "group_size": 2, "update_epochs": 1, "num_minibatches": 2}
    with on_a_simulated_cluster(tmp_path, stubs=False) as world:
        world.fates["rollout", "collect", 9] = "after"
        options = ("cluster.cpus_per_worker=1", "learner.device=cpu")
        run = rlpipe.train(faulty(tmp_path, "raise", *options, algorithm=grpo)).directory
    assert_whole(run, 12)
    (event,) = events(run, "simulator")
    assert "ArithmeticError: the solver diverged" in event["message"]
    assert "replaced (1 of 3)" in event["message"]
    assert len(events(run, "restarted")) == 1  # for the kill alone
    groups: dict[tuple[int, int], set[int]] = {}
    for episode in rows(run, "episodes.jsonl"):
        groups.setdefault((episode["iteration"], episode["slot"] // 2), set()).add(episode["seed"])
    assert groups
    assert all(len(seeds) == 1 for seeds in groups.values())


def test_a_worker_that_always_raises_ends_the_run_with_its_own_error(tmp_path):
    with on_a_simulated_cluster(tmp_path) as world:
        world.fates.update({("rollout", "collect", call): "raise" for call in range(1, 100)})
        with pytest.raises(RunError, match="the solver diverged") as raised:
            rlpipe.train(scripted(tmp_path, *BASE, "rollout.num_workers=1"))
    assert "restarted 4 times in a row" in str(raised.value)
    (run,) = (file.parent for file in tmp_path.glob("*/*/run.json"))
    contents = json.loads((run / "run.json").read_text())
    assert contents["status"] == "failed"
    (event,) = events(run, "failed")
    assert event["data"] == contents["cause"]


def test_the_budget_for_replacements_ends_the_run_cleanly_and_it_can_be_resumed(tmp_path):
    config = scripted(tmp_path, *BASE, "rollout.max_restarts=0")
    with on_a_simulated_cluster(tmp_path) as world:
        world.fates["rollout", "collect", 7] = "before"
        with pytest.raises(RunError, match=r"rollout\.max_restarts") as raised:
            rlpipe.train(config)
        (run,) = (file.parent for file in tmp_path.glob("*/*/run.json"))
        assert f"rlpipe train --resume {run}" in str(raised.value)
        world.restart_driver()
        rlpipe.train(config, resume=run)
    assert_whole(run, 4)


# --- actors with state


def test_a_learner_that_is_lost_again_and_again_ends_the_run_which_can_be_resumed(tmp_path):
    """The first time before there is a checkpoint: the run starts again with the weights of the seed."""
    config = scripted(
        tmp_path, *BASE, "runner.max_recoveries=1", "runner.save_interval=4", "runner.total_timesteps=768"
    )
    with on_a_simulated_cluster(tmp_path, stubs=False) as world:
        world.fates |= {("learner", "update", 3): "before", ("learner", "update", 9): "after"}
        with pytest.raises(RunError, match=r"runner\.max_recoveries"):
            rlpipe.train(config)
        (run,) = (file.parent for file in tmp_path.glob("*/*/run.json"))
        assert [event["iteration"] for event in events(run, "recovered")] == [0]
        assert json.loads((run / "run.json").read_text())["cause"]["part"] == "learner"
        world.restart_driver()
        rlpipe.train(config, resume=run)
    assert_whole(run, 12)
    for row in rows(run):  # workers act with the learner's weights, not with those of before
        assert abs(row["metrics"]["train/actor/rollout_train_kl"]) < 1e-6


def test_each_actor_with_state_is_replaced_and_its_loss_reported(tmp_path):
    with on_a_simulated_cluster(tmp_path) as world:
        world.fates |= {("learner", "update", 3): "after", ("metric-logger", "write", 6): "during 4"}
        run = rlpipe.train(scripted(tmp_path, *BASE, "runner.total_timesteps=768")).directory
    assert_whole(run, 12)
    losses = events(run, "recovered")
    assert [event["data"]["part"] for event in losses] == ["learner", "metric-logger"]
    contents = json.loads((run / "run.json").read_text())
    assert contents["resumed_after"] == [event["iteration"] for event in losses]
    assert contents["incarnation"] == 2


# --- the last iteration


def test_a_driver_that_dies_in_the_last_evaluation_loses_no_episode(tmp_path):
    """The row of that iteration, and its episodes, are written by the run that resumes it."""
    config = scripted(tmp_path, *BASE)
    with on_a_simulated_cluster(tmp_path) as world:
        world.fates["rollout", "evaluate", 1] = "slow 15"
        world.after(18.0, lambda: world.end(world.driver, "killed"))
        with pytest.raises(ProcessKilledError):
            rlpipe.train(config)
        world.restart_driver()
        (run,) = (file.parent for file in tmp_path.glob("*/*/run.json"))
        assert checkpoint.newest(run).meta["row"] is False
        assert [row["iteration"] for row in rows(run)] == [1, 2, 3]
        rlpipe.train(config, resume=run)
    assert_whole(run, 4)
    assert rows(run)[-1]["metrics"]["env/num_trajectories"] == 8


def test_the_last_checkpoint_waits_for_room_on_the_disk(tmp_path):
    with on_a_simulated_cluster(tmp_path) as world:
        world.disk_full.append((5.0, 30.0))
        run = rlpipe.train(scripted(tmp_path, *BASE)).directory
    assert_whole(run, 4)
    assert checkpoint.newest(run).meta["iteration"] == 4


def test_a_run_whose_last_checkpoint_finds_no_room_fails_and_says_so(tmp_path):
    with on_a_simulated_cluster(tmp_path) as world:
        world.checkpoints_full = True
        with pytest.raises(LostRowsError, match="The checkpoint of iteration 4 found no room"):
            rlpipe.train(scripted(tmp_path, *BASE))
    (run,) = (file.parent for file in tmp_path.glob("*/*/run.json"))
    assert [row["iteration"] for row in rows(run)] == [1, 2, 3, 4]
    assert json.loads((run / "run.json").read_text())["status"] == "failed"


def test_a_worker_that_falls_silent_while_its_clock_is_compared_holds_up_no_start(tmp_path):
    with on_a_simulated_cluster(tmp_path) as world:
        world.fates["rollout", "where", 3] = "silent"  # the first two say where the workers are
        run = rlpipe.train(scripted(tmp_path, *BASE)).directory
    assert_whole(run, 4)
    assert len(events(run, "restarted")) == 1
