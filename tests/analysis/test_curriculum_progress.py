"""``rlpipe curriculum``: how far a curriculum has come, from the ledger of a run to its table and its picture."""

from __future__ import annotations

import itertools
import json
import math
import shutil
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

import rlpipe
from rlpipe.cli import app
from rlpipe.errors import ConfigError
from rlpipe.functional.intervals import wilson_interval
from rlpipe.report.curriculum import (
    STUCK,
    AxisProgress,
    EdgeProgress,
    Lengths,
    SuccessRate,
    _lengths,
    read_progress,
)
from rlpipe.report.pages import report
from rlpipe.report.pictures import check_picture, draw_curriculum, spread
from rlpipe.report.run_content import collect
from rlpipe.report.view_episodes import episodes_section
from rlpipe.run.directory import RunDirectory
from rlpipe.trajectory import Episode
from tests.helpers.curricula import reach, windy
from tests.helpers.runs import lines, scripted

STEPS = 64
"""Environment steps of an iteration."""
LEARNT_SOON = ("learner.lr=1e-2", "runner.save_interval=1000")
"""Demonstrations are solved in 20 iterations, and few checkpoints are written."""


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A run of 6 iterations with three demonstrations and reverse_forward; 3 successes in a row move a start."""
    return rlpipe.train(reach(tmp_path_factory.mktemp("run"), name="reverse_forward"), local=True).directory


@pytest.fixture
def rewritten(run, tmp_path):
    """Reads the run with other episodes: (iteration, number of the demonstration or None, its step, success)."""
    copy = shutil.copytree(run, tmp_path / "run")

    def write(*episodes):
        template = next(row for row in lines(run, "episodes.jsonl") if row["chosen"])
        rows = [
            template | {
                "iteration": iteration, "step": place, "slot": 0, "seed": 100 + (number or 0), "success_once": success,
                "chosen": number is not None, "demonstration": number, "demonstration_step": step,
                "demonstration_length": None if number is None else 10,
            }
            for place, (iteration, number, step, success) in enumerate(episodes)
        ]  # fmt: skip
        (copy / "episodes.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        return read_progress(RunDirectory.existing(copy))

    return write


def test_success_is_told_by_the_steps_that_were_left(rewritten):
    progress = rewritten((1, 0, 9, True), (1, 0, 2, True), (2, 0, 2, False), (2, 0, 1, False), (3, 0, 0, True))
    within = [(one.least, one.most, one.rate.value, one.rate.episodes) for one in progress.within]
    assert within == [(1, 8, 2 / 3, 3), (9, 16, 0.5, 2)]  # of ten steps, 1, 8 and 8 were left, then 9 and 10


@pytest.mark.parametrize(("failure", "wasteful"), [(50, True), (30, False)])
def test_failures_that_go_on_long_after_every_success_are_told(failure, wasteful):
    episodes = [Episode(0, 0, 1, 0, 1.0, 18, True, True, False, True, False, first_success=18)] * 10
    episodes += [Episode(0, 0, 1, 0, 0.0, failure, False, False, False, False, True)] * 10
    assert _lengths(episodes) == Lengths(18, 18, failure)
    assert _lengths(episodes).wasteful is wasteful
    assert _lengths(episodes[:15]) is None  # too few failures


def test_a_start_is_the_earliest_step_in_which_an_episode_has_begun(rewritten):
    (one,) = rewritten((1, 0, 8, True), (1, 0, 9, True), (2, 0, 6, False), (3, 0, 8, True)).demonstrations
    assert (one.number, one.seed, one.length, one.start, one.episodes) == (0, 100, 10, 6, 4)
    assert (one.steps, one.starts) == ((STEPS, 2 * STEPS), (8, 6))
    assert (one.last.value, one.last.episodes) == (0.75, 4)
    assert (one.at_start.value, one.at_start.episodes) == (0.0, 1)


def test_each_demonstration_has_its_own_progress(rewritten):
    found = rewritten((1, 2, 8, True), (1, 0, 6, False), (2, 2, 4, True)).demonstrations
    assert [(one.number, one.start) for one in found] == [(0, 6), (2, 4)]


def test_a_demonstration_is_solved_by_successes_in_a_row_from_its_beginning(rewritten):
    (one,) = rewritten(
        (1, 0, 0, True), (1, 0, 0, True), (2, 0, 0, False), (2, 0, 0, True), (3, 0, 2, False), (3, 0, 0, True),
        (4, 0, 0, True), (5, 0, 0, True),
    ).demonstrations  # fmt: skip
    assert one.solved_at == 4 * STEPS


@pytest.mark.parametrize(("episodes", "stuck"), [(STUCK - 1, False), (STUCK, True)])
def test_a_demonstration_is_stuck_after_many_episodes_in_one_start(rewritten, episodes, stuck):
    (one,) = rewritten(*[(1, 0, 8, True)] * 100, *[(2, 0, 6, False)] * episodes).demonstrations
    assert one.stuck is stuck


def test_success_from_chosen_and_from_own_starts_is_kept_apart(rewritten):
    progress = rewritten(*[(1, 0, 8, True)] * 30, *[(2, 0, 8, False)] * 10, *[(3, None, None, True)] * 7)
    assert [(rate.value, rate.episodes) for rate in progress.chosen_starts] == [(1.0, 10)] * 3 + [(0.0, 10)]
    assert [(rate.value, rate.episodes, rate.step) for rate in progress.own_starts] == [(1.0, 7, 3 * STEPS)]


@pytest.mark.parametrize("seed", range(2))
def test_the_progress_that_is_read_episode_by_episode_is_that_of_all_episodes_at_once(rewritten, seed):
    rng = np.random.default_rng(seed)
    episodes = []
    for iteration in sorted(rng.integers(1, 7, size=rng.integers(700, 1200)).tolist()):
        number = None if rng.random() < 0.3 else int(rng.integers(4))
        step = None if number is None else int(rng.integers(10))
        episodes.append((iteration, number, step, bool(rng.random() < 0.4)))
    progress = rewritten(*episodes)

    def rate(members):
        successes, steps = sum(episode[3] for episode in members), sum(STEPS * episode[0] for episode in members)
        count = len(members)
        return SuccessRate(steps / count, successes / count, *wilson_interval(successes, count), count)

    def rates(members):
        groups = min(24, len(members) // 10)
        cuts = [len(members) * group // groups for group in range(groups + 1)]
        return tuple(rate(members[first:end]) for first, end in itertools.pairwise(cuts))

    assert progress.chosen_starts == rates([episode for episode in episodes if episode[1] is not None])
    assert progress.own_starts == rates([episode for episode in episodes if episode[1] is None])
    for one in progress.demonstrations:
        members = [episode for episode in episodes if episode[1] == one.number]
        earliest = min(episode[2] for episode in members)
        assert (one.start, one.episodes, one.last) == (earliest, len(members), rate(members[-20:]))
        assert one.at_start == rate([episode for episode in members if episode[2] == earliest])
    near, far = progress.within
    assert near.rate == rate([episode for episode in episodes if episode[2] is not None and episode[2] >= 2][-100:])
    assert far.rate == rate([episode for episode in episodes if episode[2] in (0, 1)][-100:])


def test_an_episode_whose_iteration_has_no_row_yet_does_not_count(rewritten):
    (one,) = rewritten((1, 0, 8, True), (7, 0, 4, True)).demonstrations
    assert one.start == 8


def test_the_ledger_of_a_real_run_tells_seeds_and_lengths_and_starts_only_move_back(run):
    progress = read_progress(RunDirectory.existing(run))
    ledger = [row for row in lines(run, "episodes.jsonl") if row["chosen"]]
    assert sum(one.episodes for one in progress.demonstrations) == len(ledger)
    for one in progress.demonstrations:
        assert list(one.starts) == sorted(set(one.starts), reverse=True)
        assert 0 <= one.start < one.length <= 10
        assert {row["seed"] for row in ledger if row["demonstration"] == one.number} == {one.seed}


def test_a_run_without_a_curriculum_is_refused(tmp_path):
    directory = rlpipe.train(scripted(tmp_path, "runner.total_timesteps=64"), local=True).directory
    with pytest.raises(ConfigError, match=r"trained without a curriculum: its curriculum.name is none"):
        read_progress(RunDirectory.existing(directory))


def test_a_run_in_which_no_such_episode_has_ended_is_refused(rewritten):
    with pytest.raises(ConfigError, match="none of its episodes has ended yet"):
        rewritten((1, None, None, True))


# --- ranges that widen


@pytest.fixture(scope="module")
def widened(tmp_path_factory):
    """A run in which the wind widens to where episodes fail, and the latency as far as it may."""
    return rlpipe.train(windy(tmp_path_factory.mktemp("widened")), local=True).directory


def test_the_progress_of_an_axis_is_that_of_its_edges(widened):
    progress = read_progress(RunDirectory.existing(widened))
    wind, latency = progress.axes
    assert (wind.name, wind.widest, wind.logarithmic) == ("wind", (-1.0, 1.0), False)
    assert (latency.name, latency.widest, latency.low, latency.range) == (
        "action_latency",
        (0.0, 2.0),
        None,
        (0.0, 2.0),
    )
    assert latency.high.levels == (0.0, 1.0, 2.0)[-len(latency.high.levels) :]
    assert list(latency.high.steps) == sorted({*latency.high.steps})
    at_edge = [row for row in lines(widened, "episodes.jsonl") if row.get("edge") == "wind_high"]
    assert wind.high.episodes == len(at_edge)
    assert wind.high.last.value == np.mean([row["success_once"] for row in at_edge[-20:]])
    assert progress.populations == ("present ranges", "widest ranges")
    assert progress.width[-1][1:] == tuple(
        lines(widened, "metrics.jsonl")[-1]["metrics"][f"env/curriculum/{name}"] for name in ("width", "range_entropy")
    )


def test_a_level_lies_in_its_range_as_the_range_is_drawn():
    edge = EdgeProgress((64,), (1.0,), 3, None)
    assert AxisProgress("mass", (0.25, 4.0), True, edge, edge).place(1.0) == 0.5
    axis = AxisProgress("mass", (0.0, 4.0), False, None, edge)
    assert (axis.range, axis.place(1.0), axis.place(5.0)) == ((0.0, 1.0), 0.25, 1.0)


def test_the_table_has_a_row_for_each_axis_that_widens(widened):
    output = command(widened)
    wind, latency = (
        next(line.split() for line in output.splitlines() if line.startswith(name)) for name in ("wind", "action_lat")
    )
    low, high = read_progress(RunDirectory.existing(widened)).axes[0].range
    assert wind[1:7] == [f"{low:g}", "to", f"{high:g}", "-1", "to", "1"]
    assert latency[1:8] == ["0", "to", "2", "0", "to", "2", "━" * 20]
    assert "widest ranges: as env.train.variations says; only these count in env/success_once" in output
    assert json.loads(command(widened, "--json"))["axes"][0]["widest"] == [-1.0, 1.0]


def test_the_picture_has_a_panel_for_each_axis_between_its_widest_levels(widened):
    progress = read_progress(RunDirectory.existing(widened))
    wind, latency, success = draw_curriculum(progress).axes
    low, high, *_ = wind.lines
    assert (low.get_ydata()[-1], high.get_ydata()[-1]) == progress.axes[0].range
    assert high.get_xdata()[-1] == progress.total_steps
    assert [tick.get_text() for tick in latency.get_yticklabels()] == ["0", "2"]
    assert [text.get_text() for text in success.get_legend().get_texts()][:2] == ["present ranges", "widest ranges"]


def test_the_report_says_over_which_ranges_episodes_varied(widened):
    page = report([widened])
    for words in ("training, over the widest ranges", "training, within the present ranges"):
        assert words in page
    assert "began where the curriculum chose" not in page
    content = collect(widened)
    began = episodes_section(content, 10_000).data["listed"]["began"]
    ledger = lines(widened, "episodes.jsonl")
    said = {"action_latency_high": "action latency at its high edge", "wind_low": "wind at its low edge"}
    for row, words in zip(ledger, began, strict=True):
        if "edge" not in row:
            assert words == ("within the present ranges" if row["chosen"] else "over the widest ranges")
        elif row["edge"] in said:
            assert words == said[row["edge"]]


# --- the table and the picture


def command(*arguments):
    result = CliRunner().invoke(app, ["curriculum", *map(str, arguments)])
    if isinstance(result.exception, ConfigError):
        raise result.exception
    assert result.exit_code == 0, result.output
    return result.stdout


def test_the_table_has_a_row_for_each_demonstration_the_furthest_behind_first(run):
    rows = [line.split() for line in command(run).splitlines()]
    shown = [row for row in rows if len(row) > 3 and row[0] in "012"]
    behind = sorted(read_progress(RunDirectory.existing(run)).demonstrations, key=lambda one: -one.start / one.length)
    assert [row[:4] for row in shown] == [
        [str(value) for value in (one.number, one.seed, one.length, one.start)] for one in behind
    ]


def test_json_holds_what_the_table_and_the_picture_show(run):
    assert json.loads(command(run, "--json")) == json.loads(
        json.dumps(read_progress(RunDirectory.existing(run)).as_json())
    )


def test_the_picture_has_a_line_for_each_demonstration_that_falls_to_its_present_start(rewritten):
    progress = rewritten((1, 0, 8, True), (2, 1, 4, True), (3, 0, 6, False))
    starts, success = draw_curriculum(progress).axes
    assert [line.get_ydata().tolist() for line in starts.lines] == [[0.8, 0.6, 0.6], [0.4, 0.4]]
    assert starts.lines[0].get_xdata().tolist() == [STEPS, 3 * STEPS, 6 * STEPS]
    assert [text.get_text() for text in starts.texts] == ["demonstration 0", "demonstration 1"]
    assert "chosen starts" in [text.get_text() for text in success.get_legend().get_texts()]


def test_many_demonstrations_are_thin_lines_around_their_mean(rewritten):
    progress = rewritten(*[(1, number, 8, True) for number in range(30)])
    starts = draw_curriculum(progress).axes[0]
    assert len(starts.lines) == 31
    assert [text.get_text() for text in starts.texts] == ["mean"]


def test_a_curriculum_over_seeds_has_a_panel_of_them_and_none_of_demonstrations(tmp_path):
    directory = rlpipe.train(reach(tmp_path, name="forward"), local=True).directory
    titles = [panel.get_title(loc="left") for panel in draw_curriculum(read_progress(RunDirectory(directory))).axes]
    assert titles == ["Success of consecutive episodes, with 95 % intervals", "Seeds of the forward curriculum"]


def test_a_curriculum_that_spreads_starts_has_a_panel_of_it_beside_the_demonstrations(tmp_path):
    quick = ["num_demos=1", "curriculum.successes=1", *LEARNT_SOON, "runner.total_timesteps=1280"]
    directory = rlpipe.train(reach(tmp_path, *quick, name="reverse_spread"), local=True).directory
    progress = read_progress(RunDirectory(directory))
    (one,) = progress.demonstrations
    later = [row for row in lines(directory, "episodes.jsonl") if row["chosen"] and not row["demonstration_length"]]
    assert later
    assert one.episodes + len(later) == sum(rate.episodes for rate in progress.chosen_starts)
    titles = [panel.get_title(loc="left") for panel in draw_curriculum(progress).axes]
    assert titles[0] == "Where episodes begin in 1 demonstration, solved (dot)"
    assert titles[-1] == "Where starts have spread to"


@pytest.mark.soak
def test_a_curriculum_that_spreads_starts_among_demonstrations_says_which_and_draws_how_far(tmp_path):
    quick = [
        "num_demos=2", "curriculum.successes=1", *LEARNT_SOON, "runner.total_timesteps=2560",
        "curriculum.spread_demonstrations=true", "curriculum.spread_success=0.05",
    ]  # fmt: skip
    directory = rlpipe.train(reach(tmp_path, *quick, name="reverse_spread"), local=True).directory
    spread_rows = [row for row in lines(directory, "episodes.jsonl") if row["towards"] is not None]
    assert {(row["demonstration"], row["towards"]) for row in spread_rows} == {(0, 1), (1, 0)}
    progress = read_progress(RunDirectory(directory))
    shares = [share for _, share in progress.blend_demonstrations]
    assert shares[0] < shares[-1]
    assert shares == sorted(shares)
    panel = draw_curriculum(progress).axes[-1]
    assert panel.lines[0].get_label() == "towards other demonstrations"


@pytest.mark.parametrize(("ending", "begins"), [(".png", b"\x89PNG"), (".svg", b"<?xml"), (".pdf", b"%PDF")])
def test_the_command_writes_the_picture_in_the_format_of_its_ending(run, tmp_path, ending, begins):
    file = tmp_path / f"progress{ending}"
    assert str(file) in command(run, "--out", file).replace("\n", "")
    assert file.read_bytes().startswith(begins)


@pytest.mark.parametrize(
    ("name", "says"), [("progress.gif", "must end in one of .png, .svg, .pdf"), ("none/progress.png", "no folder")]
)
def test_a_picture_that_cannot_be_written_is_refused_before_anything_is_read(tmp_path, name, says):
    with pytest.raises(ConfigError, match=says):
        command(tmp_path / "no run", "--out", tmp_path / name)


def test_without_matplotlib_there_is_a_table_and_the_picture_names_the_extra(run, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert "demonstration" in command(run)
    with pytest.raises(ConfigError, match=r"--out needs the package matplotlib, .* pip install 'rlpipe\[plots\]'"):
        check_picture(tmp_path / "progress.png")


@given(st.lists(st.floats(0, 1), max_size=8), st.floats(0.01, 0.2))
def test_labels_are_moved_a_gap_apart_in_their_order(heights, gap):
    moved = spread(heights, gap)
    order = sorted(range(len(heights)), key=lambda n: heights[n])
    assert all(moved[above] - moved[below] >= gap - 1e-9 for below, above in itertools.pairwise(order))
    if gap * (len(heights) - 1) <= 1:
        assert all(-1e-9 <= height <= 1 + 1e-9 for height in moved)


@given(st.lists(st.floats(0, 1), min_size=1, max_size=8), st.floats(0.01, 0.3))
def test_labels_without_bounds_stay_around_their_mean(heights, gap):
    moved = spread(heights, gap, within=(-math.inf, math.inf))
    assert np.mean(moved) == pytest.approx(np.mean(heights))


def test_labels_that_are_apart_stay_where_they_are():
    assert spread([0.5, 0.1, 0.9], 0.1) == [0.5, 0.1, 0.9]
