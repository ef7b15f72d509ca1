"""Record of a finished episode."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

_BY_NAME = ("reward_terms", "metrics", "variations")
"""Fields that hold numbers by name."""
OF_EVALUATIONS = ("start", "commitment")
"""Fields that a training episode does not have, so that its line is no longer for them."""
_OF_SOME = ("edge", *OF_EVALUATIONS)
"""Fields that are absent from the line of an episode that does not have them."""


@dataclass(frozen=True)
class Episode:
    """One finished episode: a line of ``episodes.jsonl`` or ``eval_episodes.jsonl``, without the iteration.

    Return, length and success include the step that ended the episode; later steps belong to the next episode.

    Attributes:
        worker: rank of the rollout worker.
        slot: number of the environment, counted over all workers.
        seed: of the reset that began the episode; None where a vectorised simulator draws its own.
        policy_version: of the weights that took the last step.
        episode_return: undiscounted sum of rewards.
        length: environment steps.
        success_once: True if success held after some step; None for a simulator without a notion of success.
        success_at_end: True if success held after the last step; None likewise.
        success_at_reset: True if success held before the first step; None likewise.
        terminated: True if the task ended. Can hold together with ``truncated``.
        truncated: True if a time limit cut the episode off.
        step: step of its environment that ended the episode, counted since the run began or was resumed.
        log_prob: of all its actions together, in nats; None where actions were not sampled.
        first_success: step of the episode after which success first held, from 1; None if it never did.
        fail_once: True if the task had failed after some step; None for a simulator without a notion of failure.
        fail_at_end: True if the task had failed after the last step; None likewise.
        reward_terms: by name, sums of the reward terms that the simulator reports.
        metrics: ``mean``, ``least``, ``most`` and ``last`` of each number that the simulator observes, under
            ``<name>/mean`` and so on; over the steps in which it applied, and absent if there was none.
        chosen: True if a curriculum chose the start, so that the episode says nothing about the task's own starts.
        demonstration: number of the demonstration in whose course it began; None for no demonstration.
        demonstration_step: steps of that demonstration before the start; None likewise.
        demonstration_length: steps of that demonstration; None likewise.
        blend: share of the way from that start to another one at which the episode began; None likewise.
        towards: number of the demonstration towards whose beginning the start was moved; None for the task's own.
        task: label of the task; None where a run has only one.
        variations: level on each axis that varies, by name; absent from the line where none does.
        edge: edge of a range at which a curriculum put its level, ``<axis>_low`` or ``<axis>_high``; None for none,
            and then absent from the line.
        start: SHA-256 of its first observation; None in training, as below.
        commitment: SHA-256 of its observations, actions, rewards and ends (``collection.commitments``).
    """

    worker: int
    slot: int
    seed: int | None
    policy_version: int
    episode_return: float
    length: int
    success_once: bool | None
    success_at_end: bool | None
    success_at_reset: bool | None
    terminated: bool
    truncated: bool
    step: int = 0
    log_prob: float | None = None
    first_success: int | None = None
    fail_once: bool | None = None
    fail_at_end: bool | None = None
    reward_terms: dict[str, float] = field(default_factory=dict)
    metrics: dict[str, float] = field(default_factory=dict)
    chosen: bool = False
    demonstration: int | None = None
    demonstration_step: int | None = None
    demonstration_length: int | None = None
    blend: float | None = None
    towards: int | None = None
    task: str | None = None
    variations: dict[str, float] = field(default_factory=dict)
    edge: str | None = None
    start: str | None = None
    commitment: str | None = None

    def as_row(self, iteration: int) -> dict[str, Any]:
        """JSON object for the episode files, where the return has its public name and null is a number not finite."""
        fields = dict(vars(self))  # `asdict` would copy each value, which takes ten times as long
        fields["return"] = fields.pop("episode_return")
        for name in _OF_SOME:
            if fields[name] is None:
                del fields[name]
        for name in ("return", "log_prob"):
            fields[name] = _finite_or_none(fields[name])
        for name in _BY_NAME:
            fields[name] = {key: _finite_or_none(value) for key, value in fields[name].items()}
        if not fields["variations"]:
            del fields["variations"]
        return {"iteration": iteration, **fields}

    @classmethod
    def from_row(cls, row: dict[str, Any]) -> Episode:
        """Restores an episode from what ``as_row`` returned."""
        fields = {key: value for key, value in row.items() if key != "iteration"}
        total = fields.pop("return")
        fields["episode_return"] = math.nan if total is None else total
        for name in _BY_NAME:
            fields[name] = {key: math.nan if value is None else value for key, value in fields.get(name, {}).items()}
        return cls(**fields)


def _finite_or_none(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None
