"""Demonstrated decisions: single actions, or chunks of them, as a learner clones them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from rlpipe.algorithms.behaviour_cloning import LIKELIHOOD
from rlpipe.demonstrations.dataset import Demonstrations
from rlpipe.functional.cloning import cloning_loss
from rlpipe.policies.base import Policy, evaluation_arguments
from rlpipe.trajectory import Tree
from rlpipe.trajectory.tree import tensors


@dataclass(frozen=True)
class Demonstrated:
    """Decisions on the learner's device.

    Attributes:
        observations: [B, D], or a tree.
        actions: [B, A], or [B, k, A].
        num_steps: [B] number of actions before the demonstration ends, at most k; None without chunks.
    """

    observations: Tensor | Tree
    actions: Tensor
    num_steps: Tensor | None = None

    def __len__(self) -> int:
        return len(self.actions)

    def __getitem__(self, index: Tensor | slice) -> Demonstrated:
        steps = None if self.num_steps is None else self.num_steps[index]
        return Demonstrated(self.observations[index], self.actions[index], steps)

    def loss(self, policy: Policy, kind: str = "squared") -> Tensor:
        """[B] loss of a policy: see ``algorithm.loss`` of behaviour cloning."""
        if kind == LIKELIHOOD:
            decisions = evaluation_arguments(self.observations, self.actions.flatten(1), self.num_steps)
            log_probs, _ = policy.evaluate_actions(*decisions)
            return -log_probs / (self.actions.shape[-1] * (1 if self.num_steps is None else self.num_steps))
        likely = policy.act(self.observations, None)[0].view_as(self.actions)
        return cloning_loss(likely, self.actions, self.num_steps, kind=kind)


def chunked_decisions(demonstrations: Demonstrations, size: int, device: torch.device) -> Demonstrated:
    """Returns a decision for each step: its action, or the chunk of actions that begins with it.

    Args:
        demonstrations: successful trajectories.
        size: number of actions in a chunk.
        device: device of the result.
    """
    observations = tensors(demonstrations.observations).to(device)
    actions = torch.from_numpy(demonstrations.actions).to(device)
    if size == 1:
        return Demonstrated(observations, actions)
    following = np.arange(len(demonstrations))[:, None] + np.arange(size)
    counts = np.minimum(demonstrations.steps_left(), size)
    places = np.where(np.arange(size) < counts[:, None], following, following[:, :1])
    chunks = actions[torch.from_numpy(places).to(device)]
    return Demonstrated(observations, chunks, torch.from_numpy(counts).to(device))
