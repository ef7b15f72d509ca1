"""Several learners as one: sums over all of them, and which part of a batch each takes.

A sum over ranks is a sum over the decisions they hold, so whatever is computed from sums and counts is what one learner
with the whole batch would have computed, however unequal the shares.
"""

from __future__ import annotations

import math
import os
import socket
from dataclasses import dataclass
from datetime import timedelta

import psutil
import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import TCPStore  # type: ignore[attr-defined] # public, but not in its __all__


class Ranks:
    """The learners of a run, seen from one of them. This one is alone.

    Attributes:
        rank: of this learner.  size: number of all.
    """

    rank = 0
    size = 1

    @property
    def first(self) -> bool:
        """Whether this is the learner that speaks for all."""
        return self.rank == 0

    def sum(self, values: Tensor) -> Tensor:
        """The sum over all learners, each of which must call this with the same shape; on every one the same bits."""
        return values

    def from_first(self, values: Tensor) -> Tensor:
        """What the first learner gave; the others give a tensor of its shape and dtype."""
        return values

    def gather(self, values: Tensor) -> list[Tensor]:
        """What every learner gave, by rank: [n_r, ...] tensors that differ in n_r alone."""
        return [values]


ALONE = Ranks()


@dataclass(frozen=True)
class Meeting:
    """Where the learners of a run find each other.

    Attributes:
        host, port: of the store that ``open_meeting`` opened.  size: number of learners.
        patience: seconds for which a learner waits for another. One that fails ends the run long before; this only
            bounds a hang.
    """

    host: str
    port: int
    size: int
    patience: float = 1800.0


def open_meeting(host: str, size: int, patience: float = Meeting.patience) -> tuple[TCPStore, Meeting]:
    """Opens a store in this process. It must be kept as long as the learners work: NCCL goes on to ask it.

    Args:
        host: address of this machine that the learners can reach.  size: number of learners.
        patience: as in ``Meeting``.
    """
    store = TCPStore(host, 0, world_size=None, is_master=True, wait_for_workers=False)
    return store, Meeting(host, store.port, size, patience)


class Joined(Ranks):
    """A learner among several, each in a process of its own."""

    def __init__(self, meeting: Meeting, rank: int, device: torch.device) -> None:
        """Joins the others, and waits until all are there.

        Args:
            meeting: where.  rank: of this one.  device: cuda talks by NCCL, anything else by Gloo.
        """
        patience = timedelta(seconds=meeting.patience)
        store = TCPStore(meeting.host, meeting.port, world_size=None, is_master=False, timeout=patience)
        if (interface := _interface_towards(meeting.host, meeting.port)) is not None:
            # Left alone, Gloo takes what the host's name stands for: often 127.0.1.1.
            os.environ.setdefault("GLOO_SOCKET_IFNAME", interface)
            os.environ.setdefault("NCCL_SOCKET_IFNAME", f"={interface}")  # without =, any whose name begins so
        own = None  # with a device, NCCL joins here and not in its first sum
        if device.type == "cuda":
            own = torch.device("cuda", torch.cuda.current_device() if device.index is None else device.index)
        dist.init_process_group(
            "gloo" if own is None else "nccl",
            store=store, rank=rank, world_size=meeting.size, timeout=patience, device_id=own,
        )  # fmt: skip
        self.rank, self.size = rank, meeting.size

    def sum(self, values: Tensor) -> Tensor:
        total = values.clone()
        dist.all_reduce(total)
        return total

    def from_first(self, values: Tensor) -> Tensor:
        first = values.clone()
        dist.broadcast(first, 0)
        return first

    def gather(self, values: Tensor) -> list[Tensor]:
        lengths = torch.zeros(self.size, dtype=torch.int64, device=values.device)
        lengths[self.rank] = len(values)
        counts = self.sum(lengths).tolist()
        padded = values.new_zeros((max(counts), *values.shape[1:]))
        padded[: len(values)] = values
        gathered = [torch.empty_like(padded) for _ in counts]
        dist.all_gather(gathered, padded)
        return [part[:count] for part, count in zip(gathered, counts, strict=True)]


def _interface_towards(host: str, port: int) -> str | None:
    """Name of this machine's network interface from which another machine can be reached; None where none is known."""
    try:
        family, kind, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, kind) as probe:
            probe.connect(address)  # chooses a route, sends nothing
            own = probe.getsockname()[0]
    except OSError:
        return None
    for name, addresses in psutil.net_if_addrs().items():
        if any(address.address == own for address in addresses):
            return str(name)
    return None


@dataclass(frozen=True)
class Portion:
    """What one learner takes of a batch that several workers collected.

    Attributes:
        workers: those whose fragments it takes.  environments: of all learners.
        columns: its own environments among those of these workers.  first: number of the first among all.
    """

    workers: range
    columns: range
    first: int
    environments: int


def portion(rank: int, size: int, workers: int, environments: int, group_size: int = 1) -> Portion:
    """Whole groups of environments, shared as evenly as they can be.

    Args:
        rank: of the learner.  size: number of learners.  workers, environments: of the batch; the first divides the
            second.  group_size: environments that stay together.
    """
    groups, each = environments // group_size, environments // workers
    begin, end = (groups * bound // size * group_size for bound in (rank, rank + 1))
    taken = range(begin // each, math.ceil(end / each))
    offset = taken.start * each
    return Portion(taken, range(begin - offset, end - offset), begin, environments)


class Minibatches:
    """The decisions of all learners, drawn into minibatches alike on each, of which it takes its own.

    So a minibatch holds the same decisions, however many learners there are.

    Attributes:
        total: number of decisions of all learners.
        parts: minibatches of a pass; fewer than asked for where there are fewer decisions.
    """

    def __init__(self, position: Tensor, parts: int, ranks: Ranks, generator: torch.Generator) -> None:
        """Numbers the decisions.

        Args:
            position: [B] int64, rising: where each own decision stands among those of the iteration.
            parts: minibatches of a pass.  generator: in the same state on every learner; on the host.
        """
        self._own: Tensor | None = None
        self.total = len(position)
        if ranks.size > 1:
            everyone = torch.cat(ranks.gather(position)).sort().values
            self.total = len(everyone)
            self._own = torch.full_like(everyone, -1)
            self._own[torch.searchsorted(everyone, position)] = torch.arange(len(position), device=position.device)
        self.parts = min(parts, self.total)
        self._generator = generator
        self._device = position.device

    def draw(self) -> tuple[Tensor, list[int], list[int]]:
        """One pass in a new order.

        Returns:
            [B] own decisions as drawn; how many of them each minibatch has; how many all learners have in it.
        """
        # Drawn on the host: another kind of device would draw another order, and so learn from other minibatches.
        order = torch.randperm(self.total, generator=self._generator).to(self._device)
        ends = [self.total * part // self.parts for part in range(1, self.parts + 1)]
        sizes = _steps(ends)
        if self._own is None:
            return order, sizes, sizes
        own = self._own[order]
        kept = own >= 0
        return own[kept], _steps(kept.cumsum(0)[[end - 1 for end in ends]].tolist()), sizes


def _steps(ends: list[int]) -> list[int]:
    return [end - begin for begin, end in zip([0, *ends], ends, strict=False)]
