"""Sparse rewards and ends on success, for simulators whose libraries have neither."""

from __future__ import annotations

from dataclasses import dataclass

from rlpipe.config.fields import option
from rlpipe.envs.base import SimulatorConfig, SingleStep
from rlpipe.envs.shared.checks import flag
from rlpipe.errors import ConfigError


@dataclass(frozen=True)
class SuccessConfig(SimulatorConfig):
    """Options of simulators whose steps tell success."""

    reward_mode: str = option("dense", choices=("dense", "sparse"))
    """``dense``: what the task pays, whatever that is; ``sparse``: 1 in each step with success, and 0 otherwise."""
    end_on_success: bool = option(False)
    """End an episode with its first success. Otherwise it continues as in the library."""

    def __post_init__(self) -> None:
        """Checks options that depend on each other."""
        if self.end_on_success and self.ignore_terminations:
            raise ConfigError("end_on_success and ignore_terminations are both true: set one of them to false.")

    @property
    def goes_on_with(self) -> str | None:
        return "end_on_success=false" if self.end_on_success else None

    def largest_return(self, discount: float) -> float | None:
        """As of ``SimulatorConfig``: 1 where the only success ends the episode."""
        return 1.0 if self.reward_mode == "sparse" and self.end_on_success else super().largest_return(discount)

    def check_success(self, task: str, remedy: str) -> None:
        """Checks that nothing here needs success, for a task that does not tell it.

        Args:
            task: id of the task.
            remedy: how it could tell success, as the end of the error.
        Raises:
            ConfigError: rewards or ends need success.
        """
        if self.reward_mode == "sparse" or self.end_on_success:
            what = "reward_mode is sparse" if self.reward_mode == "sparse" else "end_on_success is true"
            raise ConfigError(f"{what}, but {task} does not tell success: {remedy}")

    def judged(self, answer: SingleStep) -> SingleStep:
        """Returns a step of the library with the reward and the end that these options ask for."""
        success = answer.success is not None and flag(answer.success, "success")
        return answer._replace(
            reward=float(success) if self.reward_mode == "sparse" else answer.reward,
            terminated=answer.terminated or (self.end_on_success and success),
        )
