"""Takes a decision: one action, or a chunk of actions one after the other, up to the end of the episode."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rlpipe.config.schema import Config
from rlpipe.envs.base import Simulator, Step
from rlpipe.errors import ConfigError, SimulatorError
from rlpipe.plugins import resolve
from rlpipe.trajectory import Observations


@dataclass(frozen=True)
class Chunks:
    """How decisions become environment steps.

    Attributes:
        size: actions of a decision, k.
        execute: how many of them are taken before the policy decides anew.
        discount: weight, in the reward of a decision, of a reward one step later.
        in_tokens: True if each number of an action is a token.
    """

    size: int = 1
    execute: int = 1
    discount: float = 1.0
    in_tokens: bool = False

    @classmethod
    def of(cls, config: Config) -> Chunks:
        """Returns the chunks of a configuration."""
        policy = config.policy
        in_tokens: bool = resolve("policies", policy.name, "policy.name").in_tokens
        return cls(policy.chunk_size, policy.steps_per_decision, config.algorithm.discount, in_tokens)

    def check(self, simulator: Simulator, key: str) -> None:
        """Checks that a simulator can take chunks, if there are any.

        Args:
            simulator: to be stepped.
            key: its key in the configuration, for the error.
        Raises:
            ConfigError: it cannot.
        """
        if self.size > 1 and not simulator.can_wait:
            raise ConfigError(
                f"policy.chunk_size is {self.size}, but {key} is {type(simulator).__name__}, which steps all its "
                "environments at once: an episode that ends within a chunk could not wait for the next decision. Set "
                f"{key}.vectorized=false, or policy.chunk_size=1."
            )


SINGLE_ACTIONS = Chunks()


@dataclass(frozen=True)
class Outcome:
    """What follows N decisions.

    Attributes:
        step: from the observations before the decisions to those after them; rewards are summed with the discount. It
            holds no success, failure or terms of rewards: ``each`` has seen those of every environment step.
        num_steps: [N] int64, environment steps of each decision.
    """

    step: Step
    num_steps: NDArray[np.int64]


def take(
    simulator: Simulator,
    actions: NDArray[Any],
    observations: Observations,
    chunks: Chunks,
    each: Callable[[Step, int], None],
) -> Outcome:
    """Takes the actions of N decisions.

    Args:
        simulator: that ``can_wait``, if there are chunks.
        actions: [N, k * A], or [N, k] for a single discrete action.
        observations: before the decisions.
        chunks: how many actions there are, and how many are taken.
        each: called after each environment step with it and its number in the chunk, from 0.
    Raises:
        SimulatorError: the simulator raised.
    """
    spec = simulator.spec
    count = len(actions)
    single = actions.reshape(count, chunks.size, *spec.action_shape)
    observations, successors = observations.copy(), observations.copy()
    rewards = np.zeros(count, dtype=np.float64)
    terminated, truncated, active = np.zeros(count, bool), np.zeros(count, bool), np.ones(count, bool)
    num_steps = np.zeros(count, dtype=np.int64)
    for number in range(chunks.execute):
        action = single[:, number]
        waiting = (active,) if number else ()  # a simulator of single actions need not know of waiting
        try:
            step = simulator.step(action if spec.num_actions else spec.clip(action), *waiting)
        except Exception as error:
            doing = "taking a step" if chunks.size == 1 else f"taking action {number + 1} of {chunks.size}"
            raise SimulatorError.of(error, doing) from error
        valid = step.valid
        each(step, number)
        observations[valid], successors[valid] = step.observations[valid], step.successors[valid]
        rewards += np.where(valid, chunks.discount**number * step.rewards, 0.0)
        terminated |= step.terminated
        truncated |= step.truncated
        num_steps += valid
        active = valid & ~(step.terminated | step.truncated)
        if not active.any():
            break
    step = Step(observations, successors, rewards, terminated, truncated, None, num_steps > 0, {})
    return Outcome(step, num_steps)
