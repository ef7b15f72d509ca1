"""Demonstrated decisions: single actions, or chunks of them, as a learner clones them."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from rlpipe.algorithms.behaviour_cloning import LIKELIHOOD
from rlpipe.demonstrations.dataset import Demonstrations
from rlpipe.functional.cloning import cloning_loss
from rlpipe.policies.base import Policy
from rlpipe.trajectory import Observations, Tree
from rlpipe.trajectory.batch import evaluation_arguments
from rlpipe.trajectory.sequences import Sequences
from rlpipe.trajectory.tree import tensors


@dataclass(frozen=True)
class Demonstrated:
    """Decisions on the learner's device.

    Attributes:
        observations: [B, D], or a tree; in ``Sequences`` for a policy with a memory.
        actions: [B, A], or [B, k, A].
        num_steps: [B] number of actions before the demonstration ends, at most k; None without chunks.
    """

    observations: Observations
    actions: Tensor
    num_steps: Tensor | None = None

    def __len__(self) -> int:
        return len(self.actions)

    def __getitem__(self, index: Tensor | slice) -> Demonstrated:
        steps = None if self.num_steps is None else self.num_steps[index]
        return Demonstrated(self.observations[index], self.actions[index], steps)

    def pieces(self, size: int) -> list[Demonstrated]:
        """Splits decisions of observation trees, so that what encoders make of images fits into memory.

        Vectors stay together, and so does each demonstration in ``Sequences``, which must lie in order.

        Args:
            size: decisions of a piece; as many and the rest of the last demonstration, where those stay together.
        """
        seen = self.observations
        leaves, together = seen, torch.arange(len(self))
        if isinstance(seen, Sequences):
            leaves, together = seen.observations, seen.sequence
        if not isinstance(leaves, Tree):
            return [self]
        _, lengths = torch.unique_consecutive(together, return_counts=True)
        first = lengths.cumsum(0) - lengths  # step of each demonstration, which decides the piece that it belongs to
        _, counts = torch.unique_consecutive((first // size).repeat_interleave(lengths), return_counts=True)
        ends = counts.cumsum(0).tolist()
        return [self[begin:end] for begin, end in itertools.pairwise([0, *ends])]

    def loss(self, policy: Policy, kind: str = "squared") -> Tensor:
        """[B] loss of a policy: see ``algorithm.loss`` of behaviour cloning."""
        if kind == LIKELIHOOD:
            decisions = evaluation_arguments(self.observations, self.actions.flatten(1), self.num_steps)
            log_probs, _ = policy.evaluate_actions(*decisions)
            return -log_probs / (self.actions.shape[-1] * (1 if self.num_steps is None else self.num_steps))
        likely = policy.act(self.observations, None)[0].view_as(self.actions)
        return cloning_loss(likely, self.actions, self.num_steps, kind=kind)


def chunked_decisions(
    demonstrations: Demonstrations, size: int, device: torch.device, memory_width: int = 0
) -> Demonstrated:
    """Returns a decision for each step: its action, or the chunk of actions that begins with it.

    A policy with a memory remembers nothing where a demonstration begins.
    """
    observations: Observations = tensors(demonstrations.observations).to(device)
    if memory_width:
        numbers = demonstrations.trajectory
        steps = np.arange(len(numbers)) - np.searchsorted(numbers, numbers)
        empty = torch.zeros(demonstrations.num_trajectories, memory_width, device=device)
        sequence, step = (torch.from_numpy(column).to(device) for column in (numbers, steps))
        observations = Sequences(observations, sequence, step, empty)
    actions = torch.from_numpy(demonstrations.actions).to(device)
    if size == 1:
        return Demonstrated(observations, actions)
    following = np.arange(len(demonstrations))[:, None] + np.arange(size)
    counts = np.minimum(demonstrations.steps_left(), size)
    places = np.where(np.arange(size) < counts[:, None], following, following[:, :1])
    chunks = actions[torch.from_numpy(places).to(device)]
    return Demonstrated(observations, chunks, torch.from_numpy(counts).to(device))
