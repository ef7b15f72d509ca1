"""Precision of a learner's matrix products: set for its process, and what a user should know of the choice."""

from __future__ import annotations

import torch

from rlpipe.config.schema import Config
from rlpipe.trajectory import SpaceSpec

LEAST_PARAMETERS = 3_000_000
"""Parameters of a policy from which bfloat16 was faster on a GPU; measured 0.71 times the speed of float32 with 0.3
million, 1.56 times with 9.6 million (docs/cluster.md)."""
LEAST_ROWS = 4096
"""Rows of a minibatch likewise."""


def set_precision(precision: str, device: torch.device) -> None:
    """Sets how torch multiplies float32 matrices in this process: in TF32 on a GPU where configured, else exactly.

    A CPU always multiplies exactly: some would round as well, so that the result would depend on the machine.
    """
    torch.set_float32_matmul_precision("high" if precision == "tf32" and device.type == "cuda" else "highest")


def precision_notes(config: Config, device: torch.device, spec: SpaceSpec, parameters: int) -> list[str]:
    """Returns what a user should know of ``learner.precision``, in sentences.

    Args:
        config: configuration of the run.
        device: device of the learner.
        spec: spaces of the simulator.
        parameters: number of the policy's parameters.
    """
    precision = config.learner.precision
    if precision == "tf32" and device.type != "cuda":
        return ["learner.precision is tf32, which has no effect: the learner is on a CPU and computes in float32."]
    if precision != "bfloat16" or any(leaf.is_image for leaf in (spec.leaves or {}).values()):
        return []  # a picture makes many rows of one, and uses each parameter many times
    rows = config.decisions_per_iteration // config.algorithm.num_minibatches
    if parameters >= LEAST_PARAMETERS and rows >= LEAST_ROWS:
        return []
    return [
        f"learner.precision is bfloat16, which is slower than float32 here: the policy has {parameters:,} parameters "
        f"and a minibatch {rows:,} rows. A step casts about 30 tensors, each in a kernel of its own, and products "
        f"gain that time back from about {LEAST_PARAMETERS:,} parameters and {LEAST_ROWS:,} rows on. Set "
        "learner.precision=tf32, which casts nothing, or leave it out."
    ]
