"""Turns the pages of docs/ into those of the site, where the two differ: tutorials are run."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.pages import Page

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))

import tutorials  # noqa: E402 - beside this file, which mkdocs loads by its path


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, **_: Any) -> str:
    """Runs a tutorial, and puts the outputs of its cells below them."""
    if not tutorials.is_tutorial(page.file.src_uri):
        return markdown
    return tutorials.rendered(Path(page.file.abs_src_path), run=config.extra["run_tutorials"])
