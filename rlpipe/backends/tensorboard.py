"""TensorBoard event files. Written with TensorBoard's own writer, so that nothing here needs torch."""

from __future__ import annotations

from rlpipe.backends.base import Backend, Event, Row, RunInfo

__all__ = ["TensorBoard"]


class TensorBoard(Backend):
    """One scalar per metric and iteration; events as text."""

    def __init__(self, run: RunInfo) -> None:
        """Opens a new event file; a resumed run purges what an earlier one holds from its first iteration on."""
        from tensorboard.compat.proto.event_pb2 import Event as Record
        from tensorboard.compat.proto.event_pb2 import SessionLog
        from tensorboard.summary.writer.event_file_writer import EventFileWriter

        self._record = Record
        self._writer = EventFileWriter(str(run.directory / "tensorboard"), flush_secs=10)
        self._iteration = run.first_iteration
        if run.first_iteration > 1:
            start = SessionLog(status=SessionLog.START)
            self._writer.add_event(Record(step=run.first_iteration, session_log=start))
        self._text("configuration", "    " + run.config_yaml.replace("\n", "\n    "), run.first_iteration, None)

    def write(self, row: Row) -> None:
        from tensorboard.compat.proto.summary_pb2 import Summary

        self._iteration = row.iteration
        values = [Summary.Value(tag=name, simple_value=value) for name, value in row.metrics.items()]
        record = self._record(wall_time=row.time, step=row.iteration, summary=Summary(value=values))
        self._writer.add_event(record)
        self._writer.flush()

    def event(self, event: Event) -> None:
        self._text(f"events/{event.kind}", event.message, max(event.iteration, 0), event.time)

    def _text(self, tag: str, text: str, step: int, wall_time: float | None) -> None:
        from tensorboard.plugins.text.summary_v2 import text_pb

        self._writer.add_event(self._record(wall_time=wall_time, step=step, summary=text_pb(tag, text)))

    def close(self, status: str) -> None:
        self._text("status", status, self._iteration, None)
        self._writer.close()
