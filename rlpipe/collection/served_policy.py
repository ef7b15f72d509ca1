"""A policy that lives on an inference server."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rlpipe.policies.base import Policy
from rlpipe.trajectory import Float32, Observations, Tree
from rlpipe.trajectory.tree import arrays


class PolicyServer(Protocol):
    """Server of a policy that several workers act with; see ``collection.inference.InferenceServer``."""

    def act(
        self, rank: int, version: int, observations: Observations, noise: Float32 | None, each: bool
    ) -> tuple[NDArray[Any], Float32]:
        """Returns actions and log-probabilities for the rows of one worker."""

    def release(self, rank: int) -> None:
        """Announces that a worker sends no more requests in this collection."""


class ServedPolicy:
    """Chooses actions by asking an inference server; implements ``Acting``.

    Attributes:
        version: version of the weights that must answer
        server: server that answers
        rank: rank of the worker that asks
    """

    def __init__(self, policy: Policy, server: PolicyServer, rank: int) -> None:
        """Takes the addressee and the sender of all requests.

        Args:
            policy: policy without weights, which draws the noise
            server: server that answers
            rank: rank of the worker that asks
        """
        self._policy = policy
        self.server = server
        self.rank = rank
        self.version = 0

    def noise(self, generator: np.random.Generator, steps: int) -> Float32:
        """As ``Policy.noise``."""
        return self._policy.noise(generator, steps)

    def act(self, observations: Tensor | Tree, noise: Tensor | None) -> tuple[Tensor, Tensor]:
        """As ``Policy.act``."""
        return self._ask(observations, noise, each=False)

    def act_each(self, observations: Tensor | Tree, noise: Tensor | None) -> tuple[Tensor, Tensor]:
        """As ``Policy.act_each``."""
        return self._ask(observations, noise, each=True)

    def _ask(self, observations: Tensor | Tree, noise: Tensor | None, *, each: bool) -> tuple[Tensor, Tensor]:
        drawn = None if noise is None else noise.numpy()
        actions, log_probs = self.server.act(self.rank, self.version, arrays(observations), drawn, each)
        return torch.tensor(actions), torch.tensor(log_probs)  # copies, because arrays from Ray are read-only
