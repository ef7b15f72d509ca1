from __future__ import annotations

import tempfile
from pathlib import Path

from rlpipe.run.directory import read_jsonl

_HELD = tempfile.TemporaryDirectory(prefix="rlpipe-jsonl-")  # removed when the tests end
FOLDER = Path(_HELD.name)
OPTIONS = (f"runner.logger.options.jsonl.path={FOLDER}/{{run}}.jsonl",)
TOLERANCE = 0.0


def numbers(run):
    copy = FOLDER / f"{run.run_id}.jsonl"
    rows = list(read_jsonl(copy))
    assert len({row["iteration"] for row in rows}) == len(rows)
    return {
        row["iteration"]: {
            **row["metrics"],
            **{f"workers/{r}/{key}": v for r, found in row.get("workers", {}).items() for key, v in found.items()},
        }
        for row in rows
    }
