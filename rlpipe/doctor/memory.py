"""Check of the learner's memory: an estimate beside what is free where the learner will run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from rlpipe.doctor.results import CheckResult, fail, ok, warn

NAME = "learner's memory"
CUDA_BYTES = 0.6e9
"""Memory of a GPU that CUDA and its libraries take beside tensors: from 0.4 to 0.6 GB, by the kind of GPU."""
TORCH_BYTES = 0.3e9
"""Memory of a process with torch and Ray beside tensors; measured 0.31 GB."""
FRAGMENTATION = 1.1
"""Bytes that an allocator takes for each byte of tensors."""
_SMALLER = "a smaller policy (policy.adapters, for a vision-language-action model)"
REMEDIES = {
    "policy": _SMALLER,
    "optimiser": _SMALLER,
    "gradients": _SMALLER,
    "activations": "learner.micro_batch, or policy.checkpoint_gradients=true",
    "values": "learner.micro_batch, which also bounds how many are evaluated at a time",
    "samples": "a smaller rollout.horizon or env.train.total_num_envs",
    "replay": "a smaller algorithm.replay_capacity",
    "gradient": "a smaller algorithm.batch_size, or policy.checkpoint_gradients=true",
    "demonstrations": "a smaller num_demos",
}
"""Remedies, by the beginning of the name of the largest part."""


def check_learner_memory(parts: Mapping[str, int], free: float, *, on_gpu: bool, beside: float = 0.0) -> CheckResult:
    """Compares the estimated memory of a learner with what is free.

    Args:
        parts: bytes of tensors by what they are for.
        free: bytes of the GPU, or of the machine.
        on_gpu: True if the learner runs on a GPU.
        beside: bytes that the run's workers will take of the same memory.
    """
    largest = max(parts, key=lambda name: parts[name])
    around = "CUDA and its allocator" if on_gpu else "Python, torch and its allocator"
    besides = round((FRAGMENTATION - 1) * sum(parts.values()) + (CUDA_BYTES if on_gpu else TORCH_BYTES))
    parts = {**parts, around: besides}
    total = sum(parts.values())
    where = "the GPU" if on_gpu else "this machine"
    message = f"about {in_units(total)} at its peak, of {in_units(free)} free on {where}"
    remedy = REMEDIES[largest.split()[0].rstrip(",")]
    if total > free:
        return replace(fail(NAME, f"{message}: it would run out.", f"{remedy}."), parts=parts)
    if total + beside > free:
        workers = f"{message}; rollout workers would take {in_units(beside)} beside it."
        return replace(warn(NAME, workers, f"lower rollout.num_workers; or {remedy}."), parts=parts)
    return replace(ok(NAME, message), parts=parts)


def no_estimate(reason: str) -> CheckResult:
    """Returns the result where the memory could not be estimated."""
    return warn(NAME, f"not estimated: {reason}", "rlpipe doctor --timeout SECONDS waits longer.")


def in_units(size: float) -> str:
    """Returns a number of bytes as it is read: 850 MB, 3.1 GB."""
    return f"{size / 1e9:.1f} GB" if size >= 0.9995e9 else f"{size / 1e6:.0f} MB" if size >= 1e6 else "below 1 MB"
