"""Lets griffe read the docstrings of the package, whose sections follow each other without blank lines."""

from __future__ import annotations

import re
from typing import Any

from griffe import Docstring, Extension, Object

SECTION = re.compile(r"(?<!\n)\n(?=(?:Args|Attributes|Returns|Raises|Yields):\n)")


class Sections(Extension):
    """Puts a blank line before each section."""

    def on_object(self, *, obj: Object, **_: Any) -> None:
        """Is called with each object that griffe has read."""
        if obj.docstring is not None:
            obj.docstring.value = spaced(obj.docstring)


def spaced(docstring: Docstring) -> str:
    """Returns the text of a docstring with a blank line before each section."""
    return SECTION.sub("\n\n", docstring.value)
