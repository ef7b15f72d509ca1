"""A learner learns the same on a GPU as on the CPU, and each continues what the other began."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import rlpipe
from rlpipe.metrics import CATALOGUE
from rlpipe.training.first_weights import with_base_policy
from tests.helpers.learners import MAKE, STEP, collected, learner_of
from tests.helpers.runs import lines

NEEDS_GPU = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


@pytest.fixture(params=MAKE)
def make(request, tmp_path):
    """Returns a configuration of one kind, given overrides."""
    return lambda *overrides: with_base_policy(
        MAKE[request.param](tmp_path, f"learner.lr={STEP}", "rollout.num_workers=1", *overrides)
    )


def numbers(window):
    return {
        name: value
        for name, value in window.read(tuple(CATALOGUE.values())).items()
        if not name.startswith("time/") and "grad_norm" not in name
    }


@NEEDS_GPU
def test_the_device_changes_what_is_learnt_by_rounding_alone(make):
    configs = [make(f"learner.device={name}") for name in ("cpu", "cuda")]
    spec, iterations = collected(configs[0])
    here, there = (learner_of(config, spec) for config in configs)
    for number, batches in enumerate(iterations, 1):
        expected, found = (each.update(0, number, *batches)[1] for each in (here, there))
        assert numbers(found) == pytest.approx(numbers(expected), rel=0.01, abs=0.01, nan_ok=True)
    weights = there.snapshot().weights
    for name, array in here.snapshot().weights.items():
        np.testing.assert_allclose(weights[name], array, rtol=1e-3, atol=10 * STEP, err_msg=name)


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=NEEDS_GPU)])
def test_the_state_of_one_device_continues_on_the_other(make, device):
    configs = [make(f"learner.device={name}") for name in ("cpu", device)]
    spec, (first, second) = collected(configs[0])
    began, continues = learner_of(configs[1], spec), learner_of(configs[0], spec)
    began.update(0, 1, *first)
    continues.load_state(began.state())
    saved, loaded = began.state(), continues.state()
    assert saved.keys() == loaded.keys()
    for name, array in saved.items():
        np.testing.assert_array_equal(loaded[name], array, err_msg=name)
    found, expected = (each.update(0, 2, *second)[1] for each in (began, continues))
    assert numbers(found) == pytest.approx(numbers(expected), rel=0.01, abs=0.01, nan_ok=True)


@NEEDS_GPU
@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_a_run_on_a_gpu_trains_resumes_and_is_evaluated(make, precision, tmp_path):
    overrides = ["learner.device=cuda", "runner.save_interval=1"]
    config = make(*overrides)
    if precision == "bfloat16":
        if not config.algorithm_class.staged:
            pytest.skip("learns in float32")
        config = make(*overrides, f"learner.precision={precision}")
    run = rlpipe.train(config, local=True).directory
    rows = lines(run, "metrics.jsonl")
    sorted((run / "checkpoints").glob("iteration-*.npz"))[-1].unlink()
    rlpipe.train(config, resume=run, local=True)
    assert [row["iteration"] for row in lines(run, "metrics.jsonl")] == [row["iteration"] for row in rows]
    assert rlpipe.evaluate(run, episodes=2, local=True).metrics["eval/num_trajectories"] == 2
