"""Physics of a MuJoCo model that differs from episode to episode. Importing this file imports no MuJoCo."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rlpipe.envs.shared.axes import FRICTION, GRAVITY, JOINT_DAMPING, MASS

AXES = (MASS, FRICTION, JOINT_DAMPING, GRAVITY)
"""Axes of every MuJoCo task whose model can be reached from Python."""
_CHANGED = (
    "actuator_acc0", "body_inertia", "body_invweight0", "body_mass", "body_subtreemass", "dof_damping",
    "dof_invweight0", "dof_M0", "geom_friction", "pair_friction", "tendon_invweight0",
)  # fmt: skip
"""Arrays of a model that are changed, or follow from those that are."""
_STATISTICS = ("center", "extent", "meaninertia", "meanmass", "meansize")


class MuJoCoPhysics:
    """Levels of the physics of one task.

    Masses are those of bodies that move freely, or of all bodies where none does; friction is that of all geometry, and
    damping that of all joints but free ones.
    """

    def __init__(self, model: Callable[[], Any]) -> None:
        """Changes nothing yet; ``model`` returns the task's present ``MjModel``, which a reset may compile anew."""
        self._model_now = model
        self._model: Any = None
        self._levels: Mapping[str, float] = {}
        self._present: Mapping[str, float] = {}  # levels that the model has
        self._objects: NDArray[np.int64] = np.zeros(0, dtype=np.int64)
        self._dofs: NDArray[np.int64] = np.zeros(0, dtype=np.int64)

    def vary(self, levels: Mapping[str, float]) -> None:
        """Sets the levels of the next episode, before its reset."""
        self._levels = levels
        self._apply()

    def was_reset(self) -> None:
        """Sets the levels in a model that the reset has compiled anew."""
        if self._levels and self._model_now() is not self._model:
            self._apply()

    def _apply(self) -> None:
        model = self._model_now()
        if model is not self._model:
            self._remember(model)
        levels = {axis.name: self._levels.get(axis.name, axis.neutral) for axis in AXES}
        if levels == self._present:
            return
        self._restore()
        if (mass := levels[MASS.name]) != MASS.neutral:
            import mujoco

            model.body_mass[self._objects] *= mass
            model.body_inertia[self._objects] *= mass
            mujoco.mj_setConst(model, mujoco.MjData(model))
        if (friction := levels[FRICTION.name]) != FRICTION.neutral:
            model.geom_friction *= friction
            model.pair_friction *= friction
        if (damping := levels[JOINT_DAMPING.name]) != JOINT_DAMPING.neutral:
            model.dof_damping[self._dofs] *= damping
        if (gravity := levels[GRAVITY.name]) != GRAVITY.neutral:
            model.opt.gravity *= gravity
        self._present = levels

    def _remember(self, model: Any) -> None:
        """Copies all that may be changed in a model."""
        import mujoco

        self._model = model
        self._arrays = {name: getattr(model, name).copy() for name in _CHANGED}
        self._statistics = {name: np.array(getattr(model.stat, name)) for name in _STATISTICS}
        self._gravity = model.opt.gravity.copy()
        self._present = {axis.name: axis.neutral for axis in AXES}
        is_free = model.jnt_type == mujoco.mjtJoint.mjJNT_FREE
        free_bodies = model.jnt_bodyid[is_free]
        moving = np.isin(model.body_rootid, free_bodies) if len(free_bodies) else np.arange(model.nbody) > 0
        self._objects = np.flatnonzero(moving)
        self._dofs = np.flatnonzero(~is_free[model.dof_jntid])

    def _restore(self) -> None:
        for name, values in self._arrays.items():
            getattr(self._model, name)[:] = values
        for name, value in self._statistics.items():
            setattr(self._model.stat, name, value if value.ndim else value.item())
        self._model.opt.gravity[:] = self._gravity
