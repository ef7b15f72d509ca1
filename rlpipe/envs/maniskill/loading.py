"""Imports ManiSkill without a rendering device, and makes it quicker without a different number."""

from __future__ import annotations

import functools
import os
import sys
from typing import Any, ClassVar

import numpy as np


class UnrenderedMaterial:
    """Replaces ``sapien.render.RenderMaterial`` where nothing is rendered.

    Tasks colour objects even if nothing draws them. Attributes can be set; setters do nothing, but for the colour,
    which replays show.
    """

    replaced: ClassVar[Any] = None
    """SAPIEN's own material, once SAPIEN is imported."""

    def __init__(self, emission: Any = None, base_color: Any = (1.0, 1.0, 1.0, 1.0), *_: Any, **__: Any) -> None:  # noqa: ARG002 - as of a real one
        """Accepts the arguments of a real material, and ignores all but the colour: [4], red to opacity."""
        self.base_color = list(base_color)

    def set_base_color(self, base_color: Any) -> None:
        """Sets the colour."""
        self.base_color = list(base_color)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("set_"):
            return lambda *_, **__: None
        raise AttributeError(name)


def load_maniskill(*, cameras: bool = False) -> bool:
    """Imports ManiSkill's tasks, without a rendering device unless cameras need one.

    Without cameras, SAPIEN's material is replaced: a task that is built anew for each episode otherwise makes materials
    on the device, which takes five times as long as the rest of its reset, and opens a device that cannot be forked.

    Args:
        cameras: True if something is to be rendered.
    Returns:
        True if rendering works.
    """
    import gc
    import warnings

    loaded = "mani_skill.envs" in sys.modules
    os.environ.setdefault("LP_NUM_THREADS", "0")  # lavapipe draws in this thread: workers fill the cores already
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*libvulkan.*")
        import sapien.pysapien.render
        import sapien.render

        shipped = UnrenderedMaterial.replaced = UnrenderedMaterial.replaced or sapien.render.RenderMaterial
        rendering = cameras or (loaded and sapien.render.RenderMaterial is shipped)  # cameras were there before
        if rendering:
            try:
                shipped()
            except RuntimeError:
                rendering = False
        use_material(shipped if rendering else UnrenderedMaterial)
        import mani_skill.envs  # noqa: F401
    if not loaded:
        # A task collects garbage each time it is built, which takes 0.2 s because it looks at every object of every
        # imported module. Those stay until the process ends, so the collector may leave them out.
        gc.freeze()
    return rendering


def use_material(material: type[Any]) -> None:
    """Makes every module of SAPIEN and ManiSkill that was imported so far, and all later ones, use a material."""
    for name, module in list(sys.modules.items()):
        if name.startswith(("sapien", "mani_skill")) and "RenderMaterial" in vars(module):
            module.RenderMaterial = material  # type: ignore[attr-defined]  # just seen there


def quicken_poses() -> None:
    """Makes ManiSkill convert SAPIEN's poses by one copy instead of ten tensor operations; every number stays the same.

    A task asks for poses about ten times a step, so this takes about 12 % off a step of PushCube. Poses that the short
    conversion does not cover take ManiSkill's own, which stays available as ``Pose.create.__wrapped__``.
    """
    import sapien
    import torch
    from mani_skill.utils.structs.pose import Pose

    if hasattr(Pose.create, "__wrapped__"):
        return
    slow: Any = Pose.create.__func__

    @functools.wraps(slow)
    def create(cls: Any, pose: Any, device: Any = None) -> Any:
        poses = pose if type(pose) is list else [pose]
        on_cpu = device is None or torch.device(device).type == "cpu"
        if on_cpu and all(type(p) is sapien.Pose for p in poses):
            return cls(raw_pose=torch.from_numpy(np.stack([np.concatenate((p.p, p.q)) for p in poses])))
        return slow(cls, pose, device)

    Pose.create = classmethod(create)


def quicken_quaternions() -> None:
    """Makes ManiSkill multiply quaternions by a quarter of the operations; every number stays the same.

    A step of PegInsertionSide multiplies 68 times. Products are added in ManiSkill's order, and a sign is exact.
    ManiSkill's own way, ``quaternion_raw_multiply.__wrapped__``, remains for the GPU and for gradients.
    """
    import torch
    from mani_skill.utils.geometry import rotation_conversions

    if hasattr(rotation_conversions.quaternion_raw_multiply, "__wrapped__"):
        return
    slow: Any = rotation_conversions.quaternion_raw_multiply
    orders = [[1, 0, 3, 2], [2, 3, 0, 1], [3, 2, 1, 0]]  # the part of b that each part of the product takes
    signs = np.array([[-1, 1, -1, 1], [-1, 1, 1, -1], [-1, -1, 1, 1]], dtype=np.float32)

    @functools.wraps(slow)
    def multiply(a: Any, b: Any) -> Any:
        if any(q.dtype is not torch.float32 or q.device.type != "cpu" or q.requires_grad for q in (a, b)):
            return slow(a, b)
        left, right = a.numpy(), b.numpy()
        product = left[..., :1] * right
        for place, (order, sign) in enumerate(zip(orders, signs, strict=True), 1):
            product = product + left[..., place : place + 1] * sign * right.take(order, axis=-1)
        return torch.from_numpy(product)

    rotation_conversions.quaternion_raw_multiply = multiply


def quicken_seeding() -> None:
    """Makes ``torch.manual_seed`` seed the CPU alone where there is nothing else; random numbers stay the same.

    A task seeds torch at each reset. For kinds of devices that have not been used, torch then writes down where it was
    called, which takes a fifth of a reset of PushCube.
    """
    import torch

    slow: Any = torch.manual_seed
    if torch.accelerator.is_available() or hasattr(slow, "__rlpipe__"):
        return

    @functools.wraps(slow)
    def manual_seed(seed: Any) -> Any:
        return torch.default_generator.manual_seed(int(seed))

    manual_seed.__rlpipe__ = True  # type: ignore[attr-defined]
    torch.manual_seed = manual_seed
