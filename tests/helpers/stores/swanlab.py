from __future__ import annotations

import json

from swanboard.db import connect
from swanboard.db.models import Experiment, Tag

OPTIONS: tuple[str, ...] = ()
TOLERANCE = 0.0
STATUS_COMPLETED = Experiment.FINISHED_STATUS


def experiment(run):
    """The one experiment that SwanLab's dashboard shows for the run, in the folder that ``swanlab watch`` opens."""
    connect(path=str(run.path.parents[1] / "swanlab"))
    (found,) = Experiment.select().where(Experiment.name.startswith(run.run_id))
    return found


def numbers(run):
    shown = experiment(run)
    found: dict[int, dict[str, float]] = {}
    for tag in Tag.select().where(Tag.experiment_id == shown.id):
        for file in (run.path.parents[1] / "swanlab" / shown.run_id / "logs" / tag.folder).glob("*.log"):
            for point in map(json.loads, file.read_text(encoding="utf-8").splitlines()):
                held = found.setdefault(point["index"], {})
                assert tag.name not in held, f"{tag.name} stands twice in iteration {point['index']}"
                held[tag.name] = point["data"]
    return found


def status(run):
    return experiment(run).status
