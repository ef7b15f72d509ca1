"""The shell of pages in a browser: theme, navigation, no requests."""

from __future__ import annotations

import pytest
from markupsafe import Markup

from rlpipe.report.web.page import Section, page
from tests.helpers.browser import PHONE, browser, opened  # noqa: F401 - a fixture

pytestmark = pytest.mark.extras


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    wide = Markup("<div class='table-scroll'><table><tr>{}</tr></table></div>").format(Markup("<td>wide</td>") * 60)
    sections = [Section(f"part-{n}", f"A part with number {n}", wide) for n in range(12)]
    found = tmp_path_factory.mktemp("pages") / "page.html"
    found.write_text(page("shell", sections, Markup("<h1>Shell</h1>")), encoding="utf-8")
    return found


def test_the_shell_prints_no_complaint_and_asks_for_nothing(browser, file):  # noqa: F811
    with opened(browser, file) as shell:
        assert (shell.complaints, shell.requests) == ([], [])


def test_the_theme_follows_the_system_until_it_is_chosen_and_is_remembered(browser, file):  # noqa: F811
    with opened(browser, file, color_scheme="dark") as shell:
        ground = "getComputedStyle(document.body).backgroundColor"
        assert shell.page.evaluate(ground) == "rgb(19, 21, 24)"
        shell.page.click("#theme-toggle")
        assert shell.page.evaluate(ground) == "rgb(251, 251, 250)"
        for _ in range(100):  # a browser may keep what a page remembers some time after the page has said so
            shell.page.reload()
            if shell.page.evaluate(ground) == "rgb(251, 251, 250)":
                break
            shell.page.wait_for_timeout(100)
        assert shell.page.evaluate(ground) == "rgb(251, 251, 250)"


def test_a_phone_shows_wide_tables_without_scrolling_the_page(browser, file):  # noqa: F811
    with opened(browser, file, viewport=PHONE) as shell:
        assert not shell.is_wider_than_the_screen()
