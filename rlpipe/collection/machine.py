"""Facts about the machine that an evaluation runs on, as far as the bits of its numbers depend on them."""

from __future__ import annotations

import os
import platform
from functools import cache
from pathlib import Path

import torch

_SWITCHES = ("ONEDNN_MAX_CPU_ISA", "MKL_ENABLE_INSTRUCTIONS", "MKL_CBWR", "OPENBLAS_CORETYPE")
"""Variables of the environment that choose the kernels of the libraries below torch and NumPy."""


def machine_facts(inference: str) -> dict[str, str | int]:
    """Returns the processor, the instructions that torch uses of it, the threads that compute an action, and what the
    environment says about kernels.

    Args:
        inference: ``rollout.inference``, where actions are computed
    """
    return {
        "processor": _processor(),
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
        "threads": torch.get_num_threads(),
        "inference": inference,
        "switches": " ".join(f"{name}={os.environ[name]}" for name in _SWITCHES if name in os.environ),
    }


@cache
def _processor() -> str:
    """Name of the processor, which Linux tells in a file of its own."""
    cpuinfo = Path("/proc/cpuinfo")
    for line in cpuinfo.read_text(encoding="utf-8", errors="replace").splitlines() if cpuinfo.exists() else []:
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()
