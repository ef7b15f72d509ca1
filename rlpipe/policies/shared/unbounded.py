"""Actions without bounds of their own, from the numbers that a network gives for each decision."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from rlpipe.config.fields import option
from rlpipe.policies.base import NoiseKinds, Weights
from rlpipe.policies.shared.perceptron import (
    PerceptronConfig,
    PerceptronPolicy,
    gaussian_log_densities,
    gaussian_log_prob,
)
from rlpipe.trajectory import SpaceSpec, Tree

_FIRST_LOG_STD = -0.5
_LOG_STD = "log_std"
"""Name of the deviation among the weights."""


@dataclass(frozen=True)
class UnboundedConfig(PerceptronConfig):
    """Options of the perceptrons and of the Gaussian."""

    initial_log_std: float | None = option(None, unit="ln(action units)")
    """Natural logarithm of a Gaussian's first standard deviation. None: that of the warm start, or else -0.5."""

    def continuing(self, weights: Weights) -> Weights:
        if self.initial_log_std is None or _LOG_STD not in weights:
            return weights
        return {**weights, _LOG_STD: np.full_like(weights[_LOG_STD], self.initial_log_std)}


class UnboundedPolicy(PerceptronPolicy):
    """Gaussian with a deviation that does not depend on the state, or categorical distributions of discrete actions."""

    def __init__(self, config: UnboundedConfig, spec: SpaceSpec, inputs: int | None = None) -> None:
        """Draws the first weights from torch's global generator; the arguments are those of ``PerceptronPolicy``."""
        choices = spec.num_actions
        counts = [choices] if isinstance(choices, int) else list(choices or ())
        super().__init__(config, spec, sum(counts) or spec.action_dim, inputs=inputs)
        self._choices = counts  # of each part of a discrete action
        first = _FIRST_LOG_STD if config.initial_log_std is None else config.initial_log_std
        self.log_std = None if counts else nn.Parameter(torch.full((spec.action_dim,), first))

    @property
    def noise_kinds(self) -> NoiseKinds:
        return (("gumbel", sum(self._choices)) if self._choices else ("normal", self.spec.action_dim),)

    def act(self, observations: Tensor | Tree, noise: Tensor | None) -> tuple[Tensor, Tensor]:
        return self.choose(self.actor_outputs(observations), noise)

    def choose(self, output: Tensor, noise: Tensor | None) -> tuple[Tensor, Tensor]:
        """Chooses actions as ``act`` does, from [N, outputs] of the actor."""
        if self.log_std is None:
            preferred = output if noise is None else output + noise  # Gumbel noise makes argmax a sample
            choices = torch.stack([part.argmax(-1) for part in torch.split(preferred, self._choices, -1)], -1)
            return choices.view(-1, *self.spec.action_shape), self.by_action(self._discrete(output, choices)[0])
        actions = output if noise is None else output + self.log_std.exp() * noise
        if self.chunk_size == 1:
            return actions, gaussian_log_prob(output, self.log_std, actions)
        return actions, self.by_action(gaussian_log_densities(output, self.log_std, actions))

    def evaluate_entries(self, observations: Tensor | Tree, actions: Tensor) -> tuple[Tensor, Tensor]:
        output = self.actor_outputs(observations)
        if self.log_std is None:
            return self._discrete(output, actions.view(len(actions), len(self._choices)))
        entropy = self.log_std + 0.5 * math.log(2 * math.pi * math.e)
        return gaussian_log_densities(output, self.log_std, actions), entropy.expand(len(output), -1)

    def evaluate_actions(
        self, observations: Tensor | Tree, actions: Tensor, num_steps: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        if self.log_std is None or self.chunk_size > 1:
            return super().evaluate_actions(observations, actions, num_steps)
        output = self.actor_outputs(observations)
        entropy = (self.log_std + 0.5 * math.log(2 * math.pi * math.e)).sum().expand(len(output))
        return gaussian_log_prob(output, self.log_std, actions), entropy

    def _discrete(self, logits: Tensor, actions: Tensor) -> tuple[Tensor, Tensor]:
        """[B, M] log-probabilities of the parts of discrete actions [B, M], and their entropies [B, M]."""
        log_probs, entropies = [], []
        for part, choice in zip(torch.split(logits, self._choices, -1), torch.split(actions, 1, -1), strict=True):
            every = part.log_softmax(-1)
            log_probs.append(every.gather(-1, choice))
            entropies.append(-(every.exp() * every).sum(-1, keepdim=True))
        return torch.cat(log_probs, -1), torch.cat(entropies, -1)

    def actor_parameters(self) -> Iterator[nn.Parameter]:
        return itertools.chain(super().actor_parameters(), () if self.log_std is None else (self.log_std,))

    def action_std(self) -> Tensor | None:
        return None if self.log_std is None else self.log_std.detach().exp()
