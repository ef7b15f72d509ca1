"""The MLflow backend: what is special to a store that forgets nothing. The rest is in ``test_contract``."""

from __future__ import annotations

import multiprocessing
from dataclasses import replace

import pytest

from rlpipe.backends.base import NameRules, RunInfo
from rlpipe.backends.mlflow import MLflow
from rlpipe.metrics.row import Event, Row
from tests.helpers.stores.mlflow import held, shown

NAMES = ("env/success rate", "a:b", "p^2", "é", "_x41_", "a//b", "/a", "../a", "a/")


@pytest.fixture(scope="module")
def log_path(tmp_path_factory):
    """A folder of runs; MLflow takes seconds to make a database, so there is one for all tests."""
    return tmp_path_factory.mktemp("runs")


def run_info(log_path, run_id, config_yaml="env: {name: scripted, limits: [1, 2]}"):
    directory = log_path / "e" / run_id
    directory.mkdir(parents=True, exist_ok=True)
    return RunInfo(
        run_id,
        "e",
        "p",
        directory,
        config_yaml,
        20,
        2000,
        1,
        (),
        options=MLflow.Config(),
        created="2026-01-01T00:00:00+00:00",
    )


def row(iteration, **metrics):
    return Row(iteration, 100 * iteration, 1767225600.0 + iteration, metrics)


def write_five(log_path, run_id):
    backend = MLflow(run_info(log_path, run_id))
    for iteration in range(1, 6):
        backend.write(row(iteration, **{f"env/m{i}": i / iteration for i in range(80)}))
    backend.close("completed")


@pytest.mark.soak
def test_two_runs_that_begin_a_database_at_once_and_write_to_it_both_stand_there(log_path):
    processes = [multiprocessing.get_context("spawn").Process(target=write_five, args=(log_path, n)) for n in "ab"]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    assert [process.exitcode for process in processes] == [0, 0]
    for run_id in "ab":
        numbers = shown(*held(log_path, run_id, "p"))
        assert {i: len(metrics) for i, metrics in numbers.items()} == dict.fromkeys(range(1, 6), 80)


@pytest.mark.soak
def test_two_runs_with_one_id_that_began_at_other_moments_are_two(log_path):
    first = run_info(log_path, "same")
    second = replace(first, experiment="another", created="2026-01-01T00:00:00.250000+00:00")
    for run, iterations in ((first, 3), (second, 1)):
        backend = MLflow(run)
        for iteration in range(1, iterations + 1):
            backend.write(row(iteration, m=0.5))
        backend.close("completed")
    assert (MLflow.reached(first), MLflow.reached(second)) == (3, 1)


def test_an_iteration_that_was_cut_off_is_not_held_yet_and_stands_there_once_after_it_is_written_again(log_path):
    from mlflow.entities import Metric

    run = run_info(log_path, "cut")
    MLflow(run).write(row(1, a=1.0, b=2.0))
    client, found = held(log_path, "cut", "p")
    client.log_batch(found.info.run_id, [Metric("a", 3.0, int(1000 * row(2).time), 2)])
    assert MLflow.reached(run) == 1
    MLflow(run).write(row(2, a=3.0, b=4.0))
    assert MLflow.reached(run) == 2
    assert shown(client, held(log_path, "cut", "p")[1]) == {1: {"a": 1.0, "b": 2.0}, 2: {"a": 3.0, "b": 4.0}}


def test_a_row_of_more_numbers_than_mlflow_takes_at_once_is_complete(log_path):
    many = {f"m{i}": float(i) for i in range(2100)}
    MLflow(run_info(log_path, "many")).write(row(1, **many))
    assert held(log_path, "many", "p")[1].data.metrics == many


def test_any_name_can_be_read_back(log_path):
    metrics = {name: float(i) for i, name in enumerate(NAMES)}
    MLflow(run_info(log_path, "names")).write(row(1, **metrics))
    assert shown(*held(log_path, "names", "p")) == {1: metrics}


def test_a_long_name_is_shortened_and_what_mlflow_refuses_costs_that_value_alone(log_path, monkeypatch):
    monkeypatch.setattr(MLflow, "names", NameRules())  # a server with stricter rules than those we know
    backend = MLflow(run_info(log_path, "refused", "kwargs: {a^b: 1, c: 2}"))
    many = {f"m{i}": float(i) for i in range(40)}
    backend.write(row(1, **many, **{"p^2": 1.0, 251 * "x": 1.0}))
    backend.event(Event("note", "m" * 9000, 1, 1767225601.0))
    found = held(log_path, "refused", "p")[1]
    assert found.data.metrics == many
    assert found.data.params == {"kwargs.c": "2"}
    assert found.data.tags["rlpipe.iteration"] == "1"
    assert list(backend.remarks) == ["kwargs.a^b", "p^2", 251 * "x"]
    assert backend.remarks["p^2"].startswith("p^2 is not shown: MLflow does not accept it (")


def test_the_configuration_is_parameters_and_what_a_resume_changes_a_tag(log_path):
    run = run_info(log_path, "config")
    MLflow(run).close("running")
    MLflow(replace(run, config_yaml="env: {name: other, limits: [1, 2]}\nnew: 1"))
    found = held(log_path, "config", "p")[1]
    assert found.data.params == {"env.name": "scripted", "env.limits": "[1, 2]", "new": "1"}
    assert found.data.tags["config/env.name"] == "other"
    MLflow(run)
    assert held(log_path, "config", "p")[1].data.tags["config/env.name"] == "scripted"


def test_it_says_when_and_how_the_run_ended_and_runs_again_when_resumed(log_path):
    run = run_info(log_path, "end")
    MLflow(run).close("running")
    assert held(log_path, "end", "p")[1].info.status == "RUNNING"
    for status, word in (("interrupted", "KILLED"), ("failed", "FAILED"), ("completed", "FINISHED")):
        backend = MLflow(run)
        assert held(log_path, "end", "p")[1].info.status == "RUNNING"
        backend.write(row(1, a=1.0))
        backend.close(status)
        assert held(log_path, "end", "p")[1].info.status == word
    info = held(log_path, "end", "p")[1].info
    assert (info.start_time, info.end_time) == (1767225600000, 1767225601000)


def test_the_last_alert_of_a_metric_is_a_tag(log_path):
    backend = MLflow(run_info(log_path, "alerts"))
    data = {"metric": "train/kl", "level": "warn", "cleared": False}
    backend.event(Event("alert", "train/kl is 0.06", 3, 4.0, data))
    backend.event(Event("alert", "train/kl is 0.01", 5, 6.0, data | {"cleared": True}))
    tags = held(log_path, "alerts", "p")[1].data.tags
    assert tags["alert/train/kl"] == "cleared in iteration 5: train/kl is 0.01"
