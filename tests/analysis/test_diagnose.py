"""``rlpipe diagnose``: runs broken on purpose are named, healthy ones are not, whoever made them."""

from __future__ import annotations

import csv
import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

import rlpipe
from rlpipe.analysis.diagnosis import Diagnosis, Problem, diagnose, diagnose_log
from rlpipe.analysis.logs import read
from rlpipe.cli import app
from rlpipe.config.loading import load_config
from rlpipe.errors import ConfigError
from tests.helpers import REPOSITORY
from tests.helpers.runs import scripted

CARTPOLE = REPOSITORY / "configs" / "ppo_cartpole.yaml"


def cartpole(tmp_path: Path, *overrides: str, iterations: int = 20) -> Path:
    """Directory of a CartPole run."""
    quick = (
        f"runner.total_timesteps={256 * iterations}", "evaluation.episodes=8", "learner.num_threads=1",
        "learner.lr_schedule=constant", f"runner.logger.log_path={tmp_path}", "runner.logger.logger_backends=[]",
    )  # fmt: skip
    return rlpipe.train(load_config(CARTPOLE, [*quick, *overrides]), local=True).directory


def causes(findings: list[Problem], level: str) -> dict[str, str]:
    return {finding.metric: finding.cause for finding in findings if finding.level == level}


def critical(diagnosis: Diagnosis) -> list[Problem]:
    return [finding for finding in [*diagnosis.standing, *diagnosis.past] if finding.level == "critical"]


def test_a_healthy_run_raises_no_critical_alert(tmp_path):
    diagnosis = diagnose(cartpole(tmp_path, "learner.lr_schedule=linear", iterations=6))
    assert critical(diagnosis) == []
    assert {"train/actor/approx_kl", "env/return"} <= {found.metric for found in diagnosis.healthy}


def test_learning_rates_that_are_far_too_large_and_0_are_named(tmp_path):
    run = cartpole(tmp_path, "learner.lr=3e-2", "learner.critic_lr=0", iterations=5)
    found = causes(diagnose(run).standing, "critical")
    assert "overshoot" in found["train/actor/lr"]
    assert "learning rate is 0" in found["train/critic/lr"]


@pytest.mark.soak
def test_a_forced_collapse_of_the_entropy_is_named(tmp_path):
    found = causes(diagnose(cartpole(tmp_path, "algorithm.entropy_coef=-0.5", iterations=60)).standing, "warn")
    assert "entropy bonus too small" in found["train/entropy_loss"]


def test_rewards_that_are_now_and_then_nan_are_named(tmp_path):
    episodes = [{"length": 8, "reward": 1.0}] * 5 + [{"length": 8, "reward": math.nan}]
    env = {"train": {"name": "scripted", "total_num_envs": 4, "script": [episodes]}}
    run = rlpipe.train(scripted(tmp_path, "runner.total_timesteps=1280", env=env), local=True).directory
    found = causes(diagnose(run).standing, "critical")
    assert "NaN" in found["train/nonfinite_steps"]
    assert "reward that is NaN" in found["rollout/rewards"]


def cleanrl_run(folder: Path, *, learning_rate: float, approx_kl: float, ends: float) -> Path:
    """Event files as CleanRL's ppo.py writes them: losses every 512 steps, and a point for each episode."""
    from tensorboard.compat.proto.event_pb2 import Event
    from tensorboard.compat.proto.summary_pb2 import Summary
    from tensorboard.summary.writer.event_file_writer import EventFileWriter

    writer = EventFileWriter(str(folder))
    random = np.random.default_rng(0)

    def add_scalar(tag: str, value: float, step: int) -> None:
        writer.add_event(Event(step=step, summary=Summary(value=[Summary.Value(tag=tag, simple_value=value)])))

    for update in range(1, 61):
        level = 20.0 + min(update, 30) * 10 if update < 40 or ends > 1 else 320 * ends
        for episode in range(6):
            step = (update - 1) * 512 + 80 * (episode + 1)
            add_scalar("charts/episodic_return", level + random.normal(0, 10), step)
            add_scalar("charts/episodic_length", level, step)
        for tag, value in {
            "charts/learning_rate": learning_rate,
            "losses/value_loss": 20.0 / update + random.normal(0, 0.1),
            "losses/policy_loss": random.normal(-0.01, 0.002),
            "losses/entropy": 0.69 - 0.003 * update,
            "losses/old_approx_kl": random.normal(0.001, 0.001),
            "losses/approx_kl": approx_kl * random.uniform(0.9, 1.1),
            "losses/clipfrac": 0.1,
            "losses/explained_variance": 1 - 1 / (update + 1),
            "charts/SPS": 1500.0,
        }.items():
            add_scalar(tag, value, update * 512)
    writer.close()
    return folder


def test_event_files_of_a_cleanrl_script_are_judged(tmp_path):
    healthy = diagnose(cleanrl_run(tmp_path / "healthy", learning_rate=2.5e-4, approx_kl=0.005, ends=2.0))
    assert (healthy.dialect, healthy.reports, critical(healthy)) == ("cleanrl", 60, [])
    broken = diagnose(cleanrl_run(tmp_path / "broken", learning_rate=3e-2, approx_kl=0.2, ends=0.03))
    found = causes(broken.standing, "critical")
    assert "overshoot" in found["train/actor/lr"]
    assert "too large a step" in found["train/actor/approx_kl"]
    assert "collapse" in found["env/return"]
    assert "collapse" in found["env/return_ma100"]


def write_lines(path: Path, rows: list[dict]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_trainer_log_lines_of_trl_are_judged(tmp_path):
    rows = [{"step": n, "lr": 1e-6, "objective/kl": -3.0, "objective/scores": 0.1 * n} for n in range(1, 6)]
    diagnosis = diagnose(write_lines(tmp_path / "log.jsonl", rows))
    assert (diagnosis.dialect, diagnosis.axis, diagnosis.last) == ("trl", "step", 5)
    assert [finding.metric for finding in diagnosis.standing][:1] == ["rollout/kl_ref_episode"]


def test_a_trainer_state_with_a_log_history_is_read_too(tmp_path):
    path = tmp_path / "trainer_state.json"
    history = [{"step": n, "objective/kl": 1.0, "objective/scores": 0.5} for n in (1, 2)]
    path.write_text(json.dumps({"log_history": history}, indent=2))
    assert diagnose(path).reports == 2


def test_the_dialect_can_be_given_where_keys_mean_different_things(tmp_path):
    log = write_lines(tmp_path / "log.jsonl", [{"step": n, "train/actor/approx_kl": -0.001} for n in (1, 2)])
    ours, theirs = (diagnose(log, dialect) for dialect in ("rlpipe", "rlinf"))
    assert [(finding.metric, finding.rule) for finding in ours.standing] == [("train/actor/approx_kl", "negative")]
    assert [found.metric for found in theirs.healthy] == ["train/actor/approx_kl_k1"]  # which may be negative


def test_a_number_that_is_not_finite_counts_as_such(tmp_path):
    path = tmp_path / "progress.csv"
    with path.open("w", newline="") as file:
        table = csv.writer(file)
        table.writerows([["time/iterations", "train/value_loss", "mine"], [1, 0.5, 1], [2, "nan", 2]])
    (finding,) = diagnose(path).standing[:1]
    assert (finding.level, finding.rule, finding.since) == ("critical", "finite", 2)
    assert diagnose(path).unknown == ["mine"]


def ours(path: Path, values: list[float]) -> Path:
    """A bare ``metrics.jsonl`` in which train/actor/approx_kl takes these values."""
    rows = [
        {"iteration": n, "total_timesteps": n, "time": 0.0, "metrics": {"train/actor/approx_kl": value}}
        for n, value in enumerate(values, 1)
    ]
    return write_lines(path, rows)


def test_rules_know_what_the_run_was_made_from(tmp_path):
    rows = [{"iteration": 1, "total_timesteps": 1, "time": 0.0, "metrics": {"train/actor/clipped_ratio": 1.3}}]
    write_lines(tmp_path / "metrics.jsonl", rows)
    assert diagnose(tmp_path).verdict == "healthy"  # nobody knows how far this run clips
    health = [{"variables": {"eps_lo": 0.2, "eps_hi": 0.2}, "tags": ["discrete_policy"]}]
    (tmp_path / "run.json").write_text(json.dumps({"health": health}))
    assert [finding.rule for finding in diagnose(tmp_path).standing] == ["impossible"]


def test_what_is_over_is_history_and_what_stands_decides(tmp_path):
    over = diagnose(ours(tmp_path / "over.jsonl", [0.01, *[0.1] * 5, *[0.01] * 20]))
    stands = diagnose(ours(tmp_path / "stands.jsonl", [*[0.01] * 20, *[0.1] * 5]))
    assert (over.verdict, [finding.until for finding in over.past]) == ("healthy", [16])
    assert (stands.verdict, stands.standing[0].since) == ("critical", 21)


def test_a_line_that_is_being_written_does_not_matter(tmp_path):
    log = ours(tmp_path / "metrics.jsonl", [0.01, 0.01])
    log.write_text(log.read_text() + '{"iteration": 3, "metr')
    assert diagnose(log).last == 2


def test_a_log_is_read_again_for_each_use_and_has_the_rows_that_it_had_at_first(tmp_path):
    path = ours(tmp_path / "metrics.jsonl", [1.0, 2.0])
    log = read(path)
    with path.open("a") as file:
        file.write(json.dumps({"iteration": 3, "total_timesteps": 3, "time": 3.0, "metrics": {}}) + "\n")
    for _ in range(2):
        assert [entry.at for entry in log.entries] == [1, 2]
    assert diagnose_log(path, log).last == 2


def test_the_command_prints_the_judgement_and_exits_with_3_when_something_critical_stands(tmp_path):
    log = ours(tmp_path / "metrics.jsonl", [0.1] * 5)
    answer = CliRunner().invoke(app, ["diagnose", str(log)])
    assert answer.exit_code == 3
    for part in ("train/actor/approx_kl", "at most 0.05", "too large a step", "lower the learning rate"):
        assert part in answer.output
    assert CliRunner().invoke(app, ["diagnose", str(ours(log, [0.01] * 5))]).exit_code == 0


def test_the_command_prints_the_same_as_json(tmp_path):
    answer = CliRunner().invoke(app, ["diagnose", str(ours(tmp_path / "metrics.jsonl", [0.1] * 5)), "--json"])
    told = json.loads(answer.output)
    assert answer.exit_code == 3
    assert (told["verdict"], told["standing"][0]["metric"]) == ("critical", "train/actor/approx_kl")


@pytest.mark.parametrize(
    ("text", "dialect", "complaint"),
    [
        ("", None, "holds no reports"),
        ("not json\n", None, "line 1 is not JSON"),
        ('{"step": 1, "mine": 2.0}\n', None, "holds mine, step"),
        ('{"step": 1, "mine": 2.0}\n', "sb3", "no number that sb3 is known to write"),
        ('{"step": 1, "lr": 2.0}\n', "sb4", "did you mean 'sb3'"),
    ],
)
def test_what_cannot_be_judged_is_an_error_that_says_why(tmp_path, text, dialect, complaint):
    (tmp_path / "log.jsonl").write_text(text)
    with pytest.raises(ConfigError, match=complaint):
        diagnose(tmp_path / "log.jsonl", dialect)


def test_a_wrong_path_is_an_error_with_the_nearest_name(tmp_path):
    ours(tmp_path / "metrics.jsonl", [0.01])
    with pytest.raises(ConfigError, match=r"did you mean 'metrics\.jsonl'"):
        diagnose(tmp_path / "metric.jsonl")
    (tmp_path / "empty").mkdir()
    with pytest.raises(ConfigError, match="holds no log"):
        diagnose(tmp_path / "empty")


def test_a_number_beyond_its_limit_that_is_no_reason_for_an_alert_is_not_ticked(tmp_path):
    """Most iterations here end no episode, which lasts four of them."""
    script = [[{"length": 60}]]
    config = scripted(tmp_path, env={"train": {"name": "scripted", "total_num_envs": 4, "script": script}})
    run = rlpipe.train(replace(config, runner=replace(config.runner, total_timesteps=320)), local=True).directory
    found = {one.metric: one for one in diagnose(run).healthy}
    assert (found["env/num_trajectories"].value, found["env/num_trajectories"].usual) == (0.0, False)
    rows = (run / "metrics.jsonl").read_text().splitlines(keepends=True)
    (run / "metrics.jsonl").write_text("".join(rows[:4]))
    found = {one.metric: one for one in diagnose(run).healthy}
    assert (found["env/num_trajectories"].value, found["env/num_trajectories"].usual) == (4.0, True)
