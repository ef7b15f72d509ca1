"""Finds, without knowledge of the task, what belongs to one scene in a ManiSkill environment over many.

The same task is made with two scenes (the group) and with one (stock). A tensor, an array or a list with two entries in
its first axis in the one and with one entry in the other has a row per scene. Rows then move between a group and the
stock environments that reset its scenes.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from mani_skill.utils.structs.base import BaseStruct

NOT_ROWS = {
    "_body_data_index", "_body_data_index_internal", "_data_index", "_init_raw_obs", "_init_raw_state", "px",
    "segmentation_id_map", "spec",
}  # fmt: skip
"""Attributes that are caches, belong to the GPU or to the construction alone, or are handled by ``adopt`` itself."""


@dataclass
class Rows:
    """Places of the rows in an object, a dictionary or a list, and in those that it holds.

    Attributes:
        keys: names or indices of values with a row per scene.
        fixed: those that are exchanged only together with the objects of a scene, such as the limits of joints.
        inner: names or indices of what holds further ones.
    """

    keys: list[Any] = field(default_factory=list)
    fixed: list[Any] = field(default_factory=list)
    inner: list[tuple[Any, Rows]] = field(default_factory=list)

    def __bool__(self) -> bool:
        return bool(self.keys or self.fixed or self.inner)


def content(holder: Any) -> Any:
    """Returns an object's attributes; a dictionary or a list itself."""
    return holder if isinstance(holder, dict | list | tuple) else holder.__dict__


def find_rows(group: Any, stock: Any) -> Rows:
    """Returns the places of all rows in a group.

    The search goes level by level, because the shortest way to an object is the most stable one.

    Args:
        group: task with several scenes.
        stock: the same task with one, after as many resets and steps.
    """
    packages = {cls.__module__.split(".")[0] for cls in type(group).__mro__} - {"builtins", "gymnasium", "typing"}
    count = group.num_envs
    places = Rows()
    seen = {id(group)}
    queue = deque([(group, stock, places)])
    while queue:
        many, single, rows = queue.popleft()
        in_struct = isinstance(many, BaseStruct)
        many, single = content(many), content(single)
        for key in many if isinstance(many, dict) else range(min(len(many), len(single))):
            if key in NOT_ROWS or (isinstance(many, dict) and key not in single):
                continue
            ours, theirs = many[key], single[key]
            if has_rows(ours, theirs, count):
                is_fixed = in_struct and isinstance(ours, torch.Tensor | np.ndarray)
                (rows.fixed if is_fixed else rows.keys).append(key)
            elif can_hold_rows(ours, theirs, packages) and id(ours) not in seen:
                seen.add(id(ours))
                inner = Rows()
                rows.inner.append((key, inner))
                queue.append((ours, theirs, inner))
    return pruned(places)


def has_rows(ours: Any, theirs: Any, count: int) -> bool:
    """True if a value has ``count`` rows in a group and one in a stock environment."""
    if isinstance(ours, torch.Tensor | np.ndarray):
        return isinstance(theirs, type(ours)) and tuple(ours.shape[:1]) == (count,) and tuple(theirs.shape[:1]) == (1,)
    if isinstance(ours, list):
        return isinstance(theirs, list) and (len(ours), len(theirs)) == (count, 1)
    return type(ours) is int and (ours, theirs) == (count, 1)


def can_hold_rows(ours: Any, theirs: Any, packages: set[str]) -> bool:
    """True for containers, and for objects of ManiSkill's or the task's own classes."""
    if isinstance(ours, dict | list | tuple):
        return isinstance(theirs, type(ours))
    if isinstance(ours, type) or not hasattr(ours, "__dict__") or not hasattr(theirs, "__dict__"):
        return False
    return any(cls.__module__.split(".")[0] in packages for cls in type(ours).__mro__)


def pruned(rows: Rows) -> Rows:
    """Returns the places without branches that hold none."""
    inner = [(key, pruned(branch)) for key, branch in rows.inner]
    return Rows(rows.keys, rows.fixed, [(key, branch) for key, branch in inner if branch])


def widen(rows: Rows, group: Any, count: int) -> None:
    """Gives a group ``count`` rows, all equal to its first."""
    many = content(group)
    for key in rows.keys + rows.fixed:
        if key == "_scene_idxs":
            many[key] = torch.arange(count, dtype=torch.int)
        elif isinstance(many, dict) and key not in many:
            continue
        else:
            many[key] = repeated(many[key], count)
    for key, branch in rows.inner:
        if not isinstance(many, dict) or many.get(key) is not None:
            widen(branch, many[key], count)


def repeated(value: Any, count: int) -> Any:
    """Returns the first row of a value ``count`` times; the count itself for a number."""
    if isinstance(value, torch.Tensor):
        return value[:1].repeat_interleave(count, dim=0)
    if isinstance(value, np.ndarray):
        return value[:1].repeat(count, axis=0)
    return value[:1] * count if isinstance(value, list) else count


def adopt(rows: Rows, group: Any, stock: Any, scene: int) -> None:
    """Takes the rows of a stock environment over into a scene of the group.

    Raises:
        AttributeError, KeyError, TypeError, ValueError: the environments have become different in their structure.
    """
    px = group.scene.px
    exchanged = px.systems[scene] is not stock.scene.px
    _adopt(rows, group, stock, scene, exchanged, group.num_envs)
    px.replace(scene, stock.scene.px)


def _adopt(rows: Rows, group: Any, stock: Any, scene: int, exchanged: bool, count: int) -> None:
    many, single = content(group), content(stock)
    for key in rows.keys + rows.fixed if exchanged else rows.keys:
        theirs = present(single, key)
        if theirs is None or type(theirs) is int or key == "_scene_idxs":
            continue  # what only a step makes, a reset environment need not have
        ours = present(many, key)
        if ours is None:
            many[key] = repeated(theirs, count)
        elif type(theirs) is torch.Tensor:
            ours.numpy()[scene] = theirs.numpy()[0]
        else:
            ours[scene] = theirs[0]
    for key, branch in rows.inner:
        ours, theirs = present(many, key), present(single, key)
        if ours is not None and theirs is not None:
            _adopt(branch, ours, theirs, scene, exchanged, count)


def hand_back(rows: Rows, group: Any, stock: Any, scene: int) -> None:
    """Gives a stock environment the numbers of its scene, so that its next reset starts from them."""
    many, single = content(group), content(stock)
    for key in rows.keys:
        ours = present(many, key)
        if type(ours) is torch.Tensor:
            single[key] = torch.from_numpy(ours.numpy()[scene : scene + 1].copy())
        elif type(ours) is np.ndarray:
            single[key] = ours[scene : scene + 1].copy()
    for key, branch in rows.inner:
        ours, theirs = present(many, key), present(single, key)
        if ours is not None and theirs is not None:
            hand_back(branch, ours, theirs, scene)


def present(holder: Any, key: Any) -> Any:
    """Returns an entry of a list or of a dictionary; None if there is none."""
    return holder.get(key) if type(holder) is dict else holder[key]
