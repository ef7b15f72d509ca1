from __future__ import annotations

import os

from rlpipe.backends.base import unescaped
from rlpipe.backends.mlflow import RUN_ID

OPTIONS: tuple[str, ...] = ()
TOLERANCE = 0.0
STATUS_COMPLETED = "FINISHED"

os.environ["MLFLOW_DISABLE_TELEMETRY"] = "true"
os.environ.pop("MLFLOW_TRACKING_URI", None)  # a server of whoever runs the tests


def held(log_path, run_id, project):
    """The MLflow run, and who to ask about it."""
    from mlflow import MlflowClient

    client = MlflowClient(f"sqlite:///{log_path / 'mlflow.db'}")
    experiment = client.get_experiment_by_name(project)
    (found,) = client.search_runs([experiment.experiment_id], f"tags.`{RUN_ID}` = '{run_id}'")
    return client, found


def shown(client, found):
    """Its numbers by iteration and metric."""
    numbers: dict[int, dict[str, float]] = {}
    for name in found.data.metrics:
        for point in client.get_metric_history(found.info.run_id, name):
            row = numbers.setdefault(point.step, {})
            assert unescaped(name) not in row, f"{name} stands twice in iteration {point.step}"
            row[unescaped(name)] = point.value
    return numbers


def numbers(run):
    return shown(*held(run.path.parents[1], run.run_id, run.read_json()["project"]))


def status(run):
    return held(run.path.parents[1], run.run_id, run.read_json()["project"])[1].info.status
