"""The estimate of a learner's memory is what a learner of that configuration then holds."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from rlpipe.collection.worker import RolloutWorker
from rlpipe.learning.base import learner_class
from rlpipe.learning.live_bytes import LiveBytes, held_bytes
from rlpipe.learning.memory import Line, estimated_memory
from rlpipe.trajectory import LeafSpec, SpaceSpec
from rlpipe.trajectory.synthetic import synthetic_batch
from tests.helpers.demonstrations import demonstrator
from tests.helpers.runs import sac, scripted

BOUND = np.ones(2, dtype=np.float32)
VECTOR = SpaceSpec(42, 2, None, -BOUND, BOUND)
CAMERA = SpaceSpec.of_tree({"camera": LeafSpec((32, 32, 3), "uint8")}, 2, None, -BOUND, BOUND)
WIDE = {"name": "mlp", "hidden_sizes": [256, 256]}
FULL = ("rollout.horizon=32", "env.train.total_num_envs=16", "algorithm.num_minibatches=1", "algorithm.update_epochs=1")
IN_PIECES = ("learner.micro_batch=64",)


def truth(config, spec, steps, environments):
    """Most bytes of tensors of a learner that learns from a fragment."""
    batch = synthetic_batch(spec, steps, environments, group_size=config.algorithm.group_size)
    from_host = held_bytes(batch.to(torch.device("cpu")))  # shares the memory of the fragment's arrays
    with LiveBytes() as live:
        learner = learner_class(config)(config.schedule, spec)
        learner.update(0, 1, batch)
    return live.peak + (from_host if config.algorithm_class.shared else 0)


@pytest.mark.parametrize(
    ("policy", "algorithm", "spec", "overrides"),
    [
        (WIDE, {}, VECTOR, IN_PIECES),
        ({**WIDE, "checkpoint_gradients": True}, {}, VECTOR, ()),
        ({"name": "mlp", "hidden_sizes": [8]}, {"kl_control": "fixed"}, CAMERA, ()),
        ({"name": "mlp", "hidden_sizes": [8], "checkpoint_gradients": True}, {}, CAMERA, IN_PIECES),
    ],
    ids=["perceptron, in pieces", "perceptron, checkpointed", "camera, reference", "camera, checkpointed, in pieces"],
)
def test_it_is_the_peak_of_a_learner_of_fresh_trajectories(tmp_path, policy, algorithm, spec, overrides):
    config = scripted(tmp_path, *FULL, *overrides, policy=policy, algorithm={"name": "ppo", **algorithm})
    assert sum(estimated_memory(config, spec).values()) == pytest.approx(truth(config, spec, 32, 16), rel=0.15)


@pytest.mark.parametrize("spec", [VECTOR, CAMERA], ids=["vector", "camera"])
def test_it_is_the_peak_of_a_learner_with_a_replay_buffer(tmp_path, spec):
    config = sac(tmp_path, "algorithm.replay_capacity=20000", "algorithm.update_to_data=0.015625")
    parts = estimated_memory(config, spec)
    assert sum(parts.values()) == pytest.approx(truth(config, spec, 32, 4), rel=0.05)
    row = 4 * (2 * 42 + 2 + 5) if spec is VECTOR else 32 * 32 * 3 + 4 * (2 + 5) + 2 * 8  # of frames and their numbers
    assert parts["replay buffer, 20,000 transitions"] == 20_000 * row


def test_checkpointing_shows(tmp_path):
    def activations(**policy):
        deep = {"name": "mlp", "hidden_sizes": [64] * 6, **policy}
        config = scripted(tmp_path, *FULL, policy=deep)
        return estimated_memory(config, VECTOR)["activations, 512 decisions"]

    assert activations(checkpoint_gradients=True) < 0.7 * activations()


def test_cloning_counts_its_demonstrations(tmp_path):
    algorithm = {"name": "behaviour_cloning", "batch_size": 16}
    config = scripted(tmp_path, demos=demonstrator(tmp_path), algorithm=algorithm)
    parts = estimated_memory(config, RolloutWorker(config.schedule, 0, 1).ready().spec)
    assert list(parts)[-1] == "activations, 16 steps"
    (name,) = (name for name in parts if name.startswith("demonstrations"))
    assert parts[name] > 0


def test_a_line_goes_through_its_points():
    assert Line.through((2, 30), (4, 50)).at(10) == 10 + 10 * 10


# --- counting


def test_storages_count_once_and_only_as_long_as_they_exist():
    with LiveBytes() as live:
        ones = torch.ones(256)  # 1 KiB
        view = ones[:8]
        twice = ones + ones
        twice.neg_()
        del ones, twice
    assert (live.live, live.peak) == (1024, 2048)
    assert len(view) == 8


def test_what_was_there_before_does_not_count():
    ones = torch.ones(256)
    with LiveBytes() as live:
        ones.add_(1)
        twice = 2 * ones
    assert (live.live, live.peak, len(twice)) == (1024, 1024, 256)


def test_complete_gradients_can_be_left_out():
    network = nn.Linear(64, 64, bias=False)
    with LiveBytes(network.parameters()) as live:
        gradients = torch.autograd.grad(network(torch.ones(1, 64)).sum(), list(network.parameters()))
    assert live.live < gradients[0].nbytes


def test_held_bytes_are_those_of_all_tensors_in_an_object():
    class Holder:
        def __init__(self):
            self.parts = {"first": [torch.ones(256)], "second": (torch.ones(256),)}
            self.view = self.parts["first"][0][:3]

    assert held_bytes(Holder()) == 2048
