"""Interface of an algorithm that learns from a replay buffer."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from rlpipe.algorithms.base import Algorithm, AlgorithmConfig, Observed, check_random_shift
from rlpipe.config.fields import option
from rlpipe.config.schema import Config, PipelineKind
from rlpipe.config.simulators import simulator_class
from rlpipe.envs.base import SimulatorConfig
from rlpipe.envs.shared.axes import OF_OBSERVATIONS
from rlpipe.envs.shared.goals import GoalTask, check_goals
from rlpipe.errors import ConfigError
from rlpipe.metrics import catalogue as m
from rlpipe.policies.base import Policy
from rlpipe.trajectory import SpaceSpec, Tree


class Transitions(NamedTuple):
    """Transitions to learn from; each may span several steps of the simulator.

    Attributes:
        observations: [B, D], or a tree.
        next_observations: [B, D], or a tree; true successors, before any reset.
        actions: [B, A].
        rewards: [B] discounted sum over the steps of the transition.
        discounts: [B] weight of the value that follows.
        terminated: [B] 1 where the task ended with the transition, else 0.
        truncated: [B] 1 where a time limit cut the episode off, else 0.
        demonstrations: number of transitions, at the end of the batch, that are demonstrated.
        drawn: from ``OffPolicyAlgorithm.draw``, with its tensors on the learner's device.
    """

    observations: Tensor | Tree
    next_observations: Tensor | Tree
    actions: Tensor
    rewards: Tensor
    discounts: Tensor
    terminated: Tensor
    truncated: Tensor
    demonstrations: int = 0
    drawn: Any = None


@dataclass(frozen=True)
class OffPolicyConfig(AlgorithmConfig):
    """Base of the configuration of an algorithm that learns from a replay buffer."""

    discount: float = option(0.99, least=0, most=1)
    """Weight of a reward one step later, gamma."""
    n_step: int = option(1, least=1, unit="steps")
    """Number of steps over which rewards are summed before the value of what follows is added. More steps carry a
    sparse reward back faster, but come from older policies. The entropy of the steps in between is not counted."""
    batch_size: int = option(256, least=1, below=2**31, unit="transitions")
    """Transitions of a gradient step, demonstrations included."""
    replay_capacity: int = option(1_000_000, least=1, below=2**31, unit="transitions")
    """Size of the replay buffer; once it is full, each new transition replaces the oldest."""
    learning_starts: int = option(1000, unit="environment steps")
    """Steps before the first gradient step."""
    update_to_data: float | None = option(None, above=0)
    """Gradient steps for each environment step. None: as many as fit while the workers collect, so that neither waits
    for the other; how many those are depends on the machine, and no two runs are equal
    ([what is reproducible](configuration.md#what-is-reproducible))."""

    random_shift: int = option(0, least=0, below=2**10, unit="pixels")
    """Largest shift, in each direction, of the images in a batch, drawn anew for each; 0 for none, 4 in DrQ-v2
    ([cameras.md](cameras.md))."""
    hindsight: float = option(0.0, least=0, most=1)
    """Share of the sampled experience whose goal is replaced by one that its episode achieved later, for tasks with
    ``achieved_goal`` and ``desired_goal`` ([sparse.md](sparse.md#hindsight)); 0.8 is usual, 0 for none."""
    hindsight_candidates: int = option(1, least=1, below=2**10)
    """Stored steps with a new goal that are drawn for each relabelled one. The first is taken whose goal had not been
    achieved before (arXiv:1905.05498): a block that lies still teaches nothing."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.hindsight and self.n_step > 1:
            raise ConfigError(
                f"algorithm.hindsight is {self.hindsight} and algorithm.n_step is {self.n_step}: the actions of later "
                "steps aimed at another goal, which biases returns over several steps (arXiv:2102.12962). Set "
                "algorithm.n_step=1, or algorithm.hindsight=0."
            )

    @property
    def fixes_gradient_steps(self) -> bool:
        return self.update_to_data is not None

    def check_chunks(self, config: Config) -> None:
        if self.hindsight:
            raise ConfigError(
                f"algorithm.hindsight is {self.hindsight} and policy.chunk_size is {config.policy.chunk_size}: what is "
                "achieved between the actions of a chunk is not stored, so their rewards cannot be recomputed. Set "
                "policy.chunk_size=1, or algorithm.hindsight=0."
            )

    def check_task(self, task: SimulatorConfig) -> None:
        if not self.hindsight:
            return
        self.goal_task(task)
        for axis in OF_OBSERVATIONS:
            if axis.name in task.variations:
                raise ConfigError(
                    f"algorithm.hindsight is {self.hindsight}, which judges goals by what was observed, but "
                    f"env.train.variations names {axis.name}, which changes that: leave one of them out."
                )

    def goal_task(self, task: SimulatorConfig) -> GoalTask:
        """Returns how a task judges any goal.

        Raises:
            ConfigError: that is unknown.
        """
        goal_task: GoalTask | None = simulator_class(task, "env.train").goal_task(task)
        if goal_task is None:
            raise ConfigError(
                f"algorithm.hindsight is {self.hindsight}, but {task.name} (env.train.name) has no goal_task, which "
                "recomputes rewards for other goals: set algorithm.hindsight=0."
            )
        return goal_task

    def check_spaces(self, spec: SpaceSpec) -> None:
        check_random_shift(self.random_shift, spec)
        if self.hindsight:
            check_goals(spec, f"algorithm.hindsight is {self.hindsight}")

    def check_one_process(self) -> None:
        if self.update_to_data is None:
            raise ConfigError(
                "algorithm.update_to_data is null: as many gradient steps as fit while workers collect. With --local "
                "nothing runs side by side, so give a number, such as algorithm.update_to_data=0.5."
            )


class OffPolicyAlgorithm(Algorithm):
    """An algorithm that learns from the transitions of a replay buffer."""

    learner = "rlpipe.learning.off_policy:OffPolicyLearner"
    pipeline = PipelineKind.AHEAD
    staged = False
    Config = OffPolicyConfig
    console_metrics = (m.Q_DATA, m.ENTROPY_ESTIMATE, m.SAC_ALPHA, m.UPDATE_TO_DATA)
    demo_share: float = 0.0
    """Share of each batch that is demonstrated."""

    @property
    def skipped(self) -> int:
        """Number of gradient steps so far that were skipped at least in part, because a gradient was not finite."""
        return 0

    @abstractmethod
    def begin(self, policy: Policy, spec: SpaceSpec, device: torch.device, generator: torch.Generator) -> None:
        """Creates critics, targets, temperature and optimisers; the generator is the source of all random numbers."""

    def policy_replaced(self) -> None:
        """Called after the policy was given other weights than those it had in ``begin``; by default does nothing."""

    def continue_with(self, state: Mapping[str, Tensor]) -> None:
        """Takes what is ``continued`` of the state of an earlier run, whose policy is that of this one."""

    def draw(self, count: int) -> Any:  # noqa: ARG002 - for subclasses that draw
        """Draws, on the host, what is random in the next gradient step on so many transitions, and chooses its kind.

        A step that draws and counts here, and not in ``step``, can be recorded as a CUDA graph
        ([extending.md](extending.md)).

        Returns:
            Tensors in a tuple or any other structure, which ``step`` gets as ``batch.drawn``. What is no tensor tells
            kinds of steps apart.
        """
        return None

    @abstractmethod
    def step(self, batch: Transitions) -> Observed:
        """Takes one gradient step, without gradients in what it returns: its metrics."""

    @abstractmethod
    def set_optimisation(self, actor_lr: float, critic_lr: float, eps: float, max_grad_norm: float | None) -> None:
        """Sets the optimisers' options for the next steps; the temperature has the actor's learning rate."""

    @abstractmethod
    def state(self) -> Mapping[str, Tensor]:
        """State, besides the policy, that a later process needs to continue."""

    @abstractmethod
    def load_state(self, state: Mapping[str, Tensor]) -> None:
        """Restores what ``state`` returned."""
