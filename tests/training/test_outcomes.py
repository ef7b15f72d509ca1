"""How a run ends that learnt nothing, whose simulators fail, or whose evaluation does not end."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import ClassVar

import gymnasium
import numpy as np
import pytest
from gymnasium.spaces import Box, Dict

import rlpipe
from rlpipe.backends.console import EvaluationProgress
from rlpipe.cli.train import _listen
from rlpipe.collection.actions import PolicyActions
from rlpipe.collection.evaluator import AS_CONFIGURED, Evaluator
from rlpipe.collection.recorder import MOST_STEPS
from rlpipe.envs.scripted import Scripted
from rlpipe.errors import ConfigError, RunError, UserInterrupt
from rlpipe.metrics.row import Event, EventKind, Row
from rlpipe.policies.base import build_policy
from rlpipe.run.checkpoint import newest
from rlpipe.training.interruption import Interruption
from rlpipe.training.local import LocalEngine
from rlpipe.training.setbacks import IN_A_ROW, Setbacks
from tests.helpers.commands import command
from tests.helpers.runs import lines, sac, scripted

NAN_REWARD = "env.train.script=[[{length: 5, reward: .nan}]]"
TEN_ITERATIONS = "runner.total_timesteps=640"
DIVERGES = ("learner.lr=10.0", TEN_ITERATIONS)
ENDLESS = "[[{length: 1000000000}]]"
CONTINUES = "runner.health.on_critical=continue"


def run_of(folder: Path) -> Path:
    """The only run directory in a folder."""
    (run,) = (file.parent for file in folder.glob("*/*/run.json"))
    return run


def outcome(run: Path) -> dict:
    return json.loads((run / "run.json").read_text())


def notes(run: Path) -> str:
    return "\n".join(event["message"] for event in lines(run, "events.jsonl") if event["kind"] == "note")


# --- iterations in vain


def row(iteration: int, updates: float, skipped: float, *failed: int) -> Row:
    events = tuple(
        Event(EventKind.SIMULATOR, "it fell over.", 1, 0.0, {"part": f"rollout-{rank}", "replaced": True})
        for rank in failed
    )
    metrics = {"train/n_updates": updates, "train/nonfinite_steps": skipped}
    return Row(iteration, 0, 0.0, metrics, {"train/loss": 1, "env/return": 2} if skipped else {}, events=events)


def after(*rows: Row) -> Setbacks:
    setbacks = Setbacks(num_workers=2)
    for one in rows:
        setbacks.add(one, ())
    return setbacks


def test_iterations_whose_steps_were_all_skipped_count_if_they_are_in_a_row():
    learnt, none, some = row(1, 4, 0), row(2, 4, 4), row(3, 5, 3)
    assert after(learnt, none, none, some).fault is None
    assert after(learnt, none, none).fault is None
    fault = after(learnt, none, none, none).fault
    assert "skipped every optimiser step in 3 iterations in a row" in fault.sentence
    assert "env/return was not finite in 2 observations" in fault.sentence  # of the metrics, the first on the data path


def test_iterations_count_only_if_every_worker_failed():
    one, both = row(1, 4, 0, 0, 0), row(2, 8, 0, 0, 1)
    assert after(both, both, one).fault is None
    assert (
        "every rollout worker failed, or its simulator did, in each of 3" in after(one, both, both, both).fault.sentence
    )


def test_a_worker_that_was_replaced_failed_as_well():
    setbacks = Setbacks(num_workers=2)
    for _ in range(IN_A_ROW):
        setbacks.add(row(1, 4, 0, 0), {"rollout-1"})
    assert setbacks.fault is not None


@pytest.mark.parametrize("make", [scripted, sac])
def test_a_run_that_learns_nothing_fails_after_a_few_iterations_and_says_why(make, tmp_path):
    with pytest.raises(RunError, match="skipped every optimiser step in 3 iterations") as raised:
        rlpipe.train(make(tmp_path, NAN_REWARD, TEN_ITERATIONS), local=True)
    run = run_of(tmp_path)
    assert len(lines(run, "metrics.jsonl")) < 10
    assert outcome(run)["status"] == "failed"
    assert outcome(run)["cause"]["what"] in str(raised.value)


class Blurred(gymnasium.Env):
    """One leaf is NaN after the third step, and all leaves once the action is."""

    observation_space = Dict({name: Box(-9.0, 9.0, (2,)) for name in ("gripper", "puck", "slot")})
    action_space = Box(-1.0, 1.0, (2,))

    def observed(self):
        seen = {name: self.hand.astype(np.float32) for name in self.observation_space}
        return seen | {"puck": np.full(2, np.nan, np.float32)} if self.taken == 3 else seen

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.taken, self.hand = 0, np.zeros(2)
        return self.observed(), {}

    def step(self, action):
        self.taken += 1
        self.hand = np.clip(self.hand + action, -1, 1)
        return self.observed(), float(self.hand.sum()), False, self.taken == 6, {}


gymnasium.register("Blurred-v0", Blurred)


def blurred(tmp_path, *overrides: str):
    task = {"name": "gymnasium", "id": f"{__name__}:Blurred-v0", "total_num_envs": 4, "success_key": None}
    return scripted(tmp_path, *overrides, env={"train": task})


def test_a_part_of_an_observation_that_is_not_finite_is_named_before_what_follows_from_it(tmp_path):
    with pytest.raises(RunError, match="puck was not finite in 12 observations of the simulator"):
        rlpipe.train(blurred(tmp_path, TEN_ITERATIONS), local=True)
    first = lines(run_of(tmp_path), "metrics.jsonl")[0]
    counts = {name: number for name, number in first["metrics"].items() if name.startswith("env/nonfinite")}
    assert counts == {"env/nonfinite_observations/puck": 12.0}  # 4 environments, 16 steps, episodes of 6
    alerts = [event["data"] for event in lines(run_of(tmp_path), "events.jsonl") if event["kind"] == "alert"]
    rooms = [alert["metric"].split("/")[0] for alert in alerts if alert["iteration"] == 1]
    assert (alerts[0]["metric"], alerts[0]["level"]) == ("env/nonfinite_observations/puck", "critical")
    assert rooms == sorted(rooms, key=("env", "rollout", "train").index)
    assert "train" in rooms


def test_the_reward_that_is_not_finite_is_told_before_what_follows_from_it(tmp_path):
    with pytest.raises(RunError):
        rlpipe.train(scripted(tmp_path, NAN_REWARD), local=True)
    events = [event for event in lines(run_of(tmp_path), "events.jsonl") if event["kind"] == "alert"]
    assert [event["data"]["metric"] for event in events][:2] == ["env/return", "rollout/rewards"]
    assert "the simulator paid a reward that is NaN" in events[0]["message"]


def test_who_asks_for_it_trains_on_and_is_told_at_the_end_that_nothing_was_learnt(tmp_path):
    with pytest.raises(RunError, match="skipped every optimiser step of the run"):
        rlpipe.train(scripted(tmp_path, NAN_REWARD, TEN_ITERATIONS, CONTINUES), local=True)
    rows = lines(run_of(tmp_path), "metrics.jsonl")
    assert len(rows) == 10
    assert "eval/num_trajectories" in rows[-1]["metrics"]


def test_a_run_shorter_than_that_does_not_count_as_completed_either(tmp_path):
    with pytest.raises(RunError, match="skipped every optimiser step of the run"):
        rlpipe.train(scripted(tmp_path, NAN_REWARD, "runner.total_timesteps=64"), local=True)
    assert newest(run_of(tmp_path)).meta["iteration"] == 1


def test_a_run_that_learnt_before_and_went_on_says_since_when_it_did_not(tmp_path):
    result = rlpipe.train(scripted(tmp_path, *DIVERGES, CONTINUES), local=True)
    assert result.status == "completed"
    assert "Nothing was learnt in the last" in notes(result.directory)


def test_a_run_that_took_no_step_at_all_says_so(tmp_path):
    result = rlpipe.train(sac(tmp_path, "algorithm.learning_starts=100000"), local=True)
    assert "Nothing was learnt: no optimiser step was taken in the whole run." in notes(result.directory)


class Brittle(Scripted):
    """The scripted simulator, each of which breaks in its 20th step."""

    taken = 0

    def step(self, actions, active=None):
        self.taken += 1
        if self.taken == 20:
            raise ValueError("a joint broke")
        return super().step(actions)


def test_simulators_that_fail_in_every_iteration_end_the_run_before_its_evaluation_does(tmp_path):
    train = {"name": f"{__name__}:Brittle", "total_num_envs": 4}
    with pytest.raises(RunError, match="ValueError: a joint broke"):
        rlpipe.train(scripted(tmp_path, TEN_ITERATIONS, env={"train": train}), local=True)
    run = run_of(tmp_path)
    assert len(lines(run, "metrics.jsonl")) < 10
    assert newest(run).meta["iteration"] == len(lines(run, "metrics.jsonl"))  # what was learnt is kept


# --- episodes that do not end


@pytest.mark.parametrize(
    ("name", "train", "says"),
    [
        ("a registered limit of none", {"max_episode_steps": -1}, "env.train.ignore_terminations is true"),
        ("several tasks", {"tasks": ["CartPole-v1"]}, r"env.train.tasks\[0\].ignore_terminations is true"),
    ],
)
def test_episodes_that_cannot_end_are_refused(name, train, says, tmp_path):
    limit = {"kwargs": {"max_episode_steps": -1}}
    task = {"name": "gymnasium", "id": "CartPole-v1", "total_num_envs": 4, "ignore_terminations": True, **limit}
    tasks = {"tasks": train["tasks"]} if "tasks" in train else {}
    with pytest.raises(ConfigError, match=f"{says} and CartPole-v1 has no time limit"):
        scripted(tmp_path, env={"train": {**task, **tasks}})


def test_training_whose_episodes_do_not_end_says_how_long_ago_one_did(tmp_path):
    endless = (f"env.train.script={ENDLESS}", "env.eval.script=[[{length: 2}]]", "rollout.horizon=600")
    result = rlpipe.train(scripted(tmp_path, *endless, "runner.total_timesteps=9600"), local=True)
    told = [event for event in lines(result.directory, "events.jsonl") if "No episode has ended" in event["message"]]
    assert [event["iteration"] for event in told] == [2, 4]  # after 1,200 steps, and after twice as many
    assert "in the last 2,400 steps of each environment" in told[1]["message"]


def test_the_last_evaluation_ends_with_its_time_and_its_episodes_do_not_count(tmp_path):
    options = (f"env.eval.script={ENDLESS}", "evaluation.timeout=0.05")
    result = rlpipe.train(scripted(tmp_path, *options), local=True)
    assert result.status == "completed"
    assert "6 of 6 episodes of rollout-0 had not ended after 0.05 s (evaluation.timeout)" in notes(result.directory)
    assert len(lines(result.directory, "metrics.jsonl")) == 4
    assert not any(name.startswith("eval/") for name in result.metrics)


def test_an_evaluation_of_its_own_that_ends_with_its_time_has_no_result(tmp_path):
    checkpoint = rlpipe.train(scripted(tmp_path), local=True).checkpoint
    options = [f"env.eval.script={ENDLESS}", "evaluation.timeout=0.05"]
    with pytest.raises(RunError, match="the evaluation has no result: 6 of 6 episodes of rollout-0 had not ended"):
        rlpipe.evaluate(checkpoint, overrides=options, local=True)


def test_episodes_that_ended_do_not_count_where_others_did_not(tmp_path):
    script = "[[{length: 2}], [{length: 1000000000}]]"
    options = (f"env.eval.script={script}", "env.eval.total_num_envs=2", "evaluation.timeout=0.05")
    result = rlpipe.train(scripted(tmp_path, *options), local=True)
    assert "3 of 6 episodes" in notes(result.directory)
    assert not (result.directory / "eval_episodes.jsonl").exists()


class Stopping(LocalEngine):
    """An engine in this process whose evaluation gets a signal after its fifth step."""

    steps: ClassVar[list[int]] = []
    number = signal.SIGUSR1

    def evaluate(self, snapshot, watch, request=AS_CONFIGURED):
        def counting(ended: int) -> bool:
            self.steps.append(ended)
            if len(self.steps) == 5:
                os.kill(os.getpid(), self.number)
            return watch(ended)

        return super().evaluate(snapshot, counting, request)


def test_the_first_signal_ends_an_evaluation_within_a_step_and_row_and_checkpoint_are_there(tmp_path, monkeypatch):
    interruption = Interruption()
    before = signal.signal(signal.SIGUSR1, lambda *_: interruption.request("SIGUSR1"))
    monkeypatch.setattr("rlpipe.training.local.LocalEngine", Stopping)
    try:
        config = scripted(tmp_path, f"env.eval.script={ENDLESS}")
        result = rlpipe.train(config, local=True, interruption=interruption)
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert result.status == "interrupted"
    assert len(Stopping.steps) <= 6
    assert result.checkpoint.name == "iteration-000004.npz"
    assert len(lines(result.directory, "metrics.jsonl")) == 4
    assert "The evaluation of iteration 4 does not count: it was interrupted." in notes(result.directory)
    assert result.is_trained
    resumed = rlpipe.train(scripted(tmp_path), local=True, resume=result.directory)
    assert (resumed.status, resumed.metrics["time/iterations"]) == ("completed", 4)
    missing = f"nothing is left to train. Its evaluation is missing: rlpipe evaluate {result.directory}"
    assert missing in notes(result.directory)


def test_a_signal_whose_exception_was_lost_ends_the_run_before_anything_is_written(tmp_path):
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        interruption = _listen()
        with pytest.raises(UserInterrupt):
            signal.raise_signal(signal.SIGINT)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    with pytest.raises(UserInterrupt):
        rlpipe.train(scripted(tmp_path), local=True, interruption=interruption)
    assert list(tmp_path.rglob("run.json")) == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_evaluation_says_how_far_it_was_and_records_nothing(number, tmp_path, monkeypatch):
    run = rlpipe.train(scripted(tmp_path), local=True).directory
    monkeypatch.setattr("rlpipe.training.local.LocalEngine", Stopping)
    monkeypatch.setattr(Stopping, "steps", [])
    monkeypatch.setattr(Stopping, "number", number)
    answer = command("evaluate", str(run), "--local", f"env.eval.script={ENDLESS}")
    assert answer.code == 130
    assert answer.err.splitlines()[-1] == "interrupted: 0 of 6 episodes had ended, nothing was recorded."
    assert not (run / "evaluations").exists()


class Dying(LocalEngine):
    """An engine in this process that is killed, as it seems to the run directory, when it evaluates."""

    def evaluate(self, snapshot, watch, request=AS_CONFIGURED):
        raise SystemError("killed")

    def write(self, iteration, windows):
        return None if iteration == 4 else super().write(iteration, windows)

    saved = 0

    def save(self, iteration, if_best=False):
        self.saved += iteration == 4
        return None if self.saved > 1 else super().save(iteration, if_best)


def test_a_run_that_was_killed_while_it_evaluated_last_resumes_with_the_evaluation(tmp_path, monkeypatch):
    whole = rlpipe.train(scripted(tmp_path / "whole"), local=True)
    config = scripted(tmp_path / "killed")
    with monkeypatch.context() as patched:
        patched.setattr("rlpipe.training.local.LocalEngine", Dying)
        with pytest.raises(SystemError):
            rlpipe.train(config, local=True)
    run = run_of(tmp_path / "killed")
    assert [one["iteration"] for one in lines(run, "metrics.jsonl")] == [1, 2, 3]
    assert newest(run).meta["iteration"] == 4
    result = rlpipe.train(config, local=True, resume=run)
    last, expected = (lines(one, "metrics.jsonl")[-1] for one in (run, whole.directory))
    assert (result.status, last["iteration"]) == ("completed", 4)
    counted = ("eval/return", "train/n_updates", "time/iterations")
    assert [last["metrics"][name] for name in counted] == [expected["metrics"][name] for name in counted]
    assert last["total_timesteps"] == expected["total_timesteps"]
    assert "row" not in newest(run).meta


def test_what_was_learnt_is_saved_before_an_evaluation_that_raises(tmp_path):
    env = {
        "train": {"name": "scripted", "total_num_envs": 4},
        "eval": {"name": f"{__name__}:Brittle", "script": [[{"length": 30}]]},
    }
    with pytest.raises(Exception, match="a joint broke"):
        rlpipe.train(scripted(tmp_path, env=env), local=True)
    run = run_of(tmp_path)
    assert newest(run).meta["iteration"] == 4
    assert len(lines(run, "metrics.jsonl")) == 4


def test_an_episode_that_goes_on_is_no_longer_recorded(tmp_path, monkeypatch):
    monkeypatch.setattr("rlpipe.collection.recorder.MOST_STEPS", 20)
    assert MOST_STEPS == 10_000
    config = scripted(tmp_path, "env.eval.script=[[{length: 20}], [{length: 21}]]", "evaluation.replays=6")
    spec = Scripted.make(config.env.train, 1, lambda _: 0).spec
    evaluator = Evaluator(config, 0, 1, spec)
    window = evaluator.evaluate(PolicyActions(build_policy(config, spec), deterministic=True, memory_width=0), 0)
    assert {len(one.rewards) for one in window.eval_replays} == {20}
    assert {episode.length for episode in window.eval_episodes} == {20, 21}


def test_progress_is_printed_after_ten_seconds_and_then_ever_more_rarely(capsys):
    from rich.console import Console

    progress = EvaluationProgress(Console(highlight=False, width=80))
    for second in range(100):
        progress(second // 10, 6, float(second))
    printed = capsys.readouterr().out.splitlines()
    assert printed[0] == "· Evaluating: 1 of 6 episodes after 0:00:10."
    assert [line[-8:-1] for line in printed] == ["0:00:10", "0:00:20", "0:00:40", "0:01:20"]
