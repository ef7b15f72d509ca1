"""Helpers for tests of several packages."""

from pathlib import Path

REPOSITORY = Path(__file__).parents[2]
