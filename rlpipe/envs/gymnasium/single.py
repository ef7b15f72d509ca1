"""One environment of Gymnasium."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from rlpipe.envs.base import SingleEnv, SingleStep
from rlpipe.envs.gymnasium.info import own_metrics, reward_terms, success_notes
from rlpipe.envs.shared.checks import check_reset_form, check_step_form, flag
from rlpipe.envs.shared.mujoco.physics import MuJoCoPhysics
from rlpipe.envs.shared.mujoco.scene import MuJoCoGeometry, goals_of, has_mujoco
from rlpipe.envs.shared.mujoco.state import MuJoCoStates, integration_state, is_mujoco_task, set_integration_state
from rlpipe.envs.shared.spaces import Spaces
from rlpipe.trajectory import Float32, Observations, Scene, State

LOOKS = 200
"""First observations of each environment that are compared with their declared bounds."""
MOST_UNUSUAL = 5
"""Notes on them."""
LEAVING_TRACES = ("gym_xarm",)
"""Packages whose resets set only a part of MuJoCo's state, so that an episode depends on the one before."""


def name_of(env: Any) -> str:
    """Registered id of an environment; one that was not registered describes itself."""
    return str(env) if env.spec is None else str(env.spec.id)


def observed(env: Any) -> Any:
    """Returns the present observation of a MuJoCo task, as its wrappers change it."""
    import gymnasium

    if env is env.unwrapped:
        return env._get_obs()
    inner = observed(env.env)
    return env.observation(inner) if isinstance(env, gymnasium.ObservationWrapper) else inner


class GymnasiumEnv(SingleEnv):
    """One ``gymnasium.Env``."""

    def __init__(self, env: Any, success_key: str | None = None, ignored: Collection[str] = ()) -> None:
        """Takes over an environment; ``ignored`` are leaves of its observation that are left out."""
        self._env = env
        self._success_key = success_key
        self._spaces = Spaces(env.observation_space, env.action_space, name_of(env), ignored)
        self.spec = self._spaces.spec
        self.has_success = success_key is not None
        self.success_name = f"info[{success_key!r}]"
        self._looks = LOOKS
        task = env.unwrapped
        leaves_traces = type(task).__module__.partition(".")[0] in LEAVING_TRACES
        self._untouched = integration_state(task.model, task.data) if leaves_traces else None
        self._states = MuJoCoStates(task) if is_mujoco_task(type(task)) else None
        self._geometry = MuJoCoGeometry() if has_mujoco(task) else None
        self._physics = MuJoCoPhysics(lambda: task.model)

    def vary(self, levels: Mapping[str, float]) -> None:
        self._physics.vary(levels)

    def reset(self, seed: int | None) -> tuple[Observations, bool | None]:
        if self._untouched is not None:
            set_integration_state(self._env.unwrapped.model, self._env.unwrapped.data, self._untouched)
        answer = self._env.reset(seed=seed)
        check_reset_form(answer)
        observation, info = answer
        self._physics.was_reset()
        if self._states is not None:
            self._states.was_reset()
        solved = info.get(self._success_key) if self._success_key else None
        solved = None if solved is None else flag(solved, self.success_name)
        return self._observation(observation), solved

    def _observation(self, observation: Any) -> Observations:
        """Translates an observation; looks closely at the first ones."""
        translated = self._spaces.observation(observation)
        if self._looks:
            self._looks -= 1
            self.unusual = list(dict.fromkeys([*self.unusual, *self._spaces.beyond(observation)]))[:MOST_UNUSUAL]
        return translated

    def state(self) -> State:
        assert self._states is not None
        return self._states.state()

    def set_state(self, state: State) -> tuple[Observations, bool | None]:
        assert self._states is not None
        self._states.set_state(state)
        return self._spaces.observation(observed(self._env)), None

    def blended(self, state: State, share: float) -> State:
        assert self._states is not None
        return self._states.blended(state, share)

    def scene(self) -> Scene | None:
        return None if self._geometry is None else self._geometry.scene(self._env.unwrapped.model)

    def poses(self) -> Float32:
        assert self._geometry is not None
        task = self._env.unwrapped
        return self._geometry.poses(task.data, goals_of(task))

    def step(self, action: Any) -> SingleStep:
        if self._states is not None:
            self._states.will_step()
        answer = self._env.step(self._spaces.action(action))
        if type(answer) is not tuple or len(answer) != 5 or type(answer[4]) is not dict:
            check_step_form(answer)
        observation, reward, terminated, truncated, info = answer
        key, success = self._success_key, None
        if key and key in info:
            success = flag(info[key], self.success_name)
        elif key is None and self._looks:
            self.unusual = list(dict.fromkeys([*success_notes(info), *self.unusual]))
        return SingleStep(
            self._observation(observation) if self._looks else self._spaces.observation(observation),
            reward,
            terminated,
            truncated,
            success,
            reward_terms=reward_terms(info) if info else None,
            observed=own_metrics(info) if info else None,
        )

    def close(self) -> None:
        self._env.close()
