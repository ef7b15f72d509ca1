"""Weights as NumPy arrays: exact in every type, also in those that NumPy does not have."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from rlpipe.errors import ConfigError
from rlpipe.policies.base import Policy, to_array, to_tensor
from rlpipe.policies.mlp import MLPConfig, MLPPolicy
from rlpipe.run import checkpoint
from rlpipe.trajectory import SpaceSpec

ONE = np.ones(1, dtype=np.float32)


def made(dtype=torch.float32) -> Policy:
    torch.manual_seed(0)
    return MLPPolicy(MLPConfig("mlp", hidden_sizes=[4]), SpaceSpec(2, 1, None, -ONE, ONE)).to(dtype)


def test_every_bit_pattern_of_bfloat16_survives():
    every = torch.arange(-(2**15), 2**15, dtype=torch.int16).view(torch.bfloat16)
    array = to_array(every)
    assert array.dtype == np.uint16
    again = to_tensor(array, torch.bfloat16)
    assert torch.equal(every.view(torch.int16), again.view(torch.int16))  # NaN included


def test_a_checkpoint_keeps_bfloat16_weights_to_the_last_bit(tmp_path):
    policy = made(torch.bfloat16)
    arrays = {f"policy/{name}": array for name, array in policy.weights().items()} | {"version": np.array(1)}
    meta = {"iteration": 1, "config": "{}", "run_id": "a", "metrics": {}}
    kept = checkpoint.load(checkpoint.save(tmp_path, arrays, meta)).arrays
    other = made(torch.bfloat16)
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.zero_()
    other.load_weights(checkpoint.subtree("policy/", kept))
    for name, tensor in policy.state_dict().items():
        assert torch.equal(tensor, other.state_dict()[name])


def test_weights_of_bfloat16_fit_a_policy_of_float32():
    half, whole = made(torch.bfloat16), made()
    whole.load_weights(half.weights())
    for name, tensor in half.state_dict().items():
        assert torch.equal(tensor.float(), whole.state_dict()[name])


def test_weights_of_a_policy_made_from_other_files_are_refused():
    one, other = made(), made()
    one.files_digest, other.files_digest = b"\1" * 32, b"\2" * 32
    other.load_weights(other.weights())
    with pytest.raises(ConfigError, match=r"SHA-256 0101010101010101\.\.\., but the files on .* have 0202"):
        other.load_weights(one.weights())
