"""Pages in a real browser: what they print, what they ask for, how wide they are."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
ARGUMENTS = ("--no-sandbox", "--disable-gpu", "--enable-unsafe-swiftshader")
PHONE = {"width": 390, "height": 844}
DESKTOP = {"width": 1280, "height": 900}


@dataclass
class OpenPage:
    """A page that is open, and what it did.

    Attributes:
        page: Playwright's page
        complaints: errors and warnings of its console, and errors of its scripts
        requests: addresses that it asked for, without the file itself and what lies inside it
    """

    page: Page
    complaints: list[str] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)

    def is_wider_than_the_screen(self) -> bool:
        return bool(self.page.evaluate("document.documentElement.scrollWidth > document.documentElement.clientWidth"))


@contextmanager
def started_browser() -> Iterator[Browser]:
    """Starts Chromium; a machine without one skips the test."""
    if CHROMIUM is None:
        pytest.skip("there is no Chromium on this machine")
    sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=list(ARGUMENTS))
        try:
            yield browser
        finally:
            browser.close()


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """One Chromium for the tests of a file. A file of tests imports this fixture."""
    with started_browser() as found:
        yield found


@contextmanager
def opened(browser: Browser, file: Path, before: str = "", **context: Any) -> Iterator[OpenPage]:
    """Opens a file in a fresh window; ``context`` as of Playwright's ``new_context``, such as ``viewport=PHONE``.
    ``before`` is a script that runs before those of the page."""
    window = browser.new_context(**{"viewport": DESKTOP, **context})
    try:
        found = OpenPage(window.new_page())
        page = found.page
        page.on("console", lambda said: found.complaints.append(said.text) if said.type in NOISE else None)
        page.on("pageerror", lambda error: found.complaints.append(str(error)))
        page.on("request", lambda request: found.requests.append(request.url) if _leaves(request.url, file) else None)
        page.add_init_script(before)
        page.goto(file.resolve().as_uri())
        yield found
    finally:
        window.close()


NOISE = ("error", "warning")


def _leaves(url: str, file: Path) -> bool:
    return not url.startswith(("data:", "blob:")) and url.partition("#")[0] != file.resolve().as_uri()
