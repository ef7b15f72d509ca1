"""``policy.checkpoint_gradients``: the same gradients from fewer bytes."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from torch import nn

from rlpipe.algorithms.sac import Ensemble
from rlpipe.config.loading import load_config
from rlpipe.errors import ConfigError
from rlpipe.policies.base import build_policy
from rlpipe.policies.shared.recomputation import is_recomputed, recompute
from rlpipe.trajectory import LeafSpec, SpaceSpec
from rlpipe.trajectory.synthetic import synthetic_actions, synthetic_observations
from rlpipe.trajectory.tree import tensors
from tests.helpers.runs import scripted

BOUND = np.ones(2, dtype=np.float32)
VECTOR = SpaceSpec(3, 2, None, -BOUND, BOUND)
CAMERA = SpaceSpec.of_tree({"camera": LeafSpec((24, 24, 3), "uint8"), "state": LeafSpec((4,))}, 2, None, -BOUND, BOUND)
POLICIES = {
    "perceptron": ({"name": "mlp", "hidden_sizes": [32, 32, 32]}, VECTOR),
    "camera": ({"name": "mlp", "hidden_sizes": [8], "encoders": {"camera": {"name": "drq_cnn"}}}, CAMERA),
    "shared encoder": (
        {"name": "squashed_gaussian", "hidden_sizes": [8], "shared_encoder": True,
         "encoders": {"camera": {"name": "impala_cnn"}}},
        CAMERA,
    ),
    "memory": ({"name": "gru", "hidden_sizes": [8], "encoders": {"camera": {"name": "drq_cnn"}}}, CAMERA),
    "decoded tokens": (
        {"name": "tokens", "hidden_sizes": [8], "bins": 4, "slot_width": 8, "decoding": "autoregressive"}, VECTOR,
    ),
}  # fmt: skip


def make(kind, checkpoint_gradients):
    options, spec = POLICIES[kind]
    config = scripted("runs", policy={**options, "checkpoint_gradients": checkpoint_gradients})
    return build_policy(config, spec), spec


def gradients(policy, spec, rows=8):
    """Gradients of a loss of actor and critic, and the bytes that were saved for them."""
    generator = np.random.default_rng(0)
    observations = tensors(synthetic_observations(spec, generator, rows))
    actions = torch.from_numpy(synthetic_actions(spec, generator, rows)[0])
    storages = {}

    def save(tensor):
        storages[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(save, lambda tensor: tensor):
        log_probs, entropy = policy.evaluate_actions(observations, actions)
        loss = (log_probs + entropy + policy.value(observations)).square().mean()
    return torch.autograd.grad(loss, list(policy.parameters())), sum(storages.values())


@pytest.mark.parametrize("kind", POLICIES)
def test_gradients_are_the_same_and_fewer_bytes_are_saved(kind):
    (expected, before), (recomputed, after) = (gradients(*make(kind, again)) for again in (False, True))
    for one, other in zip(expected, recomputed, strict=True):
        torch.testing.assert_close(one, other)
    assert after < 0.7 * before


def test_the_saved_bytes_of_a_perceptron_do_not_grow_with_its_hidden_layers():
    def per_row(hidden):
        options = {"name": "mlp", "hidden_sizes": hidden, "checkpoint_gradients": True}
        policy = build_policy(scripted("runs", policy=options), VECTOR)
        return gradients(policy, VECTOR, 16)[1] - gradients(policy, VECTOR, 8)[1]

    assert per_row([64]) == per_row([64, 64, 64])


def test_without_it_nothing_is_computed_again():
    policy, _ = make("camera", False)
    assert not any(map(is_recomputed, policy.modules()))


def test_a_copy_computes_with_weights_of_its_own():
    policy, spec = make("camera", True)
    copied = copy.deepcopy(policy)
    before = gradients(policy, spec)[0]
    with torch.no_grad():
        for parameter in copied.parameters():
            parameter.zero_()
    assert all(map(torch.equal, before, gradients(policy, spec)[0]))
    assert gradients(copied, spec)[0][-1] != before[-1]


def test_weights_have_the_same_names_and_first_values():
    plain, again = (make("decoded tokens", value)[0].weights() for value in (False, True))
    assert plain.keys() == again.keys()
    assert all((plain[name] == again[name]).all() for name in plain)


def test_encoders_of_critics_outside_the_policy_are_computed_again_too():
    options = {"name": "squashed_gaussian", "hidden_sizes": [8], "checkpoint_gradients": True}
    policy = build_policy(scripted("runs", policy=options), CAMERA)
    critics = Ensemble(2, policy.make_critic_features(CAMERA), 2, [8])
    assert any(map(is_recomputed, critics.modules()))


def test_dropout_draws_the_same_numbers_again():
    module = nn.Sequential(nn.Linear(4, 64), nn.Dropout(0.5), nn.Linear(64, 1))
    x = torch.ones(8, 4)
    torch.manual_seed(1)
    expected = torch.autograd.grad(module(x).sum(), module[2].weight)[0]
    recompute([module])
    torch.manual_seed(1)
    assert torch.equal(torch.autograd.grad(module(x).sum(), module[2].weight)[0], expected)


def test_a_policy_that_does_not_say_what_to_compute_again_is_refused():
    with pytest.raises(ConfigError, match="has no recomputed_modules"):
        load_config({
            "env": {"train": {"name": "scripted"}},
            "policy": {"name": "tests.helpers.policies:Plain", "checkpoint_gradients": True},
        })  # fmt: skip
