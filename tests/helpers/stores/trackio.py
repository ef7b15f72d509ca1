from __future__ import annotations

from rlpipe.backends.trackio import RESERVED

OPTIONS: tuple[str, ...] = ("runner.logger.options.trackio.folder=trackio",)  # not the home directory
TOLERANCE = 0.0


def storage(log_path):
    """Trackio's own, looking where the runs wrote."""
    from trackio import sqlite_storage

    sqlite_storage.TRACKIO_DIR = log_path / "trackio"
    return sqlite_storage.SQLiteStorage


def numbers(run):
    found: dict[int, dict[str, float]] = {}
    for row in storage(run.path.parents[1]).get_logs(run.read_json()["project"], run.run_id):
        assert row["step"] not in found, f"iteration {row['step']} stands twice"
        found[row["step"]] = {
            name: value for name, value in row.items() if name not in RESERVED and not isinstance(value, dict)
        }
    return found
