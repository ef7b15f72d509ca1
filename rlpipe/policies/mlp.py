"""Multilayer perceptrons: separate actor and critic, for continuous or discrete actions.

Continuous actions have a Gaussian whose deviation does not depend on the state, discrete ones a categorical
distribution.
"""

from __future__ import annotations

from dataclasses import dataclass

from rlpipe.policies.shared.unbounded import UnboundedConfig, UnboundedPolicy

__all__ = ["MLPPolicy"]


@dataclass(frozen=True)
class MLPConfig(UnboundedConfig):
    """Options of the perceptrons."""


class MLPPolicy(UnboundedPolicy):
    """Actor and critic that share at most the normalisation of observations."""

    Config = MLPConfig
