"""A learner's share of a minibatch may be empty: every policy evaluates, values and normalises no decisions at all."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from rlpipe.plugins import resolve
from rlpipe.trajectory import LeafSpec, SpaceSpec, Tree

BOUND = np.ones(2, dtype=np.float32)
LEAVES = {
    "rgb": LeafSpec((20, 20, 3), "uint8"),
    "state": LeafSpec((2, 2)),
    "kind": LeafSpec((2,), "int64", (3, 2)),
}
SPACES = {
    "vector": SpaceSpec(3, 2, None, -BOUND, BOUND),
    "tree": SpaceSpec.of_tree(LEAVES, 2, None, -BOUND, BOUND),
}
SMALL = {"slot_width": 8, "decoder_heads": 2, "bins": 3}
POLICIES = {
    "mlp": ("mlp", {}),
    "gru": ("gru", {"memory_size": 5}),
    "squashed_gaussian": ("squashed_gaussian", {}),
    "parallel tokens": ("tokens", SMALL),
    "tokens in order": ("tokens", SMALL | {"decoding": "autoregressive"}),
}


def observations(spec, count):
    if spec.leaves is None:
        return torch.randn(count, 3)
    kinds = torch.zeros(count, 2, dtype=torch.int64)
    return Tree({
        "rgb": torch.zeros(count, 20, 20, 3, dtype=torch.uint8), "state": torch.randn(count, 2, 2), "kind": kinds,
    })  # fmt: skip


@pytest.mark.parametrize("chunk_size", [1, 2])
@pytest.mark.parametrize("normalize", [False, True])
@pytest.mark.parametrize("spec", SPACES.values(), ids=SPACES.keys())
@pytest.mark.parametrize(("name", "options"), POLICIES.values(), ids=POLICIES.keys())
def test_no_decisions_have_no_probabilities_and_no_values(name, options, spec, normalize, chunk_size):
    plugin = resolve("policies", name, "policy.name")
    shared = {"hidden_sizes": [8], "normalize_observations": normalize, "chunk_size": chunk_size}
    policy = plugin(plugin.Config(name, **shared, **options), spec.chunked(chunk_size))
    policy.update_normalizer(observations(spec, 4))
    before = policy.weights()
    none = observations(spec, 4)[:0]
    policy.update_normalizer(none)
    actions = torch.zeros(0, 2 * chunk_size)
    steps = (torch.zeros(0, dtype=torch.int64),) if chunk_size > 1 else ()
    log_probs, entropies = policy.evaluate_actions(none, actions, *steps)
    parts = policy.evaluate_parts(none, actions)
    assert [tuple(found.shape) for found in (log_probs, entropies, policy.value(none))] == [(0,)] * 3
    assert [tuple(found.shape) for found in parts] == [(0, chunk_size, 2)] * 2
    (log_probs.sum() + policy.value(none).sum()).backward()
    assert all(np.array_equal(before[key], array) for key, array in policy.weights().items())
