"""The SwanLab backend: what is special to it. The rest is in ``test_contract``."""

from __future__ import annotations

import asyncio
import json

import pytest
from swanboard.controller.experiment import get_experiment_summary, get_experimet_charts, get_recent_logs, get_tag_data
from swanboard.controller.project import get_project_charts
from swanboard.db.models import Experiment
from swanlab.proto.swanlab.record.v1.record_pb2 import Record
from swanlab.proto.swanlab.run.v1.run_pb2 import RunState
from swanlab.sdk.internal.core_python.store import DataStoreReader

import rlpipe
from rlpipe.backends.base import RunInfo, unescaped
from rlpipe.backends.swanlab import Mode, SwanLab, SwanLabOptions
from rlpipe.config.loading import load_config
from rlpipe.metrics.row import Event, Row
from rlpipe.run.directory import RunDirectory, read_jsonl
from rlpipe.run.follower import Follower
from tests.helpers.backends import sync
from tests.helpers.runs import scripted

KEY = "a-secret-key-of-swanlab"


def run_info(tmp_path, mode=Mode.local, first_iteration=1, run_id="r1"):
    directory = tmp_path / "e" / run_id
    directory.mkdir(parents=True, exist_ok=True)
    return RunInfo(
        run_id, "e", "my project", directory, "learner: {lr: 0.001}", 20, 2000, first_iteration, (),
        options=SwanLabOptions(mode=mode),
    )  # fmt: skip


def row(iteration, **metrics):
    return Row(iteration, 100 * iteration, 1767225600.5, {"env/return": 0.1 * iteration, **metrics})


def page(tmp_path, answer, *arguments):
    """Answer of the dashboard's server for the folder."""
    import swanboard.settings

    swanboard.settings.SWANLOG_DIR = str(tmp_path / "swanlab")
    return json.loads(answer(*arguments).body)["data"]


def curve(tmp_path, metric, experiment=1):
    return [(point["index"], point["data"]) for point in page(tmp_path, get_tag_data, experiment, metric)["list"]]


def records(folder):
    """Everything in the one file that ``swanlab sync`` would send."""
    (file,) = folder.rglob("run-*.swanlab")
    reader = DataStoreReader()
    reader.open(file)
    return [Record.FromString(found) for found in reader]


def test_a_row_is_on_the_page_as_soon_as_it_is_written_in_the_section_of_its_name(tmp_path):
    backend = SwanLab(run_info(tmp_path))
    backend.write(row(1, **{"train/actor/loss": 2.0, "odd": 3.0, "env/成功.率": 4.0}))
    assert curve(tmp_path, "env/成功.率") == [(1, 4.0)]
    sections = page(tmp_path, get_experimet_charts, 1)["namespaces"]
    assert [(shown["name"], len(shown["charts"])) for shown in sections] == [
        ("train/actor", 1),  # health comes first
        ("env", 2),
        ("default", 1),
    ]
    backend.write(row(2, **{"eval/return": 5.0}))
    assert [shown["name"] for shown in page(tmp_path, get_experimet_charts, 1)["namespaces"]][:2] == [
        "train/actor",
        "eval",
    ]


def test_opening_a_curve_again_cuts_it_and_goes_on_on_it(tmp_path):
    backend = SwanLab(run_info(tmp_path))
    for iteration in range(1, 2006):
        backend.write(row(iteration))
    (folder,) = (tmp_path / "swanlab").glob("*/logs/1")
    (folder / "000002.log").open("a").write('{"index": 2006, "da')
    assert SwanLab.reached(run_info(tmp_path)) is None
    again = SwanLab(run_info(tmp_path, first_iteration=2004))
    again.write(row(2004))
    assert curve(tmp_path, "env/return")[-1] == (2004, pytest.approx(200.4))
    assert sum(len(file.read_text().splitlines()) for file in folder.glob("*.log")) == 2004
    assert len(list(Experiment.select())) == 1


def test_a_metric_that_is_all_cut_off_does_not_break_the_page(tmp_path):
    backend = SwanLab(run_info(tmp_path))
    backend.write(row(1))
    backend.write(row(2, **{"eval/return": 5.0}))
    SwanLab(run_info(tmp_path, first_iteration=2))
    shown = {last["key"]: last["value"] for last in page(tmp_path, get_experiment_summary, 1)["summaries"]}
    assert shown == {"env/return": 0.1, "eval/return": "TypeError"}  # so the page says of what has no points


def test_runs_of_one_folder_are_compared_in_one_chart(tmp_path):
    for run_id in ("r1", "r2"):
        SwanLab(run_info(tmp_path, run_id=run_id)).write(row(1))
    (chart,) = json.loads(asyncio.run(get_project_charts(1)).body)["data"]["charts"]
    assert (chart["name"], chart["source"]) == ("env/return", ["r1 e", "r2 e"])


def test_a_run_that_a_user_deleted_on_the_page_is_shown_from_its_beginning(tmp_path):
    assert SwanLab.reached(run_info(tmp_path)) == 0
    SwanLab(run_info(tmp_path)).write(row(1))
    Experiment.delete().execute()
    assert SwanLab.reached(run_info(tmp_path)) == 0
    SwanLab(run_info(tmp_path)).write(row(1))
    assert curve(tmp_path, "env/return") == [(1, 0.1)]


@pytest.mark.parametrize(("status", "shown"), [("completed", 1), ("stopped", -1), ("failed", -1), ("running", 0)])
def test_the_page_says_how_the_run_ended(tmp_path, status, shown):
    SwanLab(run_info(tmp_path)).close(status)
    assert Experiment.select().first().status == shown
    SwanLab(run_info(tmp_path))
    assert Experiment.select().first().status == Experiment.RUNNING_STATUS


def test_an_event_that_comes_again_stands_in_the_log_once(tmp_path):
    for _ in range(2):
        backend = SwanLab(run_info(tmp_path))
        backend.event(Event("alert", "train/kl is 0.06\nand rises", 3, 4.0, {"metric": "train/kl", "level": "warn"}))
        backend.event(Event("resumed", "Goes on.", 6, 7.0))
    assert page(tmp_path, get_recent_logs, 1)["logs"] == [
        "00:00:04.000000 warn: train/kl is 0.06 and rises",
        "00:00:07.000000 resumed: Goes on.",
        "",
    ]


def follow_offline(run):
    follower = Follower(run, "swanlab", {"mode": "offline"})
    assert follower.catch_up()
    follower.close()


def test_an_offline_run_that_is_made_longer_stands_once_in_the_file_to_be_sent(tmp_path):
    run = RunDirectory(rlpipe.train(scripted(tmp_path), local=True).directory)
    follow_offline(run)
    longer = load_config(run.path / "config.yaml", ["runner.total_timesteps=384"])
    rlpipe.train(longer, local=True, resume=run.path)
    follow_offline(run)
    found = records(tmp_path / "swanlab" / "offline")
    points = [(r.scalar.step, unescaped(r.scalar.key), r.scalar.value.number) for r in found if r.HasField("scalar")]
    truth = [
        (r["iteration"], *number) for r in read_jsonl(run.path / "metrics.jsonl") for number in r["metrics"].items()
    ]
    assert sorted(points) == sorted(truth)
    assert found[0].start.id == f"scripted-{run.run_id}"
    assert found[-1].finish.state == RunState.RUN_STATE_FINISHED


def test_an_offline_row_is_on_the_disk_as_soon_as_it_is_written_and_at_its_own_time(tmp_path):
    backend = SwanLab(run_info(tmp_path, Mode.offline))
    backend.write(row(1, **{"a.": 2.0}))
    *_, column, scalar = records(tmp_path)
    assert (column.column.column_key, scalar.scalar.key) == ("a_x2e_", "a_x2e_")
    assert scalar.scalar.timestamp.ToNanoseconds() == 1767225600_500_000_000


@pytest.mark.soak
def test_a_cloud_that_does_not_answer_ends_the_sync_without_a_question_and_the_key_is_nowhere(tmp_path, monkeypatch):
    monkeypatch.setenv("SWANLAB_API_KEY", KEY)
    monkeypatch.setenv("SWANLAB_API_HOST", "http://127.0.0.1:9")
    run = RunDirectory(rlpipe.train(scripted(tmp_path), local=True).directory)
    at_once = "from urllib3 import Retry; Retry.get_backoff_time = lambda _: 0"  # it tries for 15 s
    answer = sync(run, "swanlab", "mode=cloud", after=at_once)
    assert answer.returncode != 0
    assert "127.0.0.1" in answer.stderr
    assert KEY not in answer.stdout + answer.stderr
    assert not [file for file in tmp_path.rglob("*") if file.is_file() and KEY.encode() in file.read_bytes()]
