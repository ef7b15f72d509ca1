"""Reasons why a gradient step cannot be recorded once and replayed.

A replay repeats the operations on a device, on the same memory, without any Python. A step must therefore read nothing
on the host, draw nothing, write its state in place, and change no Python number.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import sys
import types
from collections import deque
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import numpy as np
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

SMALL = 4096
"""Bytes of an array whose numbers are facts; of a larger one, only where it lies."""
_LIBRARIES = {"torch", "numpy", *sys.stdlib_module_names}
_FACTS = (
    Tensor, np.generic, np.ndarray, types.NoneType, bool, int, float, str, bytes, torch.dtype, torch.device,
)  # fmt: skip
_INDEXING = ("index", "index_put", "index_put_", "_index_put_impl_")


_searched: WeakKeyDictionary[Any, tuple[_Place, ...]] = WeakKeyDictionary()


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
    the closures of functions count, and those that functions read from modules and classes; what lists and mappings of
    modules and classes hold does not.
    """
    facts: dict[str, Hashable] = {}
    sources: set[int] = set()  # functions and classes
    visited: dict[int, object] = {}  # which keeps their numbers from being given to others

    def visit(path: str, value: Any) -> None:
        if isinstance(value, _FACTS):
            facts[path] = _fact(value)
        elif id(value) not in visited and not isinstance(value, type | types.ModuleType | torch.Generator):
            visited[id(value)] = value
            for name, member in _members(value):
                visit(f"{path}{name}", member)
            source = value if isinstance(value, types.FunctionType) else type(value)
            if id(source) not in sources:
                sources.add(id(source))
                facts.update((place.path, place.fact()) for place in _places(source))

    for name, value in objects.items():
        visit(name, value)
    return facts


def _fact(value: Any) -> Hashable:
    """Returns what a replay keeps of a value of one of the types ``_FACTS``."""
    if isinstance(value, Tensor):
        return value.data_ptr(), value.shape, value.stride(), value.dtype, value.requires_grad
    if isinstance(value, np.generic):
        return value.tobytes()
    if isinstance(value, np.ndarray):
        return value.shape, value.tobytes() if value.nbytes <= SMALL else value.ctypes.data
    fact: Hashable = value
    return fact


class _Place(NamedTuple):
    """Attribute of a module or a class that functions read.

    Attributes:
        path: full name.
        names: all that the module or class holds, at present.
        name: name of the attribute in it.
    """

    path: str
    names: Mapping[str, Any]
    name: str

    def fact(self) -> Hashable:
        """Returns what stands there now: a fact, or the code of a function."""
        value = self.names.get(self.name)
        return _fact(value) if isinstance(value, _FACTS) else id(getattr(_function_of(value), "__code__", None))


def _places(source: Any) -> tuple[_Place, ...]:
    """Returns the attributes of modules and classes that a function, or the methods of a class, may read.

    They are searched once for each function and class, through all functions that these name, except in libraries.
    """
    if _in_library(source):
        return ()
    if source not in _searched:
        places: dict[str, _Place] = {}
        pending, visited = [source], set()
        while pending:
            each = pending.pop()
            if each in visited or _in_library(each):
                continue
            visited.add(each)
            for place in _of_class(each) if isinstance(each, type) else _of_function(each):
                function = _function_of(value := place.names[place.name])
                if function is not None:
                    pending.append(function)
                if function is not None or isinstance(value, _FACTS):
                    places[place.path] = place
        _searched[source] = tuple(places.values())
    return _searched[source]


def _of_class(source: type) -> Iterator[_Place]:
    """Yields the attributes of a class and of its bases."""
    for base in source.__mro__:
        if not _in_library(base):
            names = vars(base)
            yield from (_Place(f"{_path(base)}.{name}", names, name) for name in names if not name.startswith("__"))


def _of_function(source: types.FunctionType) -> Iterator[_Place]:
    """Yields the globals that a function names, and those attributes of modules and classes among them."""
    function: Any = inspect.unwrap(source)
    in_code = set(_names_in(function.__code__))
    pending = [(str(function.__globals__.get("__name__")), function.__globals__)]
    visited = set()
    while pending:
        path, names = pending.pop()
        visited.add(path)
        for name in sorted(in_code & names.keys()):
            yield _Place(f"{path}.{name}", names, name)
            value = names[name]
            if isinstance(value, type | types.ModuleType) and not _in_library(value):
                spaces = value.__mro__ if isinstance(value, type) else (value,)
                pending += [(_path(space), vars(space)) for space in spaces if _path(space) not in visited]


def _names_in(code: types.CodeType) -> Iterator[str]:
    """Yields the names of globals and attributes in a code and in the functions within it."""
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _names_in(constant)


def _function_of(member: Any) -> types.FunctionType | None:
    """Returns the function behind a method or a property; None for anything else."""
    if isinstance(member, staticmethod | classmethod):
        member = member.__func__
    elif isinstance(member, property):
        member = member.fget
    elif isinstance(member, functools.cached_property):
        member = member.func
    return member if isinstance(member, types.FunctionType) else None


def _path(source: Any) -> str:
    return source.__name__ if isinstance(source, types.ModuleType) else f"{source.__module__}.{source.__qualname__}"


def _in_library(source: Any) -> bool:
    """True for what belongs to Python, torch or NumPy, whose numbers stay."""
    name = source.__name__ if isinstance(source, types.ModuleType) else source.__module__
    return str(name).partition(".")[0] in _LIBRARIES


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
    elif isinstance(value, types.MethodType):
        yield from ((".__self__", value.__self__), (".__func__", value.__func__))
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
