"""A policy that lives on an inference server."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rlpipe.policies.base import Decisions, Policy
from rlpipe.trajectory import Float32, Observations, Tree
from rlpipe.trajectory.tree import arrays


class PolicyServer(Protocol):
    """Server of a policy that several workers act with; see ``collection.inference.InferenceServer``."""

    def act(
        self,
        rank: int,
        version: int,
        observations: Observations,
        noise: Float32 | None,
        each: bool,
        memories: Float32 | None = None,
    ) -> tuple[NDArray[Any], Float32, Float32 | None]:
        """Returns actions, log-probabilities and memories for the rows of one worker."""

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
        """Takes the addressee and the sender of all requests. A policy without weights draws the noise."""
        self._policy = policy
        self.server = server
        self.rank = rank
        self.version = 0

    def noise(self, generator: np.random.Generator, steps: int) -> Float32:
        """As ``Policy.noise``."""
        return self._policy.noise(generator, steps)

    def decide(self, observations: Tensor | Tree, noise: Tensor | None, memories: Tensor | None) -> Decisions:
        """As ``Policy.decide``. The memories stay with the worker: the server may be another one the next time."""
        return self._ask(observations, noise, memories, each=False)

    def decide_each(self, observations: Tensor | Tree, noise: Tensor | None, memories: Tensor | None) -> Decisions:
        """As ``Policy.decide_each``."""
        return self._ask(observations, noise, memories, each=True)

    def _ask(
        self, observations: Tensor | Tree, noise: Tensor | None, memories: Tensor | None, *, each: bool
    ) -> Decisions:
        drawn, before = (None if tensor is None else tensor.numpy() for tensor in (noise, memories))
        actions, log_probs, after = self.server.act(self.rank, self.version, arrays(observations), drawn, each, before)
        # copies, because arrays from Ray are read-only
        return Decisions(torch.tensor(actions), torch.tensor(log_probs), None if after is None else torch.tensor(after))
