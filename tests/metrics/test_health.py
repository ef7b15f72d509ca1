"""Rules, and the monitor that raises an alert once and clears it once."""

from __future__ import annotations

import json
import math
import re
from operator import attrgetter
from types import SimpleNamespace

import numpy as np
import pytest

from rlpipe.metrics import CATALOGUE, MetricWindow
from rlpipe.metrics.alerts import ToldAlerts
from rlpipe.metrics.catalogue import EVAL_SUCCESS_ONCE
from rlpipe.metrics.declaration import Metric, Sign, observed
from rlpipe.metrics.health import TAGS, VARIABLES, Alert, Monitor
from rlpipe.metrics.reductions import Mean
from rlpipe.metrics.row import Event
from rlpipe.metrics.rules import (
    Avoid,
    Band,
    Check,
    Drop,
    Exceeds,
    Expect,
    Finite,
    Holds,
    Increasing,
    KeepsPerDimension,
    KeepsShare,
    MovesWith,
    Near,
    Percentile,
    Rule,
    Spike,
    Steady,
    Unchanged,
)
from rlpipe.run.health import run_variables
from tests.helpers.runs import scripted

SAW = [10.0, 11.0, 9.0, 10.0, 11.0, 9.0]


def metric(name: str, *rules: Rule, **signs: Sign) -> Metric:
    return observed(name, Mean, unit="1", meaning="for a test", formula="x", rules=rules, signs=signs)


def watching(*rules: Rule, tags: tuple[str, ...] = (), **variables: float) -> Monitor:
    """A monitor of one metric, x."""
    return Monitor({"x": metric("x", *rules)}, variables, frozenset(tags))


def course(monitor: Monitor, values: list[float], **others: list[float]) -> list[tuple[int, str]]:
    """What happens while x, and other metrics, take these values: (iteration, raised or cleared)."""
    happened = []
    for place, value in enumerate(values):
        row = {"x": value, **{name: of[place] for name, of in others.items()}}
        alerts = monitor.judge(place + 1, row, progress=place / len(values))
        happened += [(alert.iteration, "cleared" if alert.cleared else "raised") for alert in alerts]
    return happened


@pytest.mark.parametrize(
    ("check", "fine", "wrong"),
    [
        (Band(0.0, 1.0), [0.0, 1.0], 1.1),
        (Band(0.0, open=True), [0.1], 0.0),
        (Near(1.0, 0.5), [1.5, 0.5], 0.4),
        (Expect("up", 3), [1.0, 2.0], 0.0),
        (Avoid("flat", 3), [1.0, 1.0], 1.0),
        (Spike(8.0, 6), SAW, 20.0),
        (Increasing(2), [1.0, 2.0, 3.0], 3.0),
        (Unchanged(2), [0.2, 0.2], 0.1),
        (Drop(0.5, 6), SAW, 4.0),
        (Exceeds(0.0, 3), [0.0, 0.0], 0.0),
        (Steady(0.5, 4), [1.0, 1.0, 1.0], 9.0),
        (Holds("{x} <= 2 * limit"), [4.0], 5.0),
        (Holds("abs(delta({x})) < 2"), [1.0, 2.0], 4.0),
    ],
    ids=str,
)
def test_a_rule_is_met_until_the_value_that_violates_it(check: Check, fine: list[float], wrong: float):
    monitor = watching(Rule("rule", "warn", check), limit=2.0)
    assert course(monitor, [*fine, wrong]) == [(len(fine) + 1, "raised")]


def test_a_share_of_the_first_value_must_be_kept_only_early_in_the_run():
    rule = Rule("collapse", "warn", KeepsShare(0.1, 0.5))
    assert course(watching(rule), [1.0, 0.2, 0.05, 0.05, 0.05, 0.05]) == [(3, "raised")]
    assert course(watching(rule), [1.0, 0.2, 0.2, 0.05, 0.05, 0.05]) == []


def test_a_gaussian_may_lose_so_much_entropy_per_action_dimension():
    rule = Rule("collapse", "warn", KeepsPerDimension(2.0, 0.9))
    assert course(watching(rule, action_dims=3.0), [1.0, -5.0, -5.1]) == [(3, "raised")]
    assert course(watching(rule), [1.0, -50.0]) == []  # nobody said how many dimensions there are


def test_what_collapsed_early_still_stands_late_until_it_is_mended():
    monitor = watching(Rule("collapse", "warn", KeepsShare(0.1, 0.3)))
    assert course(monitor, [1.0, 0.01, 0.01, 0.01, 0.01, 0.5]) == [(2, "raised"), (6, "cleared")]


def test_a_crash_stands_as_long_as_the_value_stays_down():
    monitor = watching(Rule("crash", "critical", Drop(0.5, 6)))
    assert course(monitor, [*SAW, *[1.0] * 20]) == [(7, "raised")]
    assert monitor.judge(27, {"x": 9.0})[0].cleared


def test_scatter_is_no_crash():
    noisy = [0.0, 0.3, 0.1, 0.4, 0.0, 0.2, 0.0, 0.3, 0.0]
    assert course(watching(Rule("crash", "critical", Drop(0.5, 6))), noisy) == []


def test_returns_below_zero_can_crash_too():
    monitor = watching(Rule("crash", "critical", Drop(0.8, 5)))
    assert course(monitor, [-1000.0, -200.0, -210.0, -190.0, -200.0, -200.0, -900.0]) == [(7, "raised")]


def test_two_metrics_that_should_move_together_and_do_not():
    monitor = watching(Rule("diverges", "info", MovesWith("y", 0.0, 4)))
    assert course(monitor, [1.0, 2.0, 3.0, 4.0], y=[1.0, 2.0, 3.0, 4.0]) == []
    monitor = watching(Rule("diverges", "info", MovesWith("y", 0.0, 4)))
    assert course(monitor, [1.0, 2.0, 3.0, 4.0], y=[4.0, 3.0, 2.0, 1.0]) == [(4, "raised")]


def test_observations_that_were_not_finite_raise_an_alert_even_where_nothing_else_was_observed():
    monitor = watching(Rule("finite", "critical", Finite()))
    (alert,) = monitor.judge(1, {}, nonfinite={"x": 3})
    assert (alert.metric, alert.value, alert.nonfinite) == ("x", None, 3)
    assert alert.message == "x is not finite in 3 observations, healthy is finite (finite)"
    (cleared,) = monitor.judge(2, {"x": 1.0})
    assert (cleared.cleared, cleared.value) == (True, 1.0)


def test_the_value_in_an_alert_is_that_of_the_metric_and_not_how_many_observations_were_not_finite():
    monitor = watching(Rule("finite", "critical", Finite()))
    (alert,) = monitor.judge(1, {"x": 0.5}, nonfinite={"x": 1})
    assert (alert.value, alert.nonfinite) == (0.5, 1)
    assert alert.message == "x is not finite in 1 observation, healthy is finite (finite)"


def test_a_percentile_of_a_histogram_is_judged_by_itself():
    monitor = watching(Rule("tail", "critical", Percentile(100, high=200.0)), Rule("wide", "warn", Holds("p75 < 2")))
    (tail,) = monitor.judge(1, {}, percentiles={"x": {"p50": 1.0, "p75": 1.5, "p100": 300.0}})
    assert (tail.rule, tail.value, tail.demanded) == ("tail", 300.0, "largest value at most 200")


def test_an_alert_is_raised_once_when_it_is_sustained_and_cleared_once_after_as_long():
    monitor = watching(Rule("high", "warn", Band(high=1.0), sustained=3))
    values = [2.0, 2.0, 0.0, 2.0, 2.0, 2.0, 2.0, 2.0, 0.0, 0.0, 2.0, 0.0, 0.0, 0.0, 0.0]
    assert course(monitor, values) == [(6, "raised"), (14, "cleared")]


def alert(iteration, *, cleared=False):
    return Event("alert", "", iteration, 0.0, {"metric": "x", "rule": "high", "cleared": cleared, "at": iteration})


def told(*events):
    found = ToldAlerts()
    for event in events:
        found.add(event)
    return found


@pytest.mark.parametrize("kind", ["resumed", "recovered"])
def test_what_a_resume_takes_back_neither_stands_nor_is_cleared(kind):
    back = Event(kind, "", 10, 0.0, {})
    assert told(alert(15), back).standing == {}
    assert told(alert(5), alert(15, cleared=True)).standing == {}
    assert told(alert(5), alert(15, cleared=True), back).standing["x", "high"]["at"] == 5
    assert [event.iteration for event in told(alert(15), back, alert(12)).events] == [12]


def test_an_alert_says_since_when():
    monitor = watching(Rule("high", "warn", Band(high=1.0), sustained=3))
    course(monitor, [0.0, 2.0, 2.0, 2.0])
    assert [(alert.since, alert.iteration) for alert in monitor.standing] == [(2, 4)]


def test_a_rare_event_is_over_only_after_a_quiet_time():
    monitor = watching(Rule("any", "critical", Band(high=0.0), quiet=4))
    assert course(monitor, [1.0, 0.0, 0.0, 1.0, 0.0, 0.0, 0.0, 0.0, 0.0]) == [(1, "raised"), (8, "cleared")]


def test_a_report_without_the_metric_says_nothing_about_it():
    monitor = watching(Rule("high", "warn", Band(high=1.0), sustained=2))
    assert monitor.judge(1, {"x": 2.0}) == monitor.judge(2, {}) == []
    assert [alert.iteration for alert in monitor.judge(3, {"x": 2.0})] == [3]


def test_the_healthy_band_alone_raises_nothing():
    assert course(watching(Rule("band", "ok", Band(0.0, 1.0))), [5.0, 5.0]) == []


def test_a_rule_applies_only_when_its_guard_holds():
    rule = Rule("high", "warn", Band(high=1.0), when="{y} > 0 and progress > 0.4")
    assert course(watching(rule), [2.0, 2.0, 2.0, 2.0], y=[1.0, 1.0, 0.0, 1.0]) == [(4, "raised")]
    assert course(watching(rule), [2.0, 2.0, 2.0, 2.0]) == []  # nobody reports y
    assert course(watching(Rule("high", "warn", Band(high=1.0), when="tag:whitening")), [2.0]) == []
    assert course(watching(Rule("high", "warn", Band(high=1.0), when="tag:whitening"), tags=("whitening",)), [2.0])


def test_an_exception_that_cannot_be_checked_excuses_nothing():
    rule = Rule("high", "warn", Band(high=1.0), unless="{y} > 0")
    assert course(watching(rule), [2.0], y=[1.0]) == []
    assert course(watching(rule), [2.0]) == [(1, "raised")]


def test_any_of_several_exceptions_excuses_a_rule():
    rule = Rule("high", "warn", Band(high=1.0), unless=("tag:whitening", "{y} > 0"))
    assert course(watching(rule), [2.0], y=[0.0]) == [(1, "raised")]
    assert course(watching(rule), [2.0], y=[1.0]) == []
    assert course(watching(rule, tags=("whitening",)), [2.0], y=[0.0]) == []
    assert str(rule) == "at most 1, unless whitening or y > 0"


def alerts_of(rows: list[dict[str, float]], *tags: str, progress: float = 0.5) -> list[tuple[str, str]]:
    """Metric and rule of each alert that rows of the catalogue's metrics raise."""
    monitor = Monitor(CATALOGUE, {}, frozenset(tags))
    found = [alert for n, row in enumerate(rows) for alert in monitor.judge(n + 1, row, progress=progress)]
    return [(alert.metric, alert.rule) for alert in found if not alert.cleared]


def test_the_few_own_starts_of_a_curriculum_that_lose_their_only_success_are_no_collapse():
    rows = [{"env/return_ma100": 0.01, "env/success_once": 0.0}] * 60 + [{"env/return_ma100": 0.0}] * 10
    assert ("env/return_ma100", "crash") in alerts_of(rows)
    assert alerts_of(rows, "chosen_starts") == []


def test_own_starts_that_do_not_succeed_are_normal_in_a_curriculum_and_early_in_a_run():
    rows = [{"env/success_once": 0.0, "env/num_trajectories": 2.0}] * 101
    assert alerts_of(rows) == [("env/success_once", "stuck_zero")]
    assert alerts_of(rows, progress=0.1) == []
    assert alerts_of(rows, "chosen_starts") == []


def test_returns_that_scatter_as_the_drawn_episodes_do_are_not_unstable():
    rows = [{"env/return": 1.0 + 4.0 * (n % 2), "env/num_trajectories": 16.0} for n in range(100)]
    assert alerts_of([{**row, "env/return_std": 0.1} for row in rows]) == [("env/return", "oscillation")]
    assert alerts_of([{**row, "env/return_std": 6.0} for row in rows]) == []
    assert alerts_of([{**row, "env/return_std": 0.1, "env/num_trajectories": 2.0} for row in rows]) == []


def evaluated(successes: float, *tags: str, trained: float = 0.7, finished: float = 45.0, deterministic: float = 1.0):
    """Alerts of an iteration with an evaluation of 100 episodes."""
    window = MetricWindow()
    window.observe(EVAL_SUCCESS_ONCE, np.arange(100) < successes)
    row = {**window.read(list(CATALOGUE.values())), "env/success_once": trained, "env/num_trajectories": finished}
    monitor = Monitor(CATALOGUE, {"deterministic_evaluation": deterministic}, frozenset(tags))
    return monitor.judge(1, row, progress=1.0)


def test_an_evaluation_that_fails_where_training_succeeds_tells_that_it_does_not_sample():
    (alert,) = evaluated(0)
    assert (alert.metric, alert.rule, alert.level) == ("eval/success_once", "below_training", "warn")
    assert "evaluation.deterministic=false" in alert.remedy
    assert "train longer" in alert.remedy
    assert evaluated(20)
    assert evaluated(30) == []  # its interval reaches half of the training's success
    assert evaluated(0, trained=0.7, finished=8.0) == []  # as many successes as chance can make
    assert evaluated(0, deterministic=0.0) == []
    assert evaluated(0, "chosen_starts") == []


@pytest.mark.parametrize("deterministic", [True, False])
def test_a_run_says_whether_its_evaluation_takes_the_most_likely_action(tmp_path, deterministic: bool):
    config = scripted(tmp_path, f"evaluation.deterministic={str(deterministic).lower()}")
    found = run_variables(config, SimpleNamespace(num_actions=2, action_dims=None))
    assert found["deterministic_evaluation"] == deterministic


def test_time_for_logging_is_no_problem_of_learning():
    rows = [{"time/log": 0.06, "time/step": 0.35}] * 20  # 60 ms a row, on a busy machine
    assert alerts_of(rows) == []
    assert alerts_of([{"time/log": 0.2, "time/step": 0.35}] * 20) == [("time/log", "share")]
    assert [rule.level for rule in CATALOGUE["time/log"].rules] == ["info"]


def test_no_remedy_is_what_a_run_does_by_itself(tmp_path):
    config = scripted(tmp_path)
    remedies = [sign.remedy for one in CATALOGUE.values() for sign in one.signs.values()]
    named = {found for remedy in remedies for found in re.findall(r"(\w+)\.([\w.]+)=(\w+)", remedy)}
    assert ("evaluation", "deterministic", "false") in named
    for section, option, value in named:
        default = attrgetter(option)(type(getattr(config, section))())
        assert str(default).lower() != value, f"{section}.{option}={value} is the default"


def test_every_alert_of_the_catalogue_has_a_cause_and_a_remedy():
    alerts = [(one, rule) for one in CATALOGUE.values() for rule in one.rules if rule.level != "ok"]
    assert [f"{one.name} {rule.name}" for one, rule in alerts if not one.sign_of(rule)] == []


def test_another_reward_begins_the_history_anew():
    monitor = Monitor({"env/return": metric("env/return", Rule("crash", "critical", Drop(0.5, 6)))}, {})
    for iteration, value in enumerate(SAW):
        monitor.judge(iteration, {"env/return": value, "train/stage": 0.0})
    for iteration in range(6, 20):
        assert monitor.judge(iteration, {"env/return": 0.1, "train/stage": 1.0}) == []


def test_a_new_stage_clears_what_stood_before_it():
    monitor = Monitor({"env/return": metric("env/return", Rule("low", "warn", Band(1.0)))}, {})
    assert not monitor.judge(1, {"env/return": 0.0, "train/stage": 0.0})[0].cleared
    assert monitor.judge(2, {"env/return": 2.0, "train/stage": 1.0})[0].cleared
    assert monitor.standing == []


def test_each_member_of_a_family_is_judged_by_itself():
    monitor = Monitor({"terms/{name}/mean": metric("terms/{name}/mean", Rule("low", "warn", Band(0.0)))}, {})
    (alert,) = monitor.judge(1, {"terms/reach/mean": 1.0, "terms/grasp/mean": -1.0})
    assert alert.metric == "terms/grasp/mean"


def test_an_alert_names_metric_value_rule_cause_and_remedy():
    signs = {"low": Sign("low", "too little", "more"), "high": Sign("high", "too much", "less")}
    monitor = Monitor({"x": metric("x", Rule("high", "warn", Band(high=1.0)), **signs)}, {})
    (alert,) = monitor.judge(7, {"x": 2.5})
    assert alert.message == "x is 2.5, healthy is at most 1 (high): too much; try: less"
    assert json.loads(json.dumps(alert.as_json()))["message"] == alert.message


def test_memory_is_bounded_by_the_largest_window():
    monitor = watching(Rule("flat", "warn", Avoid("flat", 5)), Rule("with", "info", MovesWith("y", 0.0, 7)))
    course(monitor, [float(n) for n in range(500)])
    assert len(monitor._histories["x"].values) <= 16
    assert len(monitor._rows) == 7


@pytest.mark.parametrize(
    ("rule", "cause"),
    [
        (Rule("high", "warn", Band(high=1.0)), "too much"),
        (Rule("very_high", "warn", Band(high=1.0), sign="high"), "too much"),
        (Rule("very_high", "warn", Band(high=1.0)), ""),
    ],
)
def test_a_rule_shows_the_sign_that_it_names_or_that_has_its_name(rule: Rule, cause: str):
    (alert,) = Monitor({"x": metric("x", rule, high=Sign("high", "too much", "less"))}, {}).judge(1, {"x": 2.0})
    assert alert.cause == cause


def judge(name: str, rule: Rule) -> list[Alert]:
    """Alerts of three reports of a metric of the catalogue, and of the metrics that one of its rules names."""
    text = f"{rule.when} {rule.exceptions} {rule.check}"
    monitor = Monitor(CATALOGUE, dict.fromkeys(VARIABLES, 1.0), frozenset(TAGS))
    rows = [{other: float(place) for other in CATALOGUE if other in text or other == name} for place in range(3)]
    return [alert for place, row in enumerate(rows) for alert in monitor.judge(place, row, progress=0.5)]


def test_every_rule_of_the_catalogue_can_be_judged():
    alerts = [alert for name, metric in CATALOGUE.items() for rule in metric.rules for alert in judge(name, rule)]
    assert alerts
    assert [alert for alert in alerts if not math.isfinite(alert.value)] == []
