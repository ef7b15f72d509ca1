"""``rlpipe watch``: the state of a run, read again and again from its directory."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from rich.console import Console
from typer.testing import CliRunner

import rlpipe
from rlpipe.analysis.watching import LEAST_SILENT, Watcher
from rlpipe.backends.console import clock, seconds_left
from rlpipe.cli import app
from rlpipe.cli.watch import fitting, page
from rlpipe.report.run_content import collect
from tests.helpers.commands import command
from tests.helpers.runs import scripted


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """Directory of a finished run of four iterations, with an evaluation."""
    config = scripted(tmp_path_factory.mktemp("watched"))
    return rlpipe.train(config, local=True).directory


def copied(run, folder, rows, status="running"):
    """A run directory that has come as far as some rows."""
    folder.mkdir(exist_ok=True)
    for file in ("config.yaml", "timeline.jsonl"):
        (folder / file).write_bytes((run / file).read_bytes())
    (folder / "run.json").write_text(json.dumps(json.loads((run / "run.json").read_text()) | {"status": status}))
    (folder / "events.jsonl").write_text("")
    append(run, folder, 0, rows)
    return folder


def append(run, folder, first, last):
    lines = (run / "metrics.jsonl").read_text().splitlines(keepends=True)
    with (folder / "metrics.jsonl").open("a") as file:
        file.writelines(lines[first:last])


def text(state, now):
    console = Console(width=120, record=True, file=open("/dev/null", "w"))  # noqa: SIM115 - closed with the process
    console.print(page(state, now))
    return console.export_text()


def test_a_finished_run_is_printed_once(run):
    answer = CliRunner().invoke(app, ["watch", str(run)], env={"COLUMNS": "120"})
    assert answer.exit_code == 0
    for word in ("completed", "4/4", "env/success_once", "learner", "Completed after iteration 4."):
        assert word in answer.output


@pytest.mark.parametrize(("arguments", "words"), [(["watch", "--once"], "completed"), (["diagnose"], "healthy")])
def test_a_terminal_of_ascii_shows_the_same_words(run, arguments, words):
    answer = command(*arguments, str(run), encoding="ascii")
    assert (answer.code, answer.err) == (0, "")
    assert words in answer.out


def test_each_look_adds_the_rows_that_were_written_meanwhile(run, tmp_path):
    folder = copied(run, tmp_path, rows=1)
    watcher = Watcher(folder)
    assert [row.iteration for row in watcher.look().rows] == [1]
    append(run, folder, 1, 3)
    assert [row.iteration for row in watcher.look().rows] == [1, 2, 3]


def test_rows_that_a_resume_cut_off_are_forgotten(run, tmp_path):
    folder = copied(run, tmp_path, rows=3)
    watcher = Watcher(folder)
    watcher.look()
    (folder / "metrics.jsonl").unlink()
    append(run, folder, 0, 1)
    record = json.loads((folder / "run.json").read_text())
    (folder / "run.json").write_text(json.dumps(record | {"incarnation": 1}))
    assert [row.iteration for row in watcher.look().rows] == [1]


def test_a_run_without_a_row_for_long_is_called_silent(run, tmp_path):
    state = Watcher(copied(run, tmp_path, rows=2)).look()
    last = state.rows[-1].time
    assert "silent" not in text(state, last + 0.9 * LEAST_SILENT)
    assert "silent for 0:02:00: it was killed, or it hangs" in text(state, last + 120)


def test_an_evaluation_without_success_and_without_a_finite_return_is_shown(run, tmp_path):
    state = Watcher(copied(run, tmp_path, rows=4)).look()
    left = {name: value for name, value in state.evaluated.metrics.items() if not name.startswith("eval/")}
    metrics = left | {"eval/num_trajectories": 6.0}
    state.evaluated = replace(state.evaluated, metrics=metrics)
    assert "no finite return  6 episodes, iteration 4" in text(state, 0)


def test_before_the_first_evaluation_a_small_terminal_shows_the_success_of_training(run, tmp_path):
    folder = copied(run, tmp_path, rows=1)
    state = Watcher(folder).look()
    console = Console(width=80, height=24, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
    console.print(fitting(state, state.rows[-1].time, console))
    success, episodes = (state.rows[0].metrics[f"env/{name}"] for name in ("success_once", "num_trajectories"))
    assert f"env/success_once {success:.3f}  {episodes:.0f} training episodes, not eval" in console.export_text()


@pytest.mark.parametrize(
    ("ended", "success", "shown"),
    [
        ([3, 1], [0.0, 1.0], "env/success_once 0.250  4 training episodes"),  # not the 1.000 of the last iteration
        ([1], [1.0], "env/success_once 1.000  1 training episode,"),
        ([50, 90, 10], [1.0, 0.5, 0.0], "env/success_once 0.450  100 training episodes"),
    ],
)
def test_a_result_without_evaluation_is_of_the_latest_100_training_episodes_and_says_of_how_many(
    run, tmp_path, ended, success, shown
):
    folder = copied(run, tmp_path / "runs", rows=len(ended), status="interrupted")
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    for row, episodes, share in zip(rows, ended, success, strict=True):
        row["metrics"] |= {"env/num_trajectories": float(episodes), "env/success_once": share}
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert shown in text(Watcher(folder).look(), 0.0)
    found = json.loads(command("runs", str(tmp_path), "--json").out)[0]
    assert f"{found['metric']} {found['value']:.3f}  {found['episodes']} training episode" in shown + "s"
    headline = collect(folder).headline
    assert (headline.value, headline.episodes) == (pytest.approx(found["value"]), found["episodes"])
    assert headline.source == f"training episodes up to iteration {len(ended)}"


def test_a_name_is_shown_as_it_is_spelled(run, tmp_path):
    folder = copied(run, tmp_path, rows=1)
    record = json.loads((folder / "run.json").read_text())
    (folder / "run.json").write_text(json.dumps(record | {"experiment": "pick[sparse][/]"}))
    assert "pick[sparse][/]" in text(Watcher(folder).look(), 0)


@pytest.mark.parametrize(("height", "curves"), [(100, True), (18, False)])
def test_a_small_terminal_shows_time_and_events_before_curves(run, tmp_path, height, curves):
    console = Console(width=80, height=height, record=True, file=open("/dev/null", "w"))  # noqa: SIM115 - closed with the process
    state = Watcher(copied(run, tmp_path, rows=3)).look()
    console.print(fitting(state, 0.0, console))
    shown = console.export_text()
    assert len(shown.splitlines()) <= height
    assert ("time/fps" in shown) == curves
    for word in ("3/4", "learner", "Events"):
        assert word in shown


def test_the_time_left_is_the_consoles(run, tmp_path):
    state = Watcher(copied(run, tmp_path, rows=2)).look()
    state.rows = [replace(row, metrics={**row.metrics, "time/step": 30.0}) for row in state.rows]
    assert f"{clock(seconds_left(state.rows, 4))} left" == "0:01:00 left"
    assert "0:01:00 left" in text(state, 0.0)


def test_the_time_left_of_a_resumed_run_is_at_the_pace_since_then(run, tmp_path):
    folder = copied(run, tmp_path, rows=3)
    record = json.loads((folder / "run.json").read_text())
    (folder / "run.json").write_text(json.dumps(record | {"resumed_after": [2]}))
    state = Watcher(folder).look()
    state.rows = [replace(row, metrics={**row.metrics, "time/step": 10.0**row.iteration}) for row in state.rows]
    assert "0:16:40 left" in text(state, 0.0)  # one iteration of 1000 s


def test_watching_writes_nothing(run, tmp_path):
    folder = copied(run, tmp_path, rows=2)
    before = {file: file.stat().st_mtime_ns for file in folder.rglob("*")}
    text(Watcher(folder).look(), 0.0)
    assert {file: file.stat().st_mtime_ns for file in folder.rglob("*")} == before


def test_what_is_no_run_is_refused(tmp_path):
    answer = CliRunner().invoke(app, ["watch", str(tmp_path / "nothing")])
    assert isinstance(answer.exception, rlpipe.errors.ConfigError)


@pytest.mark.parametrize(("status", "told"), [("completed", 1), ("running", 0)])
def test_a_torn_line_of_a_completed_run_is_told(run, tmp_path, caplog, status, told):
    folder = copied(run, tmp_path, rows=2, status=status)
    with (folder / "metrics.jsonl").open("a") as file:
        file.write('{"iteration": 3, "met')
    watcher = Watcher(folder)
    assert len(watcher.look().rows) == len(watcher.look().rows) == 2
    assert caplog.text.count("metrics.jsonl is torn, although the run completed") == told
