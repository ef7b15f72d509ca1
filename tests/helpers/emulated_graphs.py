"""CUDA graphs on the CPU: operations are recorded below autograd, and repeated on the same memory without any Python.

A replay knows the tensors and the numbers of the recording alone, so whatever a graph would not notice on a GPU, this
does not notice either.
"""

from __future__ import annotations

import contextlib

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

MADE_OF_NOTHING = ("empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided")


def held(structure):
    return [each for each in tree_leaves(structure) if isinstance(each, Tensor)]


class Recorder(TorchDispatchMode):
    """Operations with their arguments and their results, which all stay where they are in memory."""

    def __init__(self):
        super().__init__()
        self.operations, self._before = [], []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if func._schema.is_mutable:
            self._before += [(each, each.clone()) for each in held((args, kwargs))]
        results = func(*args, **kwargs)
        self.operations.append((func, args, kwargs, held(results)))
        return results

    @torch.no_grad()
    def undo(self):
        """Takes back what the operations have written, as if none had been executed."""
        for tensor, before in reversed(self._before):
            tensor.copy_(before)


def is_view(func, args, kwargs, results):
    memory = {each.untyped_storage().data_ptr() for each in held((args, kwargs))}
    return bool(results) and all(each.untyped_storage().data_ptr() in memory for each in results)


class EmulatedGraphs:
    """Takes the place of a CUDA recorder. Here, recording executes the steps, so that the first replay does not."""

    def __init__(self):
        self.recordings = self.replays = 0
        self.records_now = False

    def warm_up(self):
        return contextlib.nullcontext()

    def record(self, function):
        recorder, self.records_now = Recorder(), True
        try:
            with recorder:
                outputs = function()
        except BaseException:
            recorder.undo()
            raise
        finally:
            self.records_now = False
        self.recordings += 1
        program = [
            (*operation, operation[0]._schema.is_mutable)
            for operation in recorder.operations
            if operation[0].overloadpacket.__name__ not in MADE_OF_NOTHING
            and (operation[0]._schema.is_mutable or not is_view(*operation))
        ]
        executed = True

        @torch.no_grad()
        def replay():
            nonlocal executed
            self.replays += 1
            if executed:
                executed = False
                return
            for func, args, kwargs, results, in_place in program:
                again = func(*args, **kwargs)
                for place, result in zip(results, held(again), strict=True) if not in_place else ():
                    place.copy_(result)

        replay.keep = recorder.operations  # the memory of everything in between
        return replay, outputs
