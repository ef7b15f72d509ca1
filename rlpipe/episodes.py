"""From steps to finished episodes: the one place where return, length and success of an episode are counted."""

from __future__ import annotations

import numpy as np

from rlpipe.envs.base import Beginning, Step
from rlpipe.trajectory import Episode


class EpisodeTracker:
    """Follows the running episode of each slot and writes its row when it ends. Episodes may span iterations."""

    def __init__(self, worker: int, first_slot: int, num_envs: int, has_success: bool) -> None:
        """Starts with no episode running."""
        self._worker = worker
        self._first_slot = first_slot
        self._has_success = has_success
        self._beginnings: dict[int, Beginning] = {}
        self._returns = np.zeros(num_envs, dtype=np.float64)
        self._lengths = np.zeros(num_envs, dtype=np.int64)
        self._success_once = np.zeros(num_envs, dtype=bool)

    @property
    def unfinished(self) -> int:
        """Episodes that have taken a step and not ended."""
        return int(np.count_nonzero(self._lengths))

    def begin(self, beginnings: dict[int, Beginning]) -> None:
        """Notes the episodes that start with the next step."""
        self._beginnings |= beginnings

    def step(self, step: Step, policy_version: int) -> list[Episode]:
        """Takes a step in, and returns the episodes it ended."""
        self._returns += step.rewards
        self._lengths += step.valid
        if step.success is not None:
            self._success_once |= step.success & step.valid
        ended = np.flatnonzero(step.terminated | step.truncated)
        episodes = [self._end(int(n), step, policy_version) for n in ended]
        self._returns[ended] = 0.0
        self._lengths[ended] = 0
        self._success_once[ended] = False
        self.begin(step.beginnings)
        return episodes

    def _end(self, n: int, step: Step, policy_version: int) -> Episode:
        beginning = self._beginnings.pop(n)
        known = step.success is not None
        return Episode(
            worker=self._worker,
            slot=self._first_slot + n,
            seed=beginning.seed,
            policy_version=policy_version,
            episode_return=float(self._returns[n]),
            length=int(self._lengths[n]),
            success_once=bool(self._success_once[n]) if known else None,
            success_at_end=bool(step.success[n]) if step.success is not None else None,
            success_at_reset=beginning.success if known else None,
            terminated=bool(step.terminated[n]),
            truncated=bool(step.truncated[n]),
        )
