"""``benchmarks/sparse.py``: rows are run once, continued where they stopped, and shown from their results alone."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import matplotlib.image
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks import sparse
from benchmarks.machine import ROOT
from benchmarks.sparse_rows import measured, page, pictures, running
from benchmarks.sparse_rows.measured import curve
from benchmarks.sparse_rows.results import Results
from benchmarks.sparse_rows.rows import PREVIOUS, Table
from rlpipe.analysis.comparison import compare
from rlpipe.analysis.evaluated_run import EvaluatedRun
from rlpipe.config.protocol import comparable
from rlpipe.config.tree import to_yaml
from rlpipe.errors import ConfigError
from rlpipe.run.directory import RunDirectory
from tests.helpers import commands
from tests.helpers.runs import scripted, wait_for_rows
from tests.helpers.simulators import RACE

DECLARED = Table.read()

pytestmark = pytest.mark.extras


@dataclass(frozen=True)
class Bench:
    """A folder with rows of its own, and what the command makes there."""

    folder: Path

    def declare(self, **rows: dict[str, Any]) -> None:
        usual = {"task": "Race", "group": "ours", "about": "The race"}
        declared = {"seeds": [0, 1], "groups": {"ours": "Ours", "floors": "Floors"},
                    "rows": {name: usual | row for name, row in rows.items()}}  # fmt: skip
        (self.folder / "rows.yaml").write_text(json.dumps(declared))

    @property
    def places(self) -> list[str]:
        names = {"--rows": "rows.yaml", "--results": "results", "--runs": "runs", "--docs": "docs"}
        return [word for option, name in names.items() for word in (option, str(self.folder / name))]

    def call(self, *arguments: str) -> int:
        return sparse.main([*arguments, *self.places])

    @property
    def table(self) -> Table:
        return Table.read(self.folder / "rows.yaml")

    def results(self, row: str) -> dict[str, Any]:
        return dict(Results(self.folder / "results").of(self.table.rows[row]))

    @property
    def runs(self) -> list[Path]:
        return sorted(file.parent for file in (self.folder / "runs").glob("*/*/run.json"))

    def report(self) -> str:
        (self.folder / "docs").mkdir(exist_ok=True)
        (self.folder / "docs" / "benchmarks.md").write_text(f"before\n{page.BEGIN}\nold\n{page.END}\nafter\n")
        assert self.call("--report") == 0
        return (self.folder / "docs" / "benchmarks.md").read_text()


def race(folder: Path, *overrides: str) -> str:
    """A configuration of which half of the episodes succeed: 4 iterations of 24 steps."""
    settings = ("rollout.horizon=4", "algorithm.num_minibatches=2", "runner.total_timesteps=96", *overrides)
    file = folder / "race.yaml"
    file.write_text(to_yaml(scripted(folder / "elsewhere", *settings, env=RACE)))
    return str(file)


class InThisProcess:
    """In place of a command of rlpipe in a process of its own."""

    def __init__(self, program, *, stdout, **_):
        self.arguments, self.log = program[3:], stdout

    def wait(self) -> int:
        answer = commands.command(*self.arguments)
        self.log.write(answer.out + answer.err)
        return answer.code


@contextlib.contextmanager
def in_this_process():
    """Commands run sooner: processes of their own are for what is interrupted and for what is evaluated otherwise."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(running, "subprocess", SimpleNamespace(Popen=InThisProcess, DEVNULL=subprocess.DEVNULL))
        yield


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """Two seeds of a run that begins with the policy of another, and a baseline."""
    bench = Bench(tmp_path_factory.mktemp("bench"))
    config = race(bench.folder)
    bench.declare(
        race={"commands": [f"train {config}", f"train {config} policy.warm_start={PREVIOUS} learner.lr=1.0e-4"]},
        floors={"group": "floors", "policies": ["zero"], "commands": [f"evaluate {config}"]},
        otherwise={"after": "race", "commands": [f"evaluate {PREVIOUS} evaluation.episodes=4"]},
        later={"commands": [f"train {config} algorithm.discount=0.5"]},
    )
    with in_this_process():
        assert bench.call("race", "floors", "--local") == 0
    return bench


# --- running


def test_a_seed_has_the_result_that_its_runs_left(trained):
    found = trained.results("race")
    assert list(found) == ["0", "1"]
    assert found["1"]["success_once"] == found["1"]["success_at_end"] == "101010"
    assert found["1"]["protocol"]["evaluation.first_seed"] == 1_000_000
    assert (found["1"]["n"], found["1"]["algorithm"], found["1"]["demonstrations"]) == (6, "ppo, then ppo", 0)
    assert (found["1"]["mode"], found["1"]["cores"]) == ("local", 1)
    assert found["1"]["seconds"] > 0


def test_a_sequence_counts_the_steps_of_all_its_commands(trained):
    found = trained.results("race")["0"]
    assert found["environment_steps"] == 2 * 96
    assert found["gradient_steps"] == 2 * 4 * 2 * 2  # two runs of four iterations of two epochs of two minibatches
    assert found["curve"]["steps"] == [96 + 24, 96 + 48, 96 + 72, 96 + 96]


def test_each_seed_of_a_sequence_begins_with_the_run_of_its_own(trained):
    for seed in (0, 1):
        first, second = (run for run in trained.runs if run.name.endswith(f"seed{seed}"))
        if first.parent.name.endswith("-1"):
            first, second = second, first
        assert RunDirectory(first).read_config()["policy"]["warm_start"] == str(second)
        assert trained.results("race")[str(seed)]["commands"][1].startswith("rlpipe train ")
        assert str(second) in trained.results("race")[str(seed)]["commands"][1]


def test_policies_of_another_row_are_evaluated_otherwise_and_not_trained_again(trained, tmp_path):
    copy = Bench(tmp_path / "copy")
    shutil.copytree(trained.folder, copy.folder)
    (copy.folder / "results" / "race.json").unlink()
    assert copy.call("otherwise", "--seeds", "1", "--local") == 0
    assert len(copy.runs) == 4  # two of each seed, as before
    assert copy.results("race") == {"1": trained.results("race")["1"]}
    ours, theirs = copy.results("otherwise")["1"], trained.results("race")["1"]
    assert (ours["n"], ours["success_once"], theirs["n"]) == (4, "1010", 6)
    assert ours["protocol"] == theirs["protocol"] | {"evaluation.episodes": 4}
    assert ours["commands"][:2] == theirs["commands"]
    assert ours["commands"][2].startswith("rlpipe evaluate ")
    assert ours["processor_seconds"] > theirs["processor_seconds"]
    same = ("environment_steps", "gradient_steps", "seconds", "curve", "created")
    assert [ours[key] for key in same] == [theirs[key] for key in same]
    for row in ("race", "otherwise"):
        before = copy.results(row)
        (copy.folder / "results" / f"{row}.json").unlink()
        assert copy.call(row, "--seeds", "1") == 0  # each finds the evaluation that is its own
        assert copy.results(row) == before


def test_what_has_a_result_is_not_run_again(trained):
    before = {file: file.stat().st_mtime_ns for file in trained.folder.rglob("*") if file.is_file()}
    assert trained.call("race", "floors", "--local") == 0
    assert {file: file.stat().st_mtime_ns for file in trained.folder.rglob("*") if file.is_file()} == before


def test_a_finished_run_without_a_result_is_only_read(trained, tmp_path):
    copy = Bench(tmp_path / "copy")
    shutil.copytree(trained.folder, copy.folder)
    (copy.folder / "results" / "race.json").unlink()
    journals = {file: file.read_text() for file in copy.folder.glob("runs/*/*.jsonl")}
    assert copy.call("race") == 0
    assert copy.results("race") == trained.results("race")
    assert {file: file.read_text() for file in copy.folder.glob("runs/*/*.jsonl")} == journals


def test_a_baseline_is_measured_in_the_same_episodes(trained):
    found = trained.results("floors")["zero"]
    assert found["success_once"] == "101010"
    assert found["commands"][0].split()[3:5] == ["--policy", "zero"]
    assert found["protocol"] == trained.results("race")["0"]["protocol"]


def test_an_interrupted_run_is_saved_and_continued(tmp_path):
    bench = Bench(tmp_path)
    slow = {"name": "scripted", "total_num_envs": 4, "step_seconds": 0.002, "script": [[{"length": 10}]]}
    (tmp_path / "slow.yaml").write_text(
        to_yaml(scripted(tmp_path, "runner.total_timesteps=1600", "runner.save_interval=5", env={"train": slow}))
    )
    bench.declare(slow={"seeds": [3], "commands": [f"train {tmp_path / 'slow.yaml'}"]})
    program = [sys.executable, str(ROOT / "benchmarks" / "sparse.py"), "slow", "--local", *bench.places]
    process = subprocess.Popen(program, stdout=subprocess.PIPE, text=True)
    run = wait_for_rows(tmp_path / "runs", 3)
    process.send_signal(signal.SIGTERM)
    out, _ = process.communicate(timeout=600)
    assert process.returncode == 130, out
    assert RunDirectory(run).read_json()["status"] == "interrupted"
    assert bench.results("slow") == {}
    with in_this_process():
        assert bench.call("slow", "--local") == 0
    assert bench.runs == [run]
    assert len(RunDirectory(run).read_json()["resumed_after"]) == 1
    result = bench.results("slow")["3"]
    assert result["environment_steps"] == 1600
    assert result["processor_seconds"] > 0


def test_another_command_leaves_a_claimed_seed_alone(trained, capsys):
    runner = sparse.Runner(trained.folder / "runs", local=True)
    with runner.claimed(trained.table.rows["later"], "0"):
        assert trained.call("later", "--seeds", "0", "--local") == 1
    assert "later, seed 0: another command" in capsys.readouterr().out
    assert trained.results("later") == {}


def test_a_command_that_fails_is_named_with_its_last_words(trained, tmp_path, capsys):
    bench = Bench(tmp_path)
    bench.declare(
        broken={"commands": [f"train {race(tmp_path)} policy.warm_start={tmp_path / 'nowhere'}"]},
        misspelt={"commands": [f"train {race(tmp_path)} runner.totl_timesteps=5"]},
        unready={"commands": [f"train {tmp_path / 'nowhere.yaml'}"]},
    )
    with in_this_process():
        assert bench.call("broken", "--seeds", "0", "--local") == 1
    assert f"{tmp_path / 'nowhere'}" in capsys.readouterr().out.replace("\n", "")
    assert bench.call("misspelt", "--local") == 2
    assert "did you mean 'total_timesteps'?" in capsys.readouterr().out
    assert bench.call("broken", "unready") == 2  # a row that cannot be read is refused before anything starts
    assert "row unready" in capsys.readouterr().out


def test_the_list_says_what_is_done_and_what_is_missing(trained, capsys):
    assert trained.call("--list") == 0
    lines = {words[0]: words for words in map(str.split, capsys.readouterr().out.splitlines())}
    assert lines["race"][1:] == ["0,", "1", "0.500", "[0.123,", "0.877]"]
    assert lines["floors"][1:] == ["zero"]
    assert lines["later"][1:] == ["0,", "1"]


def test_results_of_other_settings_are_due_again(trained, tmp_path, capsys):
    copy = Bench(tmp_path / "copy")
    shutil.copytree(trained.folder, copy.folder)
    copy.declare(race={"commands": [f"train {copy.folder / 'race.yaml'} algorithm.discount=0.5"]})
    assert copy.results("race") == {}
    assert copy.call("--list") == 0
    assert "0 (of other settings), 1 (of other settings)" in capsys.readouterr().out


def test_a_result_with_another_number_of_demonstrations_is_refused(trained):
    row = trained.table.rows["race"]
    declared = type(row)(**{**vars(row), "demonstrations": 5})
    runs = [run for run in trained.runs if run.name.endswith("seed0")]
    with pytest.raises(ConfigError, match=r"declares 5 demonstrations, but .* learnt from 0"):
        measured.learnt(declared, runs, {})


# --- settings of a row


def settings_of(folder: Path, *overrides: str, text: str = "") -> str:
    bench = Bench(folder)
    (folder / "base.yaml").write_text(text or "env: {train: {name: gymnasium, id: CartPole-v1}}\n")
    bench.declare(row={"commands": [f"train {folder / 'base.yaml'} {' '.join(overrides)}"]})
    return bench.table.rows["row"].settings


def test_settings_are_those_on_which_results_depend(tmp_path):
    plain = settings_of(tmp_path)
    assert settings_of(tmp_path, "algorithm.discount=0.5") != plain
    assert settings_of(tmp_path, "runner.save_interval=7", "runner.logger.project_name=mine") == plain
    commented = "# a comment\nenv:\n  train: {id: CartPole-v1, name: gymnasium}\n"
    assert settings_of(tmp_path, text=commented) == plain


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"commands": ["evaluate base"]}, "its commands must be pretrain or train"),
        ({"commands": ["train base"], "policies": ["zero"]}, "its commands must be evaluate"),
        ({"commands": []}, "its commands must be"),
        ({"commands": [f"train base policy.warm_start={PREVIOUS}"]}, "there is no run before it"),
        ({"commands": ["train base"], "group": "theirs"}, "its group is 'theirs'; declared are ours, floors"),
        ({"commands": ["train base"], "sedes": [1]}, r"rows\.row\.sedes"),
        ({"commands": ["train base"], "against": "raw"}, "there is no row 'raw' in its group"),
        ({"commands": ["evaluate PREVIOUS"], "after": "raw"}, "there is no row 'raw' that trains"),
        ({"commands": ["evaluate PREVIOUS"], "after": "row"}, "there is no row 'row' that trains"),
        ({"commands": ["evaluate base"], "after": "raw"}, "its command must evaluate PREVIOUS, a policy of raw"),
    ],
)
def test_a_row_that_cannot_be_run_is_refused(tmp_path, row, message):
    bench = Bench(tmp_path)
    bench.declare(row=row)
    with pytest.raises(ConfigError, match=message):
        _ = bench.table


def test_a_row_that_evaluates_names_the_task_and_seeds_of_the_one_that_trains(tmp_path):
    bench = Bench(tmp_path)
    bench.declare(
        row={"commands": ["train base"]}, other={"after": "row", "task": "Walk", "commands": ["evaluate PREVIOUS"]}
    )
    with pytest.raises(ConfigError, match="its task, demonstrations and seeds must be those of row"):
        _ = bench.table


@pytest.mark.parametrize("row", DECLARED.rows.values(), ids=lambda row: row.name)
def test_a_declared_row_is_one_that_rlpipe_accepts(row):
    for number, command in enumerate([*row.learnt_by.sequence[:-1], row.evaluated], start=1):
        config = command.configuration()
        if number == 1 and config.num_demos is not None and not row.policies:
            assert config.num_demos == row.demonstrations
        assert ("replay" in row.policies) <= (config.demos is not None)


@pytest.mark.parametrize("row", [row for row in DECLARED.rows.values() if not row.policies], ids=lambda row: row.name)
def test_a_shipped_result_has_the_protocol_of_its_row(row):
    for result in Results().of(row).values():
        now = comparable(row.protocol)  # which has the keys of later versions as well
        assert {key: now[key] for key in result["protocol"]} == result["protocol"]


# --- the learning curve


def iteration(number, success=None, episodes=0, **metrics):
    known = {} if success is None else {"env/success_once": success}
    always = {"env/num_trajectories": episodes, "time/time_elapsed": float(number)}
    return {"iteration": number, "total_timesteps": 10 * number, "metrics": always | known | metrics}


def test_a_point_pools_the_episodes_of_its_iterations(monkeypatch):
    monkeypatch.setattr(measured, "POINTS", 2)
    rows = [iteration(1, 0.0, 1), iteration(2, 1.0, 3, **{"env/curriculum/start": 0.5}), iteration(3), iteration(4)]
    assert curve(rows) == {"of": "training", "steps": [20, 40], "seconds": [2.0, 4.0], "success": [0.75, None],
                           "episodes": [4, 0], "start": [0.5, None], "blend": [None, None]}  # fmt: skip


def test_several_evaluations_come_before_training_episodes():
    tested = {"eval/success_once": 0.5, "eval/num_trajectories": 8}
    rows = [iteration(1, 1.0, 5), iteration(2, 1.0, 5, **tested), iteration(3, 1.0, 5), iteration(4, 1.0, 5, **tested)]
    found = curve(rows)
    assert (found["of"], found["steps"]) == ("evaluation", [20, 40])
    assert (found["success"], found["episodes"]) == ([0.5, 0.5], [8, 8])
    assert curve(rows[:3])["of"] == "training"  # one evaluation is no curve


@given(st.integers(1, 400))
def test_a_curve_is_short_and_ends_where_the_run_ended(iterations):
    found = curve([iteration(number, 1.0, 2) for number in range(1, iterations + 1)])
    assert len(found["steps"]) == min(iterations, measured.POINTS)
    assert found["steps"][-1] == 10 * iterations
    assert sum(found["episodes"]) == 2 * iterations


# --- tables and pictures


def test_the_interval_is_that_of_compare(trained):
    last = [run for run in trained.runs if run.parent.name == f"race-{trained.table.rows['race'].settings}"]
    assert len(last) == 2
    pooled = compare(last).groups[0].pooled
    outcomes = tuple(result["success_once"] for result in trained.results("race").values())
    assert page.interval(outcomes) == (pooled.value, pooled.low, pooled.high)


def test_the_page_and_the_pictures_need_the_results_alone(trained, tmp_path):
    alone = Bench(tmp_path / "alone")
    alone.folder.mkdir()
    for name in ("rows.yaml", "race.yaml"):
        shutil.copy(trained.folder / name, alone.folder)
    shutil.copytree(trained.folder / "results", alone.folder / "results")
    written = alone.report()
    assert written.startswith(f"before\n{page.BEGIN}\n")
    assert written.endswith(f"\n{page.END}\nafter\n")
    row = next(line for line in written.splitlines() if line.startswith("| `race`"))
    cells = [cell.strip() for cell in row.strip("|").split("|")]
    assert cells[:8] == ["`race`", "Race", "none", "`ppo`, then `ppo`", "0.500 [0.123, 0.877]", "0, 1: 0.500, 0.500",
                         "-, 0.500, -", "12"]  # fmt: skip
    assert (cells[8], cells[9], cells[12]) == ("192", "32", "1")
    assert "Not run yet: `otherwise`, `later`." in written
    assert "sparse_demonstrations.png" not in written  # it learns without
    for name in ("sparse_steps.png", "sparse_wall_clock.png"):
        assert f"(images/{name})" in written
        drawn = matplotlib.image.imread(alone.folder / "docs" / "images" / name)
        assert drawn.std() > 0.05  # not a blank sheet


def test_a_row_is_compared_with_the_one_that_it_names(trained, tmp_path):
    copy = Bench(tmp_path / "copy")
    shutil.copytree(trained.folder, copy.folder)
    commands = list(trained.table.rows["race"].commands)
    copy.declare(race={"commands": commands, "against": "race"}, changed={"commands": commands, "against": "race"})
    stored = json.loads((copy.folder / "results" / "race.json").read_text())
    won = {seed: result | {"success_once": "1" * 6} for seed, result in stored.items()}
    (copy.folder / "results" / "changed.json").write_text(json.dumps(won))
    lines = {
        line.split("`")[1]: line.split(" | ")[2:5] for line in copy.report().splitlines() if line.startswith("| `")
    }
    assert lines["race"] == ["0.500 [0.123, 0.877]", "-", "0, 1: 0.500, 0.500"]
    assert lines["changed"] == ["1.000 [0.758, 1.000]", "+0.500 [-0.075, +1.000]", "0, 1: 1.000, 1.000"]
    drawn = {file.name for file in (copy.folder / "docs" / "images").iterdir()}
    assert drawn == {"sparse_choices.png"}  # no curve: nothing is learnt there for its own sake


def test_success_in_the_last_step_stands_beside_what_others_have_published(trained, tmp_path):
    copy = Bench(tmp_path / "copy")
    shutil.copytree(trained.folder, copy.folder)
    copy.declare(race={"commands": list(trained.table.rows["race"].commands), "published": "0.9 (theirs)"})
    stored = json.loads((copy.folder / "results" / "race.json").read_text())
    ended = {seed: result | {"success_at_end": "111000", "success_once": "111111"} for seed, result in stored.items()}
    (copy.folder / "results" / "race.json").write_text(json.dumps(ended))
    line = next(line for line in copy.report().splitlines() if line.startswith("| `race`"))
    cells = [cell.strip() for cell in line.strip("|").split("|")]
    assert cells[3:6] == ["0.500 [0.123, 0.877]", "0, 1: 0.500, 0.500", "1.000"]
    assert cells[-1] == "0.9 (theirs)"


def test_the_difference_is_that_of_compare(trained):
    runs = [run for run in trained.runs if run.parent.name.startswith("race-")]
    first, second = (tuple(run for run in runs if run.parent.name.endswith("-1") is before) for before in (True, False))
    found = compare([*first, *second]).differences[0]
    outcomes = ["".join(str(int(one.success_once)) for one in EvaluatedRun.read(run).episodes) for run in runs]
    by_run = dict(zip(runs, outcomes, strict=True))
    ours, theirs = ([by_run[run] for run in kind] for kind in (second, first))
    assert page.difference(ours, theirs) == (found.value, found.low, found.high)


def test_a_missing_seed_is_said(trained, tmp_path):
    copy = Bench(tmp_path / "copy")
    shutil.copytree(trained.folder, copy.folder)
    file = copy.folder / "results" / "race.json"
    file.write_text(json.dumps({"1": json.loads(file.read_text())["1"]}))
    written = copy.report()
    assert "| 0.500 [0.188, 0.812], 1 of 2 seeds | 0, 1: -, 0.500 |" in written
    assert "Not run yet: `race` (seed 0), `otherwise`, `later`." in written


def test_without_any_result_the_page_says_what_is_missing(tmp_path):
    bench = Bench(tmp_path)
    bench.declare(race={"commands": [f"train {race(tmp_path)}"]})
    assert "Not run yet: `race`." in bench.report()
    assert not list(tmp_path.rglob("*.png"))


def test_a_page_without_the_two_comments_is_refused():
    with pytest.raises(ConfigError, match="must hold the two lines"):
        page.inserted("# Benchmarks\n", "text")


def test_the_shipped_page_has_the_tables_of_the_shipped_results():
    written = (ROOT / "docs" / "benchmarks.md").read_text(encoding="utf-8")
    drawn = [name for name in page.PICTURES if (ROOT / "docs" / "images" / name).is_file()]
    text = page.tables(DECLARED, Results(), drawn)
    assert written == page.inserted(written, text), "run: python benchmarks/sparse.py --report"


def test_every_row_with_demonstrations_is_in_the_picture_of_demonstrations(trained):
    row = trained.table.rows["race"]
    results = list(trained.results("race").values())
    curves = [
        pictures.Curve(type(row)(**{**vars(row), "task": task, "demonstrations": count}), results)
        for task, count in (("A", 1), ("A", 5), ("B", 5))
    ]
    axes = pictures.draw_demonstrations(curves).axes[0]
    assert [line.get_ydata().tolist() for line in axes.lines] == [[0.5, 0.5], [0.5]]
    assert [text.get_text() for text in axes.texts] == ["A", "B"]
    assert [tick.get_text() for tick in axes.get_xticklabels()] == ["1", "5"]


def test_a_drawn_curve_pools_seeds_and_the_latest_episodes_and_shows_no_success_that_came_later():
    few = {"steps": [10, 20, 30], "seconds": [1.0, 2.0, 3.0], "success": [0.0, None, 1.0], "episodes": [30, 0, 30]}
    many = {"steps": [10, 20, 30], "seconds": [3.0, 4.0, 5.0], "success": [0.5, 0.5, 0.5], "episodes": [60, 60, 60]}
    x, values = pictures.smoothed([few], "steps")
    assert x.tolist() == [10, 20, 30]
    assert values.tolist() == [0.0, 0.0, 0.5]  # in the end, 60 episodes
    x, values = pictures.smoothed([many, many], "seconds")
    assert x.tolist() == [3, 4, 5]
    assert values.tolist() == [0.5, 0.5, 0.5]
    _, values = pictures.smoothed([{**many, "success": [0.0, 0.5, 1.0]}], "steps")
    assert values.tolist() == [0.0, 0.5, 1.0]  # each has enough by itself
    _, values = pictures.smoothed([{**few, "success": [None, 0.0, 1.0], "episodes": [0, 30, 30]}], "steps")
    np.testing.assert_equal(values, [np.nan, 0.0, 0.5])  # nothing is drawn before the first episode


# --- files


def test_results_of_one_row_by_two_commands_are_both_kept(tmp_path):
    bench = Bench(tmp_path)
    bench.declare(race={"commands": [f"train {race(tmp_path)}"]})
    row, results = bench.table.rows["race"], Results(tmp_path / "results")
    results.add(row, "1", {"settings": row.settings, "n": 6})
    Results(tmp_path / "results").add(row, "0", {"settings": row.settings, "n": 7})
    assert [result["n"] for result in results.of(row).values()] == [7, 6]
    assert os.listdir(tmp_path / "results") == ["race.json"]
