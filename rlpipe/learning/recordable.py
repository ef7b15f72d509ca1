"""Reasons why a gradient step cannot be recorded once and replayed.

A replay repeats the operations on a device, on the same memory, without any Python. A step must therefore read nothing
on the host, draw nothing, write its state in place, and change no Python number.
"""

from __future__ import annotations

import sys
import types
from collections.abc import Hashable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

_INDEXING = ("index", "index_put", "index_put_", "_index_put_impl_")


class OperationCheck(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Executes operations as usual, and remembers the first one that a replay could not repeat.

    Attributes:
        reason: that operation and its place in the code; None as long as there is none.
    """

    def __init__(self, device: torch.device) -> None:
        """Begins without a reason, for a step on a device."""
        super().__init__()  # type: ignore[no-untyped-call]
        self.reason: str | None = None
        self._device = device

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Looks at one operation, below autograd, and executes it."""
        keywords = kwargs or {}
        if self.reason is None and (problem := self._problem(func, args, keywords)):
            self.reason = f"{_caller()} {problem} ({func.overloadpacket.__name__})"
        return func(*args, **keywords)

    def _problem(self, operation: Any, arguments: Any, keywords: Mapping[str, Any]) -> str | None:
        """Returns what an operation does that cannot be replayed; None for nothing."""
        name, tags = operation.overloadpacket.__name__, operation.tags
        if name in _INDEXING:
            masked = any(isinstance(index, Tensor) and index.dtype == torch.bool for index in arguments[1])
            return "selects by a mask, whose count only the host can tell" if masked else None
        if torch.Tag.data_dependent_output in tags:
            return "reads a number on the host"
        if torch.Tag.dynamic_output_shape in tags:
            return "makes a tensor of a shape that only the host can tell"
        if torch.Tag.nondeterministic_seeded in tags and not _never_drops(operation, arguments, keywords):
            return "draws random numbers"
        if name == "lift_fresh":
            return "makes a tensor of a number of the host, which would stay the same"
        if self._device.type != "cpu":
            devices = [each.device for each in arguments if isinstance(each, Tensor)]
            if any(device.type == "cpu" for device in (*devices, torch.device(keywords.get("device") or self._device))):
                return "uses memory of the host"
        return None


def _never_drops(operation: Any, arguments: Sequence[Any], keywords: Mapping[str, Any]) -> bool:
    """True for attention with a dropout of 0, which is said to draw, but does not."""
    declared = [argument.name for argument in operation._schema.arguments]
    if "dropout_p" not in declared:
        return False
    place = declared.index("dropout_p")
    dropout = arguments[place] if place < len(arguments) else keywords.get("dropout_p", 0.0)
    return bool(dropout == 0.0)


def _caller() -> str:
    """Returns file and line of the innermost frame that is neither torch's nor this file's."""
    frame: types.FrameType | None = sys._getframe(2)
    while frame is not None:
        path = frame.f_code.co_filename
        if path != __file__ and "/torch/" not in path:
            return f"{path}:{frame.f_lineno}"
        frame = frame.f_back
    return "an unknown place"


def facts_of(objects: Mapping[str, object]) -> dict[str, Hashable]:
    """Returns, by path, all numbers and words of objects and of what they hold, and where their tensors lie in memory.

    A replay keeps to the numbers and the memory of its recording, so that another fact asks for another one.
    """
    facts: dict[str, Hashable] = {}
    visited: set[int] = set()

    def visit(path: str, value: Any) -> None:
        if isinstance(value, Tensor):
            facts[path] = (value.data_ptr(), value.shape)
        elif value is None or isinstance(value, bool | int | float | str):
            facts[path] = value
        elif id(value) in visited or isinstance(value, type | types.ModuleType | types.FunctionType):
            return
        else:
            visited.add(id(value))
            if isinstance(value, Mapping):
                members = [
                    (f"{path}[{key!r}]" if isinstance(value, dict) else path, each) for key, each in value.items()
                ]
            elif isinstance(value, list | tuple):
                members = [(f"{path}[{number}]", each) for number, each in enumerate(value)]
            else:
                members = [(f"{path}.{name}", each) for name, each in getattr(value, "__dict__", {}).items()]
            for place, member in members:
                visit(place, member)

    for name, value in objects.items():
        visit(name, value)
    return facts


def difference(before: Mapping[str, Hashable], after: Mapping[str, Hashable]) -> str | None:
    """Returns the path of the first fact that differs; None if all are equal."""
    if before == after:
        return None
    return next(
        path for path in (*after, *before) if (path in before, before.get(path)) != (path in after, after.get(path))
    )
