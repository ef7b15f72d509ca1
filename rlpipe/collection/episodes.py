"""Turns steps into finished episodes: the one place that counts the return, length and success of an episode."""

from __future__ import annotations

import itertools
import re
from collections.abc import Collection
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rlpipe.envs.base import Beginning, Step
from rlpipe.errors import ContractError
from rlpipe.trajectory import ChosenStart, Episode

MOST_TERMS = 200
"""Different names of reward terms, and of metrics; one that counts in a name would otherwise fill the memory."""


def name_component(reported: str) -> str:
    """Returns a reported name as a component of a metric's name."""
    return re.sub(r"[^\w.-]+", "_", reported)


class NumberSummary:
    """Mean, least, most and last of a number over the running episode of each slot."""

    def __init__(self, num_envs: int) -> None:
        """Starts with no step in which the number applied."""
        self._count = np.zeros(num_envs, dtype=np.int64)
        self._sum = np.zeros(num_envs, dtype=np.float64)
        self._least, self._most, self._last = (np.full(num_envs, np.nan) for _ in range(3))

    def add(self, values: NDArray[np.float64]) -> None:
        """Adds a step.

        Args:
            values: [N]; NaN where the number does not apply
        """
        applies = ~np.isnan(values)
        self._count += applies
        self._sum += np.where(applies, values, 0.0)
        self._least, self._most = np.fmin(self._least, values), np.fmax(self._most, values)
        np.copyto(self._last, values, where=applies)

    def of(self, n: int) -> dict[str, float]:
        """Returns the numbers of a slot by their names; none if the number never applied."""
        if not self._count[n]:
            return {}
        return {
            "mean": float(self._sum[n] / self._count[n]),
            "least": float(self._least[n]),
            "most": float(self._most[n]),
            "last": float(self._last[n]),
        }

    def clear(self, ended: NDArray[np.int64]) -> None:
        """Begins anew in the slots whose episodes have ended."""
        self._count[ended] = self._sum[ended] = 0
        for values in (self._least, self._most, self._last):
            values[ended] = np.nan


class EpisodeTracker:
    """Follows the running episode of each slot and records it when it ends. Episodes may span iterations.

    Attributes:
        steps: steps that each environment has taken.
        tells_success: True if the simulator has told the success of an episode so far.
        notes: sentences for the user since they were last taken.
    """

    def __init__(self, worker: int, first_slot: int, num_envs: int) -> None:
        """Starts with no episode running; ``first_slot`` is the first environment's number among all workers'."""
        self._worker = worker
        self._first_slot = first_slot
        self._beginnings: dict[int, Beginning] = {}
        self._returns = np.zeros(num_envs, dtype=np.float64)
        self._lengths = np.zeros(num_envs, dtype=np.int64)
        self._success_once = np.zeros(num_envs, dtype=bool)
        self._fail_once = np.zeros(num_envs, dtype=bool)
        self._fail_known = np.zeros(num_envs, dtype=bool)
        self._first_success = np.zeros(num_envs, dtype=np.int64)
        self._log_probs = np.zeros(num_envs, dtype=np.float64)
        self._terms: dict[str, NDArray[np.float64]] = {}
        self._names: dict[str, dict[str, str]] = {}  # of terms and metrics, by the names that the simulator gave them
        self._observed: dict[str, NumberSummary] = {}
        self.steps = 0
        self.tells_success = False
        self.notes: list[str] = []

    @property
    def unfinished(self) -> int:
        """Number of episodes that have begun and not ended."""
        return int(np.count_nonzero(self._lengths))

    @property
    def beginnings(self) -> dict[int, Beginning]:
        """Beginnings of the running episodes, by slot."""
        return self._beginnings

    @property
    def lengths(self) -> NDArray[np.int64]:
        """[N] copy of the number of steps that each running episode has taken."""
        return self._lengths.copy()

    def begin(self, beginnings: dict[int, Beginning]) -> None:
        """Registers the episodes that begin with the next step."""
        self._beginnings |= beginnings

    def step(self, step: Step, policy_version: int, log_probs: NDArray[Any] | None = None) -> list[Episode]:
        """Adds a step to every running episode, and returns the episodes it ended.

        Args:
            step: answer of the simulator
            policy_version: version of the weights that acted
            log_probs: [N] log-probabilities of the actions, in nats; None if the actions were not sampled
        """
        self.steps += 1
        self.notes += step.notes
        self._returns += step.rewards
        self._lengths += step.valid
        if step.success is not None:
            self.tells_success |= step.tells_success
            held = step.success & step.valid
            self._first_success = np.where(held & ~self._success_once, self._lengths, self._first_success)
            self._success_once |= held
        if step.failure is not None:
            applies = step.valid & ~np.isnan(step.failure)
            self._fail_known |= applies
            self._fail_once |= applies & (step.failure > 0)
        if log_probs is not None:
            self._log_probs += np.where(step.valid, log_probs, 0.0)
        if step.reward_terms:
            self._name_together("reward terms", step.reward_terms)
        for reported, values in step.reward_terms.items():
            if (name := self._name("reward terms", reported)) is None:
                continue
            # NaN where a term has not applied in this episode, which then does not count towards it
            total = self._terms.setdefault(name, np.full(len(values), np.nan))
            np.copyto(total, np.where(np.isnan(total), 0.0, total) + values, where=~np.isnan(values))
        if step.observed:
            self._name_together("metrics", [key for key in step.observed if isinstance(key, str)])
        for key, values in step.observed.items():
            # a declared metric is not about episodes
            if isinstance(key, str) and (name := self._name("metrics", key)) is not None:
                summary = self._observed.setdefault(name, NumberSummary(len(values)))
                summary.add(np.where(step.valid, values, np.nan))
        ended = np.flatnonzero(step.terminated | step.truncated)
        episodes = [self._end(int(n), step, policy_version, log_probs is not None) for n in ended]
        if ended.size:
            for numbers in (self._returns, self._lengths, self._first_success, self._log_probs):
                numbers[ended] = 0
            for flags in (self._success_once, self._fail_once, self._fail_known):
                flags[ended] = False
            for total in self._terms.values():
                total[ended] = np.nan
            for summary in self._observed.values():
                summary.clear(ended)
        self.begin(step.beginnings)
        return episodes

    def _name_together(self, kind: str, reported: Collection[str]) -> None:
        """Names what a step reports for the first time in alphabetical order, so that every worker names it alike."""
        names = self._names.setdefault(kind, {})
        if new := [name for name in reported if name not in names]:
            for name in sorted(new, key=str):
                self._name(kind, name)

    def _name(self, kind: str, reported: str) -> str | None:
        """Returns the name of a reward term or metric, unlike those of the others; None where there are too many."""
        names = self._names.setdefault(kind, {})
        if reported in names:
            return names[reported]
        if len(names) >= MOST_TERMS:
            if len(names) == MOST_TERMS:
                names[""] = ""
                self.notes.append(
                    f"The simulator reports more than {MOST_TERMS} different {kind}, such as {reported!r}: only the "
                    "first are shown. Do not count in their names."
                )
            return None
        name = name_component(str(reported)) or "_"
        names_in_use = names.values()
        free = name if name not in names_in_use else next(
            other for number in itertools.count(2) if (other := f"{name}_{number}") not in names_in_use
        )  # fmt: skip
        if free != name:
            other = next(before for before, component in names.items() if component == name)
            self.notes.append(
                f"The {kind} {other!r} and {reported!r} have the same name without special characters: the second is "
                f"shown as {free!r}. Workers that report them in different steps may swap them: rename one."
            )
        names[reported] = free
        return free

    def _end(self, n: int, step: Step, policy_version: int, sampled: bool) -> Episode:
        beginning = self._beginnings.pop(n, None)
        if beginning is None:
            raise ContractError(f"an episode of environment {n} ended, but no reset or step told its beginning")
        tells_success, start = step.success is not None, beginning.chosen or ChosenStart()
        demonstrated = start.demonstration is not None
        return Episode(
            worker=self._worker,
            slot=self._first_slot + n,
            seed=beginning.seed,
            policy_version=policy_version,
            episode_return=float(self._returns[n]),
            length=int(self._lengths[n]),
            success_once=bool(self._success_once[n]) if tells_success else None,
            success_at_end=bool(step.success[n]) if step.success is not None else None,
            success_at_reset=beginning.success if tells_success else None,
            terminated=bool(step.terminated[n]),
            truncated=bool(step.truncated[n]),
            step=self.steps,
            log_prob=float(self._log_probs[n]) if sampled else None,
            first_success=int(self._first_success[n]) or None,
            fail_once=bool(self._fail_once[n]) if self._fail_known[n] else None,
            fail_at_end=None if step.failure is None or np.isnan(step.failure[n]) else bool(step.failure[n]),
            reward_terms={
                name: float(total[n]) for name, total in sorted(self._terms.items()) if not np.isnan(total[n])
            },
            metrics={
                f"{name}/{key}": value
                for name, summary in self._observed.items()
                for key, value in summary.of(n).items()
            },
            chosen=beginning.chosen is not None,
            demonstration=start.demonstration,
            demonstration_step=start.step if demonstrated else None,
            demonstration_length=start.length,
            blend=start.blend if demonstrated else None,
            towards=start.towards,
            task=beginning.task,
            variations=dict(beginning.variations),
            edge=start.edge,
        )
