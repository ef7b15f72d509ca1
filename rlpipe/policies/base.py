"""Interface of a policy: actions for collection; log-probabilities, entropy and values for learning.

Randomness comes from outside, as noise: with the same weights, observations and noise a policy always takes the same
actions, whichever process it runs in.
"""

from __future__ import annotations

import platform
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, ClassVar, NamedTuple, Protocol, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from rlpipe.config.fields import check_path, option
from rlpipe.config.schema import Config
from rlpipe.errors import ConfigError
from rlpipe.learner_group import SINGLE_LEARNER, LearnerGroup
from rlpipe.policies.shared.features import Features
from rlpipe.policies.shared.recomputation import recompute
from rlpipe.trajectory import Float32, SpaceSpec, Starts, Tree

Weights = dict[str, NDArray[Any]]
"""Parameters and buffers by name, as NumPy arrays; sent to rollout workers and saved in checkpoints.

NumPy has no bfloat16: the bits of such numbers are uint16, which every NumPy can send, save and compare.
"""
BASE = "base."
"""Beginning of the names of weights that belong to the policy that another one holds."""
NoiseKinds: TypeAlias = tuple[tuple[str, int], ...]
"""Distribution (``normal``, ``uniform`` or ``gumbel``) and number of columns of each part of the noise, in order."""
_DRAWS: dict[str, Callable[[np.random.Generator, tuple[int, int]], Float32]] = {
    "normal": lambda generator, shape: generator.standard_normal(shape, dtype=np.float32),
    "uniform": lambda generator, shape: generator.random(shape, dtype=np.float32),
    "gumbel": lambda generator, shape: generator.gumbel(size=shape).astype(np.float32),
}
_FILES = "files_sha256"
"""Name among the weights of the digest of the files that a policy is made from."""


@dataclass(frozen=True)
class PolicyConfig:
    """Base of every policy's configuration."""

    name: str
    """``mlp``, ``gru``, ``squashed_gaussian``, ``residual``, ``tokens``, ``vla``, or ``package.module:Class``. Without
    a ``policy`` section: ``mlp``."""
    warm_start: str | None = option(None, checks=(check_path,))
    """Run directory (its newest whole checkpoint) or checkpoint file whose policy a new run begins with. SAC and
    RLPD take critics and temperature along from either, if the critics have the same shapes."""
    chunk_size: int = option(1, least=1, below=2**10, unit="environment steps")
    """Actions of a decision (k), which are taken one after the other, up to the end of the episode
    ([policies.md](policies.md#chunks))."""
    execute: int | None = option(None, least=1, unit="environment steps")
    """Actions of a chunk that are taken before the policy decides anew; None takes all of them."""
    checkpoint_gradients: bool = option(False)
    """Save memory while learning (gradient checkpointing, arXiv:1604.06174): what encoders, perceptrons and transformer
    blocks compute is not kept for the backward pass but computed again there, one at a time, which takes about a third
    longer. Gradients are the same up to rounding ([cluster.md](cluster.md#memory-of-a-learner))."""

    def __post_init__(self) -> None:
        """Checks options that depend on each other; a subclass that adds some calls this first."""
        if self.execute is not None and self.execute > self.chunk_size:
            raise ConfigError(
                f"policy.execute is {self.execute}, but a decision has {self.chunk_size} actions (policy.chunk_size)."
            )

    @property
    def steps_per_decision(self) -> int:
        """Largest number of environment steps that follow one decision."""
        return self.chunk_size if self.execute is None else self.execute

    @property
    def memory_width(self) -> int:
        """Numbers that the policy remembers of the episode so far (H); 0 for a policy without a memory."""
        return 0

    def continuing(self, weights: Weights) -> Weights:
        """Returns the weights of a warm start as a new run begins with them, where options change some."""
        return weights

    @property
    def base(self) -> str | None:
        """Run directory or checkpoint file of another policy, which this one holds; None if it holds none."""
        return None

    @property
    def holds_base(self) -> bool:
        """True if the policy holds another one.

        Its configuration then has the fields ``base`` and ``base_policy``: the options of the other policy, empty until
        they are read.
        """
        return False


class NoWeights(StrEnum):
    """Reason why a snapshot carries no weights."""

    FROM_SEED = "every receiver has made the first weights from the seed"
    ON_SERVER = "an inference server holds them"
    FROM_FIRST_LEARNER = "the first learner of the group sends them"


@dataclass(frozen=True)
class Snapshot:
    """State of a learner that the workers act by.

    Attributes:
        version: number of updates behind the weights
        weights: parameters and buffers by name, or the reason why there are none
        starts: starts of the next episodes that a curriculum chose; None where the task draws all
    """

    version: int
    weights: Weights | NoWeights
    starts: Starts | None = None

    def load_into(self, policy: Policy) -> None:
        """Gives a policy these weights; first weights that follow from the seed are there already.

        Raises:
            ValueError: the weights are elsewhere.
            ConfigError: they belong to a policy of another shape.
        """
        if isinstance(self.weights, dict):
            policy.load_weights(self.weights)
        elif self.weights is not NoWeights.FROM_SEED:
            raise ValueError(f"snapshot {self.version} cannot be loaded: {self.weights}.")


class Decisions(NamedTuple):
    """Decisions of N slots.

    Attributes:
        actions: [N, A] float32, or [N] or [N, M] int64.
        log_probs: [N] in nats, or [N, k] of each action of a chunk.
        memories: [N, H] memory after the decision; None without a memory.
    """

    actions: Tensor
    log_probs: Tensor
    memories: Tensor | None


class Acting(Protocol):
    """Takes decisions: a ``Policy``, or a client of one that runs in another process."""

    def noise(self, generator: np.random.Generator, steps: int) -> Float32:
        """See ``Policy.noise``."""

    def decide(self, observations: Tensor | Tree, noise: Tensor | None, memories: Tensor | None) -> Decisions:
        """See ``Policy.decide``."""

    def decide_each(self, observations: Tensor | Tree, noise: Tensor | None, memories: Tensor | None) -> Decisions:
        """See ``Policy.decide_each``."""


class Policy(ABC, nn.Module):
    """A policy with a value function. A plug-in has a ``Config`` and is made as ``Policy(config, spec)``."""

    Config: ClassVar[type[Any]] = PolicyConfig
    bounded: ClassVar[bool] = False
    """True if sampled actions stay within the simulator's bounds and carry gradients."""
    in_tokens: ClassVar[bool] = False
    """True if each number of an action is a token, drawn from a categorical distribution."""
    takes_chunks: ClassVar[bool] = False
    """True if ``evaluate_actions`` takes ``num_steps``, as decisions of several actions need."""
    from_files: ClassVar[bool] = False
    """True if the first weights come from files, so the seed alone does not tell that two processes have the same."""
    outside_torch: ClassVar[str] = ""
    """Sentence on a part that is computed outside of torch, which no graph can hold; empty if there is none."""
    files_digest: bytes = b""
    """SHA-256 of these files; it travels with the weights, which a policy made from other files refuses."""

    def __init__(self) -> None:
        """Starts without normalising observations; a subclass may set ``normalizer``."""
        super().__init__()
        self.normalizer: Any = None  # RunningMoments of a vector, TreeMoments of a tree

    @classmethod
    def check(cls, config: Any) -> None:
        """Raises ConfigError if the policy lacks what a run's configuration asks for; called before it is made."""
        size = config.policy.chunk_size
        if size > 1 and not cls.takes_chunks:
            raise ConfigError(
                f"policy.chunk_size is {size}, but policy.name={config.policy.name} does not say with takes_chunks "
                "that its evaluate_actions takes num_steps: set policy.chunk_size=1."
            )
        if config.policy.checkpoint_gradients and cls.recomputed_modules is Policy.recomputed_modules:
            raise ConfigError(
                f"policy.checkpoint_gradients is true, but policy.name={config.policy.name} has no recomputed_modules "
                "that says what to compute again: leave it out."
            )
        algorithm = config.algorithm
        for key, level in (("logprob_level", algorithm.logprob_level), ("entropy_level", algorithm.entropy_level)):
            if level != "chunk" and cls.evaluate_parts is Policy.evaluate_parts:
                raise ConfigError(
                    f"algorithm.{key} is {level}, but policy.name={config.policy.name} has no evaluate_parts "
                    f"that gives the probability of each part of an action: leave algorithm.{key} out."
                )

    @property
    def noise_kinds(self) -> NoiseKinds:
        """Distributions of the columns of the noise; a policy that overrides ``noise`` itself need not tell them."""
        return ()

    def noise(self, generator: np.random.Generator, steps: int) -> Float32:
        """[steps, noise width] random numbers that ``act`` turns into sampled actions.

        They must not depend on the weights: with an inference server, the policy that draws them has none.
        """
        columns = [_DRAWS[kind](generator, (steps, width)) for kind, width in self.noise_kinds]
        return columns[0] if len(columns) == 1 else np.concatenate([*columns, np.empty((steps, 0), np.float32)], 1)

    @abstractmethod
    def act(self, observations: Tensor | Tree, noise: Tensor | None) -> tuple[Tensor, Tensor]:
        """Chooses actions.

        Args:
            observations: [N, D] raw, in the simulator's units, or a tree with leaves [N, ...].
            noise: [N, noise width] to sample actions; None for the deterministic action.
        Returns:
            actions [N, A] float32, or [N] or [N, M] int64, and their log-probabilities in nats: [N], or [N, k] of each
            action of a chunk.
        """

    def decide(
        self,
        observations: Tensor | Tree,
        noise: Tensor | None,
        memories: Tensor | None,  # noqa: ARG002 - for policies with a memory
    ) -> Decisions:
        """Chooses actions as ``act`` does, and remembers. A policy with a memory overrides it.

        Args:
            observations: as in ``act``.
            noise: as in ``act``.
            memories: [N, H] of each slot, zeros where an episode begins; None without a memory.
        """
        return Decisions(*self.act(observations, noise), None)

    def decide_each(self, observations: Tensor | Tree, noise: Tensor | None, memories: Tensor | None) -> Decisions:
        """Decides as ``decide`` does, but computes each row alone.

        The size of a matrix product can change the rounding of its rows; here it is always the same.
        """
        rows = [slice(n, n + 1) for n in range(len(observations))]
        drawn = [None if noise is None else noise[row] for row in rows]
        before = [None if memories is None else memories[row] for row in rows]
        decisions = [self.decide(observations[r], n, m) for r, n, m in zip(rows, drawn, before, strict=True)]
        actions, log_probs, after = zip(*decisions, strict=True)
        return Decisions(torch.cat(actions), torch.cat(log_probs), None if after[0] is None else torch.cat(after))

    def act_and_mode(self, observations: Tensor | Tree, noise: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Returns what ``act`` does, and the [N, A] deterministic actions; a policy may compute both at once."""
        return *self.act(observations, noise), self.act(observations, None)[0]

    @abstractmethod
    def evaluate_actions(
        self, observations: Tensor | Tree, actions: Tensor, num_steps: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Log-probabilities [B] of given actions and entropies [B], in nats, with gradients.

        Args:
            observations: [B, D] raw, or a tree.
            actions: [B, A], [B] or [B, M].
            num_steps: [B] number of actions of each chunk that were taken; the others do not count. None without
                chunks; a policy whose ``act`` returns [N] log-probabilities is not asked with it.
        """

    def evaluate_parts(self, observations: Tensor | Tree, actions: Tensor) -> tuple[Tensor, Tensor]:
        """Log-probabilities [B, k, A] of the parts of each action, and their entropies, in nats, with gradients.

        A part may be conditioned on earlier parts, never on later ones. Needed for
        ``algorithm.logprob_level`` and ``entropy_level`` other than ``chunk``; without it, ``check`` refuses those.
        """
        raise NotImplementedError  # not abstract: a policy of whole decisions is refused before it is asked

    def fit_actions(self, actions: Tensor) -> None:
        """Adapts to demonstrated actions [B, A] before the first weights are learnt; by default it does nothing."""

    @abstractmethod
    def value(self, observations: Tensor | Tree) -> Tensor:
        """[B] values of observations, [B, D] or a tree, in the unit of the return, with gradients.

        After ``value_each_action``, [B, k].
        """

    def value_each_action(self) -> None:
        """Gives each action of a chunk a value of its own; called before the first weights are used.

        Raises:
            ConfigError: the policy has one value for a decision.
        """
        raise ConfigError(
            f"algorithm.reward_level is action, but {type(self).__name__} has no value_each_action that gives each "
            "action of a chunk a value: leave algorithm.reward_level out."
        )

    def recomputed_modules(self) -> Iterator[nn.Module]:
        """Modules that ``policy.checkpoint_gradients`` computes again in the backward pass, none within another."""
        raise NotImplementedError  # not abstract: without it, ``check`` refuses the option

    @abstractmethod
    def actor_parameters(self) -> Iterator[nn.Parameter]:
        """Parameters that the policy loss trains."""

    @abstractmethod
    def critic_parameters(self) -> Iterator[nn.Parameter]:
        """Parameters that the value loss trains."""

    def action_std(self) -> Tensor | None:
        """[A] standard deviations of a Gaussian policy; None for any other policy."""
        return None

    def normalized(self, observations: Any) -> Any:
        """Observations, [B, D] or a tree, shifted and scaled as this policy does."""
        return observations if self.normalizer is None else self.normalizer.normalize(observations)

    def make_critic_features(self, spec: SpaceSpec) -> Features:
        """Makes what a critic outside the policy sees of normalised observations; it shares no weights with others.

        Raises:
            ConfigError: the policy does not say what critics see of an observation tree.
        """
        if spec.leaves is not None:
            raise ConfigError(
                f"the observation has the leaves {', '.join(spec.leaves)}, but {type(self).__name__} has no "
                "make_critic_features that says what a critic sees of them: take policy.name=squashed_gaussian."
            )
        return Features(spec, {}, None, "policy.critic_observations")

    def update_normalizer(self, observations: Any, learners: LearnerGroup = SINGLE_LEARNER) -> None:
        """Updates running statistics by the observations of a batch, [B, D] or a tree, after its update.

        Args:
            observations: this learner's share of the batch, raw.
            learners: all learners; the statistics include the shares of the others.
        """
        if self.normalizer is not None:
            self.normalizer.update(observations, learners)

    def count_steps(self, steps: int) -> None:
        """Takes note of environment steps that a replay buffer has received; by default it does nothing.

        A policy that explores by a schedule keeps their number in a buffer, which travels with the weights.
        """

    def trained_state(self) -> dict[str, Tensor]:
        """Parameters and buffers by name that learning may change; without those that a policy reads from files."""
        state: dict[str, Tensor] = self.state_dict()
        return state

    def weights(self) -> Weights:
        """All parameters and buffers that learning may change, as copies."""
        weights = {name: to_array(tensor) for name, tensor in self.trained_state().items()}
        return weights | ({_FILES: np.frombuffer(self.files_digest, np.uint8)} if self.files_digest else {})

    def acting_weights(self) -> Weights:
        """Weights that ``act`` needs; a policy may leave out its critic."""
        return self.weights()

    def load_weights(self, weights: Mapping[str, NDArray[Any]]) -> None:
        """Replaces the named weights by copies; others keep their values.

        Raises:
            ConfigError: the weights belong to a policy of another shape, or to one that was made from other files.
        """
        self._check_files(weights)
        state = self.trained_state()
        with torch.no_grad():
            for name, array in weights.items():
                if name == _FILES:
                    continue
                if name not in state or tuple(state[name].shape) != array.shape:
                    has = f"has shape {tuple(state[name].shape)}" if name in state else "has no weights of that name"
                    raise ConfigError(
                        f"weights {name} of shape {array.shape} do not fit the policy, which {has}: they were trained "
                        "with another policy or on another task."
                    )
                state[name].copy_(to_tensor(array, state[name].dtype))

    def _check_files(self, weights: Mapping[str, NDArray[Any]]) -> None:
        """Checks that weights belong to the files that this policy was made from."""
        digest = weights.get(_FILES)
        if digest is not None and digest.tobytes() != self.files_digest:
            raise ConfigError(
                f"the weights belong to a model with the SHA-256 {digest.tobytes().hex()[:16]}..., but the files on "
                f"{platform.node()} have {self.files_digest.hex()[:16] or 'none'}...: copy the same folder to every "
                "machine, and name it with policy.model."
            )


def as_base(weights: Weights) -> Weights:
    """Returns the weights of a policy under the names that they have in one that holds it."""
    return {name if name == _FILES else f"{BASE}{name}": array for name, array in weights.items()}


def to_array(tensor: Tensor) -> NDArray[Any]:
    """Copies a tensor to the host; a bfloat16 becomes its bits, as uint16."""
    host = tensor.detach().cpu()
    host_array: NDArray[Any] = (host.view(torch.uint16) if host.dtype == torch.bfloat16 else host).numpy()
    return host_array.copy()


def to_tensor(array: NDArray[Any], dtype: torch.dtype) -> Tensor:
    """Copies an array of ``to_array``; for a tensor of fractions, a uint16 is the bits of a bfloat16."""
    tensor = torch.tensor(array)
    return tensor.view(torch.bfloat16) if tensor.dtype == torch.uint16 and dtype.is_floating_point else tensor


GIVE_BOUNDS = (
    "where the task is made, give it those between which its actions make sense, such as gymnasium.wrappers."
    "TransformAction(env, lambda action: action, gymnasium.spaces.Box(-1, 1, env.action_space.shape))"
)
"""Remedy for actions without bounds, which a test follows. ClipAction keeps infinite bounds, and RescaleAction refuses
them."""


def first_unbounded(low: Float32, high: Float32) -> int | None:
    """Returns the first number of an action without finite bounds; None if there is none.

    Bounds so far apart that a loss, which squares their distance, would not be finite, are none: of float32, the
    largest number is a common way to write infinity.
    """
    with np.errstate(over="ignore"):
        finite = np.isfinite((high - low) ** 2 + low**2)
    return None if finite.all() else int(np.argmin(finite))


def check_bounds(spec: SpaceSpec) -> None:
    """Checks that the bounds of continuous actions are bounds; they may be infinite, and equal.

    Raises:
        ConfigError: one is NaN, or a lower bound lies above the upper one.
    """
    low, high = spec.action_low, spec.action_high
    if low is not None and high is not None and not (ordered := low <= high).all():
        first = int(np.argmin(ordered))
        raise ConfigError(
            f"number {first} of the simulator's actions lies between {low[first]} and {high[first]}: the lower bound "
            "must not be above the upper one, and neither may be NaN. Mend the action space of the simulator."
        )


def finite_bounds(spec: SpaceSpec, name: str) -> tuple[Float32, Float32]:
    """Returns the [A] lower and upper bounds of continuous actions, which the policy of this name needs.

    Raises:
        ConfigError: the actions are discrete, have no finite bounds, or can only be one and the same.
    """
    check_bounds(spec)
    low, high = spec.action_low, spec.action_high
    if low is None or high is None:
        kind, remedy = f"discrete ({spec.num_actions})", "set policy.name=mlp and algorithm.name=ppo or grpo"
    else:
        first = first_unbounded(low, high)
        if first is None and (spec.varying is None or spec.varying.any()):
            return low, high
        if first is None:
            raise ConfigError(
                f"the simulator has a single action, {low}, because the bounds of each of its numbers are equal: there "
                "is nothing to learn. Give the action space a range."
            )
        kind = f"unbounded (number {first} lies between {low[first]} and {high[first]})"
        remedy = f"{GIVE_BOUNDS}. PPO and GRPO need none with policy.name=mlp"
    raise ConfigError(
        f"policy.name is {name}, which needs continuous actions with finite bounds, but those of the simulator are "
        f"{kind}: {remedy}."
    )


def build_policy(config: Config, spec: SpaceSpec) -> Policy:
    """Builds the configured policy for the spaces of a simulator; its first weights depend on ``runner.seed`` alone."""
    torch.manual_seed(config.runner.seed)
    return make_policy(config.policy_class, config.policy, config.algorithm, spec)


def make_policy(class_: Callable[..., Policy], policy: PolicyConfig, algorithm: Any, spec: SpaceSpec) -> Policy:
    """Makes a policy of a class for the spaces of a simulator, with the values that an algorithm learns of it.

    Args:
        class_: class of the policy.
        policy: its options.
        algorithm: options of the algorithm.
        spec: spaces of the simulator, whose actions are those of one environment step.
    """
    check_bounds(spec)
    instance = class_(policy, spec.chunked(policy.chunk_size))
    if algorithm.reward_level == "action" and policy.chunk_size > 1:
        instance.value_each_action()
    if policy.checkpoint_gradients:
        recompute(instance.recomputed_modules())
    return instance
