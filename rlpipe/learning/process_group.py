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

PATIENCE = timedelta(minutes=30)
"""Time that a learner waits for another; only bounds a hang, because a failure ends the run at once."""


@dataclass(frozen=True)
class Rendezvous:
    """Address where the learners of a run find each other.

    Attributes:
        host: address of the store that ``open_rendezvous`` opened
        port: port of that store
        size: number of learners
    """

    host: str
    port: int
    size: int


def open_rendezvous(host: str, size: int) -> tuple[TCPStore, Rendezvous]:
    """Opens a store in this process, which must outlive the learners: NCCL keeps querying it."""
    store = TCPStore(host, 0, world_size=None, is_master=True, wait_for_workers=False)
    return store, Rendezvous(host, store.port, size)


class ProcessGroup(LearnerGroup):
    """Member of a group of learners, each in a process of its own."""

    def __init__(self, rendezvous: Rendezvous, rank: int, device: torch.device) -> None:
        """Joins the group, and waits for all members. NCCL serves tensors on cuda, Gloo all others."""
        store = TCPStore(rendezvous.host, rendezvous.port, world_size=None, is_master=False, timeout=PATIENCE)
        if (interface := _interface_towards(rendezvous.host, rendezvous.port)) is not None:
            # By default Gloo takes the address of the host name, which is often 127.0.1.1.
            os.environ.setdefault("GLOO_SOCKET_IFNAME", interface)
            # without =, NCCL takes every interface with this prefix
            os.environ.setdefault("NCCL_SOCKET_IFNAME", f"={interface}")
        cuda_device = None  # with a device, NCCL joins here and not in its first sum
        if device.type == "cuda":
            cuda_device = torch.device("cuda", torch.cuda.current_device() if device.index is None else device.index)
        dist.init_process_group(
            "gloo" if cuda_device is None else "nccl",
            store=store, rank=rank, world_size=rendezvous.size, timeout=PATIENCE, device_id=cuda_device,
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
            local_address = probe.getsockname()[0]
    except OSError:
        return None
    for name, addresses in psutil.net_if_addrs().items():
        if any(address.address == local_address for address in addresses):
            return str(name)
    return None
