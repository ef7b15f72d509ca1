"""Helpers for tests of several rooms."""

from pathlib import Path

REPOSITORY = Path(__file__).parents[2]
