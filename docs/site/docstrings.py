"""Lets griffe read the docstrings of the package.

Their sections follow each other without blank lines, and their links are those of docs/, above the pages of the API.
"""

from __future__ import annotations

import re
from typing import Any

from griffe import Extension, Object

SECTION = re.compile(r"(?<!\n)\n(?=(?:Args|Attributes|Returns|Raises|Yields):\n)")
LINK = re.compile(r"(?<=\]\()(?=[\w-]+\.md)")


class Sections(Extension):
    """Puts a blank line before each section, and corrects links."""

    def on_object(self, *, obj: Object, **_: Any) -> None:
        """Is called with each object that griffe has read."""
        if obj.docstring is not None:
            obj.docstring.value = LINK.sub("../", SECTION.sub("\n\n", obj.docstring.value))
