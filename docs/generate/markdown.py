"""Markdown of the generated pages."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterable, Sequence

CODE = re.compile(r"(``?)(.+?)\1")
GUIDE = re.compile(r"(?<![\w/])docs/([\w/]+\.md(?:#[\w-]+)?)|(?<=\]\()(?=[\w-]+\.md)")


def code(text: str) -> str:
    """Formats text as code."""
    return f"`{text}`"


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Formats a table; columns without any text are left out."""
    lines = [head, ["---"] * len(head), *([re.sub(r"(?<!\\)\|", r"\\|", cell) for cell in row] for row in rows)]
    shown = [column for column in zip(*lines, strict=True) if any(column[2:])]
    return "".join(f"| {' | '.join(line)} |\n" for line in zip(*shown, strict=True))


def wrapped(text: str, indent: str = "") -> str:
    """Wraps a paragraph to lines of at most 120 characters."""
    return textwrap.fill(
        text, 120, initial_indent=indent, subsequent_indent=" " * len(indent), break_long_words=False,
        break_on_hyphens=False,
    ) + "\n"  # fmt: skip


def prose(text: str, depth: int) -> str:
    """Turns the prose of a docstring, a help text or a field into Markdown.

    Args:
        text: as written in the code, with `` around code and ``docs/page.md`` for a guide.
        depth: folders between docs/ and the page.
    """
    up = "../" * depth
    pieces = CODE.split(text)  # outside of code, the mark, code, outside of code, ...
    pieces[::3] = [piece.replace("<", "&lt;") for piece in pieces[::3]]
    for place in range(1, len(pieces), 3):
        pieces[place : place + 2] = ["", f"`{pieces[place + 1]}`"]
    return GUIDE.sub(lambda found: f"[{found[1]}]({up}{found[1]})" if found[1] else up, "".join(pieces))
