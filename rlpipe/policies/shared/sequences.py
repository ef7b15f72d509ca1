"""Observations in the order in which they were seen, for a policy whose actions depend on what it saw before."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence

from rlpipe.trajectory import Tree


@dataclass(frozen=True)
class Sequences:
    """Observations grouped into sequences; replaces plain observations for a policy with a memory.

    The rows may lie in any order.

    Attributes:
        observations: [B, D] raw, or a tree.
        sequence: [B] int64 number of each observation's sequence, in [0, J).
        step: [B] int64 place of each observation in its sequence, from 0; none may be missing before it.
        memories: [J, H] memory before the first observation of each sequence.
    """

    observations: Tensor | Tree
    sequence: Tensor
    step: Tensor
    memories: Tensor

    def __len__(self) -> int:
        return len(self.sequence)

    def __getitem__(self, index: Tensor | slice) -> Sequences:
        """Returns the observations at an index; of each sequence, it must hold all steps up to some step."""
        return Sequences(self.observations[index], self.sequence[index], self.step[index], self.memories)


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
