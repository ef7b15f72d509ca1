"""The Trackio backend: what is special to it. The rest is in ``test_contract``."""

from __future__ import annotations

import pytest

from rlpipe.backends.base import RunInfo
from rlpipe.backends.trackio import RESERVED, Trackio, TrackioOptions
from rlpipe.metrics.row import Event, Row
from tests.helpers.stores.trackio import storage


def run_info(tmp_path, first_iteration=1):
    return RunInfo(
        "r1", "e", "my.project", tmp_path / "e" / "r1", "a: {b: 1}", 20, 2000, first_iteration, (),
        options=TrackioOptions(folder=str(tmp_path / "trackio")),
    )  # fmt: skip


@pytest.fixture
def trackio(tmp_path):
    """Trackio's storage, which has read its folder from the environment long ago."""
    return storage(tmp_path)


def test_a_row_is_there_as_soon_as_it_is_written_and_at_its_own_time(tmp_path, trackio):
    Trackio(run_info(tmp_path)).write(Row(1, 100, 1767225600.5, {"env/return": 0.1}))
    assert trackio.get_logs("my.project", "r1") == [
        {"env/return": 0.1, "step": 1, "timestamp": "2026-01-01T00:00:00.500000+00:00"}
    ]
    assert trackio.get_run_config("my.project", "r1") == {"a": {"b": 1}, "_Group": "e"}


def test_no_metric_has_a_name_that_trackio_keeps_for_itself(tmp_path, trackio):
    names = [*RESERVED, "__step", "é /^"]
    Trackio(run_info(tmp_path)).write(Row(1, 100, 1.0, {name: float(i) for i, name in enumerate(names)}))
    (row,) = trackio.get_logs("my.project", "r1")
    held = {name.removeprefix("__"): value for name, value in row.items() if name not in RESERVED}
    assert held == {name: float(i) for i, name in enumerate(names)}


def test_the_rows_of_another_run_of_the_project_stay_when_one_is_resumed(tmp_path, trackio):
    for run_id in ("r1", "other"):
        for iteration in range(1, 5):
            trackio.bulk_log("my.project", run_id, [{"a": 1.0}], [iteration], run_id=run_id)
    Trackio(run_info(tmp_path, first_iteration=3))
    assert Trackio.reached(run_info(tmp_path)) == 2
    assert len(trackio.get_logs("my.project", "other")) == 4


def test_an_event_that_comes_again_stands_there_once(tmp_path, trackio):
    data = {"metric": "train/kl", "level": "critical", "cleared": False}
    for _ in range(2):
        backend = Trackio(run_info(tmp_path))
        backend.event(Event("alert", "train/kl is 0.06", 3, 4.0, data))
        backend.event(Event("alert", "train/kl is 0.01", 5, 6.0, data | {"cleared": True}))
        backend.event(Event("resumed", "Goes on.", 6, 7.0))
    found = {(alert["title"], alert["level"], alert["step"]) for alert in trackio.get_alerts("my.project")}
    assert found == {("train/kl", "error", 3), ("train/kl cleared", "info", 5), ("resumed", "info", 6)}
    assert len(trackio.get_alerts("my.project")) == 3
