"""Replays of evaluation episodes, as a section of a page that plays them in 3D."""

from rlpipe.report.replays.section import NoReplaysError, section

__all__ = ["NoReplaysError", "section"]
