"""``rlpipe export``: what a notebook reads is what the run directory says."""

from __future__ import annotations

import csv
import sys
import tempfile
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyarrow import parquet
from typer.testing import CliRunner

import rlpipe
from rlpipe.cli import app
from rlpipe.cli import export as command
from rlpipe.config.tree import to_yaml
from rlpipe.errors import ConfigError
from rlpipe.metrics.row import Row
from rlpipe.run.directory import RunDirectory, read_jsonl
from rlpipe.trajectory import Episode
from tests.helpers.runs import scripted

TABLES = ("metrics", "episodes", "eval_episodes", "events")


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> RunDirectory:
    """A run with series of single workers, and with an evaluation in every other iteration."""
    overrides = ("runner.logger.per_worker=true", "rollout.num_workers=2", "runner.val_check_interval=2")
    config = scripted(tmp_path_factory.mktemp("runs"), *overrides)
    return RunDirectory(rlpipe.train(config, local=True).directory)


@pytest.fixture
def made(tmp_path):
    """Makes a run directory of given lines."""

    def make(**lines: list[dict[str, Any]]) -> RunDirectory:
        directory = RunDirectory(tmp_path / "made")
        directory.path.mkdir()
        (directory.path / "config.yaml").write_text(to_yaml(scripted(tmp_path)), encoding="utf-8")
        directory.write_json({"status": "running"})
        for name, rows in lines.items():
            directory.append(f"{name}.jsonl", rows)
        return directory

    return make


def exported(run: RunDirectory, *options: str) -> str:
    """Output of the command."""
    result = CliRunner().invoke(app, ["export", str(run.path), *options], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output


def table(run: RunDirectory, name: str) -> pa.Table:
    return parquet.read_table(run.path / "export" / f"{name}.parquet")


def rows(read: pa.Table) -> list[dict[str, Any]]:
    """Rows without what is absent."""
    return [{name: value for name, value in row.items() if value is not None} for row in read.to_pylist()]


def types(read: pa.Table) -> dict[str, str]:
    return {field.name: str(field.type) for field in read.schema}


def without_absent(row: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in row.items() if value is not None and value != {}}


# --- what stands in the tables


def test_a_row_of_metrics_holds_every_number_of_its_iteration_and_nothing_else(run):
    exported(run)
    said = [Row.from_json(line) for line in read_jsonl(run.path / "metrics.jsonl")]
    assert rows(table(run, "metrics")) == [
        {"iteration": row.iteration, "total_timesteps": row.total_timesteps, "time": row.time, **row.series}
        for row in said
    ]
    assert "workers/1/env/return" in table(run, "metrics").column_names
    assert ["eval/return" in row.metrics for row in said] == [False, True, False, True]


def test_numbers_of_metrics_are_floats_and_counts_are_integers(run):
    exported(run)
    found = types(table(run, "metrics"))
    assert [found.pop(name) for name in ("iteration", "total_timesteps")] == ["int64", "int64"]
    assert set(found.values()) == {"double"}


@pytest.mark.parametrize("name", ["episodes", "eval_episodes"])
def test_a_row_of_episodes_is_a_line_of_the_ledger(run, name):
    exported(run)
    said = list(read_jsonl(run.path / f"{name}.jsonl"))
    assert rows(table(run, name)) == [without_absent(line) for line in said]


def test_columns_of_the_ledger_have_their_types_also_where_all_of_them_are_absent(run):
    exported(run)
    found = types(table(run, "eval_episodes"))
    assert table(run, "eval_episodes")["fail_once"].null_count == 12
    for kind, names in {
        "bool": ("success_once", "success_at_end", "terminated", "truncated", "fail_once", "fail_at_end"),
        "int64": ("iteration", "worker", "slot", "seed", "policy_version", "length", "step", "first_success"),
        "double": ("return", "log_prob"),
    }.items():
        assert {found[name] for name in names} == {kind}


def test_terms_of_the_reward_are_columns(made):
    episode = {**EPISODE, "iteration": 1, "return": 3.0, "length": 2}
    terms = [{"reach": 1.0, "grasp": 2.0}, {"reach": 3.0}, {"reach": None}]
    run = made(episodes=[{**episode, "reward_terms": said} for said in terms])
    exported(run)
    read = table(run, "episodes")
    assert read["reward_terms/reach"].to_pylist() == [1.0, 3.0, None]
    assert read["reward_terms/grasp"].to_pylist() == [2.0, None, None]
    assert not {"reward_terms", "metrics", "variations"} & {*read.column_names}


def test_what_events_say_is_columns_and_what_has_no_common_type_is_text(made):
    said: list[dict[str, Any]] = [{"until": 2, "x": 1}, {"value": 1, "x": "y"}, {"value": 0.5, "cleared": True}, {}]
    events = [{"kind": "k", "message": "m, \n", "iteration": 0, "time": 1.5, "data": data} for data in said]
    run = made(events=[*events, {**events[0], "data": {"list": [1, 2], "cause": None}}])
    exported(run)
    read = table(run, "events")
    assert types(read) == {
        "kind": "string", "message": "string", "iteration": "int64", "time": "double", "data/until": "int64",
        "data/x": "string", "data/value": "double", "data/cleared": "bool", "data/list": "string",
        "data/cause": "string",
    }  # fmt: skip
    assert read["data/x"].to_pylist() == ["1", "y", None, None, None]
    assert read["data/list"].to_pylist()[-1] == "[1, 2]"
    assert read["message"].to_pylist()[0] == "m, \n"


def in_csv(run: RunDirectory, name: str) -> list[dict[str, Any]]:
    """Rows of a table, read with the types that the Parquet file has."""
    python = {"bool": lambda text: text == "True", "int64": int, "double": float, "string": str}
    kinds = types(table(run, name))
    with (run.path / "export" / f"{name}.csv").open(newline="", encoding="utf-8") as file:
        return [
            {column: python[kinds[column]](text) for column, text in line.items() if text}
            for line in csv.DictReader(file)
        ]


def test_csv_holds_the_same_as_parquet(run):
    exported(run)
    exported(run, "--format", "csv")
    for name in TABLES:
        assert in_csv(run, name) == rows(table(run, name))


EPISODE = Episode(
    worker=0, slot=0, seed=1, policy_version=0, episode_return=0.0, length=1, success_once=None, success_at_end=None,
    success_at_reset=None, terminated=True, truncated=False,
).as_row(1)  # fmt: skip
numbers = st.none() | st.floats(allow_nan=False, allow_infinity=False)
episodes = st.fixed_dictionaries(
    {"iteration": st.integers(1, 9), "seed": st.none() | st.integers(-(2**63), 2**63 - 1), "return": numbers},
    optional={
        "success_once": st.none() | st.booleans(),
        "reward_terms": st.dictionaries(st.text('ab ,"/é\n', min_size=1), numbers),
    },
)


@settings(max_examples=15)
@given(st.lists(episodes, max_size=7), st.integers(1, 60))
def test_every_value_comes_back_to_the_last_digit_in_either_format(said, at_once):
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(command, "VALUES_AT_ONCE", at_once)
        run = RunDirectory(Path(folder))
        (run.path / "config.yaml").touch()
        run.write_json({})
        said = [EPISODE | line for line in sorted(said, key=lambda line: line["iteration"])]
        run.append("episodes.jsonl", said)
        exported(run)
        exported(run, "--format", "csv")
        flat = []
        for line in said:
            terms = {f"reward_terms/{name}": value for name, value in line.pop("reward_terms", {}).items()}
            flat.append(without_absent(line | terms))
        assert repr(ordered(rows(table(run, "episodes")))) == repr(ordered(flat))
        assert repr(in_csv(run, "episodes")) == repr(rows(table(run, "episodes")))  # -0.0 is equal to 0.0


def ordered(lines: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [dict(sorted(line.items())) for line in lines]


# --- runs that go on, long runs


def test_a_line_that_is_being_written_is_left_out(made):
    row = {"iteration": 1, "total_timesteps": 64, "time": 1.0, "metrics": {"a": 1.0}}
    run = made(metrics=[row, {**row, "iteration": 2}])
    with (run.path / "metrics.jsonl").open("a") as file:
        file.write('{"iteration": 3, "metr')
    assert "damaged" not in exported(run)
    assert table(run, "metrics")["iteration"].to_pylist() == [1, 2]


def test_lines_that_come_meanwhile_are_left_out_too(made):
    run = made(metrics=[{"iteration": n, "total_timesteps": n, "time": 1.0, "metrics": {"a": 1.0}} for n in (1, 2)])
    file = run.path / "metrics.jsonl"
    with file.open("rb") as opened:
        source = command._Source(file, dict, {}, None, opened)
        assert len(list(source)) == 2
        run.append("metrics.jsonl", [{"iteration": 3, "total_timesteps": 3, "time": 1.0, "metrics": {"a": 1.0}}])
        assert len(list(source)) == 2
        file.unlink()  # as a resume replaces it
        assert len(list(source)) == 2


def test_a_damaged_line_is_refused_before_any_table_is_made(made):
    run = made(events=[{"kind": "a", "message": "b", "iteration": 0, "time": 1.0, "data": {}}])
    with (run.path / "events.jsonl").open("a") as file:
        file.write('{"kind": "st{"kind": "c"}\n')
    with pytest.raises(ConfigError, match=r"events\.jsonl, line 2 is not JSON"):
        exported(run)
    assert not (run.path / "export").exists()


def test_a_run_without_episodes_has_empty_tables_with_all_columns(made):
    run = made()
    exported(run)
    assert table(run, "episodes").num_rows == 0
    assert types(table(run, "episodes"))["success_once"] == "bool"


def test_a_long_run_is_written_in_parts(run, monkeypatch):
    exported(run)
    whole = [table(run, name) for name in TABLES]
    monkeypatch.setattr(command, "VALUES_AT_ONCE", 75)  # three episodes of 25 values
    exported(run)
    assert [table(run, name) for name in TABLES] == whole
    assert parquet.ParquetFile(run.path / "export" / "episodes.parquet").num_row_groups == -(-whole[1].num_rows // 3)


# --- what the command says and refuses


@pytest.mark.parametrize("form", ["parquet", "csv"])
def test_it_ends_with_a_line_that_reads_the_metrics_in_pandas(run, tmp_path, form):
    pytest.importorskip("pandas")
    said = exported(run, "--format", form, "--out", str(tmp_path / "it's"))
    assert f"metrics.{form}" in said
    names: dict[str, Any] = {}
    exec(said.strip().splitlines()[-1].partition("in pandas: ")[2], names)
    truth = [row["metrics"]["train/loss"] for row in read_jsonl(run.path / "metrics.jsonl")]
    assert names["metrics"]["train/loss"].tolist() == truth


def test_it_says_how_large_each_table_is(run):
    lines = [line.split() for line in exported(run).splitlines()]
    episodes = len(list(read_jsonl(run.path / "episodes.jsonl")))
    assert [line[1:3] for line in lines if line[:1] == ["episodes.parquet"]] == [[str(episodes), "25"]]


def refused(*arguments: str) -> str:
    with pytest.raises(ConfigError) as error:
        CliRunner().invoke(app, ["export", *arguments], catch_exceptions=False)
    return str(error.value)


def test_what_is_no_run_directory_is_refused(tmp_path):
    assert "is not a run directory" in refused(str(tmp_path))
    assert list(tmp_path.iterdir()) == []


def test_an_unknown_format_is_refused_with_the_nearest(run):
    assert refused(str(run.path), "--format", "parkett") == (
        "--format is 'parkett'; legal are parquet, csv, onnx; did you mean 'parquet'?"
    )


def test_a_folder_that_cannot_be_made_is_refused(run, tmp_path):
    (tmp_path / "file").touch()
    assert "--out: cannot create the folder" in refused(str(run.path), "--out", str(tmp_path / "file"))


def test_without_pyarrow_the_command_to_install_it_comes_before_anything_is_written(made, monkeypatch):
    run = made()
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    assert "pip install 'rlpipe[parquet]'" in refused(str(run.path))
    assert not (run.path / "export").exists()
    exported(run, "--format", "csv")


def test_a_run_that_cannot_be_exported_any_more_keeps_the_old_tables(made):
    row = {"iteration": 1, "total_timesteps": 64, "time": 1.0, "metrics": {"a": 1.0}}
    run = made(metrics=[row])
    exported(run)
    run.append("metrics.jsonl", [{**row, "iteration": "two"}])
    with pytest.raises(ConfigError, match="line 2: iteration is 'two'"):
        exported(run)
    assert [file.name for file in (run.path / "export").iterdir() if file.name.startswith(".")] == []
    assert table(run, "metrics")["iteration"].to_pylist() == [1]
