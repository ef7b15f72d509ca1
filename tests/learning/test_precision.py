"""``learner.precision``: set on purpose for each value, refused where it cannot be, and a note where it cannot pay."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import rlpipe
from rlpipe.errors import ConfigError
from rlpipe.learning.base import learner_class
from rlpipe.learning.precision import precision_notes, set_precision
from rlpipe.trajectory import LeafSpec, SpaceSpec
from rlpipe.trajectory.synthetic import synthetic_batch
from tests.helpers.runs import lines, sac, scripted

CPU, CUDA = torch.device("cpu"), torch.device("cuda")
VECTOR = SpaceSpec(3, 2, None, -np.ones(2, np.float32), np.ones(2, np.float32))
CAMERA = SpaceSpec.of_tree({"camera": LeafSpec((64, 64, 3), "uint8")}, 2)
LARGE = ("rollout.horizon=4096", "algorithm.num_minibatches=4")
"""With four environments, minibatches of 4,096 rows."""


@pytest.fixture(autouse=True)
def exact_products():
    yield
    torch.set_float32_matmul_precision("highest")


@pytest.mark.parametrize(
    ("precision", "device", "setting"),
    [("float32", CUDA, "highest"), ("tf32", CUDA, "high"), ("bfloat16", CUDA, "highest"), ("tf32", CPU, "highest")],
)
def test_each_value_sets_how_float32_is_multiplied_whatever_was_set_before(precision, device, setting):
    torch.set_float32_matmul_precision("medium")
    set_precision(precision, device)
    assert torch.get_float32_matmul_precision() == setting


@pytest.mark.parametrize("make", [scripted, sac])
def test_every_algorithm_takes_tf32(tmp_path, make):
    config = make(tmp_path, "learner.precision=tf32")
    learner_class(config)(config.schedule, VECTOR)


def test_every_update_sets_it_again_because_other_learners_share_the_process(tmp_path):
    config = scripted(tmp_path)
    learner = learner_class(config)(config.schedule, VECTOR)
    torch.set_float32_matmul_precision("high")
    learner.update(0, 1, synthetic_batch(VECTOR, 16, 4))
    assert torch.get_float32_matmul_precision() == "highest"


def test_tf32_on_a_cpu_is_refused(tmp_path):
    with pytest.raises(ConfigError, match=r"learner.precision is tf32.* but learner.device is cpu"):
        scripted(tmp_path, "learner.precision=tf32", "learner.device=cpu")


def test_bfloat16_is_refused_where_the_algorithm_learns_in_float32(tmp_path):
    with pytest.raises(ConfigError, match=r"algorithm.name=sac learns in float32: set learner.precision=tf32"):
        sac(tmp_path, "learner.precision=bfloat16")


@pytest.mark.skipif(torch.cuda.is_available(), reason="the learner finds a GPU")
def test_a_run_says_that_tf32_has_no_effect_without_a_gpu(tmp_path):
    result = rlpipe.train(scripted(tmp_path, "learner.precision=tf32"), local=True)
    (note,) = (event["message"] for event in lines(result.directory, "events.jsonl") if "tf32" in event["message"])
    assert note == "learner.precision is tf32, which has no effect: the learner is on a CPU and computes in float32."


@pytest.mark.parametrize(
    ("overrides", "parameters", "spec", "warned"),
    [
        (LARGE, 2_999_999, VECTOR, True),
        (LARGE, 3_000_000, VECTOR, False),
        (("algorithm.num_minibatches=4",), 3_000_000, VECTOR, True),  # 16 rows
        ((), 1000, CAMERA, False),  # every pixel is a row
    ],
)
def test_bfloat16_is_noted_where_it_cannot_pay(tmp_path, overrides, parameters, spec, warned):
    config = scripted(tmp_path, "learner.precision=bfloat16", *overrides)
    notes = precision_notes(config, CUDA, spec, parameters)
    assert bool(notes) == warned
    assert all(f"{parameters:,} parameters" in note and "learner.precision=tf32" in note for note in notes)
