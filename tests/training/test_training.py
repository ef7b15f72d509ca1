"""Whole runs on the scripted simulator: what they leave behind, how they end, how they go on."""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
import signal
from pathlib import Path

import gymnasium
import numpy as np
import pytest
import torch

import rlpipe
from rlpipe.backends.memory import Memory
from rlpipe.collection.seeds import training_seed
from rlpipe.collection.worker import RolloutWorker
from rlpipe.config.loading import load_config
from rlpipe.config.schema import Config
from rlpipe.envs.scripted import Scripted
from rlpipe.errors import ConfigError, RunError
from rlpipe.metrics import CATALOGUE, MetricWindow
from rlpipe.metrics import catalogue as m
from rlpipe.metrics.declaration import observed
from rlpipe.metrics.health import Alert
from rlpipe.metrics.reductions import Sum
from rlpipe.metrics.row import Event
from rlpipe.run import checkpoint
from rlpipe.run.backend_group import BackendGroup
from rlpipe.run.directory import RunDirectory
from rlpipe.run.metric_logger import MetricLogger, run_info
from rlpipe.training.clock import PhaseClock
from rlpipe.training.interruption import Interruption
from rlpipe.trajectory import SpaceSpec
from tests.helpers.commands import command
from tests.helpers.runs import (
    SLOW_RUN,
    beside,
    from_ledger,
    lines,
    rlpipe_command,
    scripted,
    to_mapping,
    wait_for_rows,
    without_timings,
    write_config,
)


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A finished local run."""
    return rlpipe.train(scripted(tmp_path_factory.mktemp("finished")), local=True)


def test_a_run_leaves_behind_what_is_promised(finished):
    names = {path.name for path in finished.directory.iterdir()}
    assert names == {
        "config.yaml",
        "run.json",
        "metrics.jsonl",
        "episodes.jsonl",
        "eval_episodes.jsonl",
        "events.jsonl",
        "timeline.jsonl",
        "fingerprints.jsonl",
        "checkpoints",
        "replays",
        ".lock",
    }
    run = json.loads((finished.directory / "run.json").read_text())
    assert (run["status"], run["run_id"], run["incarnation"]) == ("completed", finished.directory.name, 0)
    assert run["protocol"]["evaluation_episodes"] == 6


def test_every_iteration_is_one_line_and_every_metric_is_declared(finished):
    rows = lines(finished.directory, "metrics.jsonl")
    assert [row["iteration"] for row in rows] == [1, 2, 3, 4]
    assert [row["total_timesteps"] for row in rows] == [64, 128, 192, 256]
    assert {name for row in rows for name in row["metrics"]} <= CATALOGUE.keys()


def test_env_metrics_equal_those_recomputed_from_the_ledger_to_the_last_digit(finished):
    for row in lines(finished.directory, "metrics.jsonl"):
        expected = from_ledger(finished.directory, "episodes.jsonl", m.ENV, row["iteration"])
        assert {name: value for name, value in row["metrics"].items() if name.startswith("env/")} == expected


def test_every_metric_is_produced_by_a_run_or_says_what_would_produce_it(tmp_path):
    script = "[[{length: 5, end: terminated, success_at: [3]}], [{length: 7}]]"
    options = ("algorithm.value_clip=0.2", "algorithm.dual_clip=3.0", "runner.save_interval=1")
    result = rlpipe.train(scripted(tmp_path, f"env.train.script={script}", *options), local=True)
    rows = lines(result.directory, "metrics.jsonl")
    produced = {name for row in rows for name in (*row["metrics"], *row["histograms"])}
    expected = {name for name, metric in CATALOGUE.items() if not metric.needs and not metric.hidden}
    assert expected - produced == {"rollout/discarded_trajectories"}  # nothing was discarded
    assert not {name for name in produced if CATALOGUE[name].needs}


def test_what_needs_a_special_simulator_comes_with_it(tmp_path):
    script = "[[{length: 4, fail_at: [2], reward_terms: {reach: 0.5, grasp: 1.0}}], [{length: 4, fail_at: []}]]"
    result = rlpipe.train(scripted(tmp_path, f"env.train.script={script}"), local=True)
    row = lines(result.directory, "metrics.jsonl")[0]["metrics"]
    assert row["env/fail_once"] == 0.5
    assert row["env/fail_at_end"] == 0.0
    assert (row["env/reward_terms/reach/mean"], row["env/reward_terms/grasp/mean"]) == (2.0, 4.0)
    assert row["env/reward_terms/reach/std"] == 0.0


def test_invariants_between_metrics_hold_in_every_row(finished):
    for row in lines(finished.directory, "metrics.jsonl"):
        metrics = row["metrics"]
        actor = {name.removeprefix("train/actor/"): value for name, value in metrics.items()}
        assert actor["approx_kl"] == pytest.approx(actor["ratio"] - 1 + actor["approx_kl_k1"], abs=1e-6)
        assert actor["clip_fraction"] == pytest.approx(actor["clip_fraction_low"] + actor["clip_fraction_high"])
        assert metrics["train/loss"] == pytest.approx(
            actor["policy_loss"] + 0.5 * metrics["train/critic/value_loss"], rel=1e-5, abs=1e-6
        )
        assert metrics["train/actor/advantages_norm_mean"] == pytest.approx(0.0, abs=1e-4)
        assert metrics["train/num_samples"] == 2 * metrics["rollout/num_decisions"] == 128
        assert sum(row["histograms"]["train/actor/ratio_dist"]["counts"]) == 128
        assert sum(row["histograms"]["rollout/advantages_dist"]["counts"]) == 64


def test_a_dialect_writes_its_own_keys_with_their_own_signs(tmp_path):
    result = rlpipe.train(scripted(tmp_path, "runner.logger.dialects=[sb3]"), local=True)
    for row in lines(result.directory, "metrics.jsonl"):
        theirs, ours = row["dialects"]["sb3"], row["metrics"]
        assert theirs["train/entropy_loss"] == -ours["train/entropy_loss"]
        assert theirs["rollout/ep_rew_mean"] == ours["env/return_ma100"]
        assert theirs["time/fps"] == int(ours["time/fps"])


def test_an_unknown_dialect_names_the_nearest(tmp_path):
    with pytest.raises(ConfigError, match="did you mean 'sb3'"):
        scripted(tmp_path, "runner.logger.dialects=[sb33]")


def test_the_final_evaluation_runs_its_quota_on_held_out_seeds(finished):
    episodes = lines(finished.directory, "eval_episodes.jsonl")
    assert sorted(row["seed"] for row in episodes) == list(range(1_000_000, 1_000_006))
    assert sorted(row["slot"] for row in episodes) == [0, 0, 1, 1, 2, 3]
    assert finished.metrics["eval/num_trajectories"] == 6
    assert min(row["seed"] for row in lines(finished.directory, "episodes.jsonl")) >= 2**30


def test_a_learner_that_only_takes_gradient_steps_spends_all_its_time_on_them():
    window = MetricWindow()
    window.observe(m.UPDATE, 3.0)
    assert window.read([m.ACTOR_TRAINING]) == {"time/actor_training": 3.0}


def test_evaluation_and_checkpoints_do_not_count_as_training_throughput():
    now = [0.0]
    clock = PhaseClock(lambda: now[0])
    for phase, seconds in ((m.GENERATE_ROLLOUTS, 2.0), (m.EVAL_TIME, 5.0), (m.CHECKPOINT_TIME, 1.0)):
        with clock(phase):
            now[0] += seconds
    now[0] += 0.5
    window = clock.lap()
    window.observe(m.TIMESTEPS, 100)
    metrics = window.read([m.STEP, m.OTHER_TIME, m.FPS_INTERVAL])
    assert metrics == {"time/step": 8.5, "time/other": 0.5, "time/fps_interval": 100 / 2.5}


def test_a_policy_learns_the_scripted_task(tmp_path):
    options = ("runner.total_timesteps=768", "runner.save_interval=1000", "learner.lr=0.03")
    config = scripted(tmp_path, *options, "env.eval.script=[[{length: 20}]]")
    assert rlpipe.train(config, local=True).metrics["eval/return"] > 18  # of 20


def test_no_finished_episode_leaves_the_keys_out_and_says_so(tmp_path):
    result = rlpipe.train(scripted(tmp_path, "env.train.script=[[{length: 40}]]"), local=True)
    first, _, third, _ = without_timings(result.directory)
    assert first["env/num_trajectories"] == 0
    assert not any(
        name.startswith("env/") for name in first.keys() - {"env/num_trajectories", "env/terminated_episodes"}
    )
    assert third["env/episode_len"] == 40


def test_training_seeds_differ_and_never_meet_evaluation_seeds():
    drawn = [training_seed(0, 0, 0, slot, episode) for slot in range(8) for episode in range(200)]
    assert len(set(drawn)) == len(drawn)
    assert all(2**30 <= seed < 2**31 for seed in drawn)


def test_the_number_of_workers_does_not_change_which_episodes_are_trained_on(tmp_path):
    config = scripted(tmp_path, "learner.lr=0", "runner.total_timesteps=128")
    runs = [
        rlpipe.train(load_config(to_mapping(config), [f"rollout.num_workers={count}"]), local=True)
        for count in (1, 2, 4)
    ]
    ledgers = [
        sorted(
            (row["iteration"], row["slot"], row["seed"], row["return"])
            for row in lines(run.directory, "episodes.jsonl")
        )
        for run in runs
    ]
    assert ledgers[0] == ledgers[1] == ledgers[2]


def test_stages_show_in_metrics_and_events(tmp_path):
    plan = [
        {"name": "first", "timesteps": 128, "overrides": {"env.train.script": [[{"length": 30}]], "learner.lr": 0.5}},
        {"name": "second"},
    ]
    result = rlpipe.train(scripted(tmp_path, stages=plan), local=True)
    rows = without_timings(result.directory)
    assert [row["train/stage"] for row in rows] == [0, 0, 1, 1]
    assert [row["train/actor/lr"] for row in rows] == [0.5, 0.5, 3e-4, 3e-4]
    assert [row.get("rollout/discarded_trajectories") for row in rows] == [None, None, 4, None]
    staged = [event for event in lines(result.directory, "events.jsonl") if event["kind"] == "stage"]
    assert [(event["data"]["name"], event["data"]["until"]) for event in staged] == [("first", 2), ("second", 4)]


def test_a_linear_schedule_falls_to_its_last_step(tmp_path):
    result = rlpipe.train(scripted(tmp_path, "learner.lr_schedule=linear", "learner.lr=0.4"), local=True)
    rates = [row["train/actor/lr"] for row in without_timings(result.directory)]
    assert rates == pytest.approx([0.4, 0.3, 0.2, 0.1])


def test_a_target_kl_ends_an_update_early(tmp_path):
    overrides = ("algorithm.target_kl=1e-9", "algorithm.update_epochs=5", "learner.lr=0.01")
    result = rlpipe.train(scripted(tmp_path, *overrides), local=True)
    assert {row["train/epochs_run"] for row in without_timings(result.directory)} == {1}


def test_an_update_that_is_not_finite_never_reaches_the_weights(tmp_path):
    script = "env.train.script=[[{length: 5, reward: .nan}]]"
    with pytest.raises(RunError, match="skipped every optimiser step"):
        rlpipe.train(scripted(tmp_path, script, "algorithm.normalize_advantages=false"), local=True)
    (run,) = (tmp_path / "scripted").iterdir()
    first = lines(run, "metrics.jsonl")[0]
    assert first["metrics"]["train/nonfinite_steps"] == 8
    assert first["metrics"]["train/n_updates"] == 0
    assert first["nonfinite"]["rollout/rewards"] > 0
    assert all(np.isfinite(array).all() for array in checkpoint.newest(run).arrays.values())


def test_an_interruption_saves_and_resuming_continues_the_same_curve(tmp_path):
    class AfterTwo(Interruption):
        asked = 0

        @property
        def reason(self):
            self.asked += 1
            return "test" if self.asked > 2 else None

        @reason.setter
        def reason(self, value):
            pass

    config = scripted(tmp_path)
    stopped = rlpipe.train(config, local=True, interruption=AfterTwo())
    assert stopped.status == "interrupted"
    resumed = rlpipe.train(config, local=True, resume=stopped.directory)
    rows = lines(resumed.directory, "metrics.jsonl")
    assert [row["iteration"] for row in rows] == [1, 2, 3, 4]
    assert [row["total_timesteps"] for row in rows] == [64, 128, 192, 256]
    assert [row["metrics"]["train/n_updates"] for row in rows] == [8, 16, 24, 32]
    assert rows[-1]["metrics"]["time/time_elapsed"] > rows[1]["metrics"]["time/time_elapsed"]
    assert json.loads((resumed.directory / "run.json").read_text())["incarnation"] == 1


def test_resuming_forgets_what_came_after_the_checkpoint_and_keeps_it_aside(finished, tmp_path):
    config = scripted(tmp_path)
    run = Path(shutil.copytree(finished.directory, tmp_path / finished.directory.name))
    (run / "checkpoints" / "iteration-000004.npz").unlink()
    with (run / "metrics.jsonl").open("a") as file:
        file.write('{"iteration": 5, "torn')
    with (run / "events.jsonl").open("a") as file:
        file.write('{"kind": "torn')
    rlpipe.train(config, local=True, resume=run)
    repaired = [event["message"] for event in lines(run, "events.jsonl") if event["kind"] == "repaired"]
    assert [message.split()[4] for message in repaired] == ["metrics.jsonl", "events.jsonl"]
    assert [row["iteration"] for row in lines(run, "metrics.jsonl")] == [1, 2, 3, 4]
    discarded = (run / "discarded-1-metrics.jsonl").read_text().splitlines()
    assert [line[:15] for line in discarded] == ['{"iteration": 3', '{"iteration": 4', '{"iteration": 5']
    for row in lines(run, "metrics.jsonl"):
        expected = from_ledger(run, "episodes.jsonl", m.ENV, row["iteration"])
        assert expected["env/num_trajectories"] == row["metrics"]["env/num_trajectories"]


def test_a_run_that_is_being_written_cannot_be_resumed(finished):
    directory = RunDirectory(finished.directory)
    with directory.lock_for_writing(), pytest.raises(ConfigError, match="Stop it before resuming"):
        directory.lock_for_writing(patience=0)


def test_what_each_worker_saw_can_be_written_beside_what_all_saw(tmp_path):
    config = scripted(tmp_path, "runner.logger.per_worker=true", "rollout.num_workers=2")
    for row in lines(rlpipe.train(config, local=True).directory, "metrics.jsonl"):
        apart = [row["workers"][rank]["env/num_trajectories"] for rank in ("0", "1")]
        assert sum(apart) == row["metrics"]["env/num_trajectories"]
        assert "train/loss" not in row["workers"]["0"]


def test_a_view_beside_the_logger_that_raises_is_left_out_and_the_run_goes_on(tmp_path):
    class Raises(Memory):
        def write(self, row):
            raise RuntimeError("no room")

    config = scripted(tmp_path)
    directory = RunDirectory.create(config, {})
    plan = config.schedule
    info = run_info(directory, config, 1, RolloutWorker(plan, 0, 1).ready().spec)
    logger = MetricLogger(directory, info, config, {})
    logger._backends = BackendGroup([Raises(info)])
    window = MetricWindow()
    window.observe(m.TOTAL_TIMESTEPS, 64)
    for iteration in (1, 2):
        logger.write(iteration, window)
    told = [event["message"] for event in lines(directory.path, "events.jsonl") if event["kind"] == "backend"]
    assert told == ["The Raises backend raised RuntimeError: no room. It is skipped from now on."]


def test_the_learner_goes_on_from_a_checkpoint_as_if_nothing_had_happened(tmp_path):
    from rlpipe.collection.worker import RolloutWorker
    from rlpipe.learning.on_policy import Learner

    plan = scripted(tmp_path).schedule
    worker = RolloutWorker(plan, 0, 1)
    learner = Learner(plan, worker.ready().spec)
    batch, _ = worker.collect(learner.snapshot(), 0)
    learner.update(0, 1, batch)
    kept = learner.state()
    again = Learner(plan, worker.ready().spec)
    again.load_state(kept)
    first, second = (one.update(0, 2, batch)[0] for one in (learner, again))
    assert all(np.array_equal(first.weights[name], second.weights[name]) for name in first.weights)


def test_weights_of_another_policy_are_refused_by_name(tmp_path, finished):
    with pytest.raises(ConfigError, match=r"weights actor\.0\.weight of shape \(8, 4\) do not fit"):
        rlpipe.evaluate(finished.checkpoint, overrides=["policy.hidden_sizes=[16]"], local=True)


def test_a_damaged_checkpoint_is_passed_over(finished, tmp_path):
    run = Path(shutil.copytree(finished.directory, tmp_path / finished.directory.name))
    newest = run / "checkpoints" / "iteration-000004.npz"
    newest.write_bytes(newest.read_bytes()[:1000])
    assert checkpoint.newest(run).meta["iteration"] == 2
    with pytest.raises(ConfigError, match="not a whole checkpoint"):
        checkpoint.load(newest)


def test_only_the_newest_checkpoints_are_kept(tmp_path):
    result = rlpipe.train(scripted(tmp_path, "runner.save_interval=1", "runner.keep_checkpoints=2"), local=True)
    assert [file.name for file in sorted((result.directory / "checkpoints").iterdir())] == [
        "best.json",
        "iteration-000003.npz",
        "iteration-000004.npz",
    ]


def test_a_checkpoint_alone_is_enough_to_evaluate(finished, tmp_path):
    moved = tmp_path / "policy.npz"
    moved.write_bytes(finished.checkpoint.read_bytes())
    report = rlpipe.evaluate(moved, episodes=9, local=True)
    assert report.metrics["eval/num_trajectories"] == 9
    assert rlpipe.evaluate(moved, episodes=9, local=True).metrics == report.metrics


def test_evaluation_does_not_favour_quick_episodes(tmp_path):
    script = [[{"length": 2, "end": "terminated", "success_at": [2]}], [{"length": 50}]]
    config = scripted(tmp_path, "evaluation.episodes=40", env={"train": {"name": "scripted", "total_num_envs": 2}})
    config = dataclasses.replace(
        config, env=dataclasses.replace(config.env, eval=dataclasses.replace(config.env.eval, script=script))
    )
    assert rlpipe.train(config, local=True).metrics["eval/success_once"] == 0.5


def test_an_evaluation_simulator_with_other_actions_is_refused(tmp_path):
    with pytest.raises(ConfigError, match=r"env\.eval has other observations or actions"):
        rlpipe.train(scripted(tmp_path, "env.eval.discrete=true"), local=True)


def test_a_backend_that_cannot_open_fails_the_run(tmp_path):
    config = scripted(tmp_path, "runner.logger.logger_backends=[tests.training.test_training:Broken]")
    with pytest.raises(RunError, match=r"metric-logger on .* raised OSError: no disk"):
        rlpipe.train(config, local=True)
    (run,) = tmp_path.glob("scripted/*/run.json")
    assert json.loads(run.read_text())["status"] == "failed"


class Broken(Memory):
    def __init__(self, run):
        raise OSError("no disk")


def test_backends_see_every_row_and_event_once(tmp_path):
    rlpipe.train(scripted(tmp_path, "runner.logger.logger_backends=[memory]"), local=True)
    seen = Memory.latest
    assert [row.iteration for row in seen.rows] == [1, 2, 3, 4]
    assert [event.kind for event in seen.events] == ["started", "completed"]
    assert seen.status == "completed"


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_a_device_that_is_not_there_is_told_before_anything_is_written(tmp_path):
    with pytest.raises(ConfigError, match=r"learner\.device is 'cuda', but torch .* finds no CUDA device on "):
        rlpipe.train(scripted(tmp_path, "learner.device=cuda"), local=True)
    assert list(tmp_path.iterdir()) == []


def test_a_signal_saves_a_checkpoint_and_exits_130(tmp_path):
    """In this process, which a signal that nobody listens to would end; so another listens before and after."""

    def send_once_there_are_two_rows() -> bool:
        found = [file.read_bytes().count(b"\n") >= 2 for file in (tmp_path / "runs").glob("*/*/metrics.jsonl")]
        if any(found):
            os.kill(os.getpid(), signal.SIGTERM)
        return any(found)

    def unheard(*_: object) -> None:
        raise AssertionError("the run does not listen")

    before = signal.signal(signal.SIGTERM, unheard)
    try:
        with beside(send_once_there_are_two_rows):
            answer = command("train", write_config(tmp_path), "--local", *SLOW_RUN)
    finally:
        signal.signal(signal.SIGTERM, before)
    assert answer.code == 130, answer.err
    (run,) = (tmp_path / "runs" / "scripted").iterdir()
    last = lines(run, "metrics.jsonl")[-1]["iteration"]
    assert checkpoint.newest(run).meta["iteration"] == last
    assert "rlpipe train --resume" in answer.out
    assert json.loads((run / "run.json").read_text())["status"] == "interrupted"


def test_kill_9_then_resume_loses_and_repeats_nothing(tmp_path):
    process = rlpipe_command("train", write_config(tmp_path), "--local", *SLOW_RUN)
    run = wait_for_rows(tmp_path / "runs", 5)
    os.kill(process.pid, signal.SIGKILL)
    process.communicate()
    reported = len(lines(run, "metrics.jsonl"))
    resumed = command("train", "--resume", str(run), "--local", f"runner.total_timesteps={64 * (reported + 3)}")
    assert resumed.code == 0, resumed.err
    rows = lines(run, "metrics.jsonl")
    assert [row["iteration"] for row in rows] == list(range(1, reported + 4))
    assert [row["total_timesteps"] for row in rows] == [64 * row["iteration"] for row in rows]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["train", "configs/ppo_cartpole.yaml", "runner.sed=1"], "unknown key runner.sed"),
        (["train", "configs/nothing.yaml"], "there is no configuration file"),
        (["train"], "name a configuration"),
        (["train", "--resume", "configs"], "not a run directory"),
        (["evaluate", "configs"], "not a run directory"),
        (["evaluate", "README.md"], "not a checkpoint of rlpipe"),
        (["evaluate", "no/such/run"], "neither a run directory nor a checkpoint"),
        (["trian"], "No such command"),
    ],
)
def test_a_wrong_command_exits_2_with_one_message_and_no_traceback(arguments, words):
    answer = command(*arguments)
    assert answer.code == 2
    assert words in " ".join(answer.err.split())
    assert "Traceback" not in answer.err


def test_a_command_in_a_process_of_its_own_ends_with_the_same_code():
    process = rlpipe_command("trian")
    _, stderr = process.communicate(timeout=600)
    assert process.returncode == 2
    assert "No such command" in stderr


def test_evaluate_prints_json_that_a_program_can_read(finished):
    answer = command("evaluate", str(finished.directory), "--episodes", "8", "--json", "--local")
    assert answer.code == 0, answer.err
    report = json.loads(answer.out)
    assert report["metrics"]["eval/num_trajectories"] == 8
    assert report["protocol"]["evaluation_first_seed"] == 1_000_000


class TestCriticalAlerts:
    """A learning rate that no network survives raises critical alerts."""

    broken = ("learner.lr=10.0", "runner.total_timesteps=640", "runner.health.on_critical=continue")

    @pytest.fixture(scope="class")
    def stopped(self, tmp_path_factory):
        """A run that they stopped."""
        options = ("runner.health.on_critical=stop", "runner.save_interval=100")
        return rlpipe.train(scripted(tmp_path_factory.mktemp("stopped"), *self.broken, *options), local=True)

    def alerts(self, run: Path) -> list[dict]:
        return [event for event in lines(run, "events.jsonl") if event["kind"] == "alert"]

    def test_they_are_told_once_and_the_run_goes_on(self, tmp_path):
        result = rlpipe.train(scripted(tmp_path, *self.broken), local=True)
        assert result.status == "completed"
        lr = [alert["data"] for alert in self.alerts(result.directory) if alert["data"]["metric"] == "train/actor/lr"]
        assert [(alert["level"], alert["cleared"]) for alert in lr] == [("critical", False)]

    def test_a_larger_gradient_norm_clears_that_of_gradients_which_are_always_clipped(self, tmp_path):
        options = ("learner.max_grad_norm=1e-6", "runner.total_timesteps=704")
        first = rlpipe.train(scripted(tmp_path, *options), local=True).directory
        raised = [alert["data"]["remedy"] for alert in self.alerts(first) if "grad_clip" in alert["data"]["metric"]]
        assert raised == [CATALOGUE["train/actor/grad_clip_fraction"].signs["always"].remedy]
        changes = ["learner.max_grad_norm=100", "runner.total_timesteps=1408"]
        rlpipe.train(load_config(first / "config.yaml", changes), local=True, resume=first)
        told = [alert["data"]["cleared"] for alert in self.alerts(first) if "grad_clip" in alert["data"]["metric"]]
        assert told == [False, True]

    def test_they_can_stop_the_run_with_a_checkpoint(self, stopped):
        assert stopped.status == "stopped"
        assert stopped.checkpoint is not None
        assert len(lines(stopped.directory, "metrics.jsonl")) < 10
        assert json.loads((stopped.directory / "run.json").read_text())["status"] == "stopped"

    def test_a_resumed_run_does_not_raise_again_what_stands_and_says_that_it_stands(self, stopped, tmp_path):
        run = Path(shutil.copytree(stopped.directory, tmp_path / stopped.directory.name))
        rlpipe.train(load_config(run / "config.yaml"), local=True, resume=run)
        assert len(lines(run, "metrics.jsonl")) > len(lines(stopped.directory, "metrics.jsonl"))
        lr = [a["data"] for a in self.alerts(run) if a["data"]["metric"] == "train/actor/lr"]
        assert len(lr) == 1
        notes = [event["message"] for event in lines(run, "events.jsonl") if event["kind"] == "note"]
        assert any("train/actor/lr" in note for note in notes)

    def test_a_resumed_run_reports_what_its_earlier_rows_violate_under_its_new_settings(self, tmp_path):
        first = rlpipe.train(scripted(tmp_path, "runner.total_timesteps=128"), local=True).directory
        rows = [json.loads(line) for line in (first / "metrics.jsonl").read_text().splitlines()]
        for row in rows:
            row["metrics"]["train/actor/lr"] = 1.0
        (first / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        rlpipe.train(load_config(first / "config.yaml", ["runner.total_timesteps=256"]), local=True, resume=first)
        lr = [a for a in self.alerts(first) if a["data"]["metric"] == "train/actor/lr"]
        assert [(alert["iteration"], alert["data"]["since"], alert["data"]["cleared"]) for alert in lr] == [
            (3, 1, False),
            (3, 1, True),
        ]

    def test_a_resumed_run_clears_what_its_earlier_rows_do_not_violate_under_its_new_settings(self, tmp_path):
        first = rlpipe.train(scripted(tmp_path, "runner.total_timesteps=128"), local=True).directory
        alert = Alert("train/actor/lr", "too_large", "critical", 1.0, "at most 0.01", since=1, iteration=1)
        event = Event("alert", alert.message, 1, 0.0, alert.as_json())
        with (first / "events.jsonl").open("a") as file:
            file.write(json.dumps(dataclasses.asdict(event)) + "\n")
        rlpipe.train(load_config(first / "config.yaml", ["runner.total_timesteps=256"]), local=True, resume=first)
        lr = [a for a in self.alerts(first) if a["data"]["metric"] == "train/actor/lr"]
        assert [(alert["iteration"], alert["data"]["cleared"]) for alert in lr] == [(1, False), (3, True)]

    def test_a_checkpoint_they_ask_for_is_counted_once_in_the_time(self, tmp_path):
        options = ("learner.lr=10.0", "runner.health.on_critical=checkpoint", "runner.save_interval=100")
        result = rlpipe.train(scripted(tmp_path, *options), local=True)
        for row in lines(result.directory, "metrics.jsonl"):
            assert row["metrics"]["time/other"] >= 0.0

    def test_one_in_the_last_iteration_does_not_undo_that_the_run_was_completed(self, tmp_path):
        options = ("learner.lr=10.0", "runner.total_timesteps=64", "runner.health.on_critical=stop")
        assert rlpipe.train(scripted(tmp_path, *options), local=True).status == "completed"


def test_each_stage_is_judged_by_its_own_settings(tmp_path):
    stages = [
        {"name": "all", "timesteps": 128, "overrides": {"algorithm.clip_ratio_high": 0.5}},
        {"name": "fewer epochs", "overrides": {"algorithm.update_epochs": 1, "algorithm.target_kl": 1e9}},
    ]
    result = rlpipe.train(scripted(tmp_path, stages=stages), local=True)
    assert not [event for event in lines(result.directory, "events.jsonl") if event["kind"] == "target_kl"]
    first, second = json.loads((result.directory / "run.json").read_text())["health"]
    assert (first["variables"]["eps_hi"], first["variables"]["n_epochs"]) == (0.5, 2.0)
    assert (second["variables"]["eps_hi"], second["variables"]["n_epochs"]) == (0.2, 1.0)


def test_a_target_kl_stop_is_an_event(tmp_path):
    options = ("learner.lr=0.1", "algorithm.target_kl=0.0001", "algorithm.update_epochs=5")
    result = rlpipe.train(scripted(tmp_path, *options), local=True)
    stops = [event for event in lines(result.directory, "events.jsonl") if event["kind"] == "target_kl"]
    assert stops
    assert "algorithm.target_kl" in stops[0]["message"]


class Counting(Scripted):
    """A plug-in that declares a metric beside its code."""

    steps = observed("env/my_steps", Sum, unit="steps", meaning="Steps counted by the plug-in.", formula="count")
    metrics = (steps,)


class Observing(Counting):
    """It observes through its steps."""

    def step(self, actions):
        return dataclasses.replace(super().step(actions), observed={self.steps: np.ones(self.num_envs)})


def test_a_simulator_observes_its_own_metrics_through_its_steps(tmp_path):
    result = rlpipe.train(scripted(tmp_path, "env.train.name=tests.training.test_training:Observing"), local=True)
    assert [row["metrics"]["env/my_steps"] for row in lines(result.directory, "metrics.jsonl")] == [64] * 4


class ObservingSometimes(Counting):
    """Its metric applies in one of four environments."""

    def step(self, actions):
        values = np.array([1.0, np.nan, np.nan, np.nan])
        return dataclasses.replace(super().step(actions), observed={self.steps: values})


def test_a_metric_of_a_simulator_that_does_not_apply_in_a_step_is_neither_counted_nor_called_not_finite(tmp_path):
    config = scripted(tmp_path, "env.train.name=tests.training.test_training:ObservingSometimes")
    rows = lines(rlpipe.train(config, local=True).directory, "metrics.jsonl")
    assert [(row["metrics"]["env/my_steps"], "nonfinite" in row) for row in rows] == [(16, False)] * 4


class Clashing(Scripted):
    """A plug-in that takes a name which is taken."""

    metrics = (observed("env/return", Sum, unit="1", meaning="Something else.", formula="1"),)


def test_a_plug_in_may_declare_metrics(tmp_path):
    config = scripted(tmp_path, "env.train.name=tests.training.test_training:Counting")
    logger = MetricLogger(*a_logger(tmp_path, config))
    window = MetricWindow()
    window.observe(m.TOTAL_TIMESTEPS, 1)
    window.observe(Counting.steps, 3)
    assert logger.write(1, window).metrics["env/my_steps"] == 3


def test_the_process_that_writes_metrics_need_not_know_the_task(tmp_path, monkeypatch):
    config = scripted(tmp_path, env={"train": {"name": "gymnasium", "id": "CartPole-v1", "total_num_envs": 4}})
    parts = a_logger(tmp_path, config)
    assert parts[1].time_limit == 500
    monkeypatch.delitem(gymnasium.registry, "CartPole-v1")  # as where the module of a task is not imported
    window = MetricWindow()
    window.observe(m.TOTAL_TIMESTEPS, 1)  # and no episode
    assert MetricLogger(*parts).write(1, window).iteration == 1


def test_a_metric_that_nobody_declares_is_an_error(tmp_path):
    logger = MetricLogger(*a_logger(tmp_path, scripted(tmp_path)))
    window = MetricWindow()
    window.observe(m.TOTAL_TIMESTEPS, 1)
    window.observe(Counting.steps, 3)
    with pytest.raises(ValueError, match="env/my_steps was observed, but is not declared"):
        logger.write(1, window)


def test_a_clash_of_names_is_an_error_at_start(tmp_path):
    with pytest.raises(ConfigError, match=r"Clashing declares the metric env/return, which exists"):
        scripted(tmp_path, "env.train.name=tests.training.test_training:Clashing")


def a_logger(tmp_path: Path, config: Config) -> tuple:
    directory = RunDirectory.create(config, {})
    return directory, run_info(directory, config, 1, SpaceSpec(4, 1)), config, {}
