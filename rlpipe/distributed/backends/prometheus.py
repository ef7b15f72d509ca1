"""Prometheus, through the metrics that every Ray node exports; ``launch/grafana/`` has a dashboard for them.

Only the metric logger exports, so the number of series does not grow with the number of workers.
"""

from __future__ import annotations

import json
import re
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rlpipe.backends.base import Backend, NameRules, Place, RunInfo
from rlpipe.errors import ConfigError
from rlpipe.files import replacing
from rlpipe.metrics import CATALOGUE
from rlpipe.metrics.alerts import TAKES_BACK, ToldAlerts
from rlpipe.metrics.row import Event, EventKind, Row, Status
from rlpipe.run.directory import read_jsonl

if TYPE_CHECKING:
    from ray.util.metrics import Gauge

__all__ = ["Prometheus"]

_FILES = NameRules("A-Za-z0-9_.-", longest=200)
REFRESH_SECONDS = 1.0
"""Interval at which gauges are set again: Ray drops a gauge that was not set for two of its report intervals, which
last at least 1 s and by default 10 s."""

ALERT = "rlpipe_alert"
OWN = {
    "rlpipe_iteration": "Last iteration of the run.",
    "rlpipe_total_timesteps": "Environment steps so far.",
    "rlpipe_row_timestamp_seconds": "When the last iteration was written, in seconds since 1970.",
    "rlpipe_reported": "Iteration that the number of this metric is from.",
    ALERT: "1 while an alert stands, 0 after it was cleared.",
    "rlpipe_status": "1 for the status that the run has, 0 for one that it had.",
}
"""Gauges other than metrics, with their meaning."""


@dataclass(frozen=True)
class PrometheusOptions:
    """Options."""

    linger: float = 25.0
    """Seconds that a finished run waits so that its last numbers arrive: Ray passes them on every 10 s, and Prometheus
    scrapes them every ``scrape_interval``."""

    def __post_init__(self) -> None:
        if self.linger < 0:
            raise ConfigError(f"runner.logger.options.prometheus.linger is {self.linger:g}; it must not be negative.")


class Prometheus(Backend):
    """Backend with a gauge for each metric.

    ``env/success_once`` becomes ``ray_rlpipe_env_success_once`` with the labels ``run``, ``experiment``, ``project``,
    and ``metric="env/success_once"``, so every name can be found again and no two are mixed up.

    A gauge shows the present value. A metric without a value in an iteration, such as ``eval/success_once`` between two
    evaluations, keeps its last number, also when the run resumes; ``ray_rlpipe_reported`` shows the iteration it is
    from. Prometheus sees a sample of the iterations; ``metrics.jsonl`` has them all, and the numbers of single workers.

    The address to scrape is in ``<log_path>/prometheus/``, one file per run, as long as it runs: Ray writes its own
    file for that only with its dashboard, and only for the Ray that started last.
    """

    Config = PrometheusOptions
    place = Place.RAY

    @classmethod
    def check(cls) -> None:
        """Checks for Ray's extra, without which Ray accepts every number and exports none."""
        from rlpipe.distributed.nodes import missing_from_ray

        if package := missing_from_ray():
            raise ConfigError(
                f"the backend prometheus needs Ray with its extra default, but {package} is not installed: "
                "pip install 'rlpipe[prometheus]'"
            )

    def __init__(self, run: RunInfo) -> None:
        """Starts to export; a resumed run begins with its last numbers and alerts.

        Raises:
            ConfigError: there is no Ray here, or it exports nothing.
        """
        self._run = run
        self._linger: float = run.options.linger
        self._lock = threading.Lock()
        self._alerts = ToldAlerts()
        self._numbers: dict[tuple[str, tuple[tuple[str, str], ...]], float] = {}
        self._gauges: dict[tuple[str, tuple[str, ...]], Gauge] = {}
        if run.first_iteration > 1:
            self._recall()
        self._set("rlpipe_status", 1, status=Status.RUNNING)
        self._target = run.log_path / "prometheus" / f"{_FILES.fit(run.experiment)}.{run.run_id}.json"
        scrape = [{"targets": [_address()], "labels": {"job": "ray"}}]
        self._target.parent.mkdir(exist_ok=True)
        with replacing(self._target) as file:
            file.write(json.dumps(scrape).encode())
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._export, name="prometheus", daemon=True)
        self._thread.start()

    def _recall(self) -> None:
        for row in map(Row.from_json, read_jsonl(self._run.directory / "metrics.jsonl")):
            self.write(row)
        for event in (Event(**line) for line in read_jsonl(self._run.directory / "events.jsonl")):
            self._alerts.add(event)
        self._alerts.take_back(self._run.first_iteration - 1)
        for alert in self._alerts.events:
            self._set_alert(alert.data, raised=not alert.data["cleared"])

    def write(self, row: Row) -> None:
        with self._lock:  # an iteration is exported as a whole
            self._set("rlpipe_iteration", row.iteration)
            self._set("rlpipe_total_timesteps", row.total_timesteps)
            self._set("rlpipe_row_timestamp_seconds", row.time)
            for name, value in row.metrics.items():
                self._set(gauge_name(name), value, metric=self.fitted(name))
                self._set("rlpipe_reported", row.iteration, metric=self.fitted(name))

    def event(self, event: Event) -> None:
        self._alerts.add(event)
        with self._lock:
            if event.kind == EventKind.ALERT:
                self._set_alert(event.data, raised=not event.data["cleared"])
            elif event.kind in TAKES_BACK:
                self._numbers |= {key: 0.0 for key in self._numbers if key[0] == ALERT}
                for data in self._alerts.standing.values():
                    self._set_alert(data, raised=True)

    def _set_alert(self, data: Mapping[str, Any], *, raised: bool) -> None:
        self._set(ALERT, float(raised), **{key: data[key] for key in ("metric", "rule", "level")})

    def _set(self, name: str, value: float, **labels: str) -> None:
        self._numbers[name, tuple(labels.items())] = float(value)

    def close(self, status: Status) -> None:
        with self._lock:
            self._set("rlpipe_status", 0, status=Status.RUNNING)
            self._set("rlpipe_status", 1, status=status)
        if status in (Status.COMPLETED, Status.STOPPED):
            time.sleep(self._linger)
        self._ended.set()
        self._thread.join()
        self._target.unlink(missing_ok=True)

    def _export(self) -> None:
        while not self._ended.wait(REFRESH_SECONDS):
            self.refresh()

    def refresh(self) -> None:
        """Sets every gauge again."""
        with self._lock:
            numbers = list(self._numbers.items())
        for (name, labels), value in numbers:
            self._gauge(name, dict(labels)).set(value, dict(labels))

    def _gauge(self, name: str, labels: Mapping[str, str]) -> Gauge:
        from ray.util.metrics import Gauge

        key = name, tuple(labels)
        if key not in self._gauges:
            metric = CATALOGUE.get(labels.get("metric", ""))
            meaning = OWN.get(name) or (f"{metric.meaning} Unit: {metric.unit}." if metric else "")
            common = {"run": self._run.run_id, "experiment": self._run.experiment, "project": self._run.project}
            gauge = Gauge(name, meaning, tag_keys=(*common, *labels))
            self._gauges[key] = gauge.set_default_tags(common)
        return self._gauges[key]


def gauge_name(metric: str) -> str:
    """Returns the name of a metric's gauge, to which Ray adds the prefix ``ray_``; its label tells names apart."""
    name = "rlpipe_" + re.sub("[^a-zA-Z0-9_]", "_", metric)
    return f"{name}_" if name in OWN else name


def _address() -> str:
    """Returns the address at which this node exports the gauges of this process."""
    import ray

    if not ray.is_initialized():
        raise ConfigError(
            "prometheus shows a run through the Ray it runs on, while it runs: leave out --local, or use another "
            "backend for a run that has ended."
        )
    here = ray.get_runtime_context().get_node_id()
    (node,) = (node for node in ray.nodes() if node["NodeID"] == here)
    if node["MetricsExportPort"] <= 0:
        raise ConfigError(
            "the Ray on this machine exports no metrics, because it was started without its extra default: "
            "pip install 'rlpipe[prometheus]' there and start it again."
        )
    return f"{node['NodeManagerAddress']}:{node['MetricsExportPort']}"
