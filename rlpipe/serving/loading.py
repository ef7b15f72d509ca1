"""Loads a trained policy, without its simulator and without Ray."""

from __future__ import annotations

from pathlib import Path

import torch

from rlpipe.config.sections import acting_sections
from rlpipe.config.tree import from_yaml
from rlpipe.errors import ConfigError
from rlpipe.policies.base import make_policy
from rlpipe.run.checkpoint import Checkpoint, find_checkpoint, subtree
from rlpipe.serving.acting import ActingPolicy


def load_policy(path: Path, *, best: bool = False, deterministic: bool | None = None, seed: int = 0) -> ActingPolicy:
    """Loads the policy of a checkpoint; see ``rlpipe.load_policy``."""
    return policy_of(find_checkpoint(path, best)[0], deterministic=deterministic, seed=seed)


def policy_of(state: Checkpoint, *, deterministic: bool | None = None, seed: int = 0) -> ActingPolicy:
    """Makes the policy of a checkpoint.

    Raises:
        ConfigError: the checkpoint does not tell the spaces of its simulator, or its policy does not exist here.
    """
    if state.spaces is None:
        raise ConfigError(
            f"{state.path} does not tell the spaces of its simulator, because an earlier version wrote it: resume its "
            f"run for an iteration (rlpipe train --resume), whose checkpoint will."
        )
    tree = from_yaml(state.meta["config"])
    class_, policy, algorithm = acting_sections(tree)
    with torch.random.fork_rng(devices=[]):  # first weights are drawn, and the caller's numbers stay theirs
        module = make_policy(class_, policy, algorithm, state.spaces)
    module.load_weights(subtree("policy/", state.arrays))
    evaluation, logger = tree.get("evaluation") or {}, tree["runner"].get("logger") or {}
    return ActingPolicy(
        module,
        state.spaces,
        chunk_size=policy.chunk_size,
        execute=policy.steps_per_decision,
        memory_width=policy.memory_width,
        deterministic=evaluation.get("deterministic", True) if deterministic is None else deterministic,
        entropy=tree["runner"]["seed"],
        seed=seed,
        facts={
            "run_id": state.meta["run_id"],
            "iteration": state.meta["iteration"],
            "experiment": logger.get("experiment_name"),
            "checkpoint": str(state.path),
        },
    )
