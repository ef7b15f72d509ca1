"""A replay buffer for tasks with goals: hindsight experience replay, Andrychowicz et al. 2017, arXiv:1707.01495.

Candidates whose goal had been achieved before are passed over, as in Manela and Biess 2019, arXiv:1905.05498.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rlpipe.envs.shared.goals import ACHIEVED, DESIRED, GoalTask
from rlpipe.functional.hindsight import first_true, terminated_under_goal
from rlpipe.learning.episodes import Episodes, Later
from rlpipe.learning.replay import REWARD, TERMINATED, ReplayBuffer, StoredRows
from rlpipe.learning.structures import moved
from rlpipe.metrics import catalogue as m
from rlpipe.metrics.declaration import Metric
from rlpipe.trajectory import SpaceSpec
from rlpipe.trajectory.batch import TrajectoryBatch


class HindsightBuffer(ReplayBuffer):
    """Gives a share of the drawn steps a goal that their episode achieved later, with the reward for that goal.

    Steps of an episode that has not ended keep their goal. What is stored does not change.

    Attributes:
        task: judges the new goals.
    """

    def __init__(
        self,
        capacity: int,
        spec: SpaceSpec,
        device: torch.device,
        discount: float,
        share: float,
        candidates: int,
        task: GoalTask,
    ) -> None:
        """Allocates the buffer, for observations that are trees with goals.

        Of the drawn steps, a share is relabelled; for each of these, some candidates with a new goal are drawn.
        """
        super().__init__(capacity, spec, device, discount)
        self.task = task
        self._share, self._candidates = share, candidates
        self._episodes = Episodes(capacity)

    def add(self, batch: TrajectoryBatch) -> None:
        first = self._end
        super().add(batch)
        self._episodes.add(batch, first, self._oldest)

    def draw(self, count: int, generator: torch.Generator) -> tuple[StoredRows, Mapping[Metric, Tensor]]:
        shape = (self._candidates, count)
        steps = torch.randint(len(self), shape, generator=generator)
        intended = torch.rand(count, generator=generator) < self._share
        uniform = torch.rand(shape, generator=generator, dtype=torch.float64)
        later = self._episodes.later((self._oldest + steps).numpy(), uniform.numpy())
        ahead = self._is_ahead(steps, later)
        # The first candidate whose new goal lies ahead, and the first of all where there is none.
        first_ahead = first_true(ahead) * intended.numpy(), np.arange(count)
        drawn, later = steps[first_ahead], Later(later.numbers[first_ahead], later.ahead[first_ahead])
        relabelled = intended & torch.from_numpy(later.ahead >= 0)
        index = relabelled.nonzero()[:, 0]
        device = self._rows.device
        rows = self.read(*moved([self._places(drawn)], device))
        index_there = index.to(device)
        before = rows.numbers[index_there, REWARD]
        if len(index):
            self._relabel(rows, index_there, torch.from_numpy(later.numbers)[index])
        observed = {
            m.RELABELLED: relabelled.double().to(device),
            m.RELABELLED_REWARD: rows.numbers[index_there, REWARD],
            m.RELABELLED_REWARD_BEFORE: before,
            m.RELABELLED_AHEAD: torch.from_numpy(later.ahead)[index].to(device),
            m.GOALS_AHEAD: torch.from_numpy(ahead.astype(np.float64)).to(device),
        }
        return rows, observed

    def _is_ahead(self, steps: Tensor, later: Later) -> NDArray[np.bool_]:
        """[K, B] True where what a later step achieved had not been achieved before a step.

        Args:
            steps: [K, B] rows, 0 for the oldest
            later: a later step of each; False where it is unknown
        """
        assert self._frames is not None
        listed = later.ahead >= 0
        ahead = np.zeros_like(listed)
        if listed.any():  # a task's own reward function may not accept an empty batch
            before = self._places(steps[torch.from_numpy(listed)]).before
            assert before is not None
            had = self._frames.leaf(ACHIEVED, before).cpu().numpy()
            goals = self._achieved_after(torch.from_numpy(later.numbers[listed])).cpu().numpy()
            ahead[listed] = self.task.rewards(had, goals) < self.task.rewards(goals, goals)
        return ahead

    def _achieved_after(self, numbers: Tensor) -> Tensor:
        """[B, ...] what was achieved after the stored steps with these numbers."""
        assert self._frames is not None
        return self._frames.leaf(ACHIEVED, self._numbers[numbers % self.capacity, 1])

    def _relabel(self, rows: StoredRows, index: Tensor, later: Tensor) -> None:
        """Replaces goals, and what depends on them, in a copy of stored rows, at an index [K].

        The new goals are what the later steps with these numbers [K] achieved.
        """
        assert rows.observations is not None
        before, after = rows.observations
        achieved, old = after[ACHIEVED][index], after[DESIRED][index]
        new = self._achieved_after(later)
        before[DESIRED][index] = after[DESIRED][index] = new
        outcome, goals, terminated = achieved.cpu().numpy(), new.cpu().numpy(), rows.numbers[index, TERMINATED].cpu()
        ended = terminated.numpy() > 0
        by_old = np.zeros(len(ended), dtype=bool)
        if ended.any():
            by_old[ended] = self.task.terminated(outcome[ended], old.cpu().numpy()[ended])
        ends = terminated_under_goal(ended, by_old, self.task.terminated(outcome, goals))
        for column, values in ((REWARD, self.task.rewards(outcome, goals)), (TERMINATED, ends)):
            rows.numbers[index, column] = torch.from_numpy(values).to(rows.numbers)

    def state(self) -> dict[str, Tensor]:
        episodes = self._episodes.state(self._oldest, len(self))
        return super().state() | {f"episodes/{name}": tensor for name, tensor in episodes.items()}

    def load_state(self, state: Mapping[str, Tensor]) -> None:
        super().load_state(state)
        prefix = "episodes/"
        episodes = {name.removeprefix(prefix): tensor for name, tensor in state.items() if name.startswith(prefix)}
        self._episodes.load_state(episodes, len(state["rows"]) - len(self))
