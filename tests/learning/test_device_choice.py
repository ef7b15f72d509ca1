"""``learner.device=auto`` takes the device whose gradient steps take less time, and a resumed run keeps it."""

from __future__ import annotations

import pytest
import torch

from rlpipe.learning import base, device_choice
from rlpipe.learning.device_choice import STEPS, choose_device, seconds_of_update, trial_of
from rlpipe.metrics import catalogue as m
from rlpipe.training.first_weights import with_base_policy
from tests.helpers.learners import MAKE, collected, learner_of

KINDS = ["rlpd", "tree, chunks, grpo"]


@pytest.fixture
def timed(monkeypatch):
    """Sets the seconds of an update on each device; more than one can be chosen from."""

    def set_seconds(**seconds):
        monkeypatch.setattr(device_choice, "devices", lambda: list(seconds))
        monkeypatch.setattr(
            device_choice, "seconds_of_update", lambda _make, stages, _trial: seconds[stages[0].config.learner.device]
        )

    return set_seconds


@pytest.mark.parametrize(("on_gpu", "chosen"), [(0.01, "cuda"), (0.25, "cpu")])
def test_the_quicker_device_is_taken_and_told(on_gpu, chosen, timed, tmp_path):
    timed(cuda=on_gpu, cpu=0.1)
    config = MAKE["rlpd"](tmp_path)
    spec, _ = collected(config)
    device, reason = choose_device(lambda _: None, config.schedule, spec, parameters=1000)
    assert device == chosen
    assert reason.startswith(f"The learner takes {chosen} (learner.device=auto): 16 gradient steps took ")
    assert "100 ms on cpu" in reason
    assert ("keeps the GPU that it has reserved" in reason) == (chosen == "cpu")


def test_where_graphs_are_required_the_gpu_is_taken(timed, tmp_path):
    timed(cuda=1.0, cpu=0.1)
    config = MAKE["rlpd"](tmp_path, "learner.graphs=true")
    spec, _ = collected(MAKE["rlpd"](tmp_path))
    assert choose_device(lambda _: None, config.schedule, spec, 1000) == ("cuda", "")


@pytest.mark.parametrize(("name", "parameters"), [("rlpd", 3_000_000), ("cloning", 1000)])
def test_a_large_policy_and_cloning_take_the_gpu_without_a_trial(name, parameters, timed, tmp_path):
    timed(cuda=1.0, cpu=0.1)
    config = MAKE[name](tmp_path)
    spec, _ = collected(config)
    assert choose_device(lambda _: None, config.schedule, spec, parameters) == ("cuda", "")


@pytest.mark.parametrize("name", KINDS)
def test_an_update_of_a_trial_takes_usual_steps_and_few_of_them(name, tmp_path):
    config = MAKE[name](tmp_path, "learner.device=cpu", "learner.num_threads=1")
    spec, _ = collected(config)
    options, batch = trial_of(config, spec)
    taken = []

    class Watched:
        def __init__(self, stages):
            self._learner = learner_of(config, spec).__class__(stages, spec)

        def update(self, *arguments):
            _, window = self._learner.update(*arguments)
            counted = m.GRADIENT_STEPS if m.GRADIENT_STEPS.name in window.states else m.NUM_UPDATES
            taken.append(window.read((counted,))[counted.name])

    assert seconds_of_update(Watched, device_choice.on_device(config.schedule, "cpu", **options), batch) > 0
    assert len(taken) == 5
    assert all(1 <= steps <= 2 * STEPS for steps in taken)


@pytest.mark.parametrize("name", ["rlpd", "tree, ppo"])
def test_a_learner_that_moves_continues_exactly_and_its_checkpoint_names_the_device(name, tmp_path, monkeypatch):
    config = with_base_policy(MAKE[name](tmp_path, "learner.num_threads=1", "rollout.num_workers=1"))
    spec, (first, second) = collected(config)
    usual, moving = learner_of(config, spec), learner_of(config, spec)
    for learner in (usual, moving):
        learner.update(0, 1, *first)
    moving._device = torch.device("meta")  # as if it were another one
    moving._move("cpu")
    for learner in (usual, moving):
        learner.update(0, 2, *second)
    expected, arrays = usual.state(), moving.state()
    assert [name for name in expected if expected[name].tobytes() != arrays[name].tobytes()] == []
    assert not arrays["on_gpu"]
    resumed = learner_of(config, spec)
    monkeypatch.setattr(base, "choose_device", lambda *_: pytest.fail("a resumed learner chooses again"))
    resumed.resume(arrays, tmp_path)
    resumed.update(0, 3, *first)


def test_a_learner_that_moves_before_its_first_update_still_normalises_by_the_demonstrations(tmp_path):
    config = MAKE["rlpd"](
        tmp_path, "learner.num_threads=1", "rollout.num_workers=1", "policy.normalize_observations=true"
    )
    spec, (first, second) = collected(config)
    usual, moving = learner_of(config, spec), learner_of(config, spec)
    moving._device = torch.device("meta")  # as if it were another one
    moving._move("cpu")
    for learner in (usual, moving):
        learner.update(0, 1, *first)
        learner.update(0, 2, *second)
    expected, arrays = usual.state(), moving.state()
    assert [name for name in expected if expected[name].tobytes() != arrays[name].tobytes()] == []
