"""Reasons why a gradient step cannot be recorded once and replayed.

A replay repeats the operations on a device, on the same memory, without any Python. A step must therefore read nothing
on the host, draw nothing, write its state in place, and change no Python number.
"""

from __future__ import annotations

import contextlib
import functools
import sys
import types
from collections import deque
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

SMALL = 4096
"""Bytes of an array whose numbers are facts; of a larger one, only where it lies."""
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
            if any(isinstance(index, Tensor) and index.dtype == torch.bool for index in arguments[1]):
                return "selects by a mask, whose count only the host can tell"
        elif torch.Tag.data_dependent_output in tags:
            return "reads a number on the host"
        elif torch.Tag.dynamic_output_shape in tags:
            return "makes a tensor of a shape that only the host can tell"
        if _never_drops(operation, arguments, keywords):
            return None  # also where it hands on the state of a generator that it does not use, which is on the host
        if torch.Tag.nondeterministic_seeded in tags:
            return "draws random numbers"
        if name == "lift_fresh":
            return "makes a tensor of a number of the host, which would stay the same"
        if self._device.type != "cpu":
            devices = [each.device for each in tree_leaves((arguments, keywords)) if isinstance(each, Tensor)]
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
    frame: types.FrameType | None = sys._getframe()
    while frame is not None:
        path = frame.f_code.co_filename
        if path != __file__ and "/torch/" not in path:
            return f"{path}:{frame.f_lineno}"
        frame = frame.f_back
    return "an unknown place"


def facts_of(objects: Mapping[str, object]) -> dict[str, Hashable]:
    """Returns, by path, all numbers and words of objects and of what they hold, and where their tensors lie in memory.

    A replay keeps to the numbers and the memory of its recording, so that another fact asks for another one. Numbers in
    the closures of functions count; class attributes and globals of modules do not.
    """
    facts: dict[str, Hashable] = {}
    visited: dict[int, object] = {}  # which keeps their numbers from being given to others

    def visit(path: str, value: Any) -> None:
        if isinstance(value, Tensor):
            facts[path] = (value.data_ptr(), value.shape, value.stride(), value.dtype, value.requires_grad)
        elif isinstance(value, np.generic):
            facts[path] = value.tobytes()
        elif value is None or isinstance(value, bool | int | float | str | bytes | torch.dtype | torch.device):
            facts[path] = value
        elif isinstance(value, np.ndarray):
            facts[path] = (value.shape, value.tobytes() if value.nbytes <= SMALL else value.ctypes.data)
        elif id(value) not in visited and not isinstance(value, type | types.ModuleType | torch.Generator):
            visited[id(value)] = value
            for name, member in _members(value):
                visit(f"{path}{name}", member)

    for name, value in objects.items():
        visit(name, value)
    return facts


def _members(value: Any) -> Iterator[tuple[str, Any]]:
    """Yields what an object holds, by the end of its path."""
    if isinstance(value, Mapping):
        for number, (key, member) in enumerate(value.items()):
            yield f"[{key!r}]" if isinstance(key, str | int) else f"[{number}]", member
    elif isinstance(value, set | frozenset):
        yield "", repr(sorted(map(repr, value)))
    elif isinstance(value, list | tuple | deque):
        yield from ((f"[{number}]", member) for number, member in enumerate(value))
    elif isinstance(value, functools.partial):
        yield from ((".func", value.func), (".args", value.args), (".keywords", value.keywords))
    elif isinstance(value, types.FunctionType):
        yield ".__code__", id(value.__code__)
        yield ".__defaults__", value.__defaults__
        for name, cell in zip(value.__code__.co_freevars, value.__closure__ or (), strict=True):
            with contextlib.suppress(ValueError):  # a cell that is still empty
                content = cell.cell_contents
                yield f".{name}", content if isinstance(content, Tensor | np.generic | int | float | str) else None
    else:
        yield from ((f".{name}", member) for name, member in getattr(value, "__dict__", {}).items())
        slots = (name for base in type(value).__mro__ for name in _names(getattr(base, "__slots__", ())))
        yield from ((f".{name}", getattr(value, name)) for name in slots if hasattr(value, name))


def _names(slots: str | Iterable[str]) -> Iterable[str]:
    return [slots] if isinstance(slots, str) else slots


def difference(before: Mapping[str, Hashable], after: Mapping[str, Hashable]) -> str | None:
    """Returns the path of the first fact that differs; None if all are equal."""
    if before == after:
        return None
    return next(
        path for path in (*after, *before) if (path in before, before.get(path)) != (path in after, after.get(path))
    )
