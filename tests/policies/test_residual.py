"""A residual policy: bounded corrections of a base that stays as it is and travels with the weights."""

from __future__ import annotations

import shutil
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.distributions import Normal, TanhTransform, TransformedDistribution

import rlpipe
from rlpipe.distributed.submission import _needed_files
from rlpipe.errors import ConfigError
from rlpipe.policies.residual import ResidualConfig, ResidualPolicy
from rlpipe.run import checkpoint
from rlpipe.training.first_weights import with_base_policy
from rlpipe.trajectory import LeafSpec, SpaceSpec, Tree
from tests.helpers.demonstrations import demonstrator
from tests.helpers.runs import lines, sac, scripted

LOW, HIGH = np.array([-1.0, 0.0], np.float32), np.array([1.0, 4.0], np.float32)
HALF_RANGE = torch.tensor([1.0, 2.0])
VECTOR = SpaceSpec(3, 2, None, LOW, HIGH)
WIDE = SpaceSpec(3, 2, None, 9 * -np.ones(2, np.float32), 9 * np.ones(2, np.float32))
TREE = SpaceSpec.of_tree({"a": LeafSpec((2,)), "b": LeafSpec((1,), "int64", (3,))}, 2, None, LOW, HIGH)
BASES = {
    "mlp": {"name": "mlp", "hidden_sizes": [4]},
    "mlp, own normalisation": {"name": "mlp", "hidden_sizes": [4], "normalize_observations": True},
    "squashed_gaussian": {"name": "squashed_gaussian", "hidden_sizes": [4]},
    "tokens": {"name": "tokens", "hidden_sizes": [4], "bins": 5, "slot_width": 4},
}


def residual(spec=VECTOR, base="mlp", size=1, gain=1.0, **options) -> ResidualPolicy:
    """A policy whose weights follow from a seed; a large gain takes the base's actions beyond their bounds."""
    torch.manual_seed(0)
    options = {"hidden_sizes": [8], "progressive_exploration": 0, "chunk_size": size, **options}
    base_policy = {**BASES[base], "chunk_size": size}
    policy = ResidualPolicy(
        ResidualConfig("residual", base="a", base_policy=base_policy, **options), spec.chunked(size)
    )
    with torch.no_grad():
        for parameter in policy.parameters():
            parameter.copy_(gain * torch.randn_like(parameter))
    return policy


def seen(spec=VECTOR, count=6):
    generator = torch.Generator().manual_seed(1)
    if spec.leaves is None:
        return torch.randn(count, 3, generator=generator)
    choices = torch.randint(3, (count, 1), generator=generator)
    return Tree({"a": torch.randn(count, 2, generator=generator), "b": choices})


def drawn(width, count=6):
    return torch.randn(count, width, generator=torch.Generator().manual_seed(2))


# --- one decision


@pytest.mark.parametrize("base", BASES)
@pytest.mark.parametrize(("spec", "size"), [(VECTOR, 1), (VECTOR, 3), (TREE, 2)])
def test_without_a_correction_it_acts_as_its_base_to_the_last_bit(base, spec, size):
    policy = residual(spec, base, size)
    with torch.no_grad():
        policy.actor[-1].weight.zero_()
        policy.actor[-1].bias.zero_()
    likely = policy.base.act(seen(spec), None)[0]
    low, high = (torch.from_numpy(np.tile(bound, size)) for bound in (LOW, HIGH))
    assert torch.equal(policy.act(seen(spec), None)[0], torch.minimum(torch.maximum(likely, low), high))


@given(st.floats(0.01, 2.0), st.floats(0.1, 4.0), st.integers(1, 3), st.integers(0, 99))
def test_actions_keep_to_the_bounds_and_to_the_scale_around_the_base(scale, gain, size, seed):
    policy = residual(size=size, gain=gain, residual_scale=scale)
    noise = 3.0 * torch.randn(6, 2 * size, generator=torch.Generator().manual_seed(seed))
    sampled, _, likely = policy.act_and_mode(seen(), noise)
    base = policy.base_actions(seen())
    for actions in (sampled, likely):
        assert (torch.from_numpy(np.tile(LOW, size)) <= actions).all()
        assert (actions <= torch.from_numpy(np.tile(HIGH, size))).all()
        assert ((actions - base).abs() <= scale * HALF_RANGE.repeat(size) + 1e-5).all()


@pytest.mark.parametrize("scale", [0.1, 0.5])
def test_the_density_is_that_of_the_correction_whatever_its_scale(scale):
    policy = residual(WIDE, residual_scale=scale, gain=0.3)
    base, mean, log_std = policy._decided(seen())
    actions, log_probs = policy.act(seen(), drawn(2))
    assert actions.abs().max() < 9  # none is clipped
    corrections = (actions - base) / (scale * 9)
    expected = TransformedDistribution(Normal(mean, log_std.exp()), [TanhTransform()]).log_prob(corrections)
    assert torch.allclose(log_probs, expected.sum(-1), atol=1e-3)
    assert torch.allclose(policy.evaluate_actions(seen(), actions)[0], log_probs, atol=1e-3)


def test_a_number_with_equal_bounds_is_not_corrected():
    policy = residual(SpaceSpec(3, 2, None, np.array([-1, 2], np.float32), np.array([1, 2], np.float32)))
    actions, log_probs = policy.act(seen(), drawn(2))
    assert (actions[:, 1] == 2).all()
    evaluated = policy.evaluate_actions(seen(), actions)[0]
    gradients = torch.autograd.grad((log_probs + evaluated).sum(), policy.actor.parameters())
    assert all(found.isfinite().all() for found in (log_probs, evaluated, *gradients))


def test_the_density_integrates_to_one():
    policy = residual(SpaceSpec(3, 1, None, WIDE.action_low[:1], WIDE.action_high[:1]), gain=0.3)
    one, count = seen(count=1), 20_001
    base = policy.base_actions(one)
    corrections = torch.linspace(-0.99999, 0.99999, count)[:, None]
    densities = policy.evaluate_actions(one.expand(count, -1), base + policy.reach * corrections)[0].exp()
    assert torch.trapezoid(densities, corrections[:, 0]).item() == pytest.approx(1.0, abs=1e-3)


def test_each_action_of_a_chunk_has_a_density_of_its_own():
    policy = residual(size=3)
    log_probs = policy.act(seen(), drawn(6))[1]
    assert log_probs.shape == (6, 3)
    assert torch.equal(policy.act_and_mode(seen(), drawn(6))[1], log_probs)


def test_gradients_reach_the_correction_and_not_the_base():
    policy = residual()
    actions, log_probs = policy.act(seen(), drawn(2))
    (actions.sum() + log_probs.sum()).backward()
    assert all(parameter.grad is not None for parameter in policy.actor_parameters())
    assert all(parameter.grad is None and not parameter.requires_grad for parameter in policy.base.parameters())
    assert not {*policy.base.parameters()} & {*policy.actor_parameters(), *policy.critic_parameters()}


# --- progressive exploration


def test_the_share_of_corrected_decisions_rises_with_the_steps():
    policy = residual(progressive_exploration=100)
    base, uniform = policy.base_actions(seen(count=4)), torch.tensor([[0.0], [0.24], [0.26], [0.99]])
    noise = torch.cat([drawn(2, 4), uniform], 1)

    def corrected():
        return (policy.act(seen(count=4), noise)[0] != base).any(1).tolist()

    assert corrected() == [False] * 4
    policy.count_steps(25)
    assert corrected() == [True, True, False, False]
    policy.count_steps(75)
    assert corrected() == [True] * 4


def test_learning_and_likeliest_actions_are_corrected_from_the_first_step_on():
    always, later = residual(), residual(progressive_exploration=100)
    assert torch.equal(later.act(seen(), drawn(2))[0], always.act(seen(), drawn(2))[0])
    assert torch.equal(later.act(seen(), None)[0], always.act(seen(), None)[0])


def test_the_steps_so_far_travel_with_the_weights():
    one, other = residual(progressive_exploration=100), residual(progressive_exploration=100)
    one.count_steps(60)
    other.load_weights(one.acting_weights())
    assert other.collected == 60


def test_noise_needs_no_weights_and_has_uniform_numbers_only_for_a_schedule():
    def noise(policy):
        return policy.noise(np.random.default_rng(0), 500)

    with torch.device("meta"):
        options = ResidualConfig("residual", hidden_sizes=[8], base="a", base_policy=BASES["mlp"])
        shapes = ResidualPolicy(options, VECTOR)
    assert np.array_equal(noise(shapes), noise(residual(progressive_exploration=30_000)))
    assert noise(residual()).shape == (500, 2)
    uniform = noise(shapes)[:, 2]
    assert 0.0 <= uniform.min() < 0.02 < 0.98 < uniform.max() < 1.0


# --- the weights of the base


def test_weights_hold_what_the_base_needs_to_act_and_nothing_that_it_learnt_with():
    names = residual(base="mlp, own normalisation").acting_weights().keys()
    assert {"base.actor.0.weight", "base.normalizer.mean", "base.log_std", "actor.0.weight"} <= names
    assert not [name for name in names if "critic" in name]


def test_a_base_without_some_of_its_weights_is_refused():
    policy = residual()
    weights = {name: array for name, array in policy.weights().items() if name != "base.log_std"}
    with pytest.raises(ConfigError, match=r"weights of the base lack base\.log_std"):
        policy.load_weights(weights)


def test_a_base_that_was_corrected_itself_can_be_corrected():
    inner = {"name": "residual", "hidden_sizes": [4], "base_policy": BASES["mlp"], "progressive_exploration": 0}
    torch.manual_seed(0)
    policy = ResidualPolicy(ResidualConfig("residual", hidden_sizes=[8], base="a", base_policy=inner), VECTOR)
    other = ResidualPolicy(ResidualConfig("residual", hidden_sizes=[8], base="a", base_policy=inner), VECTOR)
    other.load_weights(policy.acting_weights())
    assert torch.equal(other.act(seen(), None)[0], policy.act(seen(), None)[0])
    assert torch.equal(other.base_actions(seen()), policy.base.act(seen(), None)[0])


# --- whole runs


@pytest.fixture(scope="module")
def clone(tmp_path_factory):
    """A run that cloned the demonstrator of the scripted task in chunks of two."""
    folder = tmp_path_factory.mktemp("clone")
    config = scripted(
        folder,
        f"demos={demonstrator(folder)}",
        policy={"name": "mlp", "hidden_sizes": [16], "chunk_size": 2, "normalize_observations": True},
        algorithm={"name": "behaviour_cloning", "epochs": 3, "batch_size": 32},
    )
    return rlpipe.train(config, local=True).directory


def corrected(folder, base, *overrides, **tree):
    """A run of RLPD that corrects a base."""
    algorithm = {"name": "rlpd", "batch_size": 32, "critic_hidden_sizes": [16], "learning_starts": 64}
    policy = {"name": "residual", "hidden_sizes": [16], "chunk_size": 2, "progressive_exploration": 128}
    options = {"algorithm": {**algorithm, "update_to_data": 0.25}, "policy": policy, **tree}
    return scripted(folder, f"demos={demonstrator(folder)}", f"policy.base={base}", *overrides, **options)


@pytest.fixture(scope="module")
def run(clone, tmp_path_factory):
    """A finished run, whose base is no longer where it was; with a checkpoint of each iteration."""
    folder = tmp_path_factory.mktemp("residual")
    base = shutil.copytree(clone, folder / "base")
    directory = rlpipe.train(corrected(folder, base, "runner.save_interval=1"), local=True).directory
    shutil.rmtree(base)
    return directory


def policy_in(run):
    return checkpoint.subtree("policy/", checkpoint.newest(run).arrays)


def test_the_base_stays_as_it_was_while_the_correction_learns(clone, run):
    before, after = policy_in(clone), policy_in(run)
    of_base = checkpoint.subtree("base.", after)
    assert {"actor.0.weight", "normalizer.count", "normalizer.mean", "log_std"} <= of_base.keys()
    assert all(np.array_equal(array, before[name]) for name, array in of_base.items())
    first = checkpoint.subtree("policy/", checkpoint.load(run / "checkpoints" / "iteration-000001.npz").arrays)
    assert not np.array_equal(first["actor.0.weight"], after["actor.0.weight"])
    assert after["collected"] == 256  # all steps of the run


def test_an_evaluation_and_a_resume_need_only_the_run(run, tmp_path):
    cut = shutil.copytree(run, tmp_path / "cut")
    (cut / "checkpoints" / "iteration-000002.npz").unlink()
    assert rlpipe.evaluate(cut, episodes=4, local=True).metrics["eval/num_trajectories"] == 4
    resumed = rlpipe.train(rlpipe.load_config(cut / "config.yaml"), local=True, resume=cut)
    assert resumed.status == "completed"
    before, after = policy_in(run), policy_in(cut)
    assert all(np.array_equal(after[name], before[name]) for name in before if name.startswith("base."))
    assert after["collected"] == before["collected"]


def test_with_hardly_any_scale_it_is_evaluated_as_its_base(clone, tmp_path):
    least = ("policy.residual_scale=1e-9", "runner.total_timesteps=128")
    run = rlpipe.train(corrected(tmp_path, clone, *least), local=True).directory
    ours, theirs = (rlpipe.evaluate(each, episodes=8, local=True) for each in (run, clone))
    assert ours.metrics["eval/return"] == theirs.metrics["eval/return"]


def test_a_warm_start_brings_the_base_and_the_steps_so_far(run, tmp_path):
    config = corrected(tmp_path, "null", f"policy.warm_start={run}", "learner.lr=0", "runner.total_timesteps=128")
    before, after = policy_in(run), policy_in(rlpipe.train(config, local=True).directory)
    for name, array in before.items():
        if name.startswith(("base.", "actor.")):
            assert np.array_equal(after[name], array)
    assert after["collected"] > before["collected"]


def test_the_configuration_says_what_the_base_is_before_a_run_begins(clone, tmp_path):
    config = corrected(tmp_path, clone)
    assert not config.policy.base_policy  # loading reads no checkpoint
    base = with_base_policy(config).policy.base_policy
    assert (base["name"], base["hidden_sizes"], base["chunk_size"]) == ("mlp", [16], 2)
    assert "warm_start" not in base


@pytest.mark.soak
def test_a_correction_learns_to_overcome_a_base_that_is_wrong(tmp_path):
    """The base answers with -0.3 times the bias; an action with the sign of the bias pays 1."""
    small = {"name": "mlp", "hidden_sizes": [16]}
    cloning = {"name": "behaviour_cloning", "epochs": 40, "batch_size": 32}
    wrong = f"demos={demonstrator(tmp_path, gain=-0.3)}"
    base = rlpipe.train(scripted(tmp_path, wrong, "learner.lr=0.01", algorithm=cloning, policy=small), local=True)
    assert base.metrics["eval/return"] < 1  # of 10
    policy = {**small, "name": "residual", "residual_scale": 0.6, "progressive_exploration": 256}
    options = (f"policy.base={base.directory}", "learner.lr=3e-3", "runner.total_timesteps=1536")
    run = rlpipe.train(sac(tmp_path, *options, policy=policy), local=True).directory
    assert np.mean([row["metrics"]["env/return"] for row in lines(run, "metrics.jsonl")[-8:]]) > 8


# --- what is refused


@pytest.mark.parametrize(
    ("overrides", "says"),
    [
        (["policy.base=nowhere"], r"policy\.base is nowhere: .*neither a run directory nor a checkpoint file"),
        (["policy.chunk_size=1"], r"policy\.chunk_size makes 1 actions .* decides 2: set policy\.chunk_size=2"),
        (["policy.execute=1"], r"policy\.execute makes 1 actions .* takes 2: set policy\.execute=2"),
        (["policy.base=null"], r"corrects another policy: name one with policy\.base=RUN_OR_CHECKPOINT"),
        (["policy.warm_start=a"], r"policy\.base is .* and policy\.warm_start is a.*leave one of them out"),
        (["policy.residual_scale=0"], r"policy\.residual_scale is 0.*greater than 0"),
        (["policy.base=null", "policy.warm_start={clone}"], r"whose policy holds no base: .*policy\.base instead"),
        (["policy.base_policy={name: mlp, chunk_size: 2}"], r"describes another policy than that of policy\.base"),
    ],
)
def test_what_does_not_fit_is_an_error_before_anything_is_written(overrides, says, clone, tmp_path):
    given = [override.replace("{clone}", str(clone)) for override in overrides]

    def train():
        rlpipe.train(corrected(tmp_path, clone, *given, f"runner.logger.log_path={tmp_path / 'runs'}"), local=True)

    with pytest.raises(ConfigError, match=says):
        train()
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize("algorithm", ["ppo", "behaviour_cloning"])
def test_only_algorithms_of_the_corrections_own_density_learn_it(algorithm, clone, tmp_path):
    with pytest.raises(ConfigError, match=rf"algorithm\.name is {algorithm}, but .* set algorithm\.name=rlpd or sac"):
        corrected(tmp_path, clone, algorithm={"name": algorithm})


@pytest.mark.parametrize(
    ("policy", "train", "says"),
    [
        ({"name": "gru", "memory_size": 4, "hidden_sizes": [4]}, {}, "gru, which has a memory"),
        ({"name": "mlp", "hidden_sizes": [4]}, {"discrete": True}, r"lack base\.log_std: .* such as one of discrete"),
        (
            {"name": "mlp", "hidden_sizes": [4]},
            {"name": "gymnasium", "id": "Pendulum-v1", "discrete": None, "match_actions": None},
            r"base\.actor\.0\.weight of shape \(4, 3\) do not fit",
        ),
    ],
)
def test_a_base_that_cannot_be_one_is_refused(policy, train, says, tmp_path):
    env = {"name": "scripted", "total_num_envs": 4, "match_actions": True} | train
    env = {key: value for key, value in env.items() if value is not None}
    made = scripted(tmp_path / "base", "runner.total_timesteps=64", env={"train": env}, policy=policy)
    base = rlpipe.train(replace(made, evaluation=replace(made.evaluation, episodes=1)), local=True).directory
    with pytest.raises(ConfigError, match=says):
        rlpipe.train(sac(tmp_path / "other", policy={"name": "residual", "base": str(base)}), local=True)
    assert not (tmp_path / "other").exists()


def test_a_job_on_a_cluster_is_sent_its_base(tmp_path):
    (tmp_path / "base").mkdir()
    assert _needed_files(corrected(tmp_path, "base"), None, tmp_path) == ["base"]
