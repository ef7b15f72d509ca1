"""Several learners share a batch, and what comes of it is what one learner would have made of it."""

from __future__ import annotations

import multiprocessing
import os
import shutil
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

import rlpipe
from rlpipe.algorithms import ppo
from rlpipe.collection.worker import RolloutWorker
from rlpipe.config.loading import load_config
from rlpipe.distributed.placement import Node, run_bundles, shortage
from rlpipe.distributed.roles import Role
from rlpipe.errors import ConfigError
from rlpipe.functional.advantages import normalize
from rlpipe.functional.aggregation import loss_weights
from rlpipe.learner_group import SINGLE_LEARNER, LearnerGroup
from rlpipe.learning import stepper
from rlpipe.learning.on_policy import Learner, join
from rlpipe.learning.process_group import _interface_towards, open_rendezvous
from rlpipe.learning.shares import Minibatches, share_of_learner
from rlpipe.metrics import CATALOGUE
from rlpipe.metrics.window import merged
from rlpipe.policies.base import NoWeights, Snapshot, build_policy
from rlpipe.policies.mlp import MLPPolicy
from rlpipe.policies.shared.moments import RunningMoments
from tests.helpers.emulated_graphs import EmulatedGraphs
from tests.helpers.runs import lines, scripted, to_mapping

CARTPOLE = {"name": "gymnasium", "id": "CartPole-v1", "total_num_envs": 12}
NORMALIZING = {"name": "mlp", "hidden_sizes": [8], "normalize_observations": True}
PPO = {"name": "ppo", "update_epochs": 3, "num_minibatches": 4, "value_clip": 0.2, "target_kl": 0.5}
GRPO = {"name": "grpo", "group_size": 2, "update_epochs": 3, "num_minibatches": 4, "loss_aggregation": "trajectory"}


class BreaksSecond(Learner):
    """A learner that cannot be made where it is not the first."""

    def __init__(self, stages, spec, rank=0, meeting=None):
        if rank == 1:
            raise ConfigError("the second learner has no room")
        super().__init__(stages, spec, rank, meeting)


class Breaks(ppo.PPO):
    """PPO with such a learner."""

    learner = "tests.learning.test_learners:BreaksSecond"


class Unlike(MLPPolicy):
    """A policy that begins otherwise in every process."""

    def __init__(self, config, spec):
        super().__init__(config, spec)
        torch.nn.init.constant_(self.critic[0].bias, os.getpid() % 97 / 97)


class Drifts(MLPPolicy):
    """A policy that an update moves otherwise on the second learner."""

    def update_normalizer(self, observations, learners=SINGLE_LEARNER):
        self.critic[0].bias += learners.rank


class Pretended(LearnerGroup):
    """One of several learners, in this process; what all gather is known beforehand."""

    def __init__(self, rank: int, size: int, *gathered: list[torch.Tensor]) -> None:
        self.rank, self.size, self._gathered = rank, size, list(gathered)

    def gather(self, values: torch.Tensor) -> list[torch.Tensor]:
        found = self._gathered.pop(0)
        assert torch.equal(values, found[self.rank])
        return found


def run_config(tmp_path, algorithm, policy=NORMALIZING, **more):
    """Twelve CartPoles, 16 steps each an iteration, 3 workers, a policy that normalises what it observes."""
    env = {"train": {**CARTPOLE, "max_episode_steps": 16}} if algorithm["name"] == "grpo" else {"train": CARTPOLE}
    return scripted(
        tmp_path,
        env=env,
        policy=policy,
        algorithm=algorithm,
        learner={"num_threads": 1, "lr": 3e-3, **more},
        rollout={"horizon": 16, "num_workers": 3},
    )


def learn(rank, meeting, plan, spec, iterations):
    """State and windows of one learner that learns from its share of each iteration."""
    learner = Learner(plan, spec, rank, meeting)
    windows = []
    for number, batches in enumerate(iterations, 1):
        own = batches
        if meeting is not None:
            config = plan[0].config
            taken = share_of_learner(
                rank, meeting.size, len(batches), config.env.train.total_num_envs,
                config.algorithm.group_size or 1,
            ).workers  # fmt: skip
            own = batches[taken.start : taken.stop]
        windows.append(learner.update(0, number, *own)[1])
    return learner.state(), windows


def learn_apart(*args):
    """The same in a process of its own, which others use after this one."""
    try:
        return learn(*args)
    finally:
        torch.distributed.destroy_process_group()


def learn_in_replays(*args):
    """The same with gradient steps that are recorded and replayed."""
    original, recorder = stepper.make_recorder, EmulatedGraphs()
    stepper.make_recorder = lambda _: recorder
    try:
        state, windows = learn_apart(*args)
    finally:
        stepper.make_recorder = original
    assert recorder.replays > recorder.recordings > 1  # up to the gradient, and after the sum
    return state, windows


@pytest.fixture(scope="module")
def together():
    """Gives the states of so many learners, and the windows of each iteration as one."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__])  # libraries load once for all of them
    with ProcessPoolExecutor(5, context) as pool:

        def learners(size, plan, spec, iterations, learn=learn_apart):
            store, meeting = open_rendezvous("127.0.0.1", size)
            futures = [pool.submit(learn, rank, meeting, plan, spec, iterations) for rank in range(size)]
            for future in as_completed(futures):
                future.result()  # what the first to fail raised
            answers = [future.result() for future in futures]
            del store
            states, windows = zip(*answers, strict=True)
            return states, [merged(parts) for parts in zip(*windows, strict=True)]

        yield learners


def collected(config, count):
    """Fragments of three workers under the first weights, for so many iterations."""
    plan = config.schedule
    workers = [RolloutWorker(plan, rank, 3) for rank in range(3)]
    snapshot = Snapshot(0, NoWeights.FROM_SEED)
    return plan, workers[0].ready().spec, [[w.collect(snapshot, 0)[0] for w in workers] for _ in range(count)]


def told(window):
    """Numbers of a window, without times."""
    read = window.read(tuple(CATALOGUE.values()))
    return {name: value for name, value in read.items() if not name.startswith("time/")}


@pytest.mark.parametrize(
    ("algorithm", "size"),  # two share evenly; five take 2, 2, 3, 2, 3 environments, across workers
    [
        pytest.param(algorithm, size, id=f"{name}-{size}", marks=[pytest.mark.soak] if size == 5 else [])
        for name, algorithm in [("ppo", {**PPO, "kl_control": "adaptive"}), ("grpo", GRPO)]
        for size in (2, 5)
    ],
)
def test_learners_that_share_a_batch_end_with_the_weights_and_the_numbers_of_one(tmp_path, algorithm, size, together):
    plan, spec, iterations = collected(run_config(tmp_path, algorithm), 2)
    iterations = [
        [replace(one, policy_version=rank * rank) for rank, one in enumerate(batches)] for batches in iterations
    ]
    alone, windows = learn(0, None, plan, spec, iterations)
    states, shared = together(size, plan, spec, iterations)
    for state in states:
        for name, array in alone.items():
            np.testing.assert_allclose(state[name], array, rtol=0, atol=1e-6, err_msg=name)
            np.testing.assert_array_equal(state[name], states[0][name], err_msg=name)
    for one, several in zip(windows, shared, strict=True):
        assert told(several) == pytest.approx(told(one), rel=1e-4, abs=1e-5)
        exact = ("train/num_samples", "train/n_updates", "train/epochs_run", "train/nonfinite_steps")
        assert [told(several)[name] for name in exact] == [told(one)[name] for name in exact]


@pytest.mark.soak
def test_learners_that_replay_their_steps_end_with_the_weights_and_the_numbers_of_one(tmp_path, together):
    plan, spec, iterations = collected(run_config(tmp_path, PPO), 2)
    alone, windows = learn(0, None, plan, spec, iterations * 2)
    states, shared = together(2, plan, spec, iterations * 2, learn_in_replays)
    for name, array in alone.items():
        np.testing.assert_array_equal(states[0][name], states[1][name], err_msg=name)
        np.testing.assert_allclose(states[0][name], array, rtol=1e-3, atol=1e-5, err_msg=name)
    for expected, found in zip(windows, shared, strict=True):
        assert told(found) == pytest.approx(told(expected), rel=1e-2, abs=1e-4, nan_ok=True)


def test_learners_that_share_sequences_end_with_the_weights_and_the_numbers_of_one(tmp_path, together):
    memory = {"name": "gru", "memory_size": 6, "hidden_sizes": [8], "normalize_observations": True}
    plan, spec, iterations = collected(run_config(tmp_path, GRPO, memory), 2)
    alone, windows = learn(0, None, plan, spec, iterations)
    states, shared = together(2, plan, spec, iterations)
    for state in states:
        for name, array in alone.items():
            np.testing.assert_allclose(state[name], array, rtol=0, atol=1e-5, err_msg=name)
            np.testing.assert_array_equal(state[name], states[0][name], err_msg=name)
    for one, several in zip(windows, shared, strict=True):
        assert told(several) == pytest.approx(told(one), rel=1e-3, abs=1e-4)
        assert told(several)["train/num_samples"] == told(one)["train/num_samples"]


def test_a_gradient_that_is_not_finite_on_one_learner_is_skipped_by_all(tmp_path, together):
    by_itself = {"normalize_advantages": False, "gae_lambda": 0.0}  # so that no other advantage hears of it
    plan, spec, iterations = collected(run_config(tmp_path, {**PPO, **by_itself}), 1)
    first, _ = learn(0, None, plan, spec, [])
    iterations[0][0].rewards[0, 1] = np.nan  # of a worker whose environments are all the first learner's
    alone, (window,) = learn(0, None, plan, spec, iterations)
    states, (shared,) = together(2, plan, spec, iterations)
    for found in (told(window), told(shared)):  # in one of four minibatches of each of three passes
        assert (found["train/nonfinite_steps"], found["train/n_updates"]) == (3, 9)
    for name, array in alone.items():
        for state in states:
            np.testing.assert_allclose(state[name], array, rtol=0, atol=1e-6, err_msg=name)
            np.testing.assert_array_equal(state[name], states[0][name], err_msg=name)
    assert not np.array_equal(alone["policy/actor.0.weight"], first["policy/actor.0.weight"])


def test_learners_refuse_a_batch_for_what_any_of_them_finds_in_it(tmp_path, together):
    plan, spec, iterations = collected(run_config(tmp_path, GRPO), 1)
    iterations[0][0].observations[0, 0] += 1.0  # of a group of the first learner
    with pytest.raises(ConfigError, match="1 of 6 groups of 2 environments"):
        together(2, plan, spec, iterations)


class TestWeights:
    """All learners have the same, to the last bit."""

    def shared_by(self, together, tmp_path, policy, iterations):
        config = run_config(
            tmp_path, PPO, policy={"name": f"tests.learning.test_learners:{policy}", "hidden_sizes": [8]}
        )
        plan, spec, batches = collected(config, iterations)
        return together(2, plan, spec, batches)[0]

    def test_learners_begin_with_those_of_the_first(self, tmp_path, together):
        first, second = self.shared_by(together, tmp_path, "Unlike", 0)
        np.testing.assert_array_equal(first["policy/critic.0.bias"], second["policy/critic.0.bias"])

    def test_learners_that_draw_apart_end_the_run(self, tmp_path, together):
        with pytest.raises(
            RuntimeError, match=r"after iteration 1, learner 1 of 2 .* than learner 0: critic\.0\.bias\."
        ):
            self.shared_by(together, tmp_path, "Drifts", 1)


@pytest.mark.soak
def test_a_run_on_ray_with_two_learners_is_the_run_with_one_in_one_process(tmp_path, ray_cluster):
    last = {}
    for count in (1, 2):
        config = load_config(
            to_mapping(run_config(tmp_path / str(count), PPO)),
            [f"learner.num_learners={count}", "rollout.num_workers=2", "runner.total_timesteps=384"],
        )
        rows = lines(rlpipe.train(config, local=count == 1).directory, "metrics.jsonl")
        last[count] = [row["metrics"] for row in rows]
    names = ("train/loss", "train/approx_kl", "train/explained_variance", "env/return", "train/num_samples")
    for one, two in zip(last[1], last[2], strict=True):
        known = [name for name in names if name in one]
        assert {name: two[name] for name in known} == pytest.approx({name: one[name] for name in known}, rel=1e-3)
    assert "time/actor/sync_gradients" in last[2][-1]
    assert "time/actor/sync_gradients" not in last[1][-1]


@pytest.mark.soak
def test_an_error_of_any_learner_is_reported_before_anything_is_written(tmp_path, ray_cluster):
    breaks = {"name": "tests.learning.test_learners:Breaks"}
    config = scripted(tmp_path, "learner.num_learners=2", "rollout.num_workers=1", algorithm=breaks)
    with pytest.raises(ConfigError, match="the second learner has no room"):
        rlpipe.train(config)
    assert list(tmp_path.iterdir()) == []


class TestOptions:
    """An update with fewer bits, or compiled, is the plain update but for rounding."""

    def moves(self, tmp_path, **options):
        """How far one update moves the actor, and what it tells; without the options and with them."""
        algorithm = {**PPO, "update_epochs": 2, "num_minibatches": 2}
        plan, spec, iterations = collected(run_config(tmp_path, algorithm), 1)
        before, found = learn(0, None, plan, spec, [])[0], []
        for more in ({}, options):
            after, (window,) = learn(0, None, run_config(tmp_path, algorithm, **more).schedule, spec, iterations)
            found.append((after["policy/actor.0.weight"] - before["policy/actor.0.weight"], told(window)))
        return found

    def test_bfloat16(self, tmp_path):
        (plain, exact), (rounded, numbers) = self.moves(tmp_path, precision="bfloat16")
        assert 0.0 < np.linalg.norm(rounded - plain) < 0.2 * np.linalg.norm(plain)
        # Workers acted in float32, so what the rounding does to the policy shows before the first step.
        assert exact["train/actor/logp_diff_mean"] < 1e-7 < 1e-6 < numbers["train/actor/logp_diff_mean"]
        assert numbers["train/nonfinite_steps"] == 0

    def test_bfloat16_leaves_log_probabilities_and_values_their_bits(self, tmp_path):
        plan, spec, _ = collected(run_config(tmp_path, PPO), 0)
        policy, observations = build_policy(plan[0].config, spec), torch.randn(64, 4)
        actions = torch.zeros(64, dtype=torch.int64)
        with torch.autocast("cpu", torch.bfloat16):
            found = [*policy.evaluate_actions(observations, actions), policy.value(observations)]
        assert [values.dtype for values in found] == [torch.float32] * 3

    @pytest.mark.soak
    @pytest.mark.skipif(not any(map(shutil.which, ("c++", "g++", "clang++"))), reason="there is no C++ compiler")
    def test_compiled(self, tmp_path, monkeypatch):
        # Asking the compiler which vector instructions it can use takes longer than what it compiles here.
        monkeypatch.setattr("torch._inductor.config.cpp.vec_isa_ok", True)
        (plain, _), (compiled, _) = self.moves(tmp_path, compile=True)
        np.testing.assert_allclose(compiled, plain, rtol=0, atol=1e-5)


class TestPortion:
    def test_two_learners_halve_four_workers(self):
        first, second = (share_of_learner(rank, 2, workers=4, environments=8) for rank in range(2))
        assert (first.workers, first.columns) == (range(2), range(4))
        assert (second.workers, second.columns, second.first) == (range(2, 4), range(4), 4)

    def test_a_worker_may_serve_two_learners(self):
        first, second = (share_of_learner(rank, 2, workers=1, environments=8) for rank in range(2))
        assert first.workers == second.workers == range(1)
        assert (first.columns, second.columns) == (range(4), range(4, 8))

    def test_groups_stay_together(self):
        shares = [share_of_learner(rank, 2, workers=1, environments=12, group_size=4).columns for rank in range(2)]
        assert shares == [range(4), range(4, 12)]

    @pytest.mark.parametrize(("size", "workers", "environments"), [(3, 4, 8), (5, 2, 6), (7, 3, 21), (1, 1, 1)])
    def test_every_environment_is_taken_once(self, size, workers, environments):
        taken = []
        for rank in range(size):
            own = share_of_learner(rank, size, workers, environments)
            offset = own.workers.start * environments // workers
            taken += [offset + column for column in own.columns]
            assert own.columns.stop <= len(own.workers) * environments // workers
        assert taken == list(range(environments))


def test_a_share_of_a_batch_keeps_its_successors_and_where_it_stands(tmp_path):
    _, _, iterations = collected(run_config(tmp_path, PPO), 2)
    batches = iterations[1]
    whole = join(batches, torch.device("cpu"), 0)
    half = share_of_learner(1, 2, workers=3, environments=12)
    part = join([batches[worker] for worker in half.workers], torch.device("cpu"), 0, half)
    assert torch.equal(part.rewards, whole.rewards[:, 6:])
    assert torch.equal(part.positions(), whole.positions()[:, 6:])
    successors = torch.full((*whole.rewards.shape, 4), torch.nan)
    successors.view(-1, 4)[whole.final_index] = whole.final_observations
    own = torch.full((*part.rewards.shape, 4), torch.nan)
    own.view(-1, 4)[part.final_index] = part.final_observations
    assert torch.equal(own.nan_to_num(7.0), successors[:, 6:].nan_to_num(7.0))
    assert len(part.final_index) > 0


class TestMinibatches:
    def test_a_pass_takes_every_decision_once(self):
        order, own, sizes = Minibatches(torch.arange(10), 4, SINGLE_LEARNER, torch.Generator().manual_seed(0)).draw()
        assert sorted(order.tolist()) == list(range(10))
        assert own == sizes == [2, 3, 2, 3]

    def test_trajectories_stay_together_in_their_order_in_minibatches_as_equal_as_that_allows(self):
        lengths = torch.tensor([5, 1, 1, 4, 1, 4])
        together = torch.arange(6).repeat_interleave(lengths)[torch.randperm(16)]
        minibatches = Minibatches(torch.arange(16), 2, SINGLE_LEARNER, torch.Generator().manual_seed(0), together)
        for _ in range(20):
            order, own, sizes = minibatches.draw()
            assert sorted(order.tolist()) == list(range(16))
            assert own == sizes
            assert abs(sizes[0] - 8) <= 2  # half of the longest trajectory
            parts = [together[part].unique_consecutive().tolist() for part in order.split(sizes)]
            assert sorted(parts[0] + parts[1]) == list(range(6))
            for number in range(6):
                assert (order[together[order] == number].diff() > 0).all()

    @pytest.mark.parametrize("lengths", [[1, 1, 9], [9, 1, 1], [1, 9, 1], [3, 3, 3]])
    def test_every_minibatch_gets_a_trajectory(self, lengths):
        together = torch.arange(3).repeat_interleave(torch.tensor(lengths))
        minibatches = Minibatches(
            torch.arange(len(together)), 8, SINGLE_LEARNER, torch.Generator().manual_seed(0), together
        )
        assert sorted(minibatches.draw()[2]) == sorted(lengths)

    def test_learners_draw_the_trajectories_that_one_would(self):
        positions, trajectories = [torch.tensor([0, 2, 4]), torch.tensor([1, 3, 5])], [
            torch.tensor([0, 0, 1]), torch.tensor([8, 8, 8])
        ]  # fmt: skip
        whole = torch.tensor([0, 8, 0, 8, 1, 8])
        order, _, sizes = Minibatches(
            torch.arange(6), 2, SINGLE_LEARNER, torch.Generator().manual_seed(7), whole
        ).draw()
        wanted = [part.tolist() for part in order.split(sizes)]
        for rank, own_positions in enumerate(positions):
            group = Pretended(rank, 2, positions, trajectories)
            own_order, own, every = Minibatches(
                own_positions, 2, group, torch.Generator().manual_seed(7), trajectories[rank]
            ).draw()
            assert every == sizes
            found = [part.tolist() for part in own_positions[own_order].split(own)]
            assert found == [[one for one in part if one in own_positions] for part in wanted]

    def test_fewer_decisions_than_parts_make_fewer_parts(self):
        assert Minibatches(torch.arange(3), 8, SINGLE_LEARNER, torch.Generator().manual_seed(0)).draw()[2] == [1, 1, 1]

    def test_learners_draw_the_minibatches_that_one_would(self):
        positions = [torch.tensor([0, 1, 5, 6]), torch.tensor([2, 8])]  # of six decisions in all
        whole = torch.tensor([0, 1, 2, 5, 6, 8])
        order, sizes, _ = Minibatches(whole, 3, SINGLE_LEARNER, torch.Generator().manual_seed(7)).draw()
        wanted = [set(part.tolist()) for part in whole[order].split(sizes)]
        drawn: list[set[int]] = [set(), set(), set()]
        for rank, position in enumerate(positions):
            ranks = Pretended(rank, 2, positions)
            order, own, every = Minibatches(position, 3, ranks, torch.Generator().manual_seed(7)).draw()
            assert every == sizes
            for part, taken in zip(position[order].split(own), drawn, strict=True):
                taken |= set(part.tolist())
        assert drawn == wanted


class TestInterface:
    """By which a learner talks to the others."""

    def test_it_is_the_one_that_leads_to_them(self):
        assert _interface_towards("127.0.0.1", 1) == "lo"

    @pytest.mark.skipif(not Path("/proc/net/if_inet6").is_file(), reason="this machine has no IPv6")
    def test_they_may_have_addresses_of_ipv6(self):
        assert _interface_towards("::1", 1) == "lo"

    def test_it_is_left_to_the_library_where_no_way_leads_there(self):
        assert _interface_towards("nobody.invalid", 1) is None


class TestStatistics:
    """Each learner computes them from the sums of all."""

    def test_advantages_are_normalised_over_all(self):
        def total(own):  # of another learner: two advantages, 4 and 6, whose mean with 2 and 4 is 4
            return own + (torch.tensor([2.0, 10.0]) if own.numel() == 2 else torch.tensor(0.0 + 4.0))

        own, valid = torch.tensor([2.0, 4.0]), torch.tensor([True, True])
        whole = normalize(torch.tensor([2.0, 4.0, 4.0, 6.0]), torch.ones(4, dtype=torch.bool), eps=0.0)
        assert normalize(own, valid, eps=0.0, total=total).tolist() == pytest.approx(whole[:2].tolist())

    def test_trajectories_weigh_alike_over_all(self):
        whole = loss_weights(torch.tensor([0, 0, 0, 1]), "trajectory")
        part = loss_weights(torch.tensor([0, 0, 0]), "trajectory", total=lambda own: own + torch.tensor([1, 1]))
        assert part.tolist() == whole[:3].tolist()

    def test_running_moments_are_those_of_all(self):
        values = torch.tensor([[1.0], [2.0], [6.0], [7.0]])
        alone, shared = RunningMoments(1), RunningMoments(1)
        alone.update(values)
        parts = []
        for part in (values[:3], values[3:], values[:0]):
            mean = part.double().sum(0) / max(len(part), 1)
            parts.append(torch.stack([torch.full_like(mean, len(part)), mean, (part - mean).square().sum(0)]))
        shared.update(values[:3], Pretended(0, 3, parts))
        found = [float(moment) for moment in (shared.count, shared.mean, shared.squares)]
        assert found == pytest.approx([4.0, 4.0, 26.0])
        assert found == pytest.approx([float(moment) for moment in (alone.count, alone.mean, alone.squares)])


class TestNumber:
    """``learner.num_learners=auto``: a learner for each GPU that the nodes have for them."""

    NODES = (Node("head", {"CPU": 2.0}, {}), Node("gpu", {"CPU": 2.0, "GPU": 2.0}, {"role": "learner"}))

    def learners(self, tmp_path, algorithm, *overrides, nodes=NODES, role=Role.LEARNER):
        config = load_config(to_mapping(run_config(tmp_path, algorithm)), overrides)
        return [bundle.resources for bundle in run_bundles(config, nodes) if bundle.role == role]

    def test_two_gpus_are_two_learners(self, tmp_path):
        assert self.learners(tmp_path, PPO) == [{"GPU": 1.0}] * 2

    def test_no_gpu_is_one_learner_that_needs_nothing_of_its_own(self, tmp_path):
        assert self.learners(tmp_path, PPO, nodes=self.NODES[:1]) == [{}]
        assert self.learners(tmp_path, PPO, "learner.device=cpu") == [{}]

    def test_a_number_is_what_there_will_be(self, tmp_path):
        assert self.learners(tmp_path, PPO, "learner.num_learners=1") == [{"GPU": 1.0}]
        assert self.learners(tmp_path, PPO, "learner.num_learners=3", "learner.device=cpu") == [{}] * 3

    def test_learners_that_need_nothing_have_a_place_beside_fewer_workers(self, tmp_path):
        config = load_config(to_mapping(run_config(tmp_path, PPO)), ["learner.num_learners=2", "rollout.num_workers=1"])
        assert shortage(run_bundles(config, self.NODES[:1]), self.NODES[:1]) is None

    @pytest.mark.parametrize(
        ("gpus", "servers", "learners", "of_servers"),
        [(4, 1, 3, 1), (4, 2, 2, 1), (2, 1, 1, 1), (2, 2, 2, 0), (1, 1, 1, 0)],  # at the end, not enough for all
    )
    def test_inference_servers_have_theirs_before_a_second_learner(self, tmp_path, gpus, servers, learners, of_servers):
        nodes = (Node("gpu", {"CPU": 8.0, "GPU": gpus}, {}),)
        served = ["rollout.inference=server", f"rollout.num_inference_servers={servers}", "rollout.num_workers=3"]
        assert self.learners(tmp_path, PPO, *served, nodes=nodes) == [{"GPU": 1.0}] * learners
        found = self.learners(tmp_path, PPO, *served, nodes=nodes, role=Role.INFERENCE_SERVER)
        assert [bundle.get("GPU", 0.0) for bundle in found] == [of_servers] * servers

    def test_inference_servers_on_other_nodes_cost_no_learner(self, tmp_path):
        nodes = (Node("one", {"CPU": 8.0, "GPU": 2}, {}), Node("two", {"CPU": 8.0, "GPU": 1}, {"role": "act"}))
        served = ["rollout.inference=server", "cluster.inference_nodes={role: act}", "rollout.num_workers=3"]
        assert len(self.learners(tmp_path, PPO, *served, nodes=nodes)) == 2

    def test_there_is_a_group_for_each(self, tmp_path):
        one_group = ["rollout.num_workers=1", "algorithm.group_size=12"]
        assert self.learners(tmp_path, GRPO, *one_group) == [{"GPU": 1.0}]

    def test_there_is_a_group_for_each_in_every_stage(self, tmp_path):
        later = "{name: later, overrides: {algorithm.group_size: 12}}"
        plan = f"stages=[{{name: first, timesteps: 192}}, {later}]"
        assert self.learners(tmp_path, GRPO, "rollout.num_workers=1", plan) == [{"GPU": 1.0}]


class TestRefusals:
    @pytest.mark.parametrize(
        ("overrides", "words"),
        [
            (["learner.num_learners=0"], ["learner.num_learners is 0", "at least 1"]),
            (["learner.num_learners=13"], ["13 learners", "12 environments"]),
            (["learner.num_learners=2", "cluster.gpus_per_learner=0.5"], ["gpus_per_learner is 0.5", "whole GPU"]),
            (["learner.precision=float16"], ["learner.precision", "bfloat16"]),
        ],
    )
    def test_what_cannot_be_is_refused_before_anything_starts(self, tmp_path, overrides, words):
        with pytest.raises(ConfigError) as refusal:
            load_config(to_mapping(run_config(tmp_path, PPO)), overrides)
        assert all(word in str(refusal.value) for word in words)

    def test_an_algorithm_with_a_replay_buffer_has_one_learner(self, tmp_path):
        with pytest.raises(ConfigError, match="sac supports only one learner"):
            scripted(
                tmp_path, policy={"name": "squashed_gaussian", "hidden_sizes": [8]}, algorithm={"name": "sac"},
                learner={"num_learners": 2},
            )  # fmt: skip

    def test_one_process_has_one_learner(self, tmp_path):
        with pytest.raises(ConfigError, match="--local"):
            rlpipe.train(run_config(tmp_path, PPO, num_learners=2), local=True)
