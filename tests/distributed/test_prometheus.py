"""Prometheus: what a node of Ray shows it, read over HTTP, and the dashboard on top."""

from __future__ import annotations

import json
import re
import sys
import threading
import time
import urllib.error
import urllib.request
from collections import Counter
from pathlib import Path
from types import SimpleNamespace

import pytest
from prometheus_client.parser import text_string_to_metric_families
from ray.util.metrics import Gauge

import rlpipe
from rlpipe.backends.base import RunInfo
from rlpipe.distributed.backends import prometheus
from rlpipe.distributed.backends.prometheus import OWN, Prometheus, gauge_name
from rlpipe.errors import ConfigError
from rlpipe.metrics import CATALOGUE
from rlpipe.metrics.row import Event, Row
from rlpipe.run.directory import read_jsonl
from tests.helpers.runs import scripted

GRAFANA = Path("launch/grafana")


def run_info(folder, run_id, *, first_iteration=1):
    directory = folder / "e" / run_id
    directory.mkdir(parents=True, exist_ok=True)
    options = Prometheus.Config(linger=0.0)
    return RunInfo(run_id, "e", "p", directory, "", 20, 2000, first_iteration, (("train", 20),), options=options)


def row(iteration, **metrics):
    return Row(iteration, 100 * iteration, 1.5, {name.replace("__", "/"): value for name, value in metrics.items()})


def alert(metric, level, iteration, *, cleared=False):
    data = {"metric": metric, "rule": "high", "level": level, "cleared": cleared}
    return Event("alert", f"{metric} is 0.06", iteration, 4.0, data)


def scraped(target):
    """Gauges of each run: {run: {(name, other labels): value}}, of this process and its actors alike.

    Empty as long as Ray's agent, which starts behind everything else, does not listen yet.
    """
    try:
        with urllib.request.urlopen(f"http://{target}/metrics", timeout=600) as answer:
            families = list(text_string_to_metric_families(answer.read().decode()))
    except urllib.error.URLError:
        return {}
    found: dict[str, dict[tuple[str, ...], float]] = {}
    for sample in (sample for family in families for sample in family.samples if "run" in sample.labels):
        labels = (sample.labels.get(key) for key in ("metric", "level", "status"))
        found.setdefault(sample.labels["run"], {})[sample.name, *filter(None, labels)] = sample.value
    return found


def target_of(folder, run_id):
    ((group),) = json.loads((folder / "prometheus" / f"e.{run_id}.json").read_text())
    (target,) = group["targets"]
    return target


def wait_for(condition):
    """Waits until the condition is true, and returns its answer; Ray passes gauges on every 2 s."""
    ends = time.monotonic() + 600
    while time.monotonic() < ends:
        if found := condition():
            return found
        time.sleep(0.5)
    raise AssertionError("not within 600 s")


class UntilSeen(Prometheus):
    """Lingers until its run directory says that its last numbers were seen."""

    def close(self, status):
        def sleep(seconds):
            assert seconds == Prometheus.Config().linger
            wait_for((self._run.directory / "seen").exists)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(prometheus, "time", SimpleNamespace(sleep=sleep))
            super().close(status)


# --- what is exported


@pytest.fixture(scope="module")
def seen(ray_cluster, tmp_path_factory):
    """Gauges of some runs as Prometheus would see them once Ray has forgotten what was set no later than they."""
    folder = tmp_path_factory.mktemp("runs")
    views = {name: Prometheus(run_info(folder, name)) for name in ("twins", "kept", "alerts")}
    views["twins"].write(row(1, a__b=1.0, a_b=2.0))
    views["kept"].write(row(1, eval__success_once=0.25, env__return=1.0))
    views["kept"].write(row(2, env__return=2.0))
    views["alerts"].event(alert("env/return", "critical", 1))
    views["alerts"].event(alert("train/loss", "warn", 1))
    views["alerts"].event(alert("train/loss", "warn", 2, cleared=True))
    before = run_info(folder, "resumed").directory
    lines = [row(1, env__return=1.0), row(2, eval__return=7.0)]
    (before / "metrics.jsonl").write_text("".join(json.dumps(line.as_json()) + "\n" for line in lines))
    events = [
        alert("train/loss", "warn", 2),
        alert("env/return", "critical", 4),  # taken back by the next
        Event("resumed", "", 2, 0.0),
        alert("env/reward", "info", 3),  # taken back by this resume
    ]
    (before / "events.jsonl").write_text("".join(json.dumps(event.as_json()) + "\n" for event in events))
    views["resumed"] = Prometheus(run_info(folder, "resumed", first_iteration=3))
    target = target_of(folder, "twins")
    witness = Gauge("witness", "Forgotten after twice Ray's report interval.", tag_keys=("run",))
    wait_for(lambda: witness.set(1.0, {"run": "witness"}) or "witness" in scraped(target))

    def only_the_witness_is_forgotten():
        found = scraped(target)
        complete = all(len(found.get(name, ())) == len(view._numbers) for name, view in views.items())
        return found if complete and "witness" not in found else None

    yield wait_for(only_the_witness_is_forgotten)
    for view in views.values():
        view.close("completed")
    assert list((folder / "prometheus").iterdir()) == []


@pytest.mark.soak
def test_a_run_on_ray_shows_every_number_of_its_rows(ray_cluster, tmp_path):
    logger = {
        "log_path": str(tmp_path),
        "experiment_name": "e",
        "logger_backends": [f"{__name__}:UntilSeen"],
    }
    config = scripted(tmp_path, "runner.val_check_interval=3", runner={"total_timesteps": 256, "logger": logger})
    ended = []
    run = threading.Thread(target=lambda: ended.append(rlpipe.train(config)))
    run.start()
    (file,) = wait_for(lambda: list((tmp_path / "prometheus").glob("*.json")))
    run_id = file.name.removeprefix("e.").removesuffix(".json")
    target = target_of(tmp_path, run_id)
    seen = wait_for(
        lambda: (found := scraped(target).get(run_id, {})).get(("ray_rlpipe_status", "completed")) and found
    )
    (tmp_path / "e" / run_id / "seen").touch()
    run.join()
    rows = list(read_jsonl(ended[0].directory / "metrics.jsonl"))
    newest = {name: value for line in rows for name, value in line["metrics"].items()}
    assert {key[1]: value for key, value in seen.items() if key[0] == "ray_" + gauge_name(key[-1])} == newest
    assert seen["ray_rlpipe_env_success_once", "env/success_once"] == rows[-1]["metrics"]["env/success_once"]
    assert (seen["ray_rlpipe_iteration",], seen["ray_rlpipe_total_timesteps",]) == (4, 256)
    assert seen["ray_rlpipe_status", "running"] == 0
    assert not file.exists()


@pytest.mark.soak
def test_two_names_that_look_alike_in_prometheus_stay_apart(seen):
    assert seen["twins"]["ray_rlpipe_a_b", "a/b"] == 1.0
    assert seen["twins"]["ray_rlpipe_a_b", "a_b"] == 2.0


@pytest.mark.soak
def test_a_gauge_stays_while_the_run_is_silent(seen):
    assert seen["kept"]["ray_rlpipe_env_return", "env/return"] == 2.0


@pytest.mark.soak
def test_a_metric_keeps_its_last_number_and_says_which_iteration_that_is_from(seen):
    assert seen["kept"]["ray_rlpipe_eval_success_once", "eval/success_once"] == 0.25
    assert seen["kept"]["ray_rlpipe_reported", "eval/success_once"] == 1
    assert seen["kept"]["ray_rlpipe_reported", "env/return"] == 2
    assert seen["kept"]["ray_rlpipe_iteration",] == 2


@pytest.mark.soak
def test_an_alert_is_1_until_it_is_cleared(seen):
    assert seen["alerts"]["ray_rlpipe_alert", "env/return", "critical"] == 1
    assert seen["alerts"]["ray_rlpipe_alert", "train/loss", "warn"] == 0


@pytest.mark.soak
def test_a_resumed_run_goes_on_with_what_holds_of_before(seen):
    assert seen["resumed"]["ray_rlpipe_iteration",] == 2
    assert seen["resumed"]["ray_rlpipe_env_return", "env/return"] == 1.0
    assert seen["resumed"]["ray_rlpipe_eval_return", "eval/return"] == 7.0
    alerts = {key: value for key, value in seen["resumed"].items() if key[0] == "ray_rlpipe_alert"}
    assert alerts == {("ray_rlpipe_alert", "train/loss", "warn"): 1}


# --- what is refused


@pytest.mark.parametrize("missing", ["opencensus", "prometheus_client", "aiohttp_cors"])
def test_ray_without_its_extra_is_an_error_with_the_command_that_mends_it(monkeypatch, missing):
    monkeypatch.setitem(sys.modules, missing, None)
    monkeypatch.delitem(sys.modules, "ray.dashboard.optional_deps", raising=False)
    with pytest.raises(ConfigError, match=rf"{missing}.* is not installed: pip install 'rlpipe\[prometheus\]'"):
        Prometheus.check()


def test_without_ray_it_is_an_error(tmp_path, monkeypatch):
    monkeypatch.setattr("ray.is_initialized", lambda: False)  # whatever other tests have begun in this process
    with pytest.raises(ConfigError, match="prometheus shows a run through the Ray it runs on"):
        Prometheus(run_info(tmp_path, "r"))


def test_two_metrics_never_share_a_gauge():
    names = Counter(gauge_name(name) for name in CATALOGUE)
    assert max(names.values()) == 1
    assert not names.keys() & OWN.keys()


# --- the dashboard


def expressions(node):
    """Every query of a dashboard."""
    if isinstance(node, list):
        return [found for part in node for found in expressions(part)]
    if isinstance(node, dict):
        own = [text for key in ("expr", "definition") if isinstance(text := node.get(key), str)]
        return own + expressions(list(node.values()))
    return []


def test_the_dashboard_asks_only_for_what_is_exported():
    queries = expressions(json.loads((GRAFANA / "rlpipe.json").read_text()))
    asked = {name for query in queries for name in re.findall(r"ray_(rlpipe_\w+)", query)}
    shown = {gauge_name(name) for name, metric in CATALOGUE.items() if not metric.hidden and not metric.is_histogram}
    assert "rlpipe_env_success_once" in asked
    assert asked <= shown | OWN.keys()


def test_the_alert_rules_ask_only_for_what_is_exported():
    asked = set(re.findall(r"ray_(rlpipe_\w+)", (GRAFANA / "README.md").read_text()))
    assert asked <= {gauge_name(name) for name in CATALOGUE} | OWN.keys()
