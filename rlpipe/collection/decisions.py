"""Takes a decision: one action, or a chunk of actions one after the other, up to the end of the episode."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from rlpipe.config.schema import Config
from rlpipe.envs.base import Beginning, Simulator, Step
from rlpipe.envs.shared.checks import check_beginnings, check_observations, check_step
from rlpipe.envs.shared.seeding import seed_global_generators
from rlpipe.errors import ContractError, SimulatorError
from rlpipe.policies.base import Decisions
from rlpipe.trajectory import Bool, Float32, Observations, SpaceSpec


@dataclass(frozen=True)
class Chunks:
    """How decisions become environment steps.

    Attributes:
        size: actions of a decision, k.
        execute: how many of them are taken before the policy decides anew.
        discount: weight, in the reward of a decision, of a reward one step later.
        in_tokens: True if each number of an action is a token.
        keep_rewards: True if the reward of each environment step is kept beside their sum.
    """

    size: int = 1
    execute: int = 1
    discount: float = 1.0
    in_tokens: bool = False
    keep_rewards: bool = False

    @classmethod
    def of(cls, config: Config) -> Chunks:
        """Returns the chunks of a configuration."""
        policy, algorithm = config.policy, config.algorithm
        in_tokens: bool = config.policy_class.in_tokens
        keep_rewards = policy.chunk_size > 1 and algorithm.reward_level == "action"
        return cls(policy.chunk_size, policy.steps_per_decision, algorithm.discount, in_tokens, keep_rewards)


SINGLE_ACTIONS = Chunks()


def in_float32(decide: Callable[..., Decisions], *arguments: Any) -> Decisions:
    """Has a policy decide under torch's usual default dtype; the simulator beside it may work under another."""
    dtype = torch.get_default_dtype()
    if dtype is torch.float32:
        return decide(*arguments)
    torch.set_default_dtype(torch.float32)
    try:
        return decide(*arguments)
    finally:
        torch.set_default_dtype(dtype)


class Outcome(NamedTuple):
    """Outcome of N decisions.

    Attributes:
        observations: [N, ...] to decide on next.
        successors: [N, ...] where the last environment step of each decision led, before any reset.
        rewards: [N] float64, summed over the environment steps with the discount.
        terminated: [N] bool.
        truncated: [N] bool.
        valid: [N] bool; False where no step was taken.
        num_steps: [N] int64, environment steps of each decision; None where each is one.
        step_rewards: [N, k] float32, reward of each of these steps, 0 after the last one; None unless they are kept.
    """

    observations: Observations
    successors: Observations
    rewards: NDArray[np.float64]
    terminated: Bool
    truncated: Bool
    valid: Bool
    num_steps: NDArray[np.int64] | None = None
    step_rewards: Float32 | None = None

    @property
    def begins(self) -> Bool:
        """[N] True where the next decision is the first of an episode: after the end of one, or after a mere reset."""
        begins: Bool = self.terminated | self.truncated | ~self.valid
        return begins

    @classmethod
    def of(cls, steps: Sequence[Step], chunks: Chunks) -> Outcome:
        """Returns the outcome of decisions, given all steps that ``take`` has yielded."""
        step = steps[0]
        if chunks.size == 1:
            return cls(step.observations, step.successors, step.rewards, step.terminated, step.truncated, step.valid)
        observations, successors = step.observations.copy(), step.successors.copy()
        rewards, terminated, truncated = step.rewards.copy(), step.terminated.copy(), step.truncated.copy()
        num_steps = step.valid.astype(np.int64)
        step_rewards = np.zeros((len(rewards), chunks.size), dtype=np.float32) if chunks.keep_rewards else None
        if step_rewards is not None:
            step_rewards[:, 0] = rewards
        for number, step in enumerate(steps[1:], 1):
            valid = step.valid
            observations[valid], successors[valid] = step.observations[valid], step.successors[valid]
            rewards += np.where(valid, chunks.discount**number * step.rewards, 0.0)
            if step_rewards is not None:
                step_rewards[valid, number] = step.rewards[valid]
            terminated |= step.terminated
            truncated |= step.truncated
            num_steps += valid
        return cls(observations, successors, rewards, terminated, truncated, num_steps > 0, num_steps, step_rewards)


def reset(simulator: Simulator, seed: Sequence[int]) -> tuple[Observations, dict[int, Beginning]]:
    """Begins an episode in every environment of a simulator.

    Args:
        simulator: the simulator.
        seed: of the global generators, from which a simulator may draw: no two workers may draw the same.
    Raises:
        SimulatorError: the simulator raised.
        ContractError: it returned a wrong value.
    """
    seed_global_generators(*seed)
    try:
        answer = simulator.reset()
    except ContractError:
        raise
    except BaseException as error:
        raise SimulatorError.of(error, "resetting") from error
    check_beginnings(answer)
    check_observations(answer[0], simulator.spec, simulator.num_envs)
    return answer


def single_action(spec: SpaceSpec, actions: NDArray[Any], chunks: Chunks, number: int) -> NDArray[Any]:
    """Returns one action of each of N decisions as the simulator takes it: [N, A] within the bounds, or [N] discrete.

    Args:
        spec: spaces of the simulator.
        actions: [N, k * A], or [N, k] for a single discrete action.
        chunks: how many actions a decision has.
        number: of the action in its decision, from 0.
    """
    action: NDArray[Any] = actions.reshape(len(actions), chunks.size, *spec.action_shape)[:, number]
    return action if spec.num_actions else spec.clip(action)


def take(simulator: Simulator, actions: NDArray[Any], chunks: Chunks, doing: str = "taking a step") -> Iterator[Step]:
    """Takes the actions of N decisions, and yields each environment step once it was taken.

    An environment whose episode has ended waits for the next decision.

    Args:
        simulator: one that ``can_wait``, if there are chunks.
        actions: [N, k * A], or [N, k] for a single discrete action.
        chunks: how many actions there are, and how many are taken.
        doing: for the error, if the simulator raises.
    Raises:
        SimulatorError: the simulator raised.
        ContractError: it returned a wrong value.
    """
    spec, count = simulator.spec, len(actions)
    step: Step | None = None
    for number in range(chunks.execute):
        action, waiting = single_action(spec, actions, chunks, number), tuple[Bool, ...]()
        if step is not None:
            active = step.valid & ~(step.terminated | step.truncated)
            if not active.any():
                return
            waiting = (active,)
        try:
            step = simulator.step(action, *waiting)
        except ContractError:
            raise
        except BaseException as error:
            within = "" if chunks.size == 1 else f", action {number + 1} of {chunks.size}"
            raise SimulatorError.of(error, doing + within) from error
        if not simulator.is_checked:
            check_step(step, spec, count, has_success=simulator.has_success)
        yield step
