"""Policies whose decisions have independent parts: numbers of an action, or tokens that stand for them."""

from __future__ import annotations

from abc import abstractmethod

from torch import Tensor

from rlpipe.functional.levels import taken_actions
from rlpipe.policies.base import Policy
from rlpipe.trajectory import Tree


class PartsPolicy(Policy):
    """Sums what is known of each part over actions and over decisions.

    Attributes:
        chunk_size: k, actions of a decision.
    """

    takes_chunks = True
    chunk_size: int

    def by_action(self, entries: Tensor) -> Tensor:
        """[B] sums of [B, entries] values of the parts of actions, or [B, k] of each action of a chunk."""
        return entries.sum(-1) if self.chunk_size == 1 else self._apart(entries).sum(-1)

    def total(self, entries: Tensor, num_steps: Tensor | None) -> Tensor:
        """[B] sums of [B, entries] values of the parts of actions, over those that were taken."""
        sums = self.by_action(entries)
        if sums.dim() == 1:
            return sums
        if num_steps is not None:
            sums = sums * taken_actions(num_steps, self.chunk_size)
        return sums.sum(-1)

    @abstractmethod
    def evaluate_entries(self, observations: Tensor | Tree, actions: Tensor) -> tuple[Tensor, Tensor]:
        """Log-probabilities [B, entries] of the parts of given actions, and their entropies, in nats."""

    def evaluate_actions(
        self, observations: Tensor | Tree, actions: Tensor, num_steps: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        log_probs, entropies = self.evaluate_entries(observations, actions)
        return self.total(log_probs, num_steps), self.total(entropies, num_steps)

    def evaluate_parts(self, observations: Tensor | Tree, actions: Tensor) -> tuple[Tensor, Tensor]:
        log_probs, entropies = self.evaluate_entries(observations, actions)
        return self._apart(log_probs), self._apart(entropies)

    def _apart(self, entries: Tensor) -> Tensor:
        """[B, k, entries / k] values of the parts of each action, of which there may be none at all."""
        return entries.reshape(entries.shape[0], self.chunk_size, entries.shape[-1] // self.chunk_size)
