"""TensorBoard event files, written with TensorBoard's own writer, which does not need torch."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from rlpipe.backends.base import Backend, RunInfo
from rlpipe.metrics import catalogue as m
from rlpipe.metrics.dialects import BY_TIMESTEPS
from rlpipe.metrics.row import Event, HistogramView, Row, Status

if TYPE_CHECKING:
    from tensorboard.compat.proto.summary_pb2 import HistogramProto, Summary

__all__ = ["TensorBoard"]


class TensorBoard(Backend):
    """One scalar per metric and iteration; distributions as histograms; alerts and other events as text.

    Metrics under another system's names go to a TensorBoard run of their own, ``tensorboard/<system>``: the same name
    can mean another number there, and the axis is that system's, environment steps or updates.
    """

    @classmethod
    def view_command(cls, options: Any, run: Path, project: str) -> str:  # noqa: ARG003
        return f"tensorboard --logdir {run.parent}"

    def __init__(self, run: RunInfo) -> None:
        """Opens new event files; a resumed run purges earlier ones from its next iteration on."""
        self._folder = run.directory / "tensorboard"
        self._first = self._iteration = run.first_iteration
        self._files = {"": _File(self._folder, self._first)}
        self._text("configuration", "    " + run.config_yaml.replace("\n", "\n    "), self._first, None)

    def write(self, row: Row) -> None:
        from tensorboard.compat.proto.summary_pb2 import Summary

        self._iteration = row.iteration
        histograms = [Summary.Value(tag=name, histo=_histogram(view)) for name, view in row.histograms.items()]
        for system, metrics in {"": row.series, **row.dialects}.items():
            by_timesteps = system in BY_TIMESTEPS
            if system not in self._files:
                first = (
                    row.total_timesteps - int(row.metrics[m.NUM_DECISIONS.name]) + 1 if by_timesteps else self._first
                )
                self._files[system] = _File(self._folder / system, first)
            values = [Summary.Value(tag=name, simple_value=value) for name, value in metrics.items()]
            step = row.total_timesteps if by_timesteps else row.iteration
            self._files[system].add(step, row.time, Summary(value=values + ([] if system else histograms)))

    def event(self, event: Event) -> None:
        step = max(event.iteration, 0)
        if event.kind == "alert":  # one card per metric, because a card keeps only the last few texts
            metric, standing = event.data["metric"], "cleared" if event.data["cleared"] else event.data["level"]
            self._text(f"alerts/{metric}", f"**{standing}**: {event.message}", step, event.time)
        else:
            self._text(f"events/{event.kind}", event.message, step, event.time)

    def _text(self, tag: str, text: str, step: int, wall_time: float | None) -> None:
        from tensorboard.plugins.text.summary_v2 import text_pb

        self._files[""].add(step, wall_time, text_pb(tag, text))

    def close(self, status: Status) -> None:
        self._text("status", status, self._iteration, None)
        for file in self._files.values():
            file.close()


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
