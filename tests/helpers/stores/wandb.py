from __future__ import annotations

import json
import subprocess
from functools import cache

from rlpipe.backends.base import unescaped

OPTIONS = ("runner.logger.options.wandb.mode=offline",)
TOLERANCE = 0.0
STATUS_COMPLETED = 0


def inspect(file):
    """Returns what W&B itself reads from one of its files, one record per line; a torn end is an error message.

    It is what ``wandb leet inspect --json`` starts, after it has loaded all of W&B.
    """
    from wandb.util import get_core_path

    command = [get_core_path(), "leet", "inspect", "--no-observability", "--json", "--run-file", str(file)]
    return subprocess.run([*command, str(file.parents[1])], capture_output=True, text=True, check=True)


def records(run, kind):
    """Returns the records of all files of the run in the order in which `wandb sync` uploads them: by their start."""
    files = []
    for file in (run.path / "wandb").glob("offline-run-*/*.wandb"):
        found = _records(file, file.stat().st_size, file.stat().st_mtime_ns)
        started = next(record["run"]["start_time"] for record in found if record["type"] == "run")
        files.append((started, [record[kind] for record in found if record["type"] == kind]))
    return [record for _, found in sorted(files, key=lambda file: file[0]) for record in found]


@cache
def _records(file, size, moment):
    """Returns the contents of a file, and reads it again when its size or its time has changed."""
    return [json.loads(line) for line in inspect(file).stdout.splitlines()]


def metrics(item):
    """The numbers of a row that are a metric's."""
    ours = ("iteration", "total_timesteps", "_timestamp", "_step", "_runtime", "_wandb")
    named = {name: value for name, value in item.items() if name not in ours and not name.startswith("histograms/")}
    return {unescaped(name): value for name, value in named.items()}


def numbers(run):
    found: dict[int, dict[str, float]] = {}
    for record in records(run, "history"):
        step = record["step"]["num"]
        assert step == len(found) + 1 == record["item"]["iteration"], f"iteration {step} stands out of turn"
        found[step] = metrics(record["item"])
    return found


def status(run):
    return records(run, "exit")[-1]["exit_code"]
