"""Options of a Gymnasium environment."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from rlpipe.config.fields import option
from rlpipe.envs.base import SimulatorConfig
from rlpipe.errors import ConfigError


@dataclass(frozen=True)
class GymnasiumConfig(SimulatorConfig):
    """Options of a Gymnasium environment."""

    id: str = option("")
    """Registered id, such as ``CartPole-v1``; ``module:Name-v0`` imports the module that registers it first."""
    max_episode_steps: int | None = option(None, least=1, below=2**31, unit="environment steps")
    """Time limit; None keeps the registered one."""
    success_key: str | None = option(None)
    """Entry of ``info`` that says whether the goal is reached, such as ``is_success``; None for a task without one."""
    vectorized: bool = option(False)
    """Use the environment's own vectorisation. It then draws its own seeds after the first episode of each slot; such
    episodes have no seed in the ledger. Evaluations need seeds, so ``env.eval`` does not repeat this."""
    pixels: int | None = option(None, least=8, most=4096, unit="pixels", fixed=True)
    """Observe the rendered picture, so high and wide, instead of the environment's own observation
    ([cameras.md](cameras.md)). None: do not render."""
    pixels_with_state: bool = option(False, fixed=True)
    """With ``pixels``, a tree of the picture, ``pixels``, and the environment's own observation: ``state``, or, of a
    Dict, its leaves under their own names."""
    frame_stack: int = option(1, least=1, most=64, unit="pictures", fixed=True)
    """Pictures of the last steps in each image, one behind the other, the oldest first."""
    ignore_observations: list[str] = option([], fixed=True)
    """Leaves of a Dict or Tuple observation that are left out, such as a text, which no policy can use; the name of a
    space that holds leaves leaves out all of them."""
    kwargs: dict[str, Any] = option({})
    """Further keyword arguments of ``gymnasium.make``."""

    def __post_init__(self) -> None:
        """Checks options that depend on each other."""
        if self.vectorized and (self.pixels is not None or self.frame_stack > 1):
            raise ConfigError(
                f"vectorized is true, but pixels is {self.pixels} and frame_stack is {self.frame_stack}: pictures need "
                "vectorized=false."
            )
        if self.pixels_with_state and self.pixels is None:
            raise ConfigError("pixels_with_state is true, but pixels is null: set pixels, such as pixels=64.")

    @property
    def has_cameras(self) -> bool:
        return self.pixels is not None
