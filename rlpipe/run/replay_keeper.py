"""Keeps replays and videos of the evaluations of a run while it is in progress."""

from __future__ import annotations

import time
from pathlib import Path

from rlpipe.config.schema import Config
from rlpipe.metrics import MetricWindow
from rlpipe.metrics.row import Event, EventKind
from rlpipe.run.replays import FOLDER, ReplayFolder
from rlpipe.run.videos import VideoMaker
from rlpipe.trajectory.replay import worth_keeping


class ReplayKeeper:
    """Keeps the replays of the newest evaluation, of the best one, and of those of which a video is being made."""

    def __init__(self, run: Path, config: Config, first_iteration: int) -> None:
        """Removes the replays and videos of iterations that a resumed run takes again."""
        self._evaluation, self._task = config.evaluation, config.env.eval.task_name
        self._folder = ReplayFolder(run / FOLDER)
        self._videos = VideoMaker(run, config.evaluation.videos, first_iteration)
        if first_iteration > 1:
            self._folder.forget_from(first_iteration)

    def write(self, iteration: int, window: MetricWindow, best: int | None) -> list[Event]:
        """Writes the replays of an iteration, if it was evaluated, and has videos made.

        Args:
            window: holds replays only after an evaluation
            best: iteration of the best evaluation so far; None without one
        Returns:
            Events for videos, and for whatever goes wrong, because a run can do without replays.
        """
        events = []
        if window.eval_replays:
            try:
                replays = worth_keeping(window.eval_replays, self._evaluation.replays)
                staying = self._videos.needs | ({best} if best is not None else set())
                self._folder.write_iteration(iteration, replays, window.scenes, staying, self._task)
                self._videos.ask(iteration)
            except Exception as error:
                message = f"The replays of iteration {iteration} could not be written: {type(error).__name__}: {error}."
                events.append(Event(EventKind.NOTE, message, iteration, time.time(), {"level": "warn"}))
        return [*events, *self._videos.poll()]

    def finish(self, timeout: float) -> list[Event]:
        """Waits for the videos that are asked for, for so many seconds; returns their events."""
        return self._videos.finish(timeout)
