"""A frozen base policy and a bounded correction of its actions, Yuan et al. 2024 (Policy Decorator), arXiv:2412.13630.

The base may be any policy of continuous actions without a memory, such as a clone of demonstrations in chunks. It is
part of the policy: its options are in the configuration and its weights in every snapshot and checkpoint.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor

from rlpipe.config.fields import check_fields, check_path, option
from rlpipe.config.sections import typed
from rlpipe.errors import ConfigError
from rlpipe.plugins import resolve
from rlpipe.policies.base import BASE, NoiseKinds, Policy, as_base
from rlpipe.policies.shared.squashed import EDGE, SquashedConfig, SquashedPolicy
from rlpipe.trajectory import SpaceSpec, Tree

__all__ = ["ResidualPolicy"]


@dataclass(frozen=True)
class ResidualConfig(SquashedConfig):
    """Options of the correction, and where the base comes from."""

    base: str | None = option(None, checks=(check_path,))
    """Run directory (its newest whole checkpoint) or checkpoint file of the policy to correct
    ([demonstrations.md](demonstrations.md))."""
    base_policy: dict[str, Any] = option({})
    """Options of that policy. Read from its checkpoint when a run begins; leave it out."""
    residual_scale: float = option(0.1, above=0, most=2, unit="half ranges of the action")
    """Largest correction of each number of an action."""
    progressive_exploration: int = option(30_000, least=0, below=2**53, unit="environment steps")
    """Steps over which the share of training's decisions that are corrected rises from 0 to 1 (H); the others are the
    base's own. 0 corrects all."""

    @property
    def holds_base(self) -> bool:
        return True

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.base is not None and self.warm_start is not None:
            raise ConfigError(
                f"policy.base is {self.base} and policy.warm_start is {self.warm_start}, whose policy holds a base "
                "already: leave one of them out."
            )


class ResidualPolicy(SquashedPolicy):
    """``a = clip(b(s) + residual_scale half_range tanh(m(s, b) + exp(l(s, b)) noise))``.

    b(s) is the base's most likely action, within the bounds. The density is that of the correction in its own range,
    ``tanh(u)`` in (-1, 1), so entropies mean the same at any scale.

    Noise is [N, A] for the corrections, with a column of uniform numbers beside it where decisions follow the schedule
    of exploration: a row whose number is not below the share of corrected decisions takes the base's action. A learner
    draws no such column, so it learns from corrected decisions alone.
    """

    Config = ResidualConfig
    from_files = True
    low: Tensor
    high: Tensor
    reach: Tensor
    collected: Tensor

    @classmethod
    def check(cls, config: Any) -> None:
        super().check(config)
        policy = config.policy
        if not config.algorithm_class.needs_bounds:
            raise ConfigError(
                f"algorithm.name is {config.algorithm.name}, but the actions of policy.name={policy.name} are clipped, "
                "so their probabilities are not those of the corrections behind them: set algorithm.name=rlpd or sac."
            )
        if policy.base is None and policy.warm_start is None:
            raise ConfigError(
                f"policy.name is {policy.name}, which corrects another policy: name one with "
                "policy.base=RUN_OR_CHECKPOINT, such as a clone (rlpipe pretrain)."
            )
        if policy.base_policy:
            _check_base(policy)

    def __init__(self, config: ResidualConfig, spec: SpaceSpec) -> None:
        """Draws the first weights from torch's global generator; those of the base are loaded later.

        Raises:
            ConfigError: the actions are discrete or have no finite bounds, or the base's options are unknown.
        """
        super().__init__(config, spec, "residual", extra_actor_inputs=spec.action_dim)
        options = _base_options(config)
        self.base: Policy = resolve("policies", options.name, "policy.base_policy.name")(options, spec)
        self.base.requires_grad_(False).eval()
        self.files_digest = self.base.files_digest
        self._schedule = config.progressive_exploration
        self.register_buffer("reach", config.residual_scale * self.half_range, persistent=False)
        self.register_buffer("low", torch.tensor(spec.action_low), persistent=False)
        self.register_buffer("high", torch.tensor(spec.action_high), persistent=False)
        self.register_buffer("collected", torch.zeros((), dtype=torch.int64))

    @cached_property
    def _base_names(self) -> frozenset[str]:
        """Names of the base's weights, as far as it needs them to act."""
        return frozenset(name for name in as_base(self.base.acting_weights()) if name.startswith(BASE))

    def trained_state(self) -> dict[str, Tensor]:
        of_correction = {name: tensor for name, tensor in super().trained_state().items() if not name.startswith(BASE)}
        of_base = self.base.trained_state()
        return of_correction | {name: of_base[name.removeprefix(BASE)] for name in sorted(self._base_names)}

    def load_weights(self, weights: Mapping[str, NDArray[Any]]) -> None:
        """Replaces weights as every policy does. What the base needed only to learn is left out.

        Raises:
            ConfigError: some weights do not fit, or some of the base's are missing.
        """
        of_base = {name for name in weights if name.startswith(BASE)}
        if of_base and (missing := sorted(self._base_names - of_base)):
            raise ConfigError(
                f"the weights of the base lack {missing[0]}: it was trained with other options or on another task, "
                "such as one of discrete actions."
            )
        unused = of_base - self._base_names
        super().load_weights({name: array for name, array in weights.items() if name not in unused})

    def count_steps(self, steps: int) -> None:
        self.collected += steps

    @property
    def noise_kinds(self) -> NoiseKinds:
        return (*super().noise_kinds, *([("uniform", 1)] if self._schedule else []))

    def base_actions(self, observations: Tensor | Tree) -> Tensor:
        """[B, A] most likely actions of the base, within the bounds."""
        with torch.no_grad():
            return self.base.act(observations, None)[0].clamp(self.low, self.high)

    def _decided(self, observations: Tensor | Tree) -> tuple[Tensor, Tensor, Tensor]:
        """[B, A] actions of the base, and means and logarithms of deviations of the corrections before squashing."""
        base = self.base_actions(observations)
        outputs = self.actor(torch.cat([self.actor_inputs(observations), (base - self.middle) / self.scale], -1))
        return base, *self.moments_of(outputs)

    def _corrected(self, base: Tensor, unsquashed: Tensor) -> Tensor:
        return (base + self.reach * unsquashed.tanh()).clamp(self.low, self.high)

    def _sampled(self, observations: Tensor | Tree, noise: Tensor | None) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Actions and log-probabilities as of ``act``, actions of the base, and means before squashing."""
        base, mean, log_std = self._decided(observations)
        width = mean.shape[-1]
        unsquashed = mean if noise is None else mean + log_std.exp() * noise[:, :width]
        actions = self._corrected(base, unsquashed)
        if noise is not None and noise.shape[-1] > width:
            actions = torch.where(noise[:, width:] < self.collected / self._schedule, actions, base)
        log_probs = self.of_varying(self.log_density(mean, log_std, unsquashed))
        return actions, self.by_action(log_probs), base, mean

    def act(self, observations: Tensor | Tree, noise: Tensor | None) -> tuple[Tensor, Tensor]:
        actions, log_probs, _, _ = self._sampled(observations, noise)
        return actions, log_probs

    def act_and_mode(self, observations: Tensor | Tree, noise: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        actions, log_probs, base, mean = self._sampled(observations, noise)
        return actions, log_probs, self._corrected(base, mean)

    def evaluate_entries(self, observations: Tensor | Tree, actions: Tensor) -> tuple[Tensor, Tensor]:
        """Densities of the corrections that actions show; at a bound of the action they show less than was drawn."""
        base, mean, log_std = self._decided(observations)
        squashed = ((actions - base) / self.reach.where(self.varying, 1.0)).clamp(-EDGE, EDGE)
        log_probs = self.of_varying(self.log_density(mean, log_std, squashed.atanh()))
        return log_probs, -log_probs  # the entropy has no closed form; the taken action estimates it


def _base_options(config: ResidualConfig) -> Any:
    """Returns the options of the base, complete, typed and checked."""
    key = "policy.base_policy"
    if not isinstance(config.base_policy.get("name"), str):
        raise ConfigError(
            f"{key} does not say what policy.base={config.base} is: leave it out, and load the configuration with "
            "rlpipe.load_config, which reads it."
        )
    options = typed(resolve("policies", config.base_policy["name"], f"{key}.name").Config, config.base_policy, key)
    check_fields(options, key)
    return options


def _check_base(config: ResidualConfig) -> None:
    """Raises ConfigError if the base does not decide as the policy does that corrects it."""
    options = _base_options(config)
    where = "policy.base" if config.base is not None else "policy.warm_start"
    origin = f"{where}={config.base or config.warm_start}"
    if options.memory_width:
        raise ConfigError(
            f"the policy of {origin} is {options.name}, which has a memory, and a residual policy has none: name a "
            "policy without a memory."
        )
    for name in ("chunk_size", "steps_per_decision"):
        key = "policy.execute" if name == "steps_per_decision" else "policy.chunk_size"
        count, of_base = getattr(config, name), getattr(options, name)
        if count != of_base:
            what = "takes" if key == "policy.execute" else "decides"
            raise ConfigError(
                f"{key} makes {count} actions of a decision, but the policy of {origin} {what} {of_base}: set "
                f"{key}={of_base}."
            )
