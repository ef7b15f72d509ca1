"""Moves the episodes that a worker runs to another process, where they go on with the same numbers.

An episode follows from its seed and its actions, so another simulator takes it over by taking the same steps again.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from rlpipe.envs.base import Simulator, Step
from rlpipe.errors import SimulatorError
from rlpipe.trajectory import Bool, Observations, Starts
from rlpipe.trajectory.tree import named_leaves

if TYPE_CHECKING:
    from rlpipe.collection.collector import Collector


class NotRepeatableError(Exception):
    """A simulator gives other numbers when it takes the steps of an episode again."""


class RunningActions:
    """Actions since the beginnings of the episodes that N slots are running."""

    def __init__(self, num_envs: int) -> None:
        """Begins with an episode in each slot that has taken no step."""
        self._steps: deque[tuple[NDArray[Any], Bool]] = deque()  # actions [N, ...], and where they were taken
        self._forgotten = 0  # steps that came before those
        self._begins = np.zeros(num_envs, dtype=np.int64)  # first step of each slot's episode

    def add(self, actions: NDArray[Any], step: Step) -> None:
        """Adds a step.

        Args:
            actions: [N, A], or [N] of discrete ones, as the simulator took them.
            step: its answer.
        """
        self._steps.append((np.array(actions), step.valid))
        ended = step.terminated | step.truncated
        self._begins[ended] = self._forgotten + len(self._steps)
        while self._steps and self._begins.min() > self._forgotten:
            self._steps.popleft()
            self._forgotten += 1

    def clear(self) -> None:
        """Begins anew in every slot."""
        self._steps.clear()
        self._forgotten = 0
        self._begins[:] = 0

    def of(self, n: int) -> list[NDArray[Any]]:
        """Returns the actions of a slot's episode so far, in order."""
        begun = list(self._steps)[self._begins[n] - self._forgotten :]
        return [actions[n] for actions, valid in begun if valid[n]]


def repeat(simulator: Simulator, running: RunningActions, observations: Observations) -> None:
    """Takes the steps of the running episodes again in a simulator whose resets begin the same episodes.

    Args:
        simulator: one that ``can_wait``, and was not reset yet.
        running: actions of the episodes.
        observations: [N, ...] at which they had arrived.
    Raises:
        NotRepeatableError: the simulator arrives at other observations, or raises.
    """
    count = simulator.num_envs
    actions = [running.of(n) for n in range(count)]
    lengths = np.array([len(episode) for episode in actions])
    waiting = simulator.spec.actions(count)
    if not simulator.spec.num_actions:
        waiting = simulator.spec.clip(waiting)
    try:
        reached, _ = simulator.reset()
        reached = reached.copy()
        for t in range(int(lengths.max(initial=0))):
            active = lengths > t
            taken_now = waiting.copy()
            for n in np.flatnonzero(active):
                taken_now[n] = actions[n][t]
            step = simulator.step(taken_now, active)
            if (step.terminated | step.truncated)[active].any():
                raise NotRepeatableError("an episode ended earlier than before")
            reached[active] = step.observations[active]
    except NotRepeatableError:
        raise
    except BaseException as error:
        raise NotRepeatableError(str(SimulatorError.of(error, "repeating its episodes"))) from error
    for name, leaf in named_leaves(reached).items():
        if not np.array_equal(leaf, named_leaves(observations)[name], equal_nan=leaf.dtype.kind == "f"):
            raise NotRepeatableError(f"its observations{f' ({name})' if name else ''} differ from those before")


@dataclass(frozen=True)
class Belongings:
    """Belongings of a worker between two collections, from which it goes on in another process.

    Attributes:
        rank: its rank.
        life: number of workers that had the rank before.
        incarnation: number of times the run was resumed.
        stage: index of its stage.
        simulators: simulators that it has replaced.
        discarded: episodes that it has dropped and not reported.
        counts: episodes that each slot has begun.
        starts: starts that a curriculum offers, as it last knew them.
        task_weights: factors of the tasks' shares, as a curriculum last set them.
        collector: its collector, without simulator and policy; None if it runs no episodes.
        broken: True if its simulator failed and must be replaced.
        generators: states of the process's generators, from which a simulator may draw.
    """

    rank: int
    life: int
    incarnation: int
    stage: int
    simulators: int
    discarded: int
    counts: Sequence[int]
    starts: Starts | None
    task_weights: Mapping[str, float]
    collector: Collector | None
    broken: bool
    generators: Any
