"""TensorBoard event files, written with TensorBoard's own writer, which does not need torch.

Two tabs are arranged: *Custom Scalars* shows the panels of ``rlpipe.metrics.panels``, health first, and *HParams* one
line for each run, which can be sorted by its success.
"""

from __future__ import annotations

import re
import shlex
import time
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from rlpipe.backends.base import Backend, RunInfo
from rlpipe.backends.shared.video import TAG, animation, video_of
from rlpipe.config.defaults import changed
from rlpipe.config.fields import Affects, affected_by
from rlpipe.config.schema import Config
from rlpipe.errors import ConfigError
from rlpipe.metrics import CATALOGUE
from rlpipe.metrics import catalogue as m
from rlpipe.metrics.dialects import BY_TIMESTEPS
from rlpipe.metrics.panels import Panel, shown
from rlpipe.metrics.row import Event, HistogramView, Row, Status

if TYPE_CHECKING:
    from tensorboard.compat.proto.summary_pb2 import HistogramProto, Summary

__all__ = ["TensorBoard"]


class TensorBoard(Backend):
    """Scalars of each iteration, distributions as histograms, videos as moving images, and events as text.

    The layout of the custom scalars is written with the first row after an update, when it is known what the algorithm
    reports.

    Metrics under another system's names go to a TensorBoard run of their own, ``tensorboard/<system>``: the same name
    can mean another number there, and the axis is that system's, environment steps or updates.
    """

    @classmethod
    def view_command(cls, options: Any, run: Path, project: str) -> str:  # noqa: ARG003
        return shlex.join(["tensorboard", "--logdir", str(run.parent)])

    def __init__(self, run: RunInfo) -> None:
        """Opens new event files; a resumed run purges earlier ones from its next iteration on."""
        self._run, self._folder = run.directory, run.directory / "tensorboard"
        self._first = self._iteration = run.first_iteration
        self._files = {"": _File(self._folder, self._first)}
        self._text("configuration", "    " + run.config_yaml.replace("\n", "\n    "), self._first, None)
        self._arranged = run.first_iteration > 1
        if not self._arranged:
            for summary in session(run):
                self._files[""].add(self._first, None, summary)

    def write(self, row: Row) -> None:
        from tensorboard.compat.proto.summary_pb2 import Summary

        self._iteration = row.iteration
        histograms = [
            Summary.Value(tag=self.fitted(name), histo=_histogram(view)) for name, view in row.histograms.items()
        ]
        for system, metrics in {"": row.series, **row.dialects}.items():
            by_timesteps = system in BY_TIMESTEPS
            if system not in self._files:
                decisions = int(row.metrics.get(m.NUM_DECISIONS.name, 0))  # there are none while cloning
                first = row.total_timesteps - decisions + 1 if by_timesteps else self._first
                self._files[system] = _File(self._folder / system, first)
            values = [Summary.Value(tag=self.fitted(name), simple_value=value) for name, value in metrics.items()]
            step = row.total_timesteps if by_timesteps else row.iteration
            self._files[system].add(step, row.time, Summary(value=values + ([] if system else histograms)))
        if not self._arranged and any(name.startswith("train/") for name in row.metrics):
            self._arranged = True
            self._files[""].add(row.iteration, row.time, layout(row.metrics))

    def event(self, event: Event) -> None:
        step = max(event.iteration, 0)
        if event.kind == "alert":  # one card per metric, because a card keeps only the last few texts
            metric, standing = event.data["metric"], "cleared" if event.data["cleared"] else event.data["level"]
            self._text(f"alerts/{metric}", f"**{standing}**: {event.message}", step, event.time)
        elif (video := video_of(event, self._run)) and (moving := animation(video)):
            self._files[""].add(step, event.time, _moving_image(moving))
        else:
            self._text(f"events/{event.kind}", event.message, step, event.time)

    def _text(self, tag: str, text: str, step: int, wall_time: float | None) -> None:
        from tensorboard.plugins.text.summary_v2 import text_pb

        self._files[""].add(step, wall_time, text_pb(self.fitted(tag), text))

    def close(self, status: Status) -> None:
        self._text("status", status, self._iteration, None)
        self._files[""].add(self._iteration, None, session_end(status))
        for file in self._files.values():
            file.close()


def layout(metrics: Collection[str]) -> Summary:
    """Arranges the tab of custom scalars: the panels of training that have a value in a row after an update, and all
    others, in their order."""
    from tensorboard.plugins.custom_scalar import layout_pb2, metadata

    def chart(panel: Panel) -> layout_pb2.Chart:
        tags = [f"^{re.escape(name)}$" for name in panel.metrics]
        if not panel.band:
            return layout_pb2.Chart(title=panel.title, multiline=layout_pb2.MultilineChartContent(tag=tags))
        low, high = panel.band
        series = layout_pb2.MarginChartContent.Series(value=panel.metrics[0], lower=low, upper=high)
        return layout_pb2.Chart(title=panel.title, margin=layout_pb2.MarginChartContent(series=[series]))

    later = [name for name in CATALOGUE if not name.startswith("train/")]  # the first evaluation may still be far
    categories = [
        layout_pb2.Category(title=group.title, chart=map(chart, group.panels)) for group in shown({*metrics, *later})
    ]
    arranged = layout_pb2.Layout(category=categories).SerializeToString()
    return _plugin_summary(metadata.CONFIG_SUMMARY_TAG, metadata.create_summary_metadata(), arranged)


_SEED = "runner.seed"
SORTED_BY = (m.EVAL.success_once, m.EVAL_CI_LOW, m.EVAL_CI_HIGH, m.ENV.success_once, m.EVAL.episode_return)
"""Columns of a run in the tab of hyperparameters; each shows the last number of the run."""


def session(run: RunInfo) -> list[Summary]:
    """Describes a run for the tab of hyperparameters: its seed, and what differs from the defaults."""
    from tensorboard.plugins.hparams import summary_v2

    settings = {_SEED: run.config.get("runner", {}).get("seed", 0)}
    with suppress(ConfigError, ImportError):  # a plug-in is not installed where the run is shown
        settings |= {
            key: value for key, (value, _) in changed(run.config).items() if Affects.RESULTS in affected_by(Config, key)
        }
    columns = [summary_v2.Metric(metric.name, description=metric.meaning) for metric in SORTED_BY]
    values = {
        key: value if isinstance(value, bool | int | float | str) else str(value) for key, value in settings.items()
    }
    config = summary_v2.hparams_config_pb(hparams=[summary_v2.HParam(key) for key in values], metrics=columns)
    return [config, summary_v2.hparams_pb(values, trial_id=f"{run.experiment}/{run.run_id}")]


def session_end(status: Status) -> Summary:
    """Tells the tab of hyperparameters how a run ended."""
    from tensorboard.plugins.hparams import api_pb2, metadata, plugin_data_pb2

    statuses = {
        Status.COMPLETED: api_pb2.STATUS_SUCCESS,
        Status.FAILED: api_pb2.STATUS_FAILURE,
        Status.RUNNING: api_pb2.STATUS_RUNNING,
    }
    data = plugin_data_pb2.HParamsPluginData(
        session_end_info=plugin_data_pb2.SessionEndInfo(
            status=statuses.get(status, api_pb2.STATUS_UNKNOWN), end_time_secs=time.time()
        )
    )
    return _plugin_summary(metadata.SESSION_END_INFO_TAG, metadata.create_summary_metadata(data))


class _File:
    """Event file of one TensorBoard run."""

    def __init__(self, folder: Path, purge_from: int) -> None:
        """Opens the file; from step ``purge_from`` on, TensorBoard forgets earlier files in the folder."""
        from tensorboard.compat.proto.event_pb2 import Event as Record
        from tensorboard.compat.proto.event_pb2 import SessionLog
        from tensorboard.summary.writer.event_file_writer import EventFileWriter

        self._record = Record
        held = any(folder.glob("events.out.tfevents.*"))
        self._writer = EventFileWriter(str(folder), flush_secs=10)
        if held:
            purge = SessionLog(status=SessionLog.START)
            self._writer.add_event(Record(wall_time=time.time(), step=purge_from, session_log=purge))

    def add(self, step: int, wall_time: float | None, summary: Summary) -> None:
        self._writer.add_event(self._record(wall_time=wall_time or time.time(), step=step, summary=summary))
        self._writer.flush()

    def close(self) -> None:
        self._writer.close()


def _histogram(view: HistogramView) -> HistogramProto:
    """Converts a distribution to TensorBoard's form; its sums take each value as the middle of its bin."""
    from tensorboard.compat.proto.summary_pb2 import HistogramProto

    edges, counts = np.asarray(view.edges), np.asarray(view.counts, dtype=np.float64)
    middles = edges[:-1] + 0.5 * np.diff(edges)
    return HistogramProto(
        min=view.edges[0],
        max=view.edges[-1],
        num=counts.sum(),
        sum=counts @ middles,
        sum_squares=counts @ middles**2,
        bucket_limit=view.edges[1:],
        bucket=view.counts,
    )


def _moving_image(gif: bytes) -> Summary:
    """Wraps a GIF, which the tab of images plays."""
    from tensorboard.compat.proto.summary_pb2 import Summary

    width, height = (int.from_bytes(gif[start : start + 2], "little") for start in (6, 8))
    image = Summary.Image(height=height, width=width, colorspace=3, encoded_image_string=gif)
    return Summary(value=[Summary.Value(tag=TAG, image=image)])


def _plugin_summary(tag: str, metadata: Any, content: bytes = b"") -> Summary:
    """Wraps what a plug-in of TensorBoard reads, as TensorBoard's own functions do with TensorFlow."""
    from tensorboard.compat.proto.summary_pb2 import Summary
    from tensorboard.util.tensor_util import make_tensor_proto

    return Summary(value=[Summary.Value(tag=tag, metadata=metadata, tensor=make_tensor_proto(content))])
