"""Runs on a Ray cluster. The only package that imports Ray."""

import os

# Ray prints a paragraph on standard output for every process that dies; the run reports who died and why itself. Ray
# reads this variable when it is imported.
os.environ.setdefault("RAY_DEDUP_LOGS_SKIP_REGEX", "A worker died or was killed")
