"""A learner group over several processes, with torch.distributed."""

from __future__ import annotations

import os
import socket
from dataclasses import dataclass
from datetime import timedelta

import psutil
import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import TCPStore  # type: ignore[attr-defined] # public, but not in its __all__

from rlpipe.learner_group import LearnerGroup


@dataclass(frozen=True)
class Rendezvous:
    """Address where the learners of a run find each other.

    Attributes:
        host: address of the store that ``open_rendezvous`` opened
        port: port of that store
        size: number of learners
        patience: seconds that a learner waits for another; only bounds a hang, because a failure ends the run at once
    """

    host: str
    port: int
    size: int
    patience: float = 1800.0


def open_rendezvous(host: str, size: int, patience: float = Rendezvous.patience) -> tuple[TCPStore, Rendezvous]:
    """Opens a store in this process, which must outlive the learners: NCCL keeps querying it.

    Args:
        host: address of this machine that the learners can reach
        size: number of learners
        patience: as in ``Rendezvous``
    """
    store = TCPStore(host, 0, world_size=None, is_master=True, wait_for_workers=False)
    return store, Rendezvous(host, store.port, size, patience)


class ProcessGroup(LearnerGroup):
    """Member of a group of learners, each in a process of its own."""

    def __init__(self, rendezvous: Rendezvous, rank: int, device: torch.device) -> None:
        """Joins the group, and waits for all members.

        Args:
            rendezvous: address where the learners find each other
            rank: rank of this learner
            device: device of the tensors; NCCL serves cuda, Gloo everything else
        """
        patience = timedelta(seconds=rendezvous.patience)
        store = TCPStore(rendezvous.host, rendezvous.port, world_size=None, is_master=False, timeout=patience)
        if (interface := _interface_towards(rendezvous.host, rendezvous.port)) is not None:
            # By default Gloo takes the address of the host name, which is often 127.0.1.1.
            os.environ.setdefault("GLOO_SOCKET_IFNAME", interface)
            os.environ.setdefault(
                "NCCL_SOCKET_IFNAME", f"={interface}"
            )  # without =, NCCL takes every interface with this prefix
        own = None  # with a device, NCCL joins here and not in its first sum
        if device.type == "cuda":
            own = torch.device("cuda", torch.cuda.current_device() if device.index is None else device.index)
        dist.init_process_group(
            "gloo" if own is None else "nccl",
            store=store, rank=rank, world_size=rendezvous.size, timeout=patience, device_id=own,
        )  # fmt: skip
        self.rank, self.size = rank, rendezvous.size

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
        return [tensor[:count] for tensor, count in zip(gathered, counts, strict=True)]


def _interface_towards(host: str, port: int) -> str | None:
    """Returns the network interface of this machine that leads to another machine; None if it cannot be found."""
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
