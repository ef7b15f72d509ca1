"""Rollout workers that die, hang, crash, raise or leak: the others continue, they are replaced, nothing is counted
twice."""

from __future__ import annotations

import json

import pytest

import rlpipe
from rlpipe.errors import RunError
from rlpipe.training.interruption import Interruption
from tests.helpers.faulty import Hurried, assert_whole, events, faulty, processes, rows
from tests.helpers.runs import beside

pytestmark = pytest.mark.usefixtures("ray_cluster")
TOLD = {
    "kill": "died without a message, as after SIGKILL",
    "crash": "crashed (Segmentation fault)",
    "exit": "raised SimulatorError: the simulator called os._exit(7) while taking step",
    "sys.exit": "raised SimulatorError: the simulator called sys.exit(7) while taking step",
    "interrupt": "raised SimulatorError: the simulator raised KeyboardInterrupt while taking step",
    "raise": "raised SimulatorError: the simulator raised ArithmeticError: the solver diverged while taking step",
    "hang": "gave no answer within 2 s (rollout.timeout)",
    "stop": "gave no answer within 2 s (rollout.timeout)",
}


class WorkersThatFail:
    """Each fault in turn, in one run of 12 iterations with two workers."""

    faults: tuple[str, ...]
    overrides: tuple[str, ...] = ()

    @pytest.fixture(scope="class")
    def run(self, ray_cluster, tmp_path_factory):
        return self.trained(tmp_path_factory.mktemp("workers"))

    def trained(self, folder):
        options = ("env.train.at=20", "rollout.simulator_retries=0", "rollout.max_restarts=8", *self.overrides)
        return rlpipe.train(faulty(folder, " ".join(self.faults), *options)).directory

    def test_the_run_is_whole(self, run):
        assert_whole(run, 12)
        last = rows(run)[-1]["metrics"]
        assert last["time/worker_restarts"] == len(self.faults)
        assert last["time/total_timesteps"] == 768

    def test_each_failure_is_reported_with_its_cause(self, run):
        failures = [event["data"] for event in events(run, "restarted")]
        assert len(failures) == len(self.faults)
        for fault in self.faults:
            data = next(data for data in failures if data["what"].startswith(TOLD[fault]))
            assert data["part"] in ("rollout-0", "rollout-1")
            assert data["doing"] == "collect"
            if fault in ("crash", "hang"):
                assert "faulty.py" in "\n".join(data["log"])

    def test_only_the_unfinished_episodes_of_the_failed_worker_are_lost(self, run):
        discarded = [row["metrics"].get("rollout/discarded_trajectories", 0) for row in rows(run)]
        assert sum(discarded) == 2 * len(self.faults)

    def test_every_iteration_has_two_fragments(self, run):
        assert [row["metrics"]["time/total_timesteps"] for row in rows(run)] == list(range(64, 769, 64))


class TestWorkersThatDie(WorkersThatFail):
    faults = ("kill", "crash", "exit", "sys.exit", "interrupt", "raise")

    def test_the_replacement_acts_with_the_weights_of_the_iteration(self, run):
        for metrics in (row["metrics"] for row in rows(run)):
            assert metrics["time/workers_reporting"] == 2
            assert metrics["rollout/policy_lag_max"] == 0
            assert abs(metrics["train/actor/rollout_train_kl"]) < 1e-6


@pytest.mark.soak
class TestWorkersThatDieInAStream(WorkersThatFail):
    faults = ("kill", "raise")
    overrides = ("runner.pipeline=stream", "runner.max_lag=2")

    def test_no_fragment_is_older_than_the_bound(self, run):
        assert max(row["metrics"]["rollout/policy_lag_max"] for row in rows(run)) in (1, 2)


@pytest.mark.soak
class TestWorkersThatFallSilent(WorkersThatFail):
    faults = ("hang", "stop")
    overrides = ("rollout.timeout=2",)

    def trained(self, folder):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("rlpipe.distributed.engine.RayAnswers", lambda: Hurried(folder, self.faults))
            return super().trained(folder)


@pytest.mark.soak
def test_a_simulator_that_raises_is_replaced_in_place_and_groups_stay_with_one_worker(tmp_path):
    grpo = {"name": "grpo", "group_size": 2, "update_epochs": 1, "num_minibatches": 2}
    run = rlpipe.train(faulty(tmp_path, "raise kill", algorithm=grpo)).directory
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


@pytest.mark.soak
def test_a_simulator_that_always_raises_ends_the_run_with_its_own_error(tmp_path):
    config = faulty(tmp_path, "raise", "env.train.times=1000", "env.train.at=1", "rollout.simulator_retries=1",
                    "rollout.num_workers=1")  # fmt: skip
    with pytest.raises(RunError, match="ArithmeticError: the solver diverged") as raised:
        rlpipe.train(config)
    assert "restarted 4 times in a row" in str(raised.value)
    (run,) = tmp_path.glob("*/*/run.json")
    contents = json.loads(run.read_text())
    assert contents["status"] == "failed"
    assert contents["cause"]["part"].startswith("rollout-")
    assert "the solver diverged" in contents["cause"]["what"]
    (event,) = events(run.parent, "failed")
    assert event["data"] == contents["cause"]


@pytest.mark.soak
def test_a_spare_takes_the_place_of_a_worker(tmp_path):
    spares: set[int | None] = set()
    interruption, due = Interruption(), 5

    def kill_until_a_spare_works() -> bool:
        nonlocal due
        spares.update(process.pid for process in processes("rollout-spare"))
        if not (found := [*tmp_path.glob("*/*/metrics.jsonl")]):
            return False
        if any(event["data"].get("successor") in spares for event in events(found[0].parent, "restarted")):
            interruption.request("the test")
            return True
        if len(rows(found[0].parent)) >= due and (working := processes("rollout-0")):
            working[0].kill()
            due = len(rows(found[0].parent)) + 5
        return False

    config = faulty(tmp_path, "", "env.train.step_seconds=0.01", "runner.total_timesteps=1_000_000")
    with beside(kill_until_a_spare_works):
        run = rlpipe.train(config, interruption=interruption).directory
    assert_whole(run, len(rows(run)))
    assert len(events(run, "restarted")) > 1  # the first loss is what gives the node a spare


@pytest.mark.soak
def test_the_budget_for_replacements_ends_the_run_cleanly_and_it_can_be_resumed(tmp_path):
    config = faulty(tmp_path, "kill", "env.train.at=100", "rollout.max_restarts=0")
    with pytest.raises(RunError, match=r"rollout\.max_restarts") as raised:
        rlpipe.train(config)
    (run,) = (file.parent for file in tmp_path.glob("*/*/run.json"))
    assert f"rlpipe train --resume {run}" in str(raised.value)
    rlpipe.train(config, resume=run)
    assert_whole(run, 12)


@pytest.mark.soak
def test_with_fewer_workers_allowed_an_iteration_continues_with_what_arrived_and_no_spare_waits_unasked(tmp_path):
    spares = []
    options = ("rollout.min_workers=1", "rollout.spares=never", "env.train.step_seconds=0.005")
    with beside(lambda: bool(spares.extend(processes("rollout-spare")) or spares)):
        run = rlpipe.train(faulty(tmp_path, "kill", *options)).directory
    assert not spares
    assert_whole(run, 12)
    reporting = [row["metrics"]["time/workers_reporting"] for row in rows(run)]
    assert 1 in reporting
    assert reporting[0] == 2
    steps = [row["metrics"]["time/total_timesteps"] for row in rows(run)]
    assert steps[-1] == sum(32 * int(count) for count in reporting)


@pytest.mark.soak
def test_a_worker_that_dies_in_an_evaluation_changes_no_number_of_it(tmp_path):
    quiet, disturbed = (
        faulty(tmp_path / fault, "", "env.eval.at=3", env={
            "train": {"name": "tests.helpers.faulty:Faulty", "total_num_envs": 4, "match_actions": True},
            "eval": {"fault": fault, "folder": str(tmp_path)},
        })
        for fault in ("", "kill")
    )  # fmt: skip
    expected, run = rlpipe.train(quiet, local=True).directory, rlpipe.train(disturbed).directory
    assert [event["data"]["doing"] for event in events(run, "restarted")] == ["evaluate"]
    assert rows(run, "eval_episodes.jsonl") == rows(expected, "eval_episodes.jsonl")


@pytest.mark.soak
def test_a_worker_that_leaks_is_replaced_before_it_holds_too_much_and_no_budget_pays_for_it(tmp_path):
    config = faulty(tmp_path, "leak", "rollout.max_memory=0.5", "rollout.max_restarts=0", "env.eval.fault=''")
    run = rlpipe.train(config).directory
    assert_whole(run, 12)
    told = events(run, "restarted")
    assert told
    assert all("more than rollout.max_memory=0.5" in event["data"]["what"] for event in told)
