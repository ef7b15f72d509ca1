"""States of the MuJoCo tasks of Gymnasium and Gymnasium-Robotics: taken in one episode, set when another begins.

Importing this file imports no Gymnasium and no MuJoCo.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rlpipe.envs.base import NO_STATES
from rlpipe.functional.rotations import rotation_between
from rlpipe.trajectory import State

NOW, BEFORE = "mujoco/state", "mujoco/state_before"
"""Names of MuJoCo's integration state, and of that before the last physics step, both [S] float64."""
OUTSIDE = "task"
"""First part of the names of what a task keeps outside MuJoCo, such as ``task/goal``."""
ATTRIBUTES = "state_attributes"
"""Class attribute in which an own task names what it keeps outside MuJoCo."""
_INTERPOLATED = ("qvel", "act", "ctrl", "mocap_pos")
"""Parts of MuJoCo's state that are interpolated number by number; joints and orientations are not."""
_BASES = {"gymnasium.envs.mujoco.mujoco_env.MujocoEnv", "gymnasium_robotics.envs.robot_env.MujocoRobotEnv"}
_KNOWN = {"gymnasium", "gymnasium_robotics"}
"""Packages whose tasks keep at most a goal outside MuJoCo, besides what follows from the seed of the reset."""


def why_without_states(env_id: str) -> str | None:
    """Returns why episodes of a registered environment cannot begin in a stored state; None if they can.

    Args:
        env_id: registered id; the module before it, if there is one, has been imported.
    Returns:
        As of ``TaskFacts.why_not``.
    """
    import gymnasium

    try:
        made_by = _maker(env_id)
    except (gymnasium.error.Error, ImportError, AttributeError) as error:
        return f"cannot be loaded ({error}): install what it needs, such as pip install 'rlpipe[robotics]'."
    wrappers = gymnasium.spec(env_id.rpartition(":")[2]).additional_wrappers
    if not isinstance(made_by, type) or wrappers or not is_mujoco_task(made_by):
        return NO_STATES
    if made_by.__module__.partition(".")[0] not in _KNOWN and not hasattr(made_by, ATTRIBUTES):
        return (
            f"cannot begin an episode in a stored state, because the class {made_by.__name__} does not say what it "
            f"keeps outside MuJoCo: name these attributes in the class, as {ATTRIBUTES} = ('goal',), or () for none."
        )
    return None


def _maker(env_id: str) -> Any:
    """Returns the class or function that makes a registered environment."""
    import gymnasium
    from gymnasium.envs.registration import load_env_creator

    entry = gymnasium.spec(env_id.rpartition(":")[2]).entry_point
    return load_env_creator(entry) if isinstance(entry, str) else entry


def is_of_mujoco(env_id: str) -> bool:
    """True if a registered environment is a MuJoCo task of the kinds known here."""
    import gymnasium

    try:
        made_by = _maker(env_id)
    except (gymnasium.error.Error, ImportError, AttributeError):  # the workers say why
        return False
    return isinstance(made_by, type) and is_mujoco_task(made_by)


def is_mujoco_task(kind: type) -> bool:
    """True if a class is a MuJoCo task of the kinds known here, which observes with ``_get_obs``."""
    bases = {f"{base.__module__}.{base.__qualname__}" for base in kind.__mro__}
    return bool(bases & _BASES) and hasattr(kind, "_get_obs")


def integration_state(model: Any, data: Any) -> NDArray[np.float64]:
    """Returns MuJoCo's integration state [S]."""
    import mujoco

    state = np.empty(mujoco.mj_stateSize(model, mujoco.mjtState.mjSTATE_INTEGRATION))
    mujoco.mj_getState(model, data, state, mujoco.mjtState.mjSTATE_INTEGRATION)
    return state


def set_integration_state(model: Any, data: Any, state: NDArray[np.float64]) -> None:
    """Sets MuJoCo's integration state [S]."""
    import mujoco

    mujoco.mj_setState(model, data, state, mujoco.mjtState.mjSTATE_INTEGRATION)


class MuJoCoStates:
    """Takes and sets the states of one task.

    MuJoCo computes the poses of bodies and sites at the beginning of a physics step, so after it they are those before
    its integration, and that is what tasks observe. A state therefore also holds the one before the last physics step,
    which is repeated from there: the same poses, to the last bit. Where a task itself changes the state after its steps
    (Fetch closes the gripper), it computes the poses anew, and both are the same.
    """

    def __init__(self, task: Any) -> None:
        """Takes the states of a task that has taken no step yet.

        Args:
            task: unwrapped environment with MuJoCo's ``model`` and ``data``.
        """
        import mujoco

        self._mujoco = mujoco
        self._task = task
        self._size: int = integration_state(task.model, task.data).size
        self._stepped_from: NDArray[np.float64] | None = None
        self._spare: Any = None

    def was_reset(self) -> None:
        """Notes that the task has been reset, and so has taken no step."""
        self._stepped_from = None

    def will_step(self) -> None:
        """Notes the present state, from which the task is about to take a step."""
        self._stepped_from = self._get(self._task.data)

    def state(self) -> State:
        """Returns the present state of the task.

        Raises:
            TypeError: what the task keeps outside MuJoCo is no number and no array of numbers.
        """
        now = self._get(self._task.data)
        return {NOW: now, BEFORE: self._before(now)} | self._outside()

    def _outside(self) -> dict[str, NDArray[Any]]:
        task, outside = self._task, {}
        for name in getattr(task, ATTRIBUTES, ["goal"] if hasattr(task, "goal") else []):
            outside[f"{OUTSIDE}/{name}"] = values = np.array(getattr(task, name))
            if values.dtype.kind not in "biuf":
                raise TypeError(f"{name} of {task} is {getattr(task, name)!r}, but a state holds numbers and arrays.")
        return outside

    def set_state(self, state: State) -> None:
        """Sets the state of the task; what it does not hold follows from the seed of the last reset."""
        shapes = {NOW: (self._size,), BEFORE: (self._size,)} | {
            name: values.shape for name, values in self._outside().items()
        }
        if (of_state := {name: np.shape(values) for name, values in state.items()}) != shapes:
            raise ValueError(
                f"a state of {_described(of_state)} is not one of this task, which has {_described(shapes)}."
            )
        mujoco, task = self._mujoco, self._task
        for name in state.keys() - {NOW, BEFORE}:
            setattr(task, name.removeprefix(f"{OUTSIDE}/"), state[name].copy() if shapes[name] else state[name].item())
        now, before = state[NOW], state[BEFORE]
        self._set(task.data, before)
        if np.array_equal(now, before):
            mujoco.mj_forward(task.model, task.data)
            self._stepped_from = None
        else:
            mujoco.mj_step(task.model, task.data)
            mujoco.mj_rnePostConstraint(task.model, task.data)  # for the forces that some of Gymnasium's tasks observe
            self._stepped_from = before
        self._set(task.data, now)  # mj_forward moves the solver's warm start

    def blended(self, state: State, share: float) -> State:
        """Returns the state some share of the way from a state to the present one, which no step has left yet.

        Joints, free bodies and mocap bodies move along the shortest way, orientations included; velocities, controls,
        activations and what the task keeps outside MuJoCo are interpolated. All else is that of the present state.
        """
        mujoco, model, data = self._mujoco, self._task.model, self._task.data
        between = self._spare = self._spare or mujoco.MjData(model)
        self._set(between, state[NOW])
        first = {name: getattr(between, name).copy() for name in ("qpos", "mocap_quat", *_INTERPOLATED)}
        self._set(between, self._get(data))
        way = np.empty(model.nv)
        mujoco.mj_differentiatePos(model, way, 1.0, first["qpos"], data.qpos)
        between.qpos[:] = first["qpos"]
        mujoco.mj_integratePos(model, between.qpos, way, share)
        for name in _INTERPOLATED:
            getattr(between, name)[:] = _mixed(first[name], getattr(data, name), share)
        for number, (rotation, present) in enumerate(zip(first["mocap_quat"], data.mocap_quat, strict=True)):
            between.mocap_quat[number] = rotation_between(rotation, present, share)
        now = self._get(between)
        outside = {
            name: _mixed(state[name], values, share) if values.dtype.kind == "f" else values
            for name, values in self._outside().items()
        }
        return {NOW: now, BEFORE: now} | outside

    def _before(self, now: NDArray[np.float64]) -> NDArray[np.float64]:
        """Returns the state before the last physics step; the present one where there was none, or a later change."""
        if self._stepped_from is None:
            return now
        mujoco, model, data = self._mujoco, self._task.model, self._task.data
        spare = self._spare = self._spare or mujoco.MjData(model)
        self._set(spare, self._stepped_from)
        user = mujoco.mjtState.mjSTATE_USER  # controls and the like, which the task set before it stepped
        inputs = np.empty(mujoco.mj_stateSize(model, user))
        mujoco.mj_getState(model, data, inputs, user)
        mujoco.mj_setState(model, spare, inputs, user)
        steps = round((data.time - spare.time) / model.opt.timestep)
        if steps < 1:
            return now
        if steps > 1:
            mujoco.mj_step(model, spare, nstep=steps - 1)
        before = self._get(spare)
        mujoco.mj_step(model, spare)
        return before if np.array_equal(self._get(spare), now) else now

    def _get(self, data: Any) -> NDArray[np.float64]:
        return integration_state(self._task.model, data)

    def _set(self, data: Any, state: NDArray[np.float64]) -> None:
        set_integration_state(self._task.model, data, state)


def _mixed(first: NDArray[Any], second: NDArray[Any], share: float) -> NDArray[Any]:
    """Returns the numbers some share of the way from one array to another."""
    return np.asarray((1.0 - share) * first + share * second)


def _described(shapes: Mapping[str, tuple[int, ...]]) -> str:
    return ", ".join(f"{name} {list(shape)}" for name, shape in sorted(shapes.items()))
