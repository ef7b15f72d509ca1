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

import rlpipe
from rlpipe.learning.recordable import OperationCheck

PACKAGE = Path(rlpipe.__file__).parent
METHODS = {"tolist", "cpu", "numpy", "__array__"}
"""Methods that bring values to the host. On a CPU they run no operation that ``OperationCheck`` could see."""


@contextmanager
def forbidden_host_reads(but_in: Collection[str] = ()) -> Iterator[None]:
    """Raises AssertionError at the first operation that would make the host wait for the device.

    Refused are reads of values, operations whose shape depends on values (boolean masks, ``nonzero``, ``unique``,
    ``bincount``), ``equal``, draws, and tensors that are made of numbers of the host.

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
        if name in METHODS:
            _refuse(name, "copies numbers to the host", self._but_in)
        return func(*args, **(kwargs or {}))


class _Operations(OperationCheck):
    def __init__(self, but_in: Collection[str]) -> None:
        super().__init__(torch.device("cpu"))
        self._but_in = but_in

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if problem := self._problem(func, args, kwargs or {}):
            _refuse(func.overloadpacket.__name__, problem, self._but_in)
        return func(*args, **(kwargs or {}))


def _refuse(operation: str, problem: str, but_in: Collection[str]) -> None:
    """Raises AssertionError with the operation and the line of rlpipe, unless a function on the way may read."""
    frames = [frame for frame in _frames() if PACKAGE in Path(frame.f_code.co_filename).parents]
    if any(frame.f_code.co_name in but_in for frame in frames):
        return
    place = "outside of rlpipe"
    if frames:
        file, number = frames[0].f_code.co_filename, frames[0].f_lineno
        line = linecache.getline(file, number).strip()
        place = f"in {Path(file).relative_to(PACKAGE.parent)}:{number}: {line}"
    raise AssertionError(f"{operation} {problem}, {place}")


def _frames() -> Iterator[FrameType]:
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        yield frame
        frame = frame.f_back
