"""The report of runs: what it says, that nothing from a run can end its text, and what it leaves out."""

from __future__ import annotations

import html
import json
import re
import shutil
import subprocess
import sys
from array import array
from pathlib import Path
from typing import Any

import pytest

import rlpipe
from rlpipe.analysis.comparison import compare
from rlpipe.analysis.evaluation_report import write_record
from rlpipe.errors import RunError
from rlpipe.metrics import catalogue as m
from rlpipe.report.course import Course, Series
from rlpipe.report.curves import CurveDetail, axes_of, curves_data
from rlpipe.report.formats import digits
from rlpipe.report.ledger import pool_width
from rlpipe.report.pages import report
from rlpipe.report.run_content import collect
from tests.helpers.commands import command
from tests.helpers.faulty import faulty
from tests.helpers.runs import from_ledger, lines, scripted

EVIL = "</script><script>alert(1)</script>"


def data_of(page: str, section: str) -> dict[str, Any]:
    """Data of a section, as its scripts read it."""
    found = re.search(rf'<script type="application/json" id="data-{section}">(.*?)</script>', page, re.DOTALL)
    assert found is not None
    contents: dict[str, Any] = json.loads(found[1])
    return contents


def text_of(page: str) -> str:
    """Returns the visible text of a page, without elements, scripts and styles."""
    body = re.sub(r"<(script|style)\b.*?</\1>", " ", page, flags=re.DOTALL)
    return html.unescape(re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", body)))


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    config = scripted(tmp_path_factory.mktemp("runs"), "runner.val_check_interval=2", "runner.report=true")
    return rlpipe.train(config, local=True).directory


@pytest.fixture(scope="module")
def page(run):
    return report([run])


# --- one run


def test_a_run_writes_its_report_when_it_ends(run):
    assert text_of((run / "report.html").read_text()).startswith(" scripted 2")  # the title: experiment and run id
    assert "completed" in text_of((run / "report.html").read_text())


def test_the_headline_is_the_number_that_compare_gives_with_its_interval(run, page):
    pooled = compare([run]).groups[0].pooled
    assert f"95 % interval [{pooled.low:.3f}, {pooled.high:.3f}] over {pooled.episodes} held-out" in text_of(page)
    assert f'<div class="figure">{pooled.value:.3f}</div>' in page


@pytest.mark.parametrize("count", [3, 4])
def test_a_few_numbers_of_the_task_stand_in_the_table_of_evaluations(tmp_path, count):
    numbers = {f"distance{index}": [5.0, 1.0] for index in range(count)}
    train = {"name": "scripted", "total_num_envs": 2, "script": [[{"length": 2, "metrics": numbers}]]}
    page = report([rlpipe.train(scripted(tmp_path, env={"train": train}), local=True).directory])
    table = page.partition("<h3>Evaluations</h3>")[2].partition("</table>")[0]
    assert ("metrics/distance0/mean" in table) == ("metrics/distance0/last" in table) == (count == 3)
    assert ("3.000" in table) == (count == 3)


def test_every_number_of_metrics_jsonl_is_in_the_curves_to_six_significant_digits(run, page):
    series = data_of(page, "curves")["runs"][0]["series"]
    for index, row in enumerate(lines(run, "metrics.jsonl")):
        for name, value in row["metrics"].items():
            at = series[name].get("at", [0, 1, 2, 3]).index(index)
            assert series[name]["y"][at] == float(f"{value:.6g}"), name


def test_pools_of_one_iteration_are_the_metrics_of_the_ledger(run):
    ledger = collect(run).ledger
    assert ledger is not None
    for pool in ledger.pools:
        wanted = from_ledger(run, "episodes.jsonl", m.ENV, pool.until)
        assert (pool.first, pool.episodes) == (pool.until, wanted["env/num_trajectories"])
        assert (pool.mean_return, pool.mean_length) == (wanted["env/return"], wanted["env/episode_len"])
        assert pool.success is not None
        assert pool.success[0] == wanted["env/success_once"]


def test_the_axes_are_steps_training_seconds_and_iterations(run, page):
    rows, axes = lines(run, "metrics.jsonl"), data_of(page, "curves")["runs"][0]["axes"]
    assert axes["steps"] == [row["total_timesteps"] for row in rows]
    assert axes["seconds"] == [round(row["metrics"]["time/time_elapsed"], 2) for row in rows]
    assert axes["iteration"] == [1, 2, 3, 4]


def test_a_metric_is_described_by_its_declaration(page):
    about = data_of(page, "curves")["metrics"]["env/return"]
    assert (about["unit"], about["meaning"]) == (m.ENV_EPISODE_RETURN.unit, m.ENV_EPISODE_RETURN.meaning)


def test_phases_of_the_driver_add_up_to_its_steps(run):
    steps = [row["metrics"]["time/step"] for row in lines(run, "metrics.jsonl")]
    assert sum(collect(run).phases.values()) == pytest.approx(sum(steps))


def test_keys_that_differ_from_their_defaults_stand_first(run):
    content = collect(run)
    assert content.settings is not None
    assert content.changed is not None
    assert content.changed["rollout.horizon"] == (16, 200)
    assert content.changed["env.train.name"] == ("scripted", "required")
    assert not {"policy.name", "curriculum.name", "env.eval.name", "rollout.inference"} & content.changed.keys()
    assert content.settings["runner.seed"] == 0


def test_all_sections_of_a_whole_run_are_there_in_their_order(page):
    headings = re.findall(r'<h2 id="[\w-]+">([^<]+)</h2>', page)
    assert headings == ["Success", "Curves", "Replays", "What to try next", "Health", "Where time went", "Episodes",
                        "Distributions", "Setup", "About this page"]  # fmt: skip


def test_a_baseline_stands_beside_the_result(run):
    record = {
        "policy": "random", "iteration": 0, "protocol": json.loads((run / "run.json").read_text())["protocol"],
        "episodes": [{**row, "iteration": 0, "success_once": False} for row in lines(run, "eval_episodes.jsonl")[-6:]],
    }  # fmt: skip
    file = write_record(run / "evaluations", record)
    try:
        assert "floor: random 0.000 [0.000, 0.390] n 6" in text_of(report([run]))
    finally:
        file.unlink()


def test_each_record_says_whose_policy_it_evaluated(run, tmp_path):
    copy = copied(run, tmp_path)
    protocol = json.loads((run / "run.json").read_text())["protocol"] | {"demonstrations": "demos/push.h5"}
    rows = lines(run, "eval_episodes.jsonl")[-6:]
    for policy in (None, "random", "replay", "my_policies:act", "a.onnx"):
        record = {"policy": policy, "iteration": 0 if policy else 4, "protocol": protocol, "episodes": rows}
        write_record(copy / "evaluations", record)
    text = text_of(report([copy]))
    labels = ["iteration 4", "floor: random", "floor: replay of push.h5", "my_policies:act", "a.onnx"]
    for number, label in enumerate(labels, 1):
        assert f"evaluations/{number}.json {label} success_once" in text
    assert text.count("floor: a.onnx") == text.count("floor: my_policies") == 0


def test_a_result_under_another_protocol_than_while_training_names_what_differs(run, tmp_path):
    copy = copied(run, tmp_path)
    protocol = json.loads((run / "run.json").read_text())["protocol"]
    record = {
        "policy": None, "iteration": 4, "protocol": protocol | {"deterministic_actions": False},
        "episodes": [row for row in lines(run, "eval_episodes.jsonl") if row["iteration"] == 4],
    }  # fmt: skip
    write_record(copy / "evaluations", record)
    differs = "by rlpipe evaluate (evaluations/1.json), which differs from the evaluations while training in "
    assert f"{differs}evaluation.deterministic." in text_of(report([copy]))


def test_of_very_many_alerts_the_gravest_are_shown_and_all_are_counted(run, tmp_path):
    copy = copied(run, tmp_path)
    for number in range(400):
        level = "critical" if number == 399 else "info"
        rest = {"value": 2.5, "demanded": "at most 1", "since": 2, "cause": "", "remedy": "", "cleared": False}
        data = {"metric": "train/loss", "rule": f"high{number}", "level": level, **rest}
        append(copy, {"kind": "alert", "message": "raised", "iteration": 2, "time": 1e9, "data": data})
    found = report([copy])
    assert "These are the gravest 300 of 400 alerts; events.jsonl has all of them." in text_of(found)
    assert "critical from 2 to the end" in found
    assert len(data_of(found, "curves")["runs"][0]["marks"]) < 20


def test_alerts_that_a_resume_took_back_are_not_shown(run, tmp_path):
    copy = copied(run, tmp_path)
    alert = {"metric": "train/loss", "rule": "high", "level": "critical", "value": 2.5, "demanded": "at most 1",
             "since": 3, "cause": "", "remedy": "", "cleared": False}  # fmt: skip
    append(copy, {"kind": "alert", "message": "raised", "iteration": 3, "time": 1e9, "data": alert})
    assert "critical from 3 to the end" in report([copy])
    append(copy, {"kind": "resumed", "message": "resumed", "iteration": 2, "time": 1e9, "data": {}})
    assert "critical from 3 to the end" not in report([copy])


def test_alerts_are_lanes_from_the_first_violation_to_the_end_of_it(run, tmp_path):
    copy = copied(run, tmp_path)
    alert = {"metric": "train/loss", "rule": "high", "level": "warn", "value": 2.5, "demanded": "at most 1",
             "since": 2, "cause": "the cause", "remedy": "the remedy", "cleared": False}  # fmt: skip
    append(copy, {"kind": "alert", "message": "raised", "iteration": 2, "time": 1e9, "data": alert})
    append(copy, {"kind": "alert", "message": "over", "iteration": 3, "time": 1e9, "data": {**alert, "cleared": True}})
    found = report([copy])
    assert "left:33.33%;width:33.33%" in found  # of iterations 1 to 4
    assert "train/loss warn 2 3 2.500 at most 1 the cause; try: the remedy" in text_of(found)
    marks = data_of(found, "curves")["runs"][0]["marks"]
    assert {"iteration": 2, "colour": "warn", "small": True, "dash": False} in marks


def test_time_between_the_end_and_a_resume_is_no_training_time(run, tmp_path):
    copy = copied(run, tmp_path)
    rows = lines(copy, "metrics.jsonl")
    for row in rows[2:]:
        row["time"] += 3600.0
    write_lines(copy / "metrics.jsonl", rows)
    change(copy / "run.json", incarnation=1)
    course = collect(copy).course
    assert course.dead_seconds == pytest.approx(3600.0, abs=1.0)
    assert course.axes["seconds"][-1] < 60
    assert "1:00:00 h between the end and the resume" in text_of(report([copy]))


# --- damage, failure, escaping


def test_a_run_without_rows_says_so_with_its_fault_and_its_configuration(tmp_path):
    options = ("rollout.simulator_retries=0", "env.train.at=3", "runner.report=true")
    with pytest.raises(RunError):
        rlpipe.train(faulty(tmp_path, "raise", *options), local=True)
    [file] = tmp_path.glob("scripted/*/report.html")
    text = text_of(file.read_text())
    assert "No iteration was completed, so there are no numbers to show." in text
    assert "The run failed after iteration 0." in text
    assert "the solver diverged while taking step 3 of 16" in text
    assert "env.train.fault raise" in text


def test_whatever_a_run_names_is_escaped(run, tmp_path):
    copy = copied(run, tmp_path)
    change(copy / "run.json", experiment=EVIL, git_commit=EVIL)
    append(copy, {"kind": EVIL, "message": EVIL, "iteration": 1, "time": 1e9, "data": {}})
    rows = lines(copy, "metrics.jsonl")
    for row in rows:
        row["metrics"][EVIL] = 1.0
        row["histograms"] = {EVIL: row["histograms"]["env/return_dist"]}
    write_lines(copy / "metrics.jsonl", rows)
    episodes = [{**row, "task": EVIL} for row in lines(copy, "episodes.jsonl")]
    write_lines(copy / "episodes.jsonl", episodes)
    found = report([copy])
    assert "<script>alert" not in found
    assert data_of(found, "curves")["runs"][0]["series"][EVIL]["y"] == [1, 1, 1, 1]
    assert data_of(found, "episodes")["listed"]["task"][0] == EVIL


def test_a_report_that_cannot_be_written_costs_the_run_nothing(tmp_path, monkeypatch, caplog):
    def fail(_: Any) -> None:
        raise ValueError("no report today")

    monkeypatch.setattr("rlpipe.report.pages.write", fail)
    result = rlpipe.train(scripted(tmp_path, "runner.report=true", "runner.total_timesteps=64"), local=True)
    assert result.status == "completed"
    assert f"could not be written: no report today. Try: rlpipe report {result.directory}" in caplog.text


# --- several runs, other systems


@pytest.fixture(scope="module")
def seeds(tmp_path_factory):
    folder = tmp_path_factory.mktemp("seeds")
    return [rlpipe.train(scripted(folder, f"runner.seed={n}"), local=True).directory for n in range(2)]


def test_a_run_that_wants_no_report_gets_none(seeds):
    assert not (seeds[0] / "report.html").exists()


def test_seeds_of_an_experiment_are_one_group_with_the_numbers_of_compare(seeds):
    found, comparison = report(seeds), compare(seeds)
    pooled = comparison.groups[0].pooled
    curves = data_of(found, "curves")
    assert (curves["groups"], [one["group"] for one in curves["runs"]]) == (["scripted"], [0, 0])
    assert [one["short"] for one in curves["runs"]] == ["seed 0", "seed 1"]
    wanted = f"scripted {pooled.value:.3f} [{pooled.low:.3f}, {pooled.high:.3f}] n 12, 2 seeds"
    assert wanted in text_of(found)


def test_small_curves_of_several_runs_say_where_they_end(seeds):
    rows = [json.loads((run / "metrics.jsonl").read_text().splitlines()[-1]) for run in seeds]
    low, high = sorted(row["metrics"]["train/actor/grad_norm"] for row in rows)
    assert 0.001 < low < high
    assert f"Last values: {digits(low)} to {digits(high)}." in text_of(report(seeds))


def test_differences_and_other_protocols_are_those_of_compare(seeds, tmp_path):
    other = rlpipe.train(
        scripted(tmp_path, "runner.logger.experiment_name=other", "evaluation.first_seed=7"), local=True
    ).directory
    text, comparison = text_of(report([*seeds, other])), compare([*seeds, other], anyway=True)
    one = comparison.differences[0]
    assert f"other {'+' if one.value > 0 else ''}{one.value:.3f}" in text
    assert comparison.warnings[0] in text
    assert "rollout.horizon" not in text.partition("Configuration keys that differ")[2]
    assert "evaluation.first_seed 1000000 1000000 7" in text


def test_runs_that_cannot_be_compared_are_shown_side_by_side_with_the_reason(seeds, tmp_path):
    copy = copied(seeds[0], tmp_path)
    change(copy / "run.json", status="interrupted")
    assert "These runs are not compared." in text_of(report([seeds[1], copy]))
    curves = data_of(report([seeds[1], copy]), "curves")
    assert (curves["groups"], [one["group"] for one in curves["runs"]]) == (["scripted"], [0, 0])  # only their seed
    config = copy / "config.yaml"
    config.write_text(re.sub(r"\blr: .*", "lr: 0.03", config.read_text()))
    curves = data_of(report([seeds[1], copy]), "curves")
    assert [one["group"] for one in curves["runs"]] == [0, 1]
    assert [name.partition(" (")[0] for name in curves["groups"]] == ["scripted", "scripted"]


def a_log(folder: Path) -> Path:
    folder.mkdir(parents=True)
    rows = ["time/total_timesteps,rollout/ep_rew_mean", *(f"{10 * n},{0.1 * n}" for n in range(1, 6))]
    (folder / "progress.csv").write_text("\n".join(rows) + "\n")
    return folder


def test_logs_in_folders_of_the_same_name_are_not_averaged(tmp_path):
    logs = [a_log(tmp_path / name / "PPO_1") for name in ("one", "two")]
    curves = data_of(report(logs), "curves")
    assert curves["groups"] == ["PPO_1 (one/PPO_1)", "PPO_1 (two/PPO_1)"]
    assert [one["group"] for one in curves["runs"]] == [0, 1]


def test_curves_of_runs_that_share_no_axis_are_drawn_over_their_reports(tmp_path, run):
    copy = copied(run, tmp_path)
    content = [collect(copy), collect(a_log(tmp_path / "PPO"))]
    for name in ("steps", "seconds"):
        del content[0].course.axes[name]
    data = curves_data(content, ["a", "b"], [0, 1], CurveDetail())
    assert data["axes"] == ["row"]
    assert [one["axes"]["row"] for one in data["runs"]] == [[1, 2, 3, 4], [1, 2, 3, 4, 5]]


def test_an_axis_on_which_nothing_goes_on_is_left_out(run):
    content = collect(run)
    content.course.axes["steps"][:] = [0] * 4  # as while cloning
    assert axes_of([content]) == ["seconds", "iteration"]


def test_short_curves_of_several_runs_keep_all_their_values(seeds):
    contents = [collect(seed) for seed in seeds]
    data = curves_data(contents, ["a"], [0, 0], CurveDetail(3))
    evaluations = len(contents[0].course.series["eval/return"])
    assert evaluations < 3 < len(contents[0].course.series["env/return"])
    assert [len(one["series"]["eval/return"]["y"]) for one in data["runs"]] == [evaluations] * 2
    assert [one["series"]["env/return"]["at"] for one in data["runs"]] == [[1, 3]] * 2


def test_a_log_of_stable_baselines3_has_curves_and_a_diagnosis_and_says_what_is_absent(tmp_path):
    rows = ["time/total_timesteps,rollout/ep_rew_mean,train/approx_kl,train/loss"]
    rows += [f"{2048 * n},{20.5 + n},{0.5},{3.25}" for n in range(1, 8)]
    (tmp_path / "progress.csv").write_text("\n".join(rows) + "\n")
    found = report([tmp_path])
    text = text_of(found)
    assert "Stable-Baselines3" in text
    assert "no episodes, no configuration, no events and no times" in text
    assert data_of(found, "curves")["runs"][0]["axes"] == {"steps": [2048 * n for n in range(1, 8)]}
    assert data_of(found, "curves")["runs"][0]["series"]["train/actor/approx_kl"]["y"] == [0.5] * 7
    headings = re.findall(r'<h2 id="[\w-]+">([^<]+)</h2>', found)
    assert headings == ["Return", "Curves", "What to try next", "Health", "About this page"]
    assert "<h3>Events</h3>" not in found
    assert "train/actor/approx_kl 0.5000 healthy" in text


# --- room


def test_a_long_curve_keeps_the_lowest_and_the_highest_value_of_its_parts():
    series = Series()
    for n in range(100):
        series.add(n, 1000.0 if n == 37 else -5.0 if n == 38 else float(n % 2))
    thin = series.thinned(20)
    assert len(thin) <= 20
    assert (1000.0 in thin.values, -5.0 in thin.values) == (True, True)
    assert all(series.values[at] == value for at, value in zip(thin.at, thin.values, strict=True))


def big_ledger(run: Path, folder: Path, episodes: int) -> Path:
    """A copy of a run whose last row has so many episodes; every third one failed."""
    copy = copied(run, folder)
    first = lines(run, "episodes.jsonl")[0]
    line = json.dumps({**first, "iteration": 4, "success_once": "S", "length": "L"})
    outcomes = ("true", "true", "false")
    kinds = [line.replace('"S"', outcome).replace('"L"', str(n + 1)) + "\n" for n, outcome in enumerate(outcomes)]
    with (copy / "episodes.jsonl").open("w") as file:
        for at in range(0, episodes, 3000):
            file.write("".join(kinds[n % 3] for n in range(at, min(at + 3000, episodes))))
    rows = lines(copy, "metrics.jsonl")
    rows[-1]["metrics"]["time/total_episodes"] = float(episodes)
    write_lines(copy / "metrics.jsonl", rows)
    return copy


def test_of_many_episodes_all_are_counted_and_the_page_says_which_are_shown(run, tmp_path, monkeypatch):
    copy = big_ledger(run, tmp_path, 9000)
    for name, number in (("MOST_NEWEST", 30), ("MOST_FAILURES", 20), ("MOST_POINTS", 100)):
        monkeypatch.setattr(f"rlpipe.report.ledger.{name}", number)
    found = report([copy])
    text, data = text_of(found), data_of(found, "episodes")
    assert "9,000 training episodes ended. 6,000 of 9,000 succeeded." in text
    assert "50 of 9,000 episodes: the newest 30, and the newest 20 failures before them." in text
    assert "All in all, 3,000 failed." in text
    assert "8,950 of 9,000 training episodes are not in the table" in text
    assert data["listed"]["success_once"][:20] == [False] * 20
    assert len(data["points"]["length"]) == 100
    ledger = collect(copy).ledger
    assert ledger is not None
    assert (ledger.pools[-1].episodes, ledger.pools[-1].mean_length) == (9000, 2.0)


def test_the_first_chart_of_a_curriculum_shows_both_kinds_of_starts(run, tmp_path):
    copy = copied(run, tmp_path)
    rows = [row | {"chosen": n % 3 > 0} for n, row in enumerate(lines(run, "episodes.jsonl"))]
    write_lines(copy / "episodes.jsonl", rows)
    page = report([copy])
    found = data_of(page, "curves")["runs"][0]
    for kind, pools in ((False, "pools"), (True, "elsewhere")):
        assert sum(pool["episodes"] for pool in found[pools]) == sum(row["chosen"] == kind for row in rows)
    for text in ("from the task's own starts", "from the curriculum's starts"):
        assert f"training, {text}" in text_of(page)
    assert "training, single iterations" not in text_of(page)


def test_few_episodes_in_an_iteration_are_pooled_over_more_of_them():
    steps = {"iteration": [*map(float, range(1, 161))]}

    def width(each: float) -> int:
        counts = Series(array("l", range(160)), array("d", [each] * 160))
        return pool_width(Course(steps, {"count": counts}), "count")

    assert width(each=100.0) == 3  # 60 parts
    assert width(each=2.0) == 15  # 30 episodes
    assert width(each=1.0) == 20  # 8 parts
    assert width(each=0.0) == 20


def test_a_warning_looks_in_the_legend_as_in_the_chart(run, page, tmp_path):
    copy = copied(run, tmp_path)
    data = {"metric": "train/loss", "rule": "high", "level": "warn", "value": 2.0, "cleared": False}
    append(copy, {"kind": "alert", "message": "raised", "iteration": 2, "time": 1e9, "data": data})
    warned = report([copy])
    assert '<span class="key triangle" style="color: var(--warn)"></span>warning (' in warned
    assert '<span class="key dot" style="color: var(--series-2)"></span>evaluation' in page


def test_metrics_that_stay_the_same_stand_in_one_line(page):
    assert "The same in every iteration: " in text_of(page)
    assert 'data-small-chart="time/workers_reporting"' not in page


def test_episodes_from_chosen_starts_are_told_apart_and_count_in_no_success(run, tmp_path):
    copy = copied(run, tmp_path)
    episodes = lines(run, "episodes.jsonl")
    for n, row in enumerate(episodes):
        row["success_once"] = n % 2 == 0  # and only those of chosen starts
        if n % 2 == 0:
            row |= {"chosen": True, "demonstration": 3, "demonstration_step": 0, "blend": 0.25}
    episodes[2]["towards"] = 5
    write_lines(copy / "episodes.jsonl", episodes)
    found, own = report([copy]), len(episodes) // 2
    chosen = len(episodes) - own
    assert f"{chosen} of them began where the curriculum chose. 0 of {own} others succeeded." in text_of(found)
    assert f"0 successful of {own} from the task's own starts" in text_of(found)
    began = data_of(found, "episodes")["listed"]["began"]
    assert began[:2] == ["demonstration 3, step 0, blend 0.25", "as the task begins"]
    assert began[2] == "demonstration 3, step 0, blend 0.25 towards demonstration 5"
    assert began.count("as the task begins") == own


def test_a_page_without_room_drops_what_matters_least_and_says_so(run, monkeypatch):
    whole = report([run])
    monkeypatch.setattr("rlpipe.report.pages.MOST_BYTES", len(whole.encode()) - 1)
    small = report([run])
    assert len(small.encode()) < len(whole.encode())
    monkeypatch.setattr("rlpipe.report.pages.MOST_BYTES", 1)
    least = report([run])
    assert re.search(r"Curves of \d+ of \d+ metrics, for which there was no room", text_of(least))
    assert "env/return" in data_of(least, "curves")["runs"][0]["series"]


def test_a_page_of_less_than_10_mb_stops_growing_with_the_number_of_episodes(run, tmp_path):
    """Above the numbers that are shown, so that two million episodes need no more room than twelve thousand."""
    sizes = []
    for episodes in (12_000, 48_000):
        copy = big_ledger(run, tmp_path / str(episodes), episodes)
        assert command("report", str(copy)).code == 0
        sizes.append((copy / "report.html").stat().st_size)
        assert f"{episodes:,} training episodes ended." in text_of((copy / "report.html").read_text())
    assert max(sizes) < 10_000_000
    assert sizes[1] == pytest.approx(sizes[0], rel=0.02)  # longer numbers


# --- the command


def test_the_command_writes_the_report_into_the_run_and_names_it(run, tmp_path):
    copy = copied(run, tmp_path)
    (copy / "report.html").unlink()
    answer = command("report", str(copy))
    assert (answer.code, answer.out.split()) == (0, ["report", str(copy / "report.html")])
    assert (copy / "report.html").is_file()


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["nowhere"], "there is no nowhere"),
        (["."], ". holds no log"),
        (["RUN", "--out", "missing/report.html"], "there is no folder missing"),
    ],
)
def test_what_cannot_be_reported_is_refused_and_nothing_is_written(run, tmp_path, monkeypatch, arguments, complaint):
    monkeypatch.chdir(tmp_path)
    answer = command("report", *(str(run) if one == "RUN" else one for one in arguments))
    assert (answer.code, list(tmp_path.iterdir())) == (2, [])
    assert complaint in answer.err


def test_what_writes_reports_loads_neither_matplotlib_nor_torch_nor_templates_when_it_is_imported():
    heavy = ("matplotlib", "torch", "jinja2")
    code = f"import sys, rlpipe.report.pages; print([name for name in {heavy} if name in sys.modules])"
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert answer.stdout.strip() == "[]"


# --- helpers


def copied(run: Path, folder: Path) -> Path:
    return Path(shutil.copytree(run, folder / run.name))


def write_lines(file: Path, rows: list[dict[str, Any]]) -> None:
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))


def append(run: Path, event: dict[str, Any]) -> None:
    with (run / "events.jsonl").open("a") as file:
        file.write(json.dumps(event) + "\n")


def change(file: Path, **values: Any) -> None:
    file.write_text(json.dumps({**json.loads(file.read_text()), **values}))
