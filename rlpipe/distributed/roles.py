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
        return _TASKS[self]

    def actor_name(self, index: int | str | None = None) -> str:
        """Returns the name of an actor, such as ``rollout-3``; without an index that of the only one."""
        name = _NAMES[self]
        return name if index is None else f"{name}-{index}"


_TASKS = {
    Role.ROLLOUT_WORKER: "collect",
    Role.INFERENCE_SERVER: "answer",
    Role.LEARNER: "learn",
    Role.METRIC_LOGGER: "write",
}
_NAMES = {
    Role.ROLLOUT_WORKER: "rollout",
    Role.INFERENCE_SERVER: "inference",
    Role.LEARNER: "learner",
    Role.METRIC_LOGGER: "metric-logger",
}
