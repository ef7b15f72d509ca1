"""Bytes of the tensors that a computation holds at once, on any device: what an allocator must provide."""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from typing import Any

from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class LiveBytes(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts the storages that operations within the context make, and that still exist.

    Those from before do not count, and each counts once, however many views there are. Sees what runs below autograd,
    the backward pass included, if it runs in the same thread, as on a CPU.

    Attributes:
        live: bytes at present.
        peak: most bytes at once so far, looked at whenever an operation begins.
    """

    def __init__(self, without_gradients_of: Iterable[nn.Parameter] = ()) -> None:
        """Starts with nothing. Gradients of the given parameters stop counting as soon as they are complete."""
        super().__init__()  # type: ignore[no-untyped-call]
        self.live = self.peak = 0
        self._storages: dict[int, weakref.ref[Any]] = {}  # by address, as long as they exist
        self._sizes: dict[int, int] = {}
        self._hooks = [
            parameter.register_hook(self._forget)  # type: ignore[no-untyped-call]
            for parameter in without_gradients_of
        ]

    def __exit__(self, *error: Any) -> None:
        self._look()
        for hook in self._hooks:
            hook.remove()
        super().__exit__(*error)  # type: ignore[no-untyped-call]

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self._look()  # before the next operation, so that a complete gradient is forgotten first
        for leaf in tree_leaves((args, kwargs)):
            self._count(leaf, made_here=False)
        outputs = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(outputs):
            self._count(leaf, made_here=True)
        return outputs

    def _look(self) -> None:
        self.peak = max(self.peak, self.live)

    def _count(self, leaf: Any, *, made_here: bool) -> None:
        if not isinstance(leaf, Tensor):
            return
        storage = leaf.untyped_storage()
        address = storage._cdata
        if address not in self._storages:
            self._storages[address] = weakref.ref(storage, lambda _: self._gone(address))
            self._sizes[address] = storage.nbytes() if made_here else 0
            self.live += self._sizes[address]

    def _gone(self, address: int) -> None:
        del self._storages[address]
        self.live -= self._sizes.pop(address)

    def _forget(self, gradient: Tensor) -> None:
        address = gradient.untyped_storage()._cdata
        self.live -= self._sizes.get(address, 0)
        self._sizes[address] = 0


def held_bytes(*roots: Any) -> int:
    """Returns the bytes of all tensors that objects hold in lists, mappings and attributes, however deep; each once."""
    storages: dict[int, int] = {}
    seen: set[int] = set()
    pending = list(roots)
    while pending:
        value = pending.pop()
        if id(value) in seen or isinstance(value, type):
            continue
        seen.add(id(value))
        if isinstance(value, Tensor):
            storages[value.untyped_storage()._cdata] = value.untyped_storage().nbytes()
        elif isinstance(value, dict):
            pending.extend(value.values())
        elif isinstance(value, list | tuple | set | frozenset):
            pending.extend(value)
        else:
            slots = (getattr(value, name, None) for name in getattr(type(value), "__slots__", ()))
            pending.extend([*getattr(value, "__dict__", {}).values(), *slots])
    return sum(storages.values())
