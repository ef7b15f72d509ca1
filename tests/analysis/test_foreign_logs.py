"""Logs of other systems: found in folders, recognised by what is in them, and not judged where that is a guess.

The runs in ``tests/data/foreign_logs`` were made by ``benchmarks/foreign_logs.py`` with the libraries themselves, and
cut to their first reports.
"""

from __future__ import annotations

import csv
import json
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from rlpipe.analysis import log_files, logs
from rlpipe.analysis.diagnosis import diagnose
from rlpipe.cli import app
from rlpipe.errors import ConfigError

MADE = Path(__file__).parent.parent / "data" / "foreign_logs"
BROKEN = {
    "sb3_lr": ("train/actor/lr", "too_large"),
    "sb3_nan": ("env/return_ma100", "finite"),
    "trl_grpo_constant": ("rollout/frac_reward_zero_std", "all"),
    "trl_grpo_nan": ("rollout/score_mean", "finite"),
    "trl_ppo_lr": ("train/actor/lr", "too_large"),
    "cleanrl_lr": ("train/actor/lr", "too_large"),
    "rsl_rl_lr": ("train/actor/lr", "too_large"),
    "rllib_lr": ("train/actor/lr", "too_large"),
}
"""Rule that each run that is broken on purpose violates; the others are healthy."""
SB3 = {"rollout/ep_rew_mean": 20.0, "rollout/ep_len_mean": 20.0, "train/approx_kl": 0.008, "train/clip_fraction": 0.1}
GRPO = {"loss": 0.0, "grad_norm": 0.2, "learning_rate": 2e-6, "reward": 0.5, "reward_std": 0.3, "kl": 0.01}


def logs_of(run: Path) -> list[Path]:
    return [run, *(path for path in run.rglob("*") if path.is_file() and "monitor" not in path.name)]


def write_events(folder: Path, points: list[tuple[str, int, float]], *, second: int = 1) -> Path:
    """Writes a TensorBoard event file of (key, step, value), made in a second."""
    from tensorboard.compat.proto.event_pb2 import Event
    from tensorboard.compat.proto.summary_pb2 import Summary
    from tensorboard.summary.writer.record_writer import RecordWriter

    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"events.out.tfevents.{second}.host"
    with path.open("wb") as file:
        writer = RecordWriter(file)
        for key, step, value in points:
            event = Event(step=step, summary=Summary(value=[Summary.Value(tag=key, simple_value=value)]))
            writer.write(event.SerializeToString())
    return path


def write_csv(path: Path, *tables: list[dict[str, float]]) -> Path:
    """Writes tables below each other, each with a header of its own."""
    with path.open("w", newline="") as file:
        for rows in tables:
            writer = csv.DictWriter(file, list(rows[0]))
            writer.writeheader()
            writer.writerows(rows)
    return path


def write_lines(path: Path, rows: list[dict]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def series(log: logs.Log, metric: str) -> list[tuple[int, float]]:
    return [(entry.at, entry.values[metric]) for entry in log.entries if metric in entry.values]


# --- what the libraries wrote themselves


@pytest.mark.parametrize("run", sorted(path.name for path in MADE.iterdir()))
def test_every_file_of_a_run_has_the_right_system_and_the_same_verdict(run):
    system = next(system for system in logs.READABLE if run.startswith(system))
    for path in logs_of(MADE / run):
        diagnosis = diagnose(path)
        assert diagnosis.dialect == system, path
        if run in BROKEN:
            found = [(one.metric, one.rule) for one in diagnosis.standing if one.level == "critical"]
            assert BROKEN[run] in found, path
        else:
            assert diagnosis.verdict in ("healthy", "info"), path


def test_a_finding_names_the_key_of_the_system_and_the_cause():
    diagnosis = diagnose(MADE / "sb3_lr" / "progress.csv")
    assert diagnosis.names["train/actor/lr"] == "train/learning_rate"
    assert "overshoot" in next(one.cause for one in diagnosis.standing if one.metric == "train/actor/lr")


def test_a_number_of_32_bits_is_read_as_it_was_written(tmp_path):
    path = write_events(tmp_path, [("rollout/ep_rew_mean", 1, 1e-6)])
    assert series(logs.read(path), "env/return_ma100") == [(1, 1e-6)]


# --- which system


def test_the_keys_that_trl_writes_to_tensorboard_are_those_of_its_own_log(tmp_path):
    rows = [{**GRPO, "frac_reward_zero_std": 1.0, "entropy": 0.4, "epoch": 0.1, "step": n} for n in range(1, 6)]
    (tmp_path / "trainer_state.json").write_text(json.dumps({"log_history": rows}))
    points = [(f"train/{key}", row["step"], value) for row in rows for key, value in row.items() if key != "step"]
    events = diagnose(write_events(tmp_path / "runs", points))
    state = diagnose(tmp_path / "trainer_state.json")
    assert (events.dialect, events.verdict) == (state.dialect, state.verdict) == ("trl", "critical")
    assert events.names["rollout/frac_reward_zero_std"] == "train/frac_reward_zero_std"


def test_a_reward_for_which_trl_writes_no_number_is_not_finite_but_one_left_out_of_an_export_is_unknown(tmp_path):
    rows = [{**GRPO, "frac_reward_zero_std": 0.0, "step": n} for n in range(1, 7)]
    for row in rows[2:]:
        del row["reward"]
    points = [(f"train/{key}", row["step"], value) for row in rows for key, value in row.items() if key != "step"]
    events = diagnose(write_events(tmp_path / "runs", points))
    assert [(one.metric, one.level, one.since) for one in events.standing] == [("rollout/score_mean", "critical", 3)]
    assert events.names["rollout/score_mean"] == "train/reward"
    assert diagnose(write_csv(tmp_path / "wandb.csv", rows[2:]), "trl").verdict in ("healthy", "info")
    assert diagnose(write_lines(tmp_path / "log.jsonl", rows[2:]), "trl").verdict in ("healthy", "info")


@pytest.mark.parametrize(
    "keys",
    [
        ["loss", "grad_norm", "learning_rate", "epoch", "train_loss"],  # a Trainer of transformers
        ["train/loss", "train/grad_norm", "train/learning_rate", "train/epoch", "eval/loss"],
        ["step", "reward", "loss", "entropy", "kl"],  # anybody's
        ["losses/a_loss", "losses/c_loss", "losses/entropy", "info/kl", "info/last_lr", "rewards/step"],  # rl_games
        ["train/loss", "train/value_loss", "my/a", "my/b", "my/c"],
    ],
)
def test_a_log_whose_system_is_a_guess_is_not_judged(tmp_path, keys):
    write_lines(tmp_path / "log.jsonl", [dict.fromkeys(keys, 0.1)] * 5)
    answer = CliRunner().invoke(app, ["diagnose", str(tmp_path / "log.jsonl")])
    assert answer.exit_code != 0
    with pytest.raises(ConfigError, match=r"guess: \d of its \d keys are names of .* --dialect"):
        diagnose(tmp_path / "log.jsonl")


def test_a_log_of_a_system_that_is_not_known_is_not_judged(tmp_path):
    write_lines(tmp_path / "log.jsonl", [{"actor/pg_loss": 0.1, "critic/score/mean": 0.5}])
    with pytest.raises(ConfigError, match=r"which none of .* writes"):
        diagnose(tmp_path / "log.jsonl")


def test_whoever_knows_the_system_says_it(tmp_path):
    write_lines(tmp_path / "log.jsonl", [{"step": 1, "train/loss": 0.1, "train/value_loss": 0.1, "my/a": 1, "my/b": 1}])
    assert diagnose(tmp_path / "log.jsonl", "sb3").dialect == "sb3"


def test_keys_that_a_user_adds_do_not_hide_the_system(tmp_path):
    own = {f"mine/{n}": 0.0 for n in range(30)}
    write_lines(tmp_path / "log.jsonl", [{**SB3, "train/n_updates": 10 * n, **own} for n in (1, 2)])
    assert diagnose(tmp_path / "log.jsonl").dialect == "sb3"


def test_a_log_without_a_number_that_a_rule_judges_has_no_verdict(tmp_path):
    write_lines(tmp_path / "log.jsonl", [{"rollout/ep_len_mean": 20.0}])
    with pytest.raises(
        ConfigError, match=r"no number of Stable-Baselines3 that a rule could judge, only rollout/ep_len_mean"
    ):
        diagnose(tmp_path / "log.jsonl")


# --- which file


@pytest.mark.parametrize(
    "name", ["progress.csv", "progress.json", "result.json", "checkpoint-5/trainer_state.json", "a/b/progress.csv"]
)
def test_a_file_that_is_known_is_found_in_a_folder(tmp_path, name):
    (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
    write = write_csv if name.endswith("csv") else write_lines
    write(tmp_path / name, [SB3, SB3])
    diagnosis = diagnose(tmp_path)
    assert diagnosis.reports == 2
    assert diagnosis.notes == ([f"read from {name}"] if "/" in name else [])


def test_the_newest_of_several_runs_is_judged_and_named(tmp_path):
    for run, second, value in (("A2C_10", 30, 3.0), ("A2C_2", 20, 2.0), ("A2C_1", 10, 1.0)):
        write_events(tmp_path / run, [(key, 1, value) for key in SB3], second=second)
    log = logs.read(tmp_path)
    assert series(log, "env/return_ma100") == [(1, 3.0)]
    assert log.notes == ["read from A2C_10, the newest of 3"]
    answer = CliRunner().invoke(app, ["diagnose", str(tmp_path)])
    assert "the newest of 3" in answer.output


def test_of_checkpoints_the_last_one_is_the_newest_whenever_they_were_copied(tmp_path):
    for number in (1000, 200):  # 1000 before 200, as letters and as times
        path = tmp_path / f"checkpoint-{number}" / "trainer_state.json"
        path.parent.mkdir()
        path.write_text(json.dumps({"log_history": [{**GRPO, "step": number}]}))
        os.utime(path, (2000 - number, 2000 - number))
    assert diagnose(tmp_path).last == 1000


def test_a_file_beside_the_folder_of_another_run_comes_first(tmp_path):
    write_csv(tmp_path / "progress.csv", [SB3])
    write_events(tmp_path / "older", [(key, 1, 1.0) for key in SB3])
    assert diagnose(tmp_path).notes == []


def test_a_log_is_looked_for_four_folders_deep_so_that_no_disk_is_read_whole(tmp_path):
    deep = tmp_path / "a" / "b" / "c" / "d" / "e"
    deep.mkdir(parents=True)
    write_csv(deep / "progress.csv", [SB3])
    (tmp_path / "progress.json").symlink_to(tmp_path / "gone")
    assert diagnose(tmp_path / "a").notes == ["read from b/c/d/e/progress.csv"]
    with pytest.raises(ConfigError, match="holds no log"):
        diagnose(tmp_path)


def test_hyperparameters_are_no_run(tmp_path):
    """SummaryWriter.add_hparams makes a folder of its own, or, with run_name=".", a file beside the log."""
    hyperparameters = [("_hparams_/session_start_info", 0, 1.0), ("rollout/ep_rew_mean", 0, -1.0)]
    write_events(tmp_path / "PPO_1", [(key, step, 5.0) for key in SB3 for step in (10, 20)], second=10)
    write_events(tmp_path / "PPO_1" / "1700000000.5", hyperparameters, second=30)
    write_events(tmp_path / "of_PPO_1", hyperparameters, second=30)
    write_events(tmp_path / "PPO_1", hyperparameters, second=20)
    write_events(tmp_path, [], second=5)  # a writer that wrote nothing
    log = logs.read(tmp_path)
    assert series(log, "env/return_ma100") == [(10, 5.0), (20, 5.0)]
    assert log.notes == ["read from PPO_1"]


@pytest.mark.parametrize(
    "text",
    [
        '#{"t_start": 1.0, "env_id": "CartPole-v1"}\nr,l,t\n9.0,9,0.1\n11.0,11,0.2\n',
        '#{"t_start": 1.0, "env_id": "Pong"}\nr,l,t9.0,792,63.4\n11.0,819,96.5\n',  # a line break is missing
        "9.0,9,0.1\n11.0,11,0.2\n",  # override_existing=False, on a new file
    ],
)
@pytest.mark.parametrize("given", ["0.monitor.csv", ""])
def test_a_monitor_file_is_named_as_what_it_is(tmp_path, text, given):
    (tmp_path / "0.monitor.csv").write_text(text)
    with pytest.raises(ConfigError, match=r"is a Monitor file of Stable-Baselines3: it holds 2 episodes.*from 9 to 11"):
        diagnose(tmp_path / given)


@pytest.mark.parametrize("before", ["\n", "\n\n", "\ufeff"])
def test_a_table_may_begin_with_empty_lines(tmp_path, before):
    path = write_csv(tmp_path / "progress.csv", [SB3])
    path.write_text(before + path.read_text())
    assert diagnose(path).dialect == "sb3"


@pytest.mark.parametrize("text", ["", "\n", "Step,train/loss\n", "Step,train/loss\n,\n"])
@pytest.mark.parametrize("dialect", [None, "sb3"])
def test_a_log_without_a_number_is_named_as_such(tmp_path, text, dialect):
    (tmp_path / "progress.csv").write_text(text)
    with pytest.raises(ConfigError, match=r"progress\.csv holds no number; give a log to which"):
        diagnose(tmp_path / "progress.csv", dialect)


def test_a_comment_does_not_make_a_table_a_monitor_file(tmp_path):
    path = write_csv(tmp_path / "progress.csv", [SB3])
    path.write_text("# made by hand\n" + path.read_text())
    with pytest.raises(ConfigError) as refused:
        diagnose(path)
    assert "Monitor" not in str(refused.value)


def test_a_monitor_file_beside_a_log_does_not_matter(tmp_path):
    (tmp_path / "monitor.csv").write_text("#{}\nr,l,t\n1,1,1\n")
    write_csv(tmp_path / "progress.csv", [SB3])
    assert diagnose(tmp_path).dialect == "sb3"


def test_a_table_without_a_header_is_named_as_such(tmp_path):
    (tmp_path / "progress.csv").write_text("CartPole,20.5,1\nCartPole,21.5,2\n")
    with pytest.raises(ConfigError, match=r"has no header: where names are expected, it holds 20\.5, 1"):
        diagnose(tmp_path)


def test_an_export_of_wandb_is_read_under_the_keys_of_the_run(tmp_path):
    head = ["Step", "my - run - rollout/ep_rew_mean", "my - run - rollout/ep_rew_mean__MIN"]
    path = write_csv(tmp_path / "wandb_export_2026.csv", [dict(zip(head, (n, 5.0, -9.0), strict=True)) for n in (1, 2)])
    assert series(logs.read(path), "env/return_ma100") == [(1, 5.0), (2, 5.0)]


def test_an_export_of_several_runs_is_refused(tmp_path):
    path = write_csv(tmp_path / "export.csv", [{"Step": 1, "a - train/reward": 1.0, "b - train/reward": 1.0}])
    with pytest.raises(ConfigError, match=r"holds 2 runs \(a, b\); export one"):
        diagnose(path)


def test_nested_reports_of_rllib_are_read_by_the_path_of_a_key(tmp_path):
    report = {"training_iteration": 1, "env_runners": {"episode_return_mean": 7.0, "num_episodes": 2}}
    assert series(logs.read(write_lines(tmp_path / "result.json", [report])), "env/return_ma100") == [(1, 7.0)]


# --- resumed runs


@given(steps=st.integers(2, 12), data=st.data())
def test_a_run_that_went_back_and_on_is_the_run_without_interruption(steps, data):
    """It fell back from one step to another; what it wrote in between does not count."""
    stop = data.draw(st.integers(1, steps))
    back = data.draw(st.integers(1, stop))
    rows = [{"step": step, "value": -1.0} for step in range(1, stop + 1)]
    rows[: back - 1] = [{"step": step, "value": float(step)} for step in range(1, back)]
    rows += [{"step": step, "value": float(step)} for step in range(back, steps + 1)]
    table = log_files.table_of_rows(rows)
    if table.axis == "step":  # else positions repeat too often to be positions
        assert table.places == list(range(1, steps + 1))
        assert [row["value"] for row in table.rows] == table.places


def test_a_second_header_may_have_other_columns(tmp_path):
    first = [{"time/total_timesteps": n, "rollout/ep_rew_mean": 1.0} for n in (1, 2, 3)]
    second = [{"rollout/ep_rew_mean": 2.0, "train/approx_kl": 0.01, "time/total_timesteps": n} for n in (3, 4)]
    log = logs.read(write_csv(tmp_path / "progress.csv", first, second))
    assert series(log, "env/return_ma100") == [(1, 1.0), (2, 1.0), (3, 2.0), (4, 2.0)]


def test_event_files_of_a_resumed_run_are_one_series(tmp_path):
    write_events(tmp_path, [(key, step, 1.0) for step in (10, 20, 30, 40) for key in SB3], second=1)
    write_events(tmp_path, [(key, step, 2.0) for step in (30, 35) for key in SB3], second=2)
    log = logs.read(tmp_path)
    assert series(log, "env/return_ma100") == [(10, 1.0), (20, 1.0), (30, 2.0), (35, 2.0)]
    assert log.notes == ["step goes back from 40 to 30, as in a resumed run: the later numbers count"]


def test_episodes_that_end_at_one_step_are_averaged(tmp_path):
    losses = [(f"losses/{key}", 100, 0.1) for key in ("policy_loss", "clipfrac", "approx_kl")]
    path = write_events(tmp_path, [("charts/episodic_return", 90, 1.0), ("charts/episodic_return", 90, 3.0), *losses])
    assert series(logs.read(path), "env/return") == [(100, 2.0)]


@pytest.mark.parametrize("write", ["csv", "json", "tensorboard"])
@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_a_judged_number_that_is_not_finite_is_a_finding_with_its_key_and_since_when(tmp_path, write, bad):
    rows = [
        {"time/total_timesteps": 10 * at, "train/approx_kl": 0.01 if at < 4 else bad, "train/explained_variance": 0.9}
        for at in range(1, 7)
    ]
    if write == "csv":
        file = write_csv(tmp_path / "progress.csv", rows)
    elif write == "json":
        file = write_lines(tmp_path / "progress.json", rows)
    else:
        points = [(key, row["time/total_timesteps"], value) for row in rows for key, value in row.items()]
        file = write_events(tmp_path, [point for point in points if not point[0].startswith("time/")])
    diagnosis = diagnose(file, "sb3")
    assert [(found.metric, found.rule, found.since) for found in diagnosis.standing] == [
        ("train/actor/approx_kl", "finite", 40)
    ]
    assert diagnosis.verdict == "warn"
    assert "train/critic/explained_variance" in [found.metric for found in diagnosis.healthy]
    shown = CliRunner().invoke(app, ["diagnose", str(file), "--dialect", "sb3"]).stdout
    assert "! train/actor/approx_kl NaN or infinite" in shown
    assert "train/approx_kl" in shown
