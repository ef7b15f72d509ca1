"""Measures what a failing backend costs a run: step time relative to an undisturbed run, missing rows, exit code.

Every backend fails in every way of ``tests/helpers/outages.py``, with the real library and without a network. The
simulator takes a fixed time for each step, so a difference in step time is due to the backend. ``disk full`` needs
permission to mount a small file system, which holds the whole run. Exits with 1 if a promise is broken.

    python benchmarks/outages.py [BACKEND ...]
"""

from __future__ import annotations

import os
import platform
import statistics
import subprocess
import sys
import tempfile
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console
from rich.progress import track

sys.path.insert(0, str(Path(__file__).parent.parent))
from tests.helpers.outages import FAULTS, Outcome, run

BACKENDS = ("tensorboard", "wandb", "swanlab", "trackio", "mlflow", "csv", "jsonl")


@contextmanager
def disk(small: bool):
    """Yields an empty folder; a small one is a file system of its own, of 256 MiB."""
    with tempfile.TemporaryDirectory() as folder:
        if small:
            subprocess.run(["mount", "-t", "tmpfs", "-o", "size=256m", "tmpfs", folder], check=True)
        try:
            yield Path(folder)
        finally:
            if small:
                subprocess.run(["umount", "--lazy", folder], check=True)


def main() -> int:
    """Runs every case and prints the table."""
    backends = sys.argv[1:] or BACKENDS
    print(f"{platform.processor() or platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}\n")
    print("| backend | fault | step time | missing at the end | after `rlpipe sync` | exit code | told |")
    print("| --- | --- | --- | --- | --- | --- | --- |")
    broken = 0
    for backend in track(backends, "Backends", console=Console(stderr=True)):
        found: list[tuple[str, Outcome]] = []
        for fault in ("", *FAULTS, ""):  # undisturbed before and after, because machines drift
            with disk(fault == "disk full") as folder:
                found.append((fault, run(folder, {backend: fault})[backend]))
        undisturbed = statistics.mean(outcome.step for fault, outcome in found if not fault)
        for fault, outcome in found:
            ratio = outcome.step / undisturbed
            once = bool(outcome.told) == bool(fault) and len({*outcome.told}) == len(outcome.told)
            bad = outcome.code != 0 or outcome.after_sync or ratio >= 1.05 or not once
            broken += bad
            cells = (backend, fault or "none", f"{ratio:.3f}", outcome.missing, outcome.after_sync, outcome.code)
            told = ", ".join(outcome.told) or "-"
            print("|", " | ".join(map(str, (*cells, told))), "| <- broken" if bad else "|", flush=True)
    return int(broken > 0)


if __name__ == "__main__":
    sys.exit(main())
