"""The last pictures of each camera, one behind the other, so that a policy without memory can see motion.

Mnih et al. 2015, "Human-level control through deep reinforcement learning", Nature 518:529-533.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rlpipe.envs.base import SingleEnv, SingleStep
from rlpipe.errors import ConfigError
from rlpipe.trajectory import Float32, Observations, Scene, State, Tree


class StackedFrames(SingleEnv):
    """An environment whose images have k times the channels: those of the last k steps, the oldest first.

    An episode begins with k times its first picture. Leaves that are no images stay as they are.
    """

    def __init__(self, env: SingleEnv, count: int) -> None:
        """Takes over an environment.

        Raises:
            ConfigError: no leaf is an image.
        """
        self._env = env
        leaves = env.spec.leaves or {}
        self._names = [name for name, leaf in leaves.items() if leaf.is_image]
        if not self._names:
            observed = f"leaves {', '.join(leaves)}" if leaves else "one vector"
            raise ConfigError(
                f"frame_stack is {count}, but no observation is an image ({observed}): set frame_stack=1."
            )
        self._frames: deque[dict[str, NDArray[Any]]] = deque(maxlen=count)
        every = {**leaves}
        for name in self._names:
            *size, channels = leaves[name].shape
            every[name] = replace(leaves[name], shape=(*size, channels * count))
        self.spec = replace(env.spec, leaves=every, observation_dim=sum(leaf.size for leaf in every.values()))
        self.has_success = env.has_success

    def vary(self, levels: Mapping[str, float]) -> None:
        self._env.vary(levels)

    def reset(self, seed: int | None) -> tuple[Observations, bool | None]:
        return self._began(*self._env.reset(seed))

    def state(self) -> State:
        return self._env.state()

    def expert_action(self) -> Float32:
        return self._env.expert_action()

    def scene(self) -> Scene | None:
        return self._env.scene()

    def poses(self) -> Float32:
        return self._env.poses()

    def blended(self, state: State, share: float) -> State:
        return self._env.blended(state, share)

    def set_state(self, state: State) -> tuple[Observations, bool | None]:
        return self._began(*self._env.set_state(state))

    def _began(self, observation: Any, solved: bool | None) -> tuple[Observations, bool | None]:
        self._frames.extend([self._copied(observation)] * (self._frames.maxlen or 1))
        return self._stacked(observation), solved

    def step(self, action: Any) -> SingleStep:
        answer = self._env.step(action)
        self._frames.append(self._copied(answer.observation))
        return answer._replace(observation=self._stacked(answer.observation))

    def _copied(self, observation: Any) -> dict[str, NDArray[Any]]:
        """Copies of the images: an environment may draw the next ones into the same memory."""
        return {name: observation[name].copy() for name in self._names}

    def _stacked(self, newest: Any) -> Tree:
        images = {name: np.concatenate([frame[name] for frame in self._frames], axis=-1) for name in self._names}
        return Tree(newest.leaves | images)

    def close(self) -> None:
        self._env.close()


def stacked(envs: Sequence[SingleEnv], count: int) -> list[SingleEnv]:
    """Returns environments with ``count`` pictures in each image; the same ones if that is 1."""
    return [StackedFrames(env, count) for env in envs] if count > 1 else list(envs)
