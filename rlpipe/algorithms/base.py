"""Interface between algorithms and learners: samples made from trajectories, and the loss of a minibatch of them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, ClassVar, Generic, NamedTuple, Self, TypeVar

from torch import Tensor

from rlpipe.config.fields import option
from rlpipe.config.schema import Config, PipelineKind
from rlpipe.envs.base import SimulatorConfig
from rlpipe.errors import ConfigError
from rlpipe.learner_group import SINGLE_LEARNER, LearnerGroup
from rlpipe.metrics import catalogue as m
from rlpipe.metrics.declaration import Metric
from rlpipe.metrics.on_device import Masked
from rlpipe.policies.base import Policy
from rlpipe.trajectory import Observations, SpaceSpec, Tree
from rlpipe.trajectory.batch import TrajectoryBatch, evaluation_arguments
from rlpipe.trajectory.rows import Trajectories
from rlpipe.trajectory.sequences import Sequences


def check_random_shift(pixels: int, spec: SpaceSpec) -> None:
    """Raises ConfigError if ``algorithm.random_shift`` is configured, but there is no image to move."""
    leaves = spec.leaves or {}
    if pixels and not any(leaf.is_image for leaf in leaves.values()):
        reason = (
            f"the observation has no image, only {', '.join(leaves)}" if leaves else "the observation is one vector"
        )
        raise ConfigError(
            f"algorithm.random_shift is {pixels}, which moves images, but {reason}: set algorithm.random_shift=0, or "
            "let the environment observe a camera."
        )


@dataclass(frozen=True)
class AlgorithmConfig:
    """Base of every algorithm's configuration.

    The pipeline asks its properties and methods of every algorithm. An algorithm that has an option of the name of a
    property declares it as a field, which takes the property's place.
    """

    name: str
    """``ppo``, ``grpo``, ``sac``, ``rlpd``, ``behaviour_cloning``, or ``package.module:Class``. Without an
    ``algorithm`` section: ``ppo``."""

    def __post_init__(self) -> None:
        """Checks options that depend on each other; a subclass that adds some calls this first."""

    @property
    def group_size(self) -> int | None:
        """Environments of a group, which begin each episode in the same state; None if each is independent."""
        return None

    @property
    def discount(self) -> float:
        """Weight of a reward one step later; 1 for an algorithm that sums rewards."""
        return 1.0

    @property
    def entropy_coef(self) -> float:
        """Weight of an entropy bonus in the loss; 0 for none."""
        return 0.0

    @property
    def reward_level(self) -> str:
        """Unit that has a reward and a value: a decision (``chunk``), or each of its actions (``action``)."""
        return "chunk"

    @property
    def logprob_level(self) -> str:
        """Unit that has a probability ratio of its own."""
        return "chunk"

    @property
    def entropy_level(self) -> str:
        """Unit of the entropy."""
        return "chunk"

    @property
    def cloning_coef(self) -> float | None:
        """Weight of an auxiliary cloning loss, 0 for none; None if the algorithm has no such loss."""
        return None

    @property
    def clones_by_distance(self) -> bool:
        """True if the loss follows the gradient of the policy's most likely action, which tokens do not have."""
        return False

    @property
    def target_kl(self) -> float | None:
        """Divergence in nats that ends an update early; None never ends it."""
        return None

    @property
    def fixes_gradient_steps(self) -> bool:
        """True if the number of gradient steps follows from the configuration and the data, not from time."""
        return True

    def check_split(self, config: Config) -> None:
        """Raises ConfigError if the steps of an iteration cannot be divided as the algorithm needs.

        The workers share the environments evenly.
        """

    def check_memory(self, config: Config) -> None:
        """Raises ConfigError if the algorithm cannot learn the policy of a run, which has a memory."""
        raise ConfigError(
            f"policy.name is {config.policy.name}, which has a memory, but algorithm.name is {self.name}, which learns "
            "from decisions out of their order: take algorithm.name=ppo or grpo, or a policy without a memory."
        )

    def check_chunks(self, config: Config) -> None:
        """Raises ConfigError if the algorithm cannot learn from decisions of several actions, as a run takes them."""

    def check_task(self, task: SimulatorConfig) -> None:
        """Raises ConfigError if a task lacks what the algorithm needs beside its spaces.

        It may make a simulator in this process.
        """

    def check_spaces(self, spec: SpaceSpec) -> None:
        """Raises ConfigError if an option has no effect on what the simulator observes."""

    def check_one_process(self) -> None:
        """Raises ConfigError if the algorithm cannot learn where collection and learning take turns in one process."""

    def largest_value(self, task: SimulatorConfig) -> float | None:
        """Largest discounted return that a value may estimate; None if it is unknown."""
        return task.largest_return(self.discount)

    def health_variables(self) -> dict[str, float | None]:
        """Numbers that the rules of metrics refer to, by name; None for a number without a meaning here."""
        return {}

    def health_tags(self) -> set[str]:
        """Properties of the algorithm that rules of metrics may require."""
        return set()


@dataclass(frozen=True)
class OnPolicyConfig(AlgorithmConfig):
    """Base of the configuration of an algorithm that learns from fresh trajectories."""

    update_epochs: int = option(8, least=1)
    """Passes over each batch."""
    num_minibatches: int = option(8, least=1)
    """Number of minibatches in each pass, drawn anew each time; one optimiser step each."""
    target_kl: float | None = option(None, above=0, unit="nats")
    """Mean approx_kl of a pass beyond which the update ends; None never ends it."""
    cloning_coef: float = option(0.0, least=0)
    """Weight in the first iteration of the squared error to demonstrated actions, or for a policy of tokens of their
    cross-entropy; 0 for none, else needs demos."""
    cloning_decay: float = option(0.99, least=0, most=1)
    """Share of that weight that remains after each iteration."""
    cloning_batch_size: int = option(256, least=1)
    """Demonstrated steps that are added to each minibatch."""

    def check_split(self, config: Config) -> None:
        if self.group_size is not None:  # the number of decisions is not known beforehand
            environments, workers = config.env.train.total_num_envs, config.rollout.num_workers
            share = environments // (workers if isinstance(workers, int) else 1)
            if share % self.group_size:
                raise ConfigError(
                    f"{share} environments of a worker (env.train.total_num_envs over rollout.num_workers) cannot be "
                    f"cut into groups of {self.group_size} (algorithm.group_size)."
                )
            return
        if config.policy.memory_width:  # trajectories are divided
            return
        if config.decisions_per_iteration % self.num_minibatches:
            raise ConfigError(
                f"an iteration has {config.decisions_per_iteration} decisions (rollout.horizon "
                f"{config.rollout.horizon} x env.train.total_num_envs {config.env.train.total_num_envs}), which "
                f"cannot be cut into {self.num_minibatches} equal minibatches (algorithm.num_minibatches)."
            )
        if config.decisions_per_iteration // self.num_minibatches < 2:
            raise ConfigError("algorithm.num_minibatches leaves fewer than 2 decisions for a minibatch.")

    def health_variables(self) -> dict[str, float | None]:
        return {"n_epochs": self.update_epochs, "minibatches_per_epoch": self.num_minibatches}


Terms = Mapping[str, Tensor]
"""By name, values that an algorithm keeps for each decision it has learnt from."""
Observed = Mapping[Metric, Tensor | float]
"""Raw values of metrics on the learner's device, or a configured number."""
ObservedBatch = Mapping[Metric, Tensor | Masked | float]
"""As ``Observed``, of a batch of which some decisions may be left out."""


@dataclass(frozen=True)
class Samples:
    """Valid decisions to learn from, flattened. Subclasses add what their algorithm needs.

    Attributes:
        observations: [B, D] raw, or a tree; in ``Sequences`` for a policy with a memory.
        actions: [B, A] or [B].
        old_log_probs: [B] at collection, in nats.
        advantages: [B], or [B, k] of each action of a chunk.
        trajectory: [B] int64, number of the decision's trajectory; an episode that spans iterations is one in each.
        position: [B] int64, ascending, from ``TrajectoryBatch.positions``.
        num_steps: [B] number of environment steps of each decision; None where each is one.
        old_units: [B, G] log-probabilities of the units of each decision before the update, in nats; None where the
            ratio is that of a whole decision.
        trajectories: the same trajectories as in ``trajectory``, numbered without gaps; None if the learner shall
            number them, for which it waits for the device.
    """

    observations: Observations
    actions: Tensor
    old_log_probs: Tensor
    advantages: Tensor
    trajectory: Tensor
    position: Tensor
    num_steps: Tensor | None = field(default=None, kw_only=True)
    old_units: Tensor | None = field(default=None, kw_only=True)
    trajectories: Trajectories | None = field(default=None, kw_only=True)

    @property
    def decisions(self) -> tuple[Any, ...]:
        """Arguments of ``Policy.evaluate_actions``."""
        return evaluation_arguments(self.observations, self.actions, self.num_steps)

    @property
    def has_memory(self) -> bool:
        """True if the decisions of a trajectory must stay together, in their order."""
        return isinstance(self.observations, Sequences)

    @property
    def raw_observations(self) -> Tensor | Tree:
        """[B, D] or a tree, without an order."""
        observations: Tensor | Tree = self.observations.observations if self.has_memory else self.observations
        return observations

    def select(self, index: Tensor | slice) -> Self:
        """Returns the decisions at an index, without ``trajectories``, which only the whole has."""
        columns: dict[str, Any] = {column.name: getattr(self, column.name) for column in fields(self)}
        columns["trajectories"] = None
        rows: dict[str, Any] = {name: None if each is None else each[index] for name, each in columns.items()}
        return type(self)(**rows)

    def __len__(self) -> int:
        return len(self.observations)


@dataclass(frozen=True)
class ValueSamples(Samples):
    """Decisions of an algorithm that learns a value function.

    Attributes:
        returns: [B] value targets, or [B, k] of each action of a chunk.
        old_values: values at collection, likewise.
    """

    returns: Tensor
    old_values: Tensor


SamplesT = TypeVar("SamplesT", bound=Samples)


class Loss(NamedTuple):
    """Loss of one minibatch.

    Attributes:
        each: [B] loss of each decision, with gradients; the mean over the minibatch is minimised. It depends on that
            decision alone: a minibatch may be filled up with copies, which do not count.
        terms: by name, [B, ...] values without gradients that ``measure`` needs.
    """

    each: Tensor
    terms: Terms


class Algorithm(ABC):
    """Facts that the pipeline needs about any algorithm. A plug-in is made from its ``Config`` alone."""

    learner: ClassVar[str]
    """Class of the learner, as ``package.module:Class``."""
    pipeline: ClassVar[str] = PipelineKind.SYNC
    """Pipeline that ``runner.pipeline=auto`` stands for."""
    collects: ClassVar[bool] = True
    """True if the algorithm learns from fragments that workers collect."""
    shared: ClassVar[bool] = False
    """True if several learners can share a batch."""
    staged: ClassVar[bool] = True
    """True if a stage of the run may change the algorithm's options."""
    needs_bounds: ClassVar[bool] = False
    """True if the policy's actions must stay within their bounds."""
    needs_demonstrations: ClassVar[bool] = False
    """True if the algorithm cannot learn without ``demos``."""
    in_bfloat16: ClassVar[bool] = False
    """True if the learner computes the loss in bfloat16 where ``learner.precision`` says so."""
    in_micro_batches: ClassVar[bool] = False
    """True if the learner sums the gradients of pieces of a minibatch where ``learner.micro_batch`` says so."""
    continued: ClassVar[tuple[str, ...]] = ()
    """Beginnings of names in its state that a new run takes along with the policy that it continues."""
    outside_steps: ClassVar[frozenset[str]] = frozenset()
    """Attributes that change between updates and that no gradient step reads, so that recorded steps stay valid."""
    Config: ClassVar[type[Any]] = AlgorithmConfig
    metrics: ClassVar[tuple[Metric, ...]] = ()
    """Metrics that the algorithm itself declares."""
    console_metrics: ClassVar[tuple[Metric, ...]] = ()
    """Metrics that the terminal shows."""

    def __init__(self, config: Any) -> None:
        """Keeps the options."""
        self.config = config


class OnPolicyAlgorithm(Algorithm, Generic[SamplesT]):
    """An algorithm that learns from fresh trajectories.

    If its ``Config`` has ``group_size``, the algorithm gets whole episodes: in each iteration every environment begins
    a new episode, each group of ``group_size`` environments in the same state, and is idle after its end.
    """

    learner = "rlpipe.learning.on_policy:Learner"
    shared = True
    in_bfloat16 = True
    in_micro_batches = True
    learners: LearnerGroup = SINGLE_LEARNER
    """All learners; statistics of the whole batch are sums over them."""
    learns_critic: ClassVar[bool] = True
    """True if the loss has gradients for the policy's critic."""
    Config = OnPolicyConfig
    console_metrics = (m.APPROX_KL, m.CLIP_FRACTION, m.EXPLAINED_VARIANCE, m.ENTROPY)

    @property
    def keeps_reference(self) -> bool:
        """True if the algorithm compares the policy with the one that the run began with."""
        return False

    def begin(self, reference: Policy | None, learners: LearnerGroup = SINGLE_LEARNER) -> None:  # noqa: ARG002 - for subclasses that compare
        """Called once, before anything else, and again with new options when a stage begins.

        Args:
            reference: frozen copy of the policy that the run began with; None if no stage needs one.
            learners: all learners.
        """
        self.learners = learners

    def state(self) -> Mapping[str, float]:
        """Numbers from which a later process, or the next stage, continues; none by default."""
        return {}

    def load_state(self, state: Mapping[str, float]) -> None:
        """Restores what ``state`` returned."""

    @abstractmethod
    def prepare(self, trajectories: TrajectoryBatch, policy: Policy) -> tuple[SamplesT, ObservedBatch]:
        """Turns trajectories, on the learner's device, into samples and metrics. Runs without gradients."""

    @abstractmethod
    def loss(self, policy: Policy, samples: SamplesT) -> Loss:
        """Computes the loss of a minibatch."""

    @abstractmethod
    def measure(self, samples: SamplesT, index: Tensor, terms: Terms) -> Mapping[Metric, Tensor | Masked]:
        """Measures a finished update, all minibatches at once. Runs without gradients.

        Args:
            samples: of the iteration.
            index: [S] int64, sample of each decision that was learnt from, in order, over minibatches and epochs.
            terms: by name, [S, ...] terms of all losses.
        Returns:
            [S] raw values of each metric, or those of the units of each decision.
        """

    def divergence(self, terms: Terms) -> Tensor:  # noqa: ARG002 - for subclasses that measure it
        """[B] distance in nats by which the update has moved the policy; ``target_kl`` bounds its mean.

        Raises:
            ConfigError: the algorithm does not measure it.
        """
        raise ConfigError(
            f"algorithm.target_kl is set, but {type(self).__name__} has no divergence() that measures how far an "
            "update moves the policy: leave target_kl out."
        )
