"""What an algorithm offers to the learner: samples from trajectories, and a loss of a minibatch of them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, ClassVar, Generic, NamedTuple, Self, TypeVar

import torch
from torch import Tensor

from rlpipe.config.fields import option
from rlpipe.config.schema import Config
from rlpipe.envs.base import SimulatorConfig
from rlpipe.errors import ConfigError
from rlpipe.learner_group import SINGLE_LEARNER, LearnerGroup
from rlpipe.metrics import catalogue as m
from rlpipe.metrics.declaration import Metric
from rlpipe.plugins import accept_old_names
from rlpipe.policies.base import Policy


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
    def cloning_coef(self) -> float | None:
        """Weight of an auxiliary cloning loss, 0 for none; None if the algorithm has no such loss."""
        return None

    @property
    def target_kl(self) -> float | None:
        """Divergence in nats that ends an update early; None never ends it."""
        return None

    def check_split(self, config: Config) -> None:
        """Checks that the steps of an iteration can be divided as the algorithm needs.

        Args:
            config: configuration of the run, whose workers share the environments evenly.
        Raises:
            ConfigError: they cannot.
        """

    def check_one_process(self) -> None:
        """Checks that the algorithm can learn where collection and learning take turns in one process.

        Raises:
            ConfigError: it cannot.
        """

    def largest_value(self, task: SimulatorConfig) -> float | None:
        """Largest discounted return that a value may estimate; None if it is unknown.

        Args:
            task: configuration of the simulator.
        """
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
    """Weight of the squared error to demonstrated actions in the first iteration; 0 for none, else needs demos."""
    cloning_decay: float = option(0.99, least=0, most=1)
    """Share of that weight that remains after each iteration."""
    cloning_batch_size: int = option(256, least=1)
    """Demonstrated steps that are added to each minibatch."""

    def check_split(self, config: Config) -> None:
        if self.group_size is None:
            self._check_minibatches(config)
        else:
            self._check_groups(config, self.group_size)  # the number of decisions is not known beforehand

    def _check_groups(self, config: Config, group_size: int) -> None:
        environments, workers = config.env.train.total_num_envs, config.rollout.num_workers
        share = environments // (workers if isinstance(workers, int) else 1)
        if share % group_size:
            raise ConfigError(
                f"{share} environments of a worker (env.train.total_num_envs over rollout.num_workers) cannot be cut "
                f"into groups of {group_size} (algorithm.group_size)."
            )

    def _check_minibatches(self, config: Config) -> None:
        if config.steps_per_iteration % self.num_minibatches:
            raise ConfigError(
                f"an iteration has {config.steps_per_iteration} decisions (rollout.horizon {config.rollout.horizon} x "
                f"env.train.total_num_envs {config.env.train.total_num_envs}), which cannot be cut into "
                f"{self.num_minibatches} equal minibatches (algorithm.num_minibatches)."
            )
        if config.steps_per_iteration // self.num_minibatches < 2:
            raise ConfigError("algorithm.num_minibatches leaves fewer than 2 decisions for a minibatch.")

    def health_variables(self) -> dict[str, float | None]:
        return {"n_epochs": self.update_epochs, "minibatches_per_epoch": self.num_minibatches}


Terms = Mapping[str, Tensor]
"""What an algorithm keeps of each decision it learnt from, by name."""
Observed = Mapping[Metric, Tensor | float]
"""Raw values on the learner's device, or a number that is set."""


@dataclass(frozen=True)
class Trajectories:
    """Fragments joined along N, on the learner's device; fields as in ``rlpipe.trajectory.TrajectoryBatch``.

    Attributes:
        first: number of the first environment among those of all learners.  environments: how many those are.
    """

    observations: Tensor
    actions: Tensor
    log_probs: Tensor
    rewards: Tensor
    terminated: Tensor
    truncated: Tensor
    valid: Tensor
    final_observations: Tensor
    final_index: Tensor
    first: int
    environments: int

    def positions(self) -> Tensor:
        """[T, N] int64 where each decision stands among those of all learners, time first."""
        steps, envs = self.valid.shape
        rows = torch.arange(steps, device=self.valid.device).unsqueeze(1) * self.environments
        return rows + torch.arange(self.first, self.first + envs, device=self.valid.device)

    def numbers(self) -> Tensor:
        """[T, N] int64 numbers of the trajectories: each environment begins one, and each end another."""
        ended = (self.terminated | self.truncated).long()
        steps, envs = ended.shape
        return ended.cumsum(0) - ended + torch.arange(envs, device=ended.device) * (steps + 1)


@dataclass(frozen=True)
class Samples:
    """Decisions to learn from, flattened; only valid ones. A subclass adds what an algorithm needs besides.

    Attributes:
        observations: [B, D].  actions: [B, A] or [B].  old_log_probs, advantages: [B].
        trajectory: [B] int64, number of the trajectory that a decision belongs to; an episode that spans iterations is
            one in each.
        position: [B] int64, rising, of ``Trajectories.positions``.
    """

    observations: Tensor
    actions: Tensor
    old_log_probs: Tensor
    advantages: Tensor
    trajectory: Tensor
    position: Tensor

    def select(self, index: Tensor | slice) -> Self:
        """The decisions at an index."""
        columns = (getattr(self, field.name) for field in fields(self))
        chosen: list[Any] = [None if column is None else column[index] for column in columns]
        return type(self)(*chosen)

    def __len__(self) -> int:
        return len(self.observations)


@dataclass(frozen=True)
class ValueSamples(Samples):
    """Decisions of an algorithm that learns a value function.

    Attributes:
        returns: [B] value targets.  old_values: [B] V at collection.
    """

    returns: Tensor
    old_values: Tensor


SamplesT = TypeVar("SamplesT", bound=Samples)


class Loss(NamedTuple):
    """Loss of one minibatch.

    Attributes:
        each: [B] of each decision, with gradients; their mean over the minibatch is minimised.
        terms: what ``observe`` wants to have, per decision [B], without gradients.
    """

    each: Tensor
    terms: Terms


def optimizer_state(optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """What an optimiser remembers of each of its parameters, as ``<number of the parameter>/<name>``."""
    return {
        f"{index}/{name}": value.detach()
        for index, kept in optimizer.state_dict()["state"].items()
        for name, value in kept.items()
    }


def load_optimizer_state(optimizer: torch.optim.Optimizer, state: Mapping[str, Tensor]) -> None:
    """Takes over copies of what ``optimizer_state`` gave, on the devices of the parameters.

    Raises:
        ConfigError: it is that of other parameters.
    """
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    kept: dict[int, dict[str, Tensor]] = {}
    for key, value in state.items():
        index, name = key.split("/")
        shapes = [(), *(tuple(own.shape) for own in parameters[int(index) : int(index) + 1])]
        if tuple(value.shape) not in shapes:  # a count of steps, or something of each weight
            raise ConfigError(
                f"the optimiser's {name} of shape {tuple(value.shape)} does not fit its parameter {index} of "
                f"{len(parameters)}: it was trained with another policy or on another task."
            )
        kept.setdefault(int(index), {})[name] = value.clone()
    optimizer.load_state_dict({**optimizer.state_dict(), "state": kept})


class Algorithm(ABC):
    """What the pipeline must know of any algorithm. A plug-in is made from its ``Config`` alone."""

    learner: ClassVar[str]
    """Where it learns."""
    ahead: ClassVar[bool] = False
    """Whether workers collect while it learns, with weights that are one update older."""
    collects: ClassVar[bool] = True
    """Whether it learns from what workers collect."""
    shared: ClassVar[bool] = False
    """Whether several learners can share the work."""
    staged: ClassVar[bool] = True
    """Whether a stage of the run may change its options."""
    needs_bounds: ClassVar[bool] = False
    """Whether the policy's actions must keep to their bounds."""
    needs_demonstrations: ClassVar[bool] = False
    Config: ClassVar[type[Any]] = AlgorithmConfig
    metrics: ClassVar[tuple[Metric, ...]] = ()
    """Declarations of its own, beside its code."""
    console_metrics: ClassVar[tuple[Metric, ...]] = ()
    """Metrics that the terminal shows."""

    def __init_subclass__(cls) -> None:
        """Accepts the earlier names of hooks."""
        super().__init_subclass__()
        accept_old_names(cls, {"observe": "measure", "shown": "console_metrics"})


class OnPolicyAlgorithm(Algorithm, Generic[SamplesT]):
    """An algorithm that learns from fresh trajectories.

    With a ``group_size`` in its ``Config``, it gets whole episodes: in each iteration every environment begins a new
    one, all environments of a group in the same state, and is idle after its end.
    """

    learner = "rlpipe.learning.on_policy:Learner"
    shared = True
    learners: LearnerGroup = SINGLE_LEARNER
    """All learners; statistics of the whole batch are sums over them."""
    learns_critic: ClassVar[bool] = True
    """Whether its loss reaches the policy's critic."""
    Config = OnPolicyConfig
    console_metrics = (m.APPROX_KL, m.CLIP_FRACTION, m.EXPLAINED_VARIANCE, m.ENTROPY)

    @property
    def keeps_reference(self) -> bool:
        """Whether it compares the policy with what it was when the run began."""
        return False

    def begin(self, reference: Policy | None, learners: LearnerGroup = SINGLE_LEARNER) -> None:  # noqa: ARG002 - for those that compare
        """Called once, before anything else, and again with new options when a stage begins.

        Args:
            reference: frozen copy of the policy as it was when the run began; None if no stage keeps one.
            learners: all learners.
        """
        self.learners = learners

    def state(self) -> Mapping[str, float]:
        """Numbers that a later process, or the next stage, goes on from; the default has none."""
        return {}

    def load_state(self, state: Mapping[str, float]) -> None:
        """Takes over what ``state`` gave."""

    @abstractmethod
    def prepare(self, trajectories: Trajectories, policy: Policy) -> tuple[SamplesT, Observed]:
        """Turns trajectories into samples, with what there is to log about them; runs without gradients."""

    @abstractmethod
    def loss(self, policy: Policy, samples: SamplesT) -> Loss:
        """Loss of a minibatch."""

    @abstractmethod
    def measure(self, samples: SamplesT, taken: Tensor, terms: Terms) -> Mapping[Metric, Tensor]:
        """What there is to log about an update, at once for all minibatches; runs without gradients.

        Args:
            samples: of the iteration.
            taken: [S] int64, the sample of each decision that was learnt from, in order, over minibatches and epochs.
            terms: [S] each, those of all losses.
        Returns:
            [S] raw values of each metric.
        """

    def divergence(self, terms: Terms) -> Tensor:  # noqa: ARG002 - for those that can say
        """[B] how far the update has moved the policy, in nats, by which ``target_kl`` ends it.

        Raises:
            ConfigError: the algorithm does not say.
        """
        raise ConfigError(f"algorithm.target_kl is set, but {type(self).__name__} does not say how far it moves.")
