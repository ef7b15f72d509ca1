"""Gated recurrent units (Cho et al. 2014, arXiv:1406.1078) that remember the episode so far, before perceptrons.

Actor and critic have a layer each, as they share no weights anywhere else: the learner has a learning rate, a gradient
norm and an optimiser state for each of the two. The memory of a slot holds the states of both.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence

from rlpipe.config.fields import option
from rlpipe.policies.base import Decisions, Weights
from rlpipe.policies.shared.features import Features
from rlpipe.policies.shared.unbounded import UnboundedConfig, UnboundedPolicy
from rlpipe.trajectory import SpaceSpec, Tree
from rlpipe.trajectory.sequences import Sequences

__all__ = ["GRUPolicy"]


@dataclass(frozen=True)
class GRUConfig(UnboundedConfig):
    """Options of the memory and of the perceptrons behind it. See docs/policies.md#memory."""

    hidden_sizes: list[int] = field(default_factory=lambda: [128])
    memory_size: int = option(128, least=1, below=2**16, unit="units")
    """Numbers that the actor remembers of the episode so far; the critic remembers as many."""

    @property
    def memory_width(self) -> int:
        return 2 * self.memory_size


class GRUPolicy(UnboundedPolicy):
    """Features, a recurrent layer and a perceptron, for actor and critic apart.

    Learns from ``Sequences``. A bare observation is taken for the first one of an episode.
    """

    Config = GRUConfig

    def __init__(self, config: GRUConfig, spec: SpaceSpec) -> None:
        """Draws the first weights from torch's global generator."""
        super().__init__(config, spec, config.memory_size)
        self._size = config.memory_size
        self.actor_gru = _recurrent_layer(self.actor_features.width, self._size)
        self.critic_gru = _recurrent_layer(self._features_of_critic.width, self._size)

    def decide(self, observations: Tensor | Tree, noise: Tensor | None, memories: Tensor | None) -> Decisions:
        assert memories is not None
        seen = self.normalized(observations)
        before = memories.unsqueeze(0)
        of_actor = self.actor_features(seen)
        of_critic = of_actor if self.shares_encoder else self.critic_features(seen)
        actor, _ = self.actor_gru(of_actor.unsqueeze(0), before[..., : self._size].contiguous())
        critic, _ = self.critic_gru(of_critic.unsqueeze(0), before[..., self._size :].contiguous())
        after = torch.cat([actor, critic], -1).squeeze(0)
        return Decisions(*self.choose(self.actor(actor.squeeze(0)), noise), after)

    def actor_outputs(self, observations: Tensor | Tree | Sequences) -> Tensor:
        seen = self._in_sequences(observations)
        after = self._memories(seen, self.actor_features, self.actor_gru, seen.memories[:, : self._size])
        outputs: Tensor = self.actor(after)
        return outputs

    def value(self, observations: Tensor | Tree | Sequences) -> Tensor:
        seen = self._in_sequences(observations)
        after = self._memories(seen, self._features_of_critic, self.critic_gru, seen.memories[:, self._size :])
        values: Tensor = self.critic(after).squeeze(-1)
        return values

    def _in_sequences(self, observations: Tensor | Tree | Sequences) -> Sequences:
        """Returns bare observations as sequences of one step."""
        if isinstance(observations, Sequences):
            return observations
        device = next(self.actor_gru.parameters()).device
        numbers = torch.arange(len(observations), device=device)
        empty = torch.zeros(len(observations), 2 * self._size, device=device)
        return Sequences(observations, numbers, torch.zeros_like(numbers), empty)

    def _memories(self, seen: Sequences, features: Features, gru: nn.GRU, before: Tensor) -> Tensor:
        """[B, M] memory of actor or critic after each observation."""
        if not len(seen):  # a learner that has no share of a minibatch
            return before.new_zeros(0, self._size)
        return replay(gru, features(self.normalized(seen.observations)), seen, before)

    def actor_parameters(self) -> Iterator[nn.Parameter]:
        return itertools.chain(super().actor_parameters(), self.actor_gru.parameters())

    def critic_parameters(self) -> Iterator[nn.Parameter]:
        return itertools.chain(super().critic_parameters(), self.critic_gru.parameters())

    def acting_weights(self) -> Weights:
        """All but the critic's perceptron: whoever acts keeps the critic's memory as well."""
        return {name: array for name, array in self.weights().items() if not name.startswith("critic.")}


def _recurrent_layer(features: int, size: int) -> nn.GRU:
    """One layer with orthogonal weights, as the perceptrons have."""
    layer = nn.GRU(features, size)
    for name, parameter in layer.named_parameters():
        if "weight" in name:
            nn.init.orthogonal_(parameter)
        else:
            nn.init.zeros_(parameter)
    return layer


def replay(gru: nn.GRU, features: Tensor, sequences: Sequences, memories: Tensor) -> Tensor:
    """Runs a recurrent layer over sequences, with gradients through time; in float32, as errors add up along the way.

    Args:
        gru: layer from W features to M numbers of memory.
        features: [B, W] of the observations, in their order.
        sequences: the observations, at least one.
        memories: [J, M] memory of this layer before each sequence.
    Returns:
        [B, M] memory after each observation, which is also the layer's output.
    """
    present, sequence = torch.unique(sequences.sequence, return_inverse=True)
    longest = torch.bincount(sequence).argsort(descending=True, stable=True)
    order = (sequences.step * len(present) + _inverse(longest)[sequence]).argsort()
    running = torch.bincount(sequences.step).cpu()  # sequences that have a first step, a second one, ...
    with torch.autocast(features.device.type, enabled=False):
        packed = PackedSequence(features[order].float(), running)
        after: Tensor = gru(packed, memories[present[longest]].unsqueeze(0))[0].data
    return after[_inverse(order)]


def _inverse(permutation: Tensor) -> Tensor:
    """Returns the place of each number in a permutation."""
    places = torch.empty_like(permutation)
    places[permutation] = torch.arange(len(permutation), device=permutation.device)
    return places
