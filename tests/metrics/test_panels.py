"""Order in which curves are shown."""

from __future__ import annotations

import json
from pathlib import Path

from rlpipe.metrics import CATALOGUE
from rlpipe.metrics.panels import GROUPS, ranked, shown

DASHBOARD = Path(__file__).parents[2] / "launch" / "grafana" / "rlpipe.json"


def test_every_curve_of_a_panel_is_a_metric_of_the_catalogue():
    named = {name for group in GROUPS for panel in group.panels for name in (*panel.metrics, *panel.band)}
    assert named - CATALOGUE.keys() == set()


def test_a_panel_without_a_value_is_left_out():
    (group,) = shown({"time/fps"})
    assert (group.title, [panel.metrics for panel in group.panels]) == ("Speed", [("time/fps",)])


def test_a_band_needs_both_bounds():
    ((one,),) = (group.panels for group in shown({"eval/success_once", "eval/success_once_ci_low"}))
    assert one.band == ()


def test_health_comes_first_and_metrics_without_a_panel_last():
    names = ["eval/return", "train/loss", "env/success_once", "train/actor/approx_kl"]
    assert ranked(names) == ["train/actor/approx_kl", "env/success_once", "eval/return", "train/loss"]


def test_grafana_shows_the_groups_in_the_same_order():
    panels = json.loads(DASHBOARD.read_text(encoding="utf-8"))["panels"]
    assert [panel["title"] for panel in panels if panel["type"] == "row"] == [group.title for group in GROUPS]
