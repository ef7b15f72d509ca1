"""The report in a browser: it draws, sorts, filters, fits a phone, and asks for nothing."""

from __future__ import annotations

import pytest

import rlpipe
from rlpipe.report.pages import report, write
from tests.helpers.browser import PHONE, browser, opened  # noqa: F401 - a fixture
from tests.helpers.runs import lines, scripted

# ruff: noqa: F811

pytestmark = pytest.mark.extras


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    return rlpipe.train(scripted(folder, "runner.val_check_interval=2", "rollout.horizon=40"), local=True).directory


@pytest.fixture(scope="module")
def file(run):
    return write([run])


def readout(shown, chart: str, key: str) -> str:
    """Presses keys on a chart and returns what it announces."""
    shown.page.focus(f"#{chart}")
    shown.page.keyboard.press(key)
    return shown.page.inner_text(f"#{chart.replace('chart', 'readout')}")


def test_the_report_prints_no_complaint_and_asks_for_nothing(browser, file):
    with opened(browser, file) as shown:
        for axis in ("seconds", "iteration", "steps"):
            shown.page.click(f"[data-axis={axis}]")
        assert (shown.complaints, shown.requests) == ([], [])
        assert shown.page.locator(".chart canvas").count() >= 10


def test_the_arrow_keys_read_the_values_of_metrics_jsonl(browser, run, file):
    row = lines(run, "metrics.jsonl")[-1]
    with opened(browser, file) as shown:
        shown.page.select_option("#metric-chooser", "train/entropy_loss")
        said = readout(shown, "metric-chart", "End")
        assert said == f"step {row['total_timesteps']} · train/entropy_loss {shown_as(row, 'train/entropy_loss')}"


def shown_as(row: dict, name: str) -> str:
    """A number with six significant digits, without closing zeros."""
    value = float(f"{row['metrics'][name]:.6g}")
    assert abs(value) >= 1e-4
    return f"{value:.10f}".rstrip("0").rstrip(".")


def test_a_click_on_a_heading_sorts_all_listed_episodes_and_a_second_one_turns_them(browser, run, file):
    lengths = sorted(row["length"] for row in lines(run, "episodes.jsonl"))
    with opened(browser, file) as shown:
        heading = shown.page.locator("#episode-table th[data-key=length]")
        at = heading.evaluate("(head) => head.cellIndex")
        column = f"[...document.querySelectorAll('#episode-table tbody tr')].map((row) => +row.cells[{at}].innerText)"
        for ordered, name in ((lengths, "ascending"), (lengths[::-1], "descending")):
            heading.locator("button").click()
            assert heading.get_attribute("aria-sort") == name
            assert shown.page.evaluate(column) == ordered[:25]


def test_episodes_are_filtered_by_their_outcome(browser, run, file):
    failures = sum(not row["success_once"] for row in lines(run, "episodes.jsonl"))
    with opened(browser, file) as shown:
        shown.page.select_option("[data-filter=outcome]", "false")
        assert shown.page.inner_text("#episode-table .count").endswith(f" of {failures}")
        assert {*shown.page.locator("#episode-table tbody .badge").all_inner_texts()} == {"failure"}


def test_the_metric_filter_leaves_what_fits_and_chooses_it(browser, file):
    with opened(browser, file) as shown:
        shown.page.fill("#metric-filter", "explained var")
        assert shown.page.input_value("#metric-chooser") == "train/critic/explained_variance"
        assert shown.page.inner_text("#metric-about").startswith("Share of the variance of the value targets")


def test_dark_mode_draws_the_charts_again_on_a_dark_ground(browser, file):
    with opened(browser, file, color_scheme="dark") as shown:
        assert (
            shown.page.evaluate("getComputedStyle(document.querySelector('.panel')).backgroundColor")
            == "rgb(26, 29, 33)"
        )
        shown.page.click("#theme-toggle")
        assert (
            shown.page.evaluate("getComputedStyle(document.querySelector('.panel')).backgroundColor")
            == "rgb(255, 255, 255)"
        )
        assert shown.complaints == []


def test_a_phone_needs_no_horizontal_scrolling(browser, file):
    with opened(browser, file, viewport=PHONE) as shown:
        assert not shown.is_wider_than_the_screen()
        assert shown.page.evaluate("document.querySelector('#success-chart canvas').clientWidth") < PHONE["width"]


def test_a_phone_shows_what_happened_in_full_width(browser, file):
    with opened(browser, file, viewport=PHONE) as shown:
        box = shown.page.locator(".event-table td:last-child").first.bounding_box()
        assert box is not None
        assert box["width"] > 300
        assert box["x"] + box["width"] < PHONE["width"]


def test_paper_has_the_curves_and_no_controls(browser, file):
    with opened(browser, file, color_scheme="dark") as shown:
        shown.page.evaluate("dispatchEvent(new Event('beforeprint'))")
        shown.page.emulate_media(media="print")
        assert shown.page.is_visible("#success-chart canvas")
        assert not shown.page.is_visible(".page-bar")
        assert shown.page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"


def test_several_seeds_are_drawn_as_a_mean_with_the_lowest_and_the_highest(browser, run, tmp_path):
    other = rlpipe.train(
        scripted(tmp_path, "runner.val_check_interval=2", "rollout.horizon=40", "runner.seed=1"), local=True
    ).directory
    file = tmp_path / "both.html"
    file.write_text(report([run, other]), encoding="utf-8")
    values = [lines(one, "metrics.jsonl")[-1]["metrics"]["env/episode_len"] for one in (run, other)]
    with opened(browser, file) as shown:
        shown.page.select_option("#metric-chooser", "env/episode_len")
        said = readout(shown, "metric-chart", "End")
        assert shown.complaints == []
    mean = float(f"{sum(float(f'{value:.6g}') for value in values) / 2:.6g}")
    assert f"scripted {mean:g}" in said
    assert "seed 0" in said
    assert "seed 1" in said
