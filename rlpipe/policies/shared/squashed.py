"""Gaussians that tanh squashes, Haarnoja et al. 2018, arXiv:1812.05905, appendix C: options, moments, density."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from rlpipe.config.fields import option
from rlpipe.errors import ConfigError
from rlpipe.policies.base import NoiseKinds, finite_bounds
from rlpipe.policies.shared.perceptron import PerceptronConfig, PerceptronPolicy
from rlpipe.trajectory import SpaceSpec

EDGE = 1.0 - 1e-6
"""Bound to which the squashed numbers of given actions are clamped: at 1 itself the density is infinite."""


@dataclass(frozen=True)
class SquashedConfig(PerceptronConfig):
    """Options of the perceptrons and of the Gaussian."""

    hidden_sizes: list[int] = field(default_factory=lambda: [128, 128, 128])
    activation: str = "relu"
    log_std_min: float = option(-5.0)
    """Smallest natural logarithm of a standard deviation, before squashing."""
    log_std_max: float = option(2.0)
    """Largest natural logarithm of a standard deviation, before squashing."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.log_std_min >= self.log_std_max:
            raise ConfigError(f"policy.log_std_min is {self.log_std_min}; it must be below policy.log_std_max.")


class SquashedPolicy(PerceptronPolicy):
    """A policy whose actor gives means and deviations of Gaussians, ``u = m(s) + exp(l(s)) noise``, for tanh.

    A number of the action whose bounds are equal always has their value, and no part in the density.
    """

    bounded: ClassVar[bool] = True
    middle: Tensor
    half_range: Tensor
    scale: Tensor
    varying: Tensor

    def __init__(self, config: SquashedConfig, spec: SpaceSpec, name: str, extra_actor_inputs: int = 0) -> None:
        """Draws the first weights from torch's global generator. The name of the policy is for errors.

        Raises:
            ConfigError: the actions are discrete, or have no finite bounds.
        """
        low, high = finite_bounds(spec, name)
        super().__init__(config, spec, 2 * spec.action_dim, extra_actor_inputs=extra_actor_inputs)
        self._limits = (config.log_std_min, config.log_std_max)
        assert spec.varying is not None
        self._all_vary = bool(spec.varying.all())
        half_range = 0.5 * (high - low)
        self.register_buffer("middle", torch.tensor(0.5 * (high + low)), persistent=False)
        self.register_buffer("half_range", torch.tensor(half_range), persistent=False)
        self.register_buffer("scale", torch.tensor(np.where(spec.varying, half_range, 1.0)), persistent=False)
        self.register_buffer("varying", torch.tensor(spec.varying), persistent=False)

    def moments_of(self, outputs: Tensor) -> tuple[Tensor, Tensor]:
        """[B, A] means and logarithms of standard deviations, from [B, 2 A] outputs of the actor."""
        mean, log_std = outputs.chunk(2, -1)
        low, high = self._limits
        return mean, low + 0.5 * (high - low) * (torch.tanh(log_std) + 1.0)

    def of_varying(self, log_densities: Tensor) -> Tensor:
        """[B, A] log-densities, with 0 for the numbers whose bounds are equal."""
        return log_densities if self._all_vary else log_densities.where(self.varying, 0.0)

    @staticmethod
    def log_density(mean: Tensor, log_std: Tensor, unsquashed: Tensor, scale: Tensor | None = None) -> Tensor:
        """[B, A] log-densities of ``scale tanh(u)``, with ``ln(1 - tanh(u)^2) = 2 (ln 2 - u - softplus(-2 u))``."""
        scaled = (unsquashed - mean) * (-log_std).exp()
        gaussian = -(0.5 * scaled.square() + log_std + 0.5 * math.log(2 * math.pi))
        slope = 2.0 * (math.log(2.0) - unsquashed - functional.softplus(-2.0 * unsquashed))
        return gaussian - (slope if scale is None else slope + scale.log())

    @property
    def noise_kinds(self) -> NoiseKinds:
        return (("normal", self.spec.action_dim),)
