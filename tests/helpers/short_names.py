"""A backend whose store accepts only short names, in a file that loads fast."""

from __future__ import annotations

from rlpipe.backends.base import Backend, NameRules


class ShortNames(Backend):
    """Shortens names, and refuses one that no run has."""

    names = NameRules(longest=36)

    def __init__(self, run):
        """Needs nothing."""

    def write(self, row):
        for name in row.metrics:
            self.fitted(name)
        self.refuse("env/odd", "it is odd")

    def close(self, status):
        """Holds nothing."""
