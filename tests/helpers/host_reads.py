"""Refuses whatever makes the host wait for the device, so that a test on a CPU shows where a GPU would idle."""

from __future__ import annotations

import linecache
import sys
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

import rlpipe

PACKAGE = Path(rlpipe.__file__).parent
READS = {"tolist", "item", "cpu", "numpy", "__array__", "__bool__", "__int__", "__float__", "__index__", "__contains__"}
"""Methods that bring values to the host; on a CPU, some of them run nothing that a dispatcher could see."""
WRITES = {"tensor", "as_tensor", "from_numpy", "new_tensor"}
"""Functions that copy numbers of the host to the device, and wait until it has taken them."""
DEPENDENT = {torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape}
"""Marks that PyTorch gives to operations whose result, or its shape, is known only once the values are."""


@contextmanager
def forbidden_host_reads(but_in: Collection[str] = ()) -> Iterator[None]:
    """Raises AssertionError at the first operation that would make the host wait for the device.

    Refused are reads of values, operations whose shape depends on values (boolean masks, ``nonzero``, ``unique``,
    ``bincount``, ``repeat_interleave`` without ``output_size``), ``equal``, and copies of numbers from the host.

    Args:
        but_in: names of functions of rlpipe that may do so.
    """
    with _Methods(but_in), _Operations(but_in):
        yield


class _Methods(TorchFunctionMode):
    def __init__(self, but_in: Collection[str]) -> None:
        super().__init__()
        self._but_in = but_in

    def __torch_function__(self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = getattr(func, "__name__", "")
        if name in READS | WRITES:
            _refuse(name, self._but_in)
        return func(*args, **(kwargs or {}))


class _Operations(TorchDispatchMode):
    def __init__(self, but_in: Collection[str]) -> None:
        super().__init__()
        self._but_in = but_in

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = func.overloadpacket.__name__
        if name.startswith(("index", "_index_put")):
            if any(
                isinstance(each, torch.Tensor) and each.dtype in (torch.bool, torch.uint8) for each in _indices(args)
            ):
                _refuse(f"{name} with a boolean mask", self._but_in)
        elif DEPENDENT & set(func.tags) and kwargs.get("output_size") is None:
            _refuse(name, self._but_in)
        return func(*args, **kwargs)


def _indices(args: Any) -> Any:
    return args[1] if len(args) > 1 and isinstance(args[1], (list, tuple)) else ()


def _refuse(operation: str, but_in: Collection[str]) -> None:
    """Raises AssertionError with the operation and the line of rlpipe, unless a function on the way may read."""
    frames = [frame for frame in _frames() if PACKAGE in Path(frame.f_code.co_filename).parents]
    if any(frame.f_code.co_name in but_in for frame in frames):
        return
    place = "outside of rlpipe"
    if frames:
        file, number = frames[0].f_code.co_filename, frames[0].f_lineno
        line = linecache.getline(file, number).strip()
        place = f"in {Path(file).relative_to(PACKAGE.parent)}:{number}: {line}"
    raise AssertionError(f"{operation} makes the host wait for the device {place}")


def _frames() -> Iterator[FrameType]:
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        yield frame
        frame = frame.f_back
