"""Loads a trained policy, without its simulator and without Ray."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from numpy.typing import NDArray

from rlpipe.collection.decisions import in_float32
from rlpipe.config.sections import acting_sections
from rlpipe.config.tree import from_yaml
from rlpipe.errors import ConfigError
from rlpipe.policies.base import Policy, make_policy
from rlpipe.run.checkpoint import Checkpoint, find_checkpoint, subtree
from rlpipe.serving import runner
from rlpipe.serving.runner import ActingPolicy, Decide
from rlpipe.trajectory import Tree
from rlpipe.trajectory.tree import tensors

CARD = "card.json"
"""File of an export that holds the facts about its policy."""


def load_policy(path: Path, *, best: bool, deterministic: bool | None, seed: int) -> ActingPolicy:
    """Loads the policy of a checkpoint or an export; see ``rlpipe.load_policy``."""
    if (path / CARD).is_file():
        return _exported(path, best, deterministic, seed)
    return acting_policy(find_checkpoint(path, best)[0], deterministic=deterministic, seed=seed)


def acting_policy(state: Checkpoint, *, deterministic: bool | None = None, seed: int = 0) -> ActingPolicy:
    """Makes the policy of a checkpoint act; see ``rlpipe.load_policy``."""
    module = policy_of(state)
    card = card_of(state, module, deterministic)
    return ActingPolicy(decisions_of(module), card, noise=lambda generator: module.noise(generator, 1), seed=seed)


def _exported(folder: Path, best: bool, deterministic: bool | None, seed: int) -> ActingPolicy:
    policy = runner.load(folder, seed=seed)
    if best or deterministic not in (None, policy.card["deterministic"]):
        kind = "deterministic" if policy.card["deterministic"] else "sampled"
        raise ConfigError(
            f"{folder} is an export, which holds one policy with {kind} actions: leave best and deterministic out, or "
            "name its run."
        )
    return policy


def policy_of(state: Checkpoint) -> Policy:
    """Makes the policy of a checkpoint, with its weights.

    Raises:
        ConfigError: the checkpoint does not tell the spaces of its simulator, or its policy does not exist here.
    """
    if state.spaces is None:
        raise ConfigError(
            f"{state.path} does not tell the spaces of its simulator, because an earlier version wrote it: resume its "
            "run for an iteration (rlpipe train --resume), whose checkpoint will."
        )
    class_, policy, algorithm = acting_sections(from_yaml(state.meta["config"]))
    with torch.random.fork_rng(devices=[]):  # first weights are drawn, and the caller's numbers stay theirs
        module = make_policy(class_, policy, algorithm, state.spaces)
    module.load_weights(subtree("policy/", state.arrays))
    return module


def card_of(state: Checkpoint, policy: Policy, deterministic: bool | None) -> dict[str, Any]:
    """Returns the facts that ``ActingPolicy`` needs, and where the policy comes from.

    Args:
        state: the checkpoint.
        policy: its policy.
        deterministic: whether it takes its most likely actions; None for what the evaluations of its run did.
    """
    config = from_yaml(state.meta["config"])
    options = acting_sections(config)[1]
    evaluation: Mapping[str, Any] = config.get("evaluation") or {}
    return {
        "spaces": state.meta["spaces"],
        "chunk_size": options.chunk_size,
        "execute": options.steps_per_decision,
        "memory_width": options.memory_width,
        "deterministic": evaluation.get("deterministic", True) if deterministic is None else deterministic,
        "noise": [list(kind) for kind in policy.noise_kinds],
        "entropy": config["runner"]["seed"],
        "policy": options.name,
        "run_id": state.meta["run_id"],
        "iteration": state.meta["iteration"],
    }


def decisions_of(policy: Policy) -> Decide:
    """Returns what decides by a policy in torch."""

    @torch.inference_mode()
    def decide(observations: Any, noise: Any, memories: Any) -> tuple[NDArray[Any], Any]:
        tree = Tree(observations) if isinstance(observations, dict) else observations
        drawn, remembered = (None if array is None else torch.from_numpy(array) for array in (noise, memories))
        decided = in_float32(policy.decide_each, tensors(tree), drawn, remembered)
        return decided.actions.numpy(), None if decided.memories is None else decided.memories.numpy()

    return decide
