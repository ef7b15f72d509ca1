"""Structures that hold tensors: trees, dataclasses, tuples and mappings, which travel and are recorded as a whole."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass, replace
from typing import Any, TypeVar

import torch
from torch import Tensor

from rlpipe.trajectory import Tree

T = TypeVar("T")


def with_tensors(structure: T, function: Callable[[Tensor], Tensor]) -> T:
    """Returns a structure with another tensor in place of each; everything else stays."""
    return _mapped(structure, function)  # type: ignore[no-any-return]


def _mapped(structure: Any, function: Callable[[Tensor], Tensor]) -> Any:
    if isinstance(structure, Tensor):
        return function(structure)
    if isinstance(structure, Tree):
        return Tree(_mapped(structure.leaves, function))
    if isinstance(structure, Mapping):
        return {key: _mapped(value, function) for key, value in structure.items()}
    if isinstance(structure, list):
        return [_mapped(value, function) for value in structure]
    if isinstance(structure, tuple):
        values = [_mapped(value, function) for value in structure]
        return getattr(type(structure), "_make", tuple)(values)
    if is_dataclass(structure) and not isinstance(structure, type):
        return replace(structure, **{field.name: _mapped(value, function) for field, value in _fields(structure)})
    return structure


def tensors_in(structure: Any) -> list[Tensor]:
    """Returns the tensors of a structure, in the order of ``with_tensors``."""
    held: list[Tensor] = []

    def keep(tensor: Tensor) -> Tensor:
        held.append(tensor)
        return tensor

    with_tensors(structure, keep)
    return held


def by_type(structure: Any) -> dict[torch.dtype, list[Tensor]]:
    """Returns the tensors of a structure by type, each list in the order of ``with_tensors``."""
    groups: defaultdict[torch.dtype, list[Tensor]] = defaultdict(list)
    for tensor in tensors_in(structure):
        groups[tensor.dtype].append(tensor)
    return groups


def form_of(structure: Any) -> Hashable:
    """Returns everything about a structure but the numbers in its tensors: shapes, types, and all that is no tensor."""
    if isinstance(structure, Tensor):
        return structure.shape, structure.dtype
    if isinstance(structure, Tree):
        return form_of(structure.leaves)
    if isinstance(structure, Mapping):
        return tuple((key, form_of(value)) for key, value in structure.items())
    if isinstance(structure, list | tuple):
        return type(structure), tuple(map(form_of, structure))
    if is_dataclass(structure) and not isinstance(structure, type):
        return type(structure), tuple(form_of(value) for _, value in _fields(structure))
    return structure  # type: ignore[no-any-return]


def _fields(whole: Any) -> Iterator[tuple[Any, Any]]:
    return ((field, getattr(whole, field.name)) for field in fields(whole))


def moved(structures: Sequence[T], device: torch.device) -> Sequence[T]:
    """Returns structures with those tensors on a device that are on the host, in one copy for each type.

    The copy does not wait for the device, which may still be busy with earlier ones: pinned memory is given back to
    torch's allocator, which does not use it again before the copy is over.
    """
    if device.type == "cpu":
        return structures
    copies: dict[int, Tensor] = {}
    for tensors in by_type(tuple(structures)).values():
        here = [tensor for tensor in tensors if tensor.device.type == "cpu"]
        if here:
            there = torch.cat([tensor.reshape(-1) for tensor in here]).pin_memory().to(device, non_blocking=True)
            pieces = torch.split(there, [tensor.numel() for tensor in here])
            copies |= {id(tensor): piece.view(tensor.shape) for tensor, piece in zip(here, pieces, strict=True)}
    return [with_tensors(structure, lambda tensor: copies.get(id(tensor), tensor)) for structure in structures]


class Packed:
    """A structure whose tensors lie side by side in one tensor for each type, so that one copy of each keeps them."""

    def __init__(self, structure: Any) -> None:
        """Copies the tensors of a structure, which is not kept."""
        place, groups = torch.empty(0), by_type(structure)
        self._structure = with_tensors(structure, lambda _: place)
        self._places = [(tensor.dtype, tensor.shape) for tensor in tensors_in(structure)]
        self._sizes = {dtype: [tensor.numel() for tensor in group] for dtype, group in groups.items()}
        self._whole = {
            dtype: torch.cat([tensor.detach().reshape(-1) for tensor in group]) for dtype, group in groups.items()
        }

    def copy(self) -> Any:
        """Returns the structure with copies of the present tensors."""
        pieces = {dtype: iter(torch.split(whole.clone(), self._sizes[dtype])) for dtype, whole in self._whole.items()}
        views = iter([next(pieces[dtype]).view(shape) for dtype, shape in self._places])
        return with_tensors(self._structure, lambda _: next(views))
