"""Backends: what the terminal prints, and what TensorBoard reads."""

from __future__ import annotations

import io
import re
import time
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console as Terminal
from stable_baselines3.common.logger import HumanOutputFormat
from tensorboard.backend.event_processing.event_accumulator import HISTOGRAMS, EventAccumulator
from tensorboard.backend.event_processing.event_file_loader import EventFileLoader
from tensorboard.plugins.custom_scalar.layout_pb2 import Layout
from tensorboard.plugins.hparams.api_pb2 import STATUS_SUCCESS
from tensorboard.plugins.hparams.plugin_data_pb2 import HParamsPluginData
from tensorboard.util import tensor_util

from rlpipe.backends.base import NameRules, RunInfo, escaped, unescaped
from rlpipe.backends.console import Console, seconds_left
from rlpipe.backends.tensorboard import TensorBoard
from rlpipe.config.tree import to_yaml
from rlpipe.metrics import MetricWindow
from rlpipe.metrics import catalogue as m
from rlpipe.metrics.row import Event, HistogramView, Row
from tests.helpers.runs import scripted


def run_info(tmp_path, *, first_iteration=1, console_style="table"):
    return RunInfo(
        run_id="r1",
        experiment="e",
        project="p",
        directory=tmp_path,
        config_yaml="a: 1",
        total_iterations=20,
        total_timesteps=2000,
        first_iteration=first_iteration,
        stages=(("train", 20),),
        console_style=console_style,
    )


def row(iteration, metrics=None, **fields):
    return Row(
        iteration,
        100 * iteration,
        1.5 * iteration,
        {"time/step": 1.0, "rollout/num_decisions": 100.0, **(metrics or {})},
        **fields,
    )


@given(st.text(alphabet="_xX25f/é .~", max_size=12))
def test_an_escaped_name_is_legal_and_can_be_read_back(name):
    written = escaped(name, "a-z0-9_")
    assert re.fullmatch("[a-z0-9_]*", written)
    assert unescaped(written) == name


RULES = (
    NameRules(),
    NameRules("a-z0-9_", longest=40),
    NameRules("a-zA-Z0-9_./", longest=45, paths=True, reserved=("x", "é")),
)


@pytest.mark.parametrize("rules", RULES)
@given(
    names=st.sets(st.text(st.characters(), max_size=8).map(lambda end: f"x/{end}/") | st.sampled_from(["x", "é", "/x"]))
)
def test_names_that_are_fitted_stay_apart_and_within_the_limit(rules, names):
    long = {name * 10 for name in names} | {f"{name * 10}." for name in names}
    shown = {rules.fit(name) for name in names | long}
    assert len(shown) == len(names | long)
    assert max((len(name.encode()) for name in shown), default=0) <= (rules.longest or 10_000)
    assert all(re.fullmatch(f"[{rules.allowed}]*", name) for name in shown)
    assert not shown & set(rules.reserved)
    assert {unescaped(rules.spelled(name)) for name in names} == names


def test_a_long_name_keeps_its_beginning_and_its_end():
    assert NameRules(longest=60).fit(f"env/{90 * 'x'}/std") == f"env/{22 * 'x'}_65c7c570_{20 * 'x'}/std"


def test_a_name_that_a_service_accepts_stays_as_it_is():
    assert escaped("env/success_once", "a-z0-9_/") == "env/success_once"
    assert escaped("env/success rate", "a-z0-9_/") == "env/success_x20_rate"


def alert(metric, level, *, cleared=False, rule="high", iteration=3):
    data = {"metric": metric, "rule": rule, "level": level, "cleared": cleared}
    return Event("alert", f"{metric} is 0.06", iteration, 4.0, data)


def printed(tmp_path, console_style, *shown, color=False):
    """Output of the console for rows and events."""
    console = Console(run_info(tmp_path, console_style=console_style))
    console.terminal = Terminal(
        file=io.StringIO(), width=200, highlight=False, force_terminal=color, color_system="standard" if color else None
    )
    for one in shown:
        (console.write if isinstance(one, Row) else console.event)(one)
    return console.terminal.file.getvalue()


# --- console


def test_the_line_style_shows_five_numbers():
    metrics = {
        "time/iterations": 7.0,
        "env/num_trajectories": 10.0,
        "env/return": 196.54,
        "train/actor/approx_kl": 0.00271,
        "train/actor/ratio_outside_fraction": 0.06,
    }
    text = printed(None, "line", row(7, metrics))
    assert text == "Iteration 7/20 | Episodes: 10 | Mean Reward: 196.5 | KL: 0.0027 | clip%: 6.0%\n"


def test_a_run_that_collects_nothing_has_lines_too():
    assert "  0 episodes" in printed(None, "table", row(7, {"train/actor/cloning_loss": 0.5}))


def test_the_table_leaves_out_what_an_algorithm_or_a_curriculum_did_not_measure(tmp_path):
    console = Console(replace(run_info(tmp_path), console_metrics=("env/curriculum/start", "env/curriculum/blend")))
    console.terminal = Terminal(file=io.StringIO(), width=200, highlight=False)
    console.write(row(7, {"env/curriculum/start": 0.25}))
    assert "start 0.25" in console.terminal.file.getvalue()
    assert "blend" not in console.terminal.file.getvalue()


CURRICULUM = ("env/curriculum/success_once",)
OWN_AND_CHOSEN = {"env/num_trajectories": 2.0, "env/success_once": 0.5, "env/curriculum/success_once": 0.25}
ONLY_CHOSEN = {"env/num_trajectories": 0.0, "env/curriculum/success_once": 0.75, "env/curriculum/num_trajectories": 4.0}


def panel(console, *rows):
    """Lines of the panel after some rows."""
    for one in rows:
        console.show(one)
    terminal = Terminal(file=io.StringIO(), width=100)
    terminal.print(console.panel())
    return [" ".join(line.strip("│ ").split()) for line in terminal.file.getvalue().splitlines()]


def test_success_stays_the_headline_of_iterations_without_an_episode_from_the_tasks_own_start():
    text = printed(None, "table", row(1, OWN_AND_CHOSEN), row(2, ONLY_CHOSEN))
    assert [line.split("return")[0].split()[2:] for line in text.splitlines()] == [
        ["2", "episodes", "success_once", "0.500"],
        ["0", "episodes", "success_once", "-"],
    ]


def test_the_panel_of_a_curriculum_shows_success_from_both_kinds_of_starts():
    console = Console(replace(run_info(None), console_metrics=CURRICULUM))
    shown = panel(console, row(1, OWN_AND_CHOSEN), row(2, ONLY_CHOSEN))
    assert "env/success_once 0.500 ▅ 2 episodes of iteration 1" in shown
    assert "env/curriculum/success_once 0.750 ▃▇ 4 episodes" in shown
    assert not [line for line in shown if "env/return" in line]


def test_long_names_cut_neither_values_nor_the_number_of_episodes():
    info = replace(run_info(None), console_metrics=(*CURRICULUM, "env/curriculum/blend_demonstrations"))
    rows = [row(n, {**OWN_AND_CHOSEN, "env/curriculum/blend_demonstrations": 0.5}) for n in range(1, 100)]
    shown = panel(Console(info), *rows, row(100, ONLY_CHOSEN))
    assert [line for line in shown if "…" in line] == []
    assert any(re.fullmatch("env/success_once 0.500 ▅+ 2 episodes of iteration 99", line) for line in shown)


def test_the_return_is_the_headline_of_a_task_without_success():
    shown = panel(Console(run_info(None)), row(1, {"env/num_trajectories": 2.0, "env/return": 3.0}), row(2))
    assert [line for line in shown if line.startswith("env/")] == ["env/return 3.000 ▁ 2 episodes of iteration 1"]


def test_success_is_the_headline_from_the_iteration_on_that_tells_it(tmp_path):
    untold = row(1, {"env/num_trajectories": 2.0, "env/return": 3.0})
    told = row(2, {"env/num_trajectories": 4.0, "env/return": 3.0, "env/success_once": 0.25})
    shown = panel(Console(run_info(None)), untold, told)
    assert [line for line in shown if line.startswith("env/")] == ["env/success_once 0.250 ▃ 4 episodes"]
    assert ["success_once 0.250" in line for line in printed(tmp_path, "table", untold, told).splitlines()] == [
        False,
        True,
    ]


def test_the_time_left_is_that_of_the_remaining_iterations_at_the_median_pace():
    rows = [row(n, {"time/step": seconds}) for n, seconds in enumerate((1.0, 2.0, 60.0), 1)]
    assert seconds_left(rows, 20) == (20 - 3) * 2.0
    assert seconds_left([], 20) is None
    assert printed(None, "table", *rows).splitlines()[-1].endswith("ETA 0:00:34")


def test_the_time_left_is_unknown_before_the_first_gradient_step_and_follows_the_iterations_that_learn():
    def taken(*updates):
        return [
            row(n, {"time/step": 0.1 + steps, "train/sac/gradient_steps": float(steps)})
            for n, steps in enumerate(updates, 1)
        ]

    assert seconds_left(taken(0, 0, 0), 20) is None
    assert seconds_left(taken(0, 0, 0, 8), 20) == 16 * 8.1
    assert seconds_left(taken(0, 0, 0, 8, 0), 20) == 15 * 4.1  # fewer gradient steps than iterations
    assert seconds_left(taken(0, 0, 0), 3) == 0.0  # a run that ends before


def test_the_line_style_shows_what_is_absent_as_a_dash():
    text = printed(None, "line", row(7, {"time/iterations": 7.0, "env/num_trajectories": 0.0}))
    assert text == "Iteration 7/20 | Episodes: 0 | Mean Reward: - | KL: - | clip%: -\n"


def test_the_sb3_style_draws_the_box_that_stable_baselines3_draws():
    values = {
        "rollout/ep_len_mean": 21.9,
        "rollout/ep_rew_mean": 21.9,
        "time/fps": 5342,
        "time/iterations": 1,
        "time/total_timesteps": 2048,
        "train/approx_kl": 0.008738,
        "train/entropy_loss": -0.683,
        "train/n_updates": 10,
        "train/value_loss": 52.04,
        "eval/mean_reward": 1234.5,
    }
    theirs = io.StringIO()
    HumanOutputFormat(theirs).write(values, dict.fromkeys(values, ()))
    ours = printed(None, "sb3", row(1, dialects={"sb3": {key: float(value) for key, value in values.items()}}))
    assert ours == theirs.getvalue()


@pytest.mark.parametrize(
    ("level", "cleared", "mark", "style"),
    [
        ("critical", False, "✖ critical: ", "\x1b[1;31m"),
        ("warn", False, "▲ warn: ", "\x1b[33m"),
        ("info", False, "· info: ", "\x1b[2m"),
        ("critical", True, "✔ ", "\x1b[32m"),
    ],
)
def test_an_alert_stands_out_by_its_level(level, cleared, mark, style):
    text = printed(None, "line", alert("train/actor/approx_kl", level, cleared=cleared), color=True)
    assert text == f"{style}{mark}train/actor/approx_kl is 0.06\x1b[0m\n"


def panel_of(*shown):
    console = Console(run_info(None))
    terminal = console.terminal = Terminal(file=io.StringIO(), width=100)
    for one in shown:
        (console.show if isinstance(one, Row) else console.event)(one)
    terminal.file = io.StringIO()
    terminal.print(console.panel())
    (line,) = [line for line in terminal.file.getvalue().splitlines() if "alerts" in line]
    return line.strip("│ ").split()


def test_the_panel_counts_standing_alerts_and_names_the_gravest():
    kl, clip = alert("train/actor/approx_kl", "critical"), alert("train/actor/clip_fraction", "warn")
    assert panel_of(row(3), kl, clip) == ["alerts", "2", "✖", "train/actor/approx_kl"]


def test_an_alert_that_was_cleared_leaves_the_panel():
    raised, cleared = (alert("train/actor/approx_kl", "critical", cleared=cleared) for cleared in (False, True))
    assert panel_of(row(3), raised, cleared) == ["alerts", "none"]


def test_that_updates_end_early_is_said_once():
    ended = [Event("target_kl", f"The update ended after {n} epochs.", n, 1.0) for n in (1, 2)]
    noted = [Event("note", "Something.", n, 1.0) for n in (1, 2)]
    assert printed(None, "table", *ended, *noted).count("The update ended") == 1
    assert printed(None, "table", *ended, *noted).count("Something") == 2


# --- TensorBoard


def read(folder):
    return EventAccumulator(str(folder), size_guidance={HISTOGRAMS: 0}).Reload()


def written(tmp_path, *shown, first_iteration=1):
    backend = TensorBoard(run_info(tmp_path, first_iteration=first_iteration))
    for one in shown:
        (backend.write if isinstance(one, Row) else backend.event)(one)
    backend.close("completed")
    return tmp_path / "tensorboard"


def test_tensorboard_holds_a_distribution_with_its_bins(tmp_path):
    view = HistogramView([0.0, 1.0, 2.0], [3, 1], {"p50": 0.5})
    (point,) = read(written(tmp_path, row(4, histograms={"env/return_dist": view}))).Histograms("env/return_dist")
    histogram = point.histogram_value
    assert point.step == 4
    assert (histogram.min, histogram.max, histogram.num) == (0.0, 2.0, 4)
    assert (histogram.bucket_limit, histogram.bucket) == ([1.0, 2.0], [3, 1])
    assert (histogram.sum, histogram.sum_squares) == (3 * 0.5 + 1.5, 3 * 0.25 + 2.25)


@pytest.mark.parametrize("values", [[1.0, 2.0, 2.0, 40.0], [-3.0, 5.0], [7.0], [0.0, 0.0]])
def test_the_histogram_tab_gets_every_observation(tmp_path, values):
    window = MetricWindow()
    window.observe(m.ENV_RETURN_DIST, values)
    state = window.states["env/return_dist"]
    folder = written(tmp_path, row(1, histograms={"env/return_dist": HistogramView(*state.buckets(), state.read())}))
    (file,) = folder.glob("events.*")
    tensors = [value for event in EventFileLoader(str(file)).Load() for value in event.summary.value]
    (converted,) = [value for value in tensors if value.metadata.plugin_data.plugin_name == "histograms"]
    left, right, counts = tensor_util.make_ndarray(converted.tensor).T  # as the tab itself is given it
    assert (left[0], right[-1], counts.sum()) == (min(values), max(values), len(values))


def test_a_dialect_has_a_tensorboard_run_of_its_own(tmp_path):
    both = row(2, {"train/entropy_loss": 0.5}, dialects={"sb3": {"train/entropy_loss": -0.5}})
    folder = written(tmp_path, both)
    values = [read(place).Scalars("train/entropy_loss")[0].value for place in (folder, folder / "sb3")]
    assert values == [0.5, -0.5]
    assert read(folder / "sb3").Tags()["scalars"] == ["train/entropy_loss"]


def test_a_dialect_is_plotted_over_the_axis_of_its_system(tmp_path):
    folder = written(tmp_path, row(2, dialects={"sb3": {"time/fps": 1.0}, "trl": {"eps": 1.0}}))
    assert [read(folder / name).Scalars(key)[0].step for name, key in (("sb3", "time/fps"), ("trl", "eps"))] == [200, 2]


def test_a_resume_purges_the_run_of_a_dialect_too(tmp_path):
    first = [row(n, {"env/return": n}, dialects={"sb3": {"rollout/ep_rew_mean": n}}) for n in (1, 2, 3)]
    again = [row(n, {"env/return": 10 * n}, dialects={"sb3": {"rollout/ep_rew_mean": 10 * n}}) for n in (2, 3)]
    written(tmp_path, *first)
    time.sleep(1.1)  # event files are read in the order of their seconds
    folder = written(tmp_path, *again, first_iteration=2)
    for place, name, unit in ((folder, "env/return", 1), (folder / "sb3", "rollout/ep_rew_mean", 100)):
        points = [(point.step, point.value) for point in read(place).Scalars(name)]
        assert points == [(unit, 1.0), (2 * unit, 20.0), (3 * unit, 30.0)]


def test_an_alert_is_a_text_of_its_metric(tmp_path):
    raised = alert("train/actor/approx_kl", "critical", iteration=3)
    cleared = alert("train/actor/approx_kl", "critical", cleared=True, iteration=5)
    points = read(written(tmp_path, raised, cleared)).Tensors("alerts/train/actor/approx_kl")
    texts = [(point.step, tensor_util.make_ndarray(point.tensor_proto).item().decode()) for point in points]
    assert texts == [
        (3, "**critical**: train/actor/approx_kl is 0.06"),
        (5, "**cleared**: train/actor/approx_kl is 0.06"),
    ]


def plugin_tensors(folder, plugin):
    """Contents that a plug-in of TensorBoard finds in event files, by tag."""
    values = [
        value for file in sorted(folder.glob("events.*")) for event in EventFileLoader(str(file)).Load()
        for value in event.summary.value if value.metadata.plugin_data.plugin_name == plugin
    ]  # fmt: skip
    return {value.tag: value for value in values}


def test_custom_scalars_show_health_first_and_success_with_its_interval(tmp_path):
    folder = written(tmp_path, row(1), row(2, {"train/actor/approx_kl": 0.01}))
    (found,) = plugin_tensors(folder, "custom_scalars").values()
    layout = Layout.FromString(tensor_util.make_ndarray(found.tensor).item())
    assert [category.title for category in layout.category][:2] == ["Health", "Success"]
    (kl, *_), (success, *_) = (category.chart for category in list(layout.category)[:2])
    assert list(kl.multiline.tag) == [r"^train/actor/approx_kl$"]
    (series,) = success.margin.series
    assert (series.value, series.lower) == ("eval/success_once", "eval/success_once_ci_low")


def test_hyperparameters_are_the_seed_and_what_differs_from_the_defaults(tmp_path):
    config = scripted(tmp_path, "learner.lr=0.01", "runner.seed=3")
    backend = TensorBoard(replace(run_info(tmp_path), config_yaml=to_yaml(config)))
    backend.close("completed")
    data = {
        tag: HParamsPluginData.FromString(value.metadata.plugin_data.content)
        for tag, value in plugin_tensors(tmp_path / "tensorboard", "hparams").items()
    }
    chosen = data["_hparams_/session_start_info"].session_start_info.hparams
    assert (chosen["runner.seed"].number_value, chosen["learner.lr"].number_value) == (3, 0.01)
    assert "algorithm.discount" not in chosen  # has its default
    shown = data["_hparams_/experiment"].experiment.metric_infos
    assert [one.name.tag for one in shown][:2] == ["eval/success_once", "eval/success_once_ci_low"]
    assert data["_hparams_/session_end_info"].session_end_info.status == STATUS_SUCCESS
