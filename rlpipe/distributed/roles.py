"""Roles of the actors of a run."""

from __future__ import annotations

from enum import StrEnum


class Role(StrEnum):
    """Role of an actor; the value is its name in messages."""

    ROLLOUT_WORKER = "rollout worker"
    INFERENCE_SERVER = "inference server"
    LEARNER = "learner"
    METRIC_LOGGER = "metric logger"

    @property
    def task(self) -> str:
        """Task of the actor, as the rest of the sentence "it was to ..."."""
        return _NAMES_AND_TASKS[self][1]

    def actor_name(self, index: int | str | None = None) -> str:
        """Returns the name of an actor, such as ``rollout-3``; without an index that of the only one."""
        name, _ = _NAMES_AND_TASKS[self]
        return name if index is None else f"{name}-{index}"


_NAMES_AND_TASKS = {
    Role.ROLLOUT_WORKER: ("rollout", "collect"),
    Role.INFERENCE_SERVER: ("inference", "answer"),
    Role.LEARNER: ("learner", "learn"),
    Role.METRIC_LOGGER: ("metric-logger", "write"),
}
