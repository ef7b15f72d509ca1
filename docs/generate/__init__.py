"""Generated pages of the documentation: ``python -m docs.generate`` writes all of docs/reference/."""

from __future__ import annotations

import re
from pathlib import Path

from docs.generate import api, commands, configuration, metrics

DOCS = Path(__file__).parents[1]
FOLDER = DOCS / "reference"
NOTICE = "<!-- Written by python -m docs.generate: edit what it reads, not this page. -->\n"
GROUPS = {
    "Metrics": (metrics, "Every number of a row: meaning, formula, unit, healthy range, names in other systems."),
    "Configuration": (configuration, "Every key: default, unit, legal values, meaning."),
    "Commands": (commands, "Every command with its arguments, options and exit codes."),
    "Python": (api, "Public names with signature and docstring."),
}
HEAD = """\
# Reference

Complete, for searching. To read, begin with the guides: [configuration](../configuration.md),
[metrics](../metrics.md), [commands](../commands.md), [extending](../extending.md).

`python -m docs.generate` writes all pages of this folder from the code; a test compares.
"""


def pages() -> dict[str, str]:
    """Writes all pages, by their path below docs/."""
    groups = {title: module.pages() for title, (module, _) in GROUPS.items()}
    lines = [HEAD]
    for title, group in groups.items():
        links = " · ".join(f"[{heading(text)}]({path.removeprefix('reference/')})" for path, text in group.items())
        lines.append(f"## {title}\n\n{GROUPS[title][1]}\n\n{links}\n")
    below = {path: text for group in groups.values() for path, text in group.items()}
    return {path: NOTICE + text for path, text in {"reference/index.md": "\n".join(lines), **below}.items()}


def heading(text: str) -> str:
    """Returns the heading of a page."""
    found = re.match(r"# (.+)", text)
    assert found is not None
    return found[1]


def stored() -> dict[str, str]:
    """Reads the pages that are there, by their path below docs/."""
    return {page.relative_to(DOCS).as_posix(): page.read_text(encoding="utf-8") for page in FOLDER.rglob("*.md")}
