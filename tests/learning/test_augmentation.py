"""Random shifts in learning, and encoders that actor and critic share."""

from __future__ import annotations

import shutil

import numpy as np
import pytest
import torch

import rlpipe
from rlpipe.algorithms.sac import SAC
from rlpipe.algorithms.shared.off_policy import Transitions
from rlpipe.config.loading import load_config
from rlpipe.errors import ConfigError
from rlpipe.learning.augmentation import RandomShift
from rlpipe.learning.off_policy import OffPolicyLearner
from rlpipe.policies.base import build_policy
from rlpipe.trajectory import LeafSpec, SpaceSpec, Tree
from tests.helpers.learners import collected, learner_of
from tests.helpers.runs import lines, sac, scripted, without_timings

CPU = torch.device("cpu")
LEAVES = {"rgb": LeafSpec((20, 20, 3), "uint8"), "depth": LeafSpec((20, 20, 1), "int16"), "state": LeafSpec((2,))}
LOW, HIGH = -torch.ones(1).numpy(), torch.ones(1).numpy()
SPEC = SpaceSpec.of_tree(LEAVES, 1, None, LOW, HIGH)
ENV = {"train": {"name": "gymnasium", "id": "tests.helpers.gym_trees:Signs-v0", "total_num_envs": 4}}
FEW_STEPS = ("algorithm.update_to_data=0.125", "evaluation.episodes=1")


def seen(count=4):
    columns = torch.arange(20).expand(count, 20, 20)
    return Tree({
        "rgb": columns[..., None].repeat(1, 1, 1, 3).to(torch.uint8),
        "depth": columns[..., None].to(torch.int16),
        "state": torch.arange(2.0 * count).reshape(count, 2),
    })  # fmt: skip


def moved(observations):
    shift = RandomShift(4, SPEC, torch.Generator().manual_seed(1))
    return shift(observations, shift.draw(len(observations)))


def test_all_images_of_an_observation_move_alike_and_nothing_else_does():
    before = seen()
    after = moved(before)
    assert torch.equal(after["rgb"][..., :1].short(), after["depth"])
    assert not torch.equal(after["depth"], before["depth"])
    assert torch.equal(after["state"], before["state"])
    assert torch.equal(moved(before)["rgb"], after["rgb"])


@pytest.mark.parametrize(("pixels", "spec"), [(0, SPEC), (4, SpaceSpec(2, 1))])
def test_without_a_shift_or_images_no_random_number_is_drawn(pixels, spec):
    generator = torch.Generator().manual_seed(1)
    state = generator.get_state()
    observations = seen() if spec is SPEC else torch.zeros(4, 2)
    shift = RandomShift(pixels, spec, generator)
    assert shift(observations, shift.draw(4)) is observations
    assert torch.equal(generator.get_state(), state)


VECTORS = SpaceSpec.of_tree({"state": LeafSpec((2,))}, 1, None, LOW, HIGH)


@pytest.mark.parametrize(
    ("spec", "found"),
    [(SpaceSpec(2, 1, None, LOW, HIGH), "the observation is one vector"), (VECTORS, "has no image, only state")],
)
def test_a_shift_without_an_image_is_an_error(spec, found, tmp_path):
    with pytest.raises(ConfigError, match=rf"algorithm\.random_shift is 4, .* {found}.* set algorithm\.random_shift=0"):
        OffPolicyLearner(sac(tmp_path, "algorithm.random_shift=4").schedule, spec)


@pytest.mark.parametrize("override", ["algorithm.random_shift=4", "policy.shared_encoder=true"])
def test_options_of_images_are_refused_before_anything_starts_where_spaces_are_known(override, tmp_path):
    env = {"train": {"name": "gymnasium", "id": "Pendulum-v1", "total_num_envs": 4}}
    with pytest.raises(ConfigError, match=override.replace("=", " is ")):
        rlpipe.train(sac(tmp_path, override, env=env), local=True)
    assert not any(tmp_path.iterdir())


# --- shared encoders


def begun(tmp_path, *overrides):
    """A policy, and soft actor-critic that has begun to learn it."""
    config = sac(tmp_path, "policy.shared_encoder=true", "algorithm.actor_interval=1", *overrides)
    policy = build_policy(config, SPEC)
    algorithm = SAC(config.algorithm)
    algorithm.begin(policy, SPEC, CPU, torch.Generator().manual_seed(0))
    algorithm.set_optimisation(1e-2, 1e-2, 1e-8, None)
    return policy, algorithm


def encoder(policy):
    return torch.cat([weight.detach().flatten().clone() for weight in policy.actor_features.parameters()])


def batch(algorithm):
    ones = torch.ones(4)
    numbers = (torch.zeros(4, 1), ones, 0.5 * ones, 0 * ones, 0 * ones)
    return Transitions(seen(), seen(), *numbers, drawn=algorithm.draw(4))


def test_the_critics_loss_trains_a_shared_encoder_and_the_actors_does_not(tmp_path):
    policy, algorithm = begun(tmp_path)
    assert algorithm._critics.features is policy.actor_features
    first = encoder(policy)
    algorithm._step_actor(batch(algorithm))
    assert torch.equal(encoder(policy), first)
    algorithm._step_critics(batch(algorithm))
    assert not torch.equal(encoder(policy), first)
    held = {id(weight) for weight in policy.actor_parameters()}
    assert not held & {id(weight) for weight in algorithm._critics.parameters()}


def test_targets_follow_a_shared_encoder_slowly(tmp_path):
    policy, algorithm = begun(tmp_path, "algorithm.target_rate=0.5")
    before = encoder(policy)
    algorithm._step_critics(batch(algorithm))
    target = torch.cat([weight.detach().flatten() for weight in algorithm._targets.features.parameters()])
    assert torch.allclose(target, 0.5 * before + 0.5 * encoder(policy), atol=1e-6)


@pytest.mark.parametrize("shared", ["true", "false"])
def test_targets_begin_with_the_encoder_of_a_warm_start(shared, tmp_path):
    config = sac(tmp_path, f"policy.shared_encoder={shared}")
    learner = OffPolicyLearner(config.schedule, SPEC)
    critics, targets = learner._algorithm._critics, learner._algorithm._targets
    others = build_policy(sac(tmp_path, f"policy.shared_encoder={shared}", "runner.seed=5"), SPEC)
    first = {name: weight.clone() for name, weight in critics.state_dict().items()}
    learner.begin_with(others.weights())
    for name, weight in critics.state_dict().items():
        assert torch.equal(targets.state_dict()[name], weight)
    assert any(not torch.equal(first[name], weight) for name, weight in critics.state_dict().items()) == (
        shared == "true"
    )


def test_a_policy_with_one_encoder_for_both_is_smaller(tmp_path):
    one, two = (build_policy(scripted(tmp_path, f"policy.shared_encoder={value}"), SPEC) for value in ("true", "false"))
    ours, theirs = ({id(weight) for weight in weights} for weights in (one.actor_parameters(), one.critic_parameters()))
    assert not ours & theirs
    assert sum(weight.size for weight in one.weights().values()) < sum(weight.size for weight in two.weights().values())
    assert one.value(seen()).requires_grad


def test_actor_and_critic_cannot_share_the_encoder_of_different_leaves(tmp_path):
    with pytest.raises(ConfigError, match=r"policy\.shared_encoder is true, but .* differ"):
        scripted(tmp_path, "policy.shared_encoder=true", "policy.critic_observations=[state]")


# --- whole runs


def test_a_run_with_shared_encoders_continues_after_a_resume(tmp_path):
    options = ("policy.shared_encoder=true", "runner.total_timesteps=192", "runner.save_interval=1", *FEW_STEPS)
    run = rlpipe.train(sac(tmp_path, *options, "algorithm.random_shift=2", env=ENV), local=True).directory
    whole = shutil.copytree(run, tmp_path / "whole")
    (run / "checkpoints" / "iteration-000003.npz").unlink()
    rlpipe.train(load_config(run / "config.yaml"), resume=run, local=True)
    assert [row["iteration"] for row in lines(run, "metrics.jsonl")] == [1, 2, 3]
    assert without_timings(run)[:2] == without_timings(whole)[:2]


# --- what is learnt


def test_shifts_change_what_is_learnt_and_are_the_same_for_the_same_seed(tmp_path):
    def learnt(pixels):
        config = sac(tmp_path, f"algorithm.random_shift={pixels}", *FEW_STEPS, env=ENV)
        spec, ((fragment,),) = collected(config, 1)
        return learner_of(config, spec).update(0, 1, fragment)[0].weights

    def equal(one, other):
        return all(np.array_equal(array, other[name]) for name, array in one.items())

    shifted = learnt(3)
    assert equal(shifted, learnt(3))
    assert not equal(shifted, learnt(0))
