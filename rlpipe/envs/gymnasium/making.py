"""Makes environments of Gymnasium."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from rlpipe.envs.gymnasium.options import GymnasiumConfig
from rlpipe.envs.gymnasium.registry import DRAWING
from rlpipe.envs.shared.mujoco.pixels import choose_opengl, choose_opengl_if_found, make_with_pixels
from rlpipe.errors import ConfigError


def make_env(config: GymnasiumConfig) -> Any:
    """Makes the ``gymnasium.Env`` of a configuration.

    Raises:
        ConfigError: it has to render, and cannot.
    """
    import gymnasium

    if config.pixels is None:
        if config.id.startswith(DRAWING):
            choose_opengl_if_found()
        return gymnasium.make(config.id, **make_kwargs(config))
    choose_opengl()
    return make_with_pixels(config.id, make_kwargs(config), config.pixels, state=config.pixels_with_state)


def make_vector_env(config: GymnasiumConfig, num_envs: int) -> Any:
    """Makes the ``gymnasium.vector.VectorEnv`` of a configuration."""
    import gymnasium

    return gymnasium.make_vec(config.id, num_envs, vectorization_mode="vector_entry_point", **make_kwargs(config))


def make_kwargs(config: GymnasiumConfig) -> dict[str, Any]:
    """Keyword arguments of ``gymnasium.make`` and ``make_vec``."""
    limit = {} if config.max_episode_steps is None else {"max_episode_steps": config.max_episode_steps}
    return {**config.kwargs, **limit}


@contextmanager
def config_errors(env_id: str, kwargs: Mapping[str, Any]) -> Iterator[None]:
    """Turns Gymnasium's errors while it makes an environment into errors of the configuration."""
    import gymnasium

    try:
        yield
    except (TypeError, ValueError, gymnasium.error.Error) as error:
        if isinstance(error, ConfigError):
            raise
        raise ConfigError(f"Gymnasium cannot make {env_id} with {kwargs}: {error}") from error
