"""Soft actor-critic, Haarnoja et al. 2018, arXiv:1812.05905, with an ensemble of critics."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from rlpipe.algorithms.base import Observed
from rlpipe.algorithms.shared.off_policy import OffPolicyAlgorithm, OffPolicyConfig, Transitions
from rlpipe.algorithms.shared.optimizer import FlatAdam, clip_norm, flatten
from rlpipe.config.fields import option
from rlpipe.envs.base import SimulatorConfig
from rlpipe.errors import ConfigError
from rlpipe.functional.cloning import cloning_loss
from rlpipe.functional.soft_actor_critic import (
    actor_loss,
    critic_loss,
    follow,
    return_range,
    soft_target,
    squared_size,
    temperature_gradient,
    temperature_loss,
)
from rlpipe.metrics import catalogue as m
from rlpipe.metrics.declaration import Metric
from rlpipe.policies.base import Policy, finite_bounds
from rlpipe.policies.shared.features import Features
from rlpipe.policies.shared.perceptron import PerceptronPolicy
from rlpipe.trajectory import SpaceSpec, Tree

__all__ = ["SAC"]


@dataclass(frozen=True)
class SACConfig(OffPolicyConfig):
    """Options of soft actor-critic. Need ``policy.name=squashed_gaussian`` or ``residual``."""

    num_critics: int = option(2, least=1)
    """Number of Q networks (E)."""
    critics_in_target: int = option(2, least=1)
    """Number of Q networks, drawn anew for each step, whose minimum the target takes."""
    critic_hidden_sizes: list[int] = option([128, 128], unit="units")
    """Width of each hidden layer of a Q network; each layer is normalised (arXiv:2302.02948, section 4.2)."""
    target_rate: float = option(0.005, above=0, most=1)
    """How far the target networks move towards the critics in each step."""
    initial_temperature: float = option(0.1, above=0)
    """Weight of the entropy, before it is learnt."""
    target_entropy: float | None = option(None, unit="nats")
    """Entropy that the temperature aims at; None takes minus half the number of entries of the action that can
    vary."""
    entropy_backup: bool = option(True)
    """Count the entropy of later actions in the targets."""
    action_penalty: float = option(0.0, least=0)
    """Weight of the mean squared action, each number in half ranges from the middle, in the policy's loss
    (arXiv:1707.01495, appendix A): where all actions seem equally good, they stay small."""
    reward_range: list[float] | None = option(None, unit="reward")
    """Smallest and largest reward of a step, such as [-1, 0]: targets are clipped to the returns that they allow
    (arXiv:1707.01495, appendix A). None: no clipping."""
    actor_interval: int = option(2, least=1)
    """Critic steps for each step of the policy and of the temperature."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.critics_in_target > self.num_critics:
            raise ConfigError(
                f"algorithm.critics_in_target is {self.critics_in_target}; it must lie between 1 and "
                f"algorithm.num_critics, {self.num_critics}."
            )
        if self.reward_range is not None:
            if len(self.reward_range) != 2 or self.reward_range[0] >= self.reward_range[1]:
                raise ConfigError(
                    f"algorithm.reward_range is {self.reward_range}; it must hold two numbers, the smallest reward of "
                    "a step and the largest."
                )
            if self.discount == 1:
                raise ConfigError(
                    f"algorithm.reward_range is {self.reward_range} and algorithm.discount is {self.discount:g}: "
                    "without a discount, returns have no bounds. Leave algorithm.reward_range out, or take a discount "
                    "below 1."
                )

    def largest_value(self, task: SimulatorConfig) -> float | None:
        return None if self.entropy_backup else super().largest_value(task)  # Q values then hold entropy too


def of_decisions(log_probs: Tensor) -> Tensor:
    """[B] log-probabilities of decisions, given those of decisions or [B, k] of the actions of chunks."""
    return log_probs if log_probs.dim() == 1 else log_probs.sum(-1)


class SACDraw(NamedTuple):
    """Draws of a gradient step.

    Attributes:
        following: [B, A] noise of the actions that follow.
        critics: critics whose smallest value is the target; None for all.
        acting: [B, A] noise of the policy's own step; None where only the critics take one.
    """

    following: Tensor
    critics: Tensor | None
    acting: Tensor | None


class Ensemble(nn.Module):
    """E Q networks computed together: every layer is one product of stacked matrices. All see the same features."""

    def __init__(self, members: int, features: Features, action_dim: int, hidden_sizes: Iterable[int]) -> None:
        """Draws the first weights from torch's global generator."""
        super().__init__()
        sizes = [features.width + action_dim, *hidden_sizes, 1]
        self.features = features
        self.weights = nn.ParameterList()
        self.biases = nn.ParameterList()
        for fan_in, fan_out in itertools.pairwise(sizes):
            bound = 1.0 / math.sqrt(fan_in)
            self.weights.append(nn.Parameter(torch.empty(members, fan_in, fan_out).uniform_(-bound, bound)))
            self.biases.append(nn.Parameter(torch.empty(members, 1, fan_out).uniform_(-bound, bound)))
        self._layers = list(zip(self.weights, self.biases, strict=True))  # to walk a ParameterList takes long

    def forward(self, observations: Tensor | Tree, actions: Tensor) -> Tensor:
        """[E, B] values of normalised observations, [B, D] or a tree, and [B, A] actions."""
        members, last = len(self._layers[0][0]), len(self._layers) - 1
        x = torch.cat([self.features(observations), actions], -1).expand(members, -1, -1)
        for index, (weight, bias) in enumerate(self._layers):
            x = torch.baddbmm(bias, x, weight)
            if index < last:
                x = functional.layer_norm(x, x.shape[-1:]).relu_()  # in place, which spares the cache
        return x.squeeze(-1)


class SAC(OffPolicyAlgorithm):
    """Critics, a policy that maximises their values and its entropy, and a temperature that weighs the two."""

    Config = SACConfig
    config: SACConfig
    needs_bounds = True
    continued = ("critics/", "targets/", "log_temperature")
    cloning_coef: float = 0.0
    """Weight of the squared error to demonstrated actions in the policy's loss."""

    def begin(self, policy: Policy, spec: SpaceSpec, device: torch.device, generator: torch.Generator) -> None:
        config = self.config
        self._policy, self._generator = policy, generator
        self._dim = spec.action_dim
        if config.action_penalty:
            self._bounds = [torch.from_numpy(bound).to(device) for bound in finite_bounds(spec, type(policy).__name__)]
        self._critics, self._targets = (
            Ensemble(
                config.num_critics, policy.make_critic_features(spec), spec.action_dim, config.critic_hidden_sizes
            ).to(device)
            for _ in range(2)
        )  # fmt: skip
        if isinstance(policy, PerceptronPolicy) and policy.shares_encoder:
            self._critics.features = policy.lend_encoder()
        self.policy_replaced()
        self._log_temperature = torch.tensor(math.log(config.initial_temperature), device=device)
        varying = self._dim if spec.varying is None else int(spec.varying.sum())
        self._target_entropy = -0.5 * varying if config.target_entropy is None else config.target_entropy
        self._optimizers = {
            "critic": FlatAdam(self._critics.parameters()),
            "actor": FlatAdam(policy.actor_parameters()),
            "temperature": FlatAdam([self._log_temperature]),
        }
        self._target_values = flatten(self._targets.parameters())
        self._steps = torch.zeros((), dtype=torch.int64)  # on the host
        self._finite = torch.ones((), dtype=torch.bool, device=device)  # so far in this step
        self._skipped = torch.zeros((), dtype=torch.int64, device=device)

    def policy_replaced(self) -> None:
        """Makes the targets equal to the critics, whose encoder may be that of the policy."""
        self._targets.load_state_dict(self._critics.state_dict())

    def continue_with(self, state: Mapping[str, Tensor]) -> None:
        """Takes critics, targets and temperature of an earlier run, unless that has others, or of other shapes."""
        shapes = {name: tensor.shape for name, tensor in self.state().items() if name.startswith(self.continued)}
        if {name: tensor.shape for name, tensor in state.items()} == shapes:
            self._load_values(state)

    @property
    def skipped(self) -> int:
        return int(self._skipped)

    def set_optimisation(self, actor_lr: float, critic_lr: float, eps: float, max_grad_norm: float | None) -> None:
        for name, optimizer in self._optimizers.items():
            optimizer.set_options([critic_lr if name == "critic" else actor_lr], eps)
        self._max_grad_norm = max_grad_norm

    def draw(self, count: int) -> SACDraw:
        config, generator = self.config, self._generator
        following, critics = torch.randn(count, self._dim, generator=generator), None
        if config.critics_in_target < config.num_critics:
            critics = torch.randperm(config.num_critics, generator=generator)[: config.critics_in_target]
        self._steps += 1
        acts = int(self._steps) % config.actor_interval == 0
        return SACDraw(following, critics, torch.randn(count, self._dim, generator=generator) if acts else None)

    def step(self, batch: Transitions) -> Observed:
        self._finite.fill_(True)
        observed = self._step_critics(batch)
        if batch.drawn.acting is not None:
            observed |= self._step_actor(batch)
        self._skipped += ~self._finite
        return observed

    def _step_critics(self, batch: Transitions) -> dict[Metric, Tensor | float]:
        config = self.config
        temperature = self._log_temperature.exp()
        with torch.no_grad():
            actions, log_probs = self._policy.act(batch.next_observations, batch.drawn.following)
            log_probs = of_decisions(log_probs)
            following = self._targets(self._policy.normalized(batch.next_observations), actions)
            if batch.drawn.critics is not None:
                following = following[batch.drawn.critics]
        targets = soft_target(
            batch.rewards,
            batch.terminated,
            following,
            log_probs,
            discount=batch.discounts,
            temperature=temperature,
            entropy_backup=config.entropy_backup,
        )
        if config.reward_range is not None:
            low, high = config.reward_range
            targets = targets.clamp(*return_range(low, high, config.discount))
        values = self._critics(self._policy.normalized(batch.observations), batch.actions)
        errors = critic_loss(values, targets)
        loss = errors.mean(1).sum()  # a sum over networks, so that each has its own gradient
        norm = self._step_along("critic", self._optimizers["critic"].gradients(loss))
        follow([self._target_values], self._optimizers["critic"].groups, config.target_rate)
        values = values.detach()
        return {
            m.SAC_CRITIC_LOSS: errors.detach(),
            m.Q_DATA: values,
            m.Q_TARGET: targets,
            m.Q_SPREAD: values.std(0) if len(values) > 1 else torch.zeros_like(targets),
            m.CRITIC_GRAD_NORM: norm,
        }

    def _step_actor(self, batch: Transitions) -> dict[Metric, Tensor | float]:
        noise, likely = batch.drawn.acting, None
        if self.cloning_coef and batch.demonstrations:
            actions, log_probs, likely = self._policy.act_and_mode(batch.observations, noise)
        else:
            actions, log_probs = self._policy.act(batch.observations, noise)
        log_probs = of_decisions(log_probs)
        values = self._critics(self._policy.normalized(batch.observations), actions)
        per_step = actor_loss(values, log_probs, self._log_temperature.exp())
        loss = per_step.mean()
        if self.config.action_penalty:
            size = squared_size(actions, *self._bounds)
            loss = loss + self.config.action_penalty * size.mean()
        observed: dict[Metric, Tensor | float] = {
            m.SAC_ACTOR_LOSS: per_step.detach(),
            m.Q_PI: values.detach(),
            m.ENTROPY_ESTIMATE: -log_probs.detach(),
        }
        if likely is not None:
            demonstrated = slice(-batch.demonstrations, None)
            distance = cloning_loss(likely[demonstrated], batch.actions[demonstrated])
            loss = loss + self.cloning_coef * distance.mean()
            observed[m.CLONING_LOSS] = distance.detach()
        observed[m.ACTOR_GRAD_NORM] = self._step_along("actor", self._optimizers["actor"].gradients(loss))
        observed[m.SAC_ALPHA_LOSS] = temperature_loss(self._log_temperature, log_probs, self._target_entropy)
        self._step_along("temperature", temperature_gradient(log_probs, self._target_entropy).reshape(1))
        observed[m.SAC_ALPHA] = self._log_temperature.exp()
        return observed

    def _step_along(self, name: str, gradient: Tensor) -> Tensor:
        """Takes one optimiser step along a [P] gradient, unless it is not finite. Returns its norm before clipping."""
        norm = clip_norm(gradient, self._max_grad_norm)
        finite = torch.isfinite(norm)
        self._optimizers[name].step(gradient, finite)
        self._finite &= finite
        return norm

    def state(self) -> dict[str, Tensor]:
        state = {f"critics/{name}": tensor for name, tensor in self._critics.state_dict().items()}
        state |= {f"targets/{name}": tensor for name, tensor in self._targets.state_dict().items()}
        state["log_temperature"] = self._log_temperature
        state["steps"] = self._steps
        for name, optimizer in self._optimizers.items():
            state |= {f"optimizer/{name}/{key}": value for key, value in optimizer.state().items()}
        return state

    def load_state(self, state: Mapping[str, Tensor]) -> None:
        self._load_values(state)
        self._steps.copy_(state["steps"])
        for name, optimizer in self._optimizers.items():
            optimizer.load_state(_below(f"optimizer/{name}/", state))

    def _load_values(self, state: Mapping[str, Tensor]) -> None:
        """Restores what is ``continued``."""
        self._critics.load_state_dict(_below("critics/", state))
        self._targets.load_state_dict(_below("targets/", state))
        self._log_temperature.copy_(state["log_temperature"])


def _below(prefix: str, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {key.removeprefix(prefix): value for key, value in state.items() if key.startswith(prefix)}
