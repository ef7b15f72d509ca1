"""Between the batch and the metrics' copy, nothing of an update makes the host wait for the device."""

from __future__ import annotations

import functools
from dataclasses import replace

import numpy as np
import pytest
import torch

from rlpipe.collection.worker import RolloutWorker
from rlpipe.functional.aggregation import trajectory_sums
from rlpipe.learning.base import learner_class
from rlpipe.metrics.on_device import DeviceObservations
from rlpipe.policies.base import NoWeights, Snapshot
from rlpipe.trajectory.batch import TrajectoryBatch
from tests.helpers.host_reads import forbidden_host_reads
from tests.helpers.kinds import CHUNK, GRPO, PERCEPTRON, PPO, TOKENS, Kind

BY_ACTION = {"logprob_level": "action", "entropy_level": "action"}
BY_TOKEN = {"logprob_level": "token", "entropy_level": "token"}
CHUNKS = {**PERCEPTRON, "chunk_size": CHUNK}
KINDS = {
    "ppo": Kind("Reach", {**PPO, "value_clip": 0.2}, {**PERCEPTRON, "normalize_observations": True}),
    "ppo, reference": Kind("Reach", {**PPO, "kl_control": "fixed"}, PERCEPTRON),
    "ppo, chunks": Kind("Reach", {**PPO, **BY_ACTION, "reward_level": "action"}, CHUNKS),
    "ppo, tokens": Kind("Reach", {**PPO, **BY_TOKEN}, TOKENS),
    "grpo": Kind("Reach", {**GRPO, "loss_aggregation": "trajectory"}, PERCEPTRON),
    "grpo, filtered, reference": Kind("Reach", {**GRPO, "filter_groups": True, "kl_beta": 0.1}, PERCEPTRON),
    "grpo, chunks": Kind("Reach", {**GRPO, **BY_ACTION}, CHUNKS),
    "grpo, tokens": Kind("Reach", {**GRPO, **BY_TOKEN}, TOKENS),
}


def without_reads(method, but_in=()):
    """A function that may not read anything on the host."""

    @functools.wraps(method)
    def inside(*args):
        with forbidden_host_reads(but_in):
            return method(*args)

    return inside


def with_a_gap(batch: TrajectoryBatch, version: int) -> TrajectoryBatch:
    """The batch as if one environment had only been reset at one step; weights of a version acted."""
    valid, num_steps = batch.valid.copy(), None if batch.num_steps is None else batch.num_steps.copy()
    valid[1, 0] = False
    if num_steps is not None:
        num_steps[1, 0] = 0
    return replace(batch, valid=valid, num_steps=num_steps, policy_version=version)


@pytest.mark.parametrize("kind", KINDS)
def test_preparing_and_measuring_an_update_reads_nothing(kind, tmp_path, monkeypatch):
    config = KINDS[kind].config(tmp_path, "runner.total_timesteps=1024")
    workers = [RolloutWorker(config.schedule, rank, 1) for rank in range(2)]
    learner = learner_class(config)(config.schedule, workers[0].ready().spec)
    but_in = ["_check"] if kind.startswith("grpo") else []  # its one read: whether episodes are whole and comparable
    for name in ("prepare", "measure"):
        monkeypatch.setattr(learner._algorithm, name, without_reads(getattr(learner._algorithm, name), but_in))
    for name in ("add", "add_update"):
        monkeypatch.setattr(DeviceObservations, name, without_reads(getattr(DeviceObservations, name)))
    batches = [worker.collect(Snapshot(0, NoWeights.FROM_SEED), 0)[0] for worker in workers]
    whole, with_gaps = batches, [with_a_gap(batch, version) for batch, version in zip(batches, (1, 2), strict=True)]
    learner.update(0, 1, *whole)
    learner.update(0, 2, *whole)  # all decisions are one version old
    learner.update(0, 3, *with_gaps)  # half of them are


X = torch.tensor([1.0, -2.0, 3.0])


@pytest.mark.parametrize(
    ("operation", "name"),
    [
        (lambda: float(X.sum()), "_local_scalar_dense reads a number"),
        (lambda: 1 if (X > 0).any() else 0, "_local_scalar_dense|is_nonzero"),
        (lambda: X.tolist(), "tolist copies numbers to the host"),
        (lambda: X.cpu(), "cpu"),
        (lambda: np.asarray(X), "__array__"),
        (lambda: X[X > 0], "index selects by a mask"),
        (lambda: X.clone().__setitem__(X > 0, X[:2]), "index_put_ selects by a mask"),
        (lambda: (X > 0).nonzero(), "nonzero makes a tensor of a shape"),
        (lambda: torch.unique(X), "_unique2"),
        (lambda: torch.bincount((X > 0).long()), "bincount"),
        (lambda: torch.equal(X, X), "equal"),
        (lambda: X.repeat_interleave((X > 0).long()), "repeat_interleave"),
        (lambda: X.new_tensor([1.0]), "lift_fresh makes a tensor of a number of the host"),
    ],
)
def test_what_would_wait_for_a_device_is_refused_by_name(operation, name):
    with pytest.raises(AssertionError, match=f"^({name}).*, outside of rlpipe"), forbidden_host_reads():
        operation()


def test_the_line_of_rlpipe_that_reads_is_named():
    with forbidden_host_reads():
        trajectory_sums(X, torch.arange(3), 3)
        with pytest.raises(
            AssertionError, match=r"_unique2 .* in rlpipe/functional/aggregation.py:\d+: .*torch.unique"
        ):
            trajectory_sums(X, torch.arange(3))


def test_what_needs_no_values_on_the_host_passes():
    with forbidden_host_reads():
        assert len(X[torch.arange(2)]) == 2
        torch.where(X > 0, X, 0.0)[1:].cumsum(0)
