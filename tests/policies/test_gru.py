"""A policy with a memory: acting step by step is the replay, and the memory is empty where an episode begins."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rlpipe.collection.collector import Collector
from rlpipe.collection.decisions import SINGLE_ACTIONS, Chunks
from rlpipe.envs.gymnasium.options import GymnasiumConfig
from rlpipe.envs.gymnasium.vector import GymnasiumVector
from rlpipe.envs.scripted import Scripted, ScriptedConfig
from rlpipe.learning.on_policy import join
from rlpipe.learning.shares import Share
from rlpipe.policies.gru import GRUConfig, GRUPolicy
from rlpipe.trajectory import LeafSpec, SpaceSpec, Tree
from rlpipe.trajectory.sequences import Sequences

CPU = torch.device("cpu")
SHORT, LONG = {"length": 3}, {"length": 7, "end": "terminated"}
BOUND = np.ones(2, dtype=np.float32)
SPACES = {
    "continuous": SpaceSpec(3, 2, None, -BOUND, BOUND),
    "discrete": SpaceSpec(3, 1, 4),
    "several parts": SpaceSpec(3, 2, (2, 3)),
    "tree": SpaceSpec.of_tree({"a": LeafSpec((2,)), "b": LeafSpec((1,), "int64", (3,))}, 2, None, -BOUND, BOUND),
}


def policy_for(spec, **options):
    """A small policy whose weights follow from a seed, with memories and outputs that are far from 0."""
    torch.manual_seed(3)
    options = {"hidden_sizes": [8], "memory_size": 5, **options}
    policy = GRUPolicy(GRUConfig("gru", **options), spec.chunked(options.get("chunk_size", 1)))
    with torch.no_grad():
        for parameter in policy.parameters():
            parameter.copy_(0.5 * torch.randn_like(parameter))
    return policy


def observations_of(spec, count):
    generator = np.random.default_rng(5)
    if spec.leaves is None:
        return torch.from_numpy(generator.normal(size=(count, 3)).astype(np.float32))
    numbers, choices = generator.normal(size=(count, 2)).astype(np.float32), generator.integers(3, size=(count, 1))
    return Tree({"a": torch.from_numpy(numbers), "b": torch.from_numpy(choices)})


def sequences(observations, lengths, memories):
    """Sequences of these lengths, one after the other."""
    numbers = torch.arange(len(lengths)).repeat_interleave(torch.tensor(lengths))
    steps = torch.cat([torch.arange(length) for length in lengths])
    return Sequences(observations, numbers, steps, memories)


def step_by_step(policy, observations, memories, noise):
    """Actions, log-probabilities and memories of one slot that sees one observation after the other."""
    rows, memory = [], memories
    for t in range(len(observations)):
        decided = policy.decide(observations[t : t + 1], noise[t : t + 1], memory)
        memory = decided.memories
        rows.append(decided)
    return [torch.cat(column) for column in zip(*rows, strict=True)]


def close(found, expected):
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("spec", SPACES.values(), ids=SPACES.keys())
@torch.no_grad()
def test_acting_step_by_step_is_the_replay(spec):
    policy, observations = policy_for(spec), observations_of(spec, 6)
    noise = torch.from_numpy(policy.noise(np.random.default_rng(0), 6))
    memories = torch.randn(1, 10)
    actions, log_probs, after = step_by_step(policy, observations, memories, noise)
    whole = sequences(observations, [6], memories)
    close(policy.evaluate_actions(whole, actions)[0], log_probs)
    close(policy.evaluate_parts(whole, actions)[0].sum((1, 2)), log_probs)
    close(policy.act(whole, noise)[0], actions)
    close(policy.value(whole), policy.critic(after[:, 5:]).squeeze(-1))


@given(lengths=st.lists(st.integers(1, 5), min_size=1, max_size=4), order=st.randoms(use_true_random=False))
@torch.no_grad()
def test_rows_may_lie_in_any_order_and_no_sequence_hears_of_another(lengths, order):
    spec = SPACES["continuous"]
    policy, observations = policy_for(spec), observations_of(spec, sum(lengths))
    memories = torch.randn(len(lengths), 10)
    whole = sequences(observations, lengths, memories)
    rows = list(range(len(whole)))
    order.shuffle(rows)
    values = policy.value(whole)
    close(policy.value(whole[torch.tensor(rows)]), values[rows])
    for number, one in enumerate(torch.split(torch.arange(len(whole)), lengths)):
        close(policy.value(whole[one]), values[one])
        alone = sequences(observations[one], [len(one)], memories[number : number + 1])
        close(policy.value(alone), values[one])


@given(length=st.integers(2, 9), data=st.data())
@torch.no_grad()
def test_a_sequence_cut_in_two_has_the_values_of_the_whole(length, data):
    cut, spec = data.draw(st.integers(1, length - 1)), SPACES["discrete"]
    policy, observations = policy_for(spec), observations_of(spec, length)
    noise, memory = torch.zeros(length, 4), torch.randn(1, 10)
    stored = step_by_step(policy, observations[:cut], memory, noise[:cut])[2][-1:]
    pieces = [(observations[:cut], memory), (observations[cut:], stored)]
    values = [policy.value(sequences(piece, [len(piece)], before)) for piece, before in pieces]
    close(torch.cat(values), policy.value(sequences(observations, [length], memory)))


def test_the_gradient_goes_through_time():
    spec = SPACES["continuous"]
    policy, observations = policy_for(spec), observations_of(spec, 4).requires_grad_()
    policy.value(sequences(observations, [4], torch.zeros(1, 10)))[3].backward()
    assert observations.grad[0].abs().min() > 0


@pytest.mark.parametrize("chunk_size", [1, 2])
@pytest.mark.parametrize("spec", SPACES.values(), ids=SPACES.keys())
def test_a_learner_without_decisions_in_a_minibatch_gets_none(spec, chunk_size):
    policy = policy_for(spec, chunk_size=chunk_size)
    none = sequences(observations_of(spec, 2), [2], torch.zeros(1, 10))[:0]
    actions = torch.from_numpy(spec.chunked(chunk_size).actions(0))
    found = [*policy.evaluate_actions(none, actions), *policy.evaluate_parts(none, actions), policy.value(none)]
    assert [len(values) for values in found] == [0] * 5


@torch.no_grad()
def test_the_weights_that_are_sent_to_workers_are_all_that_acting_needs():
    policy, worker = policy_for(SPACES["continuous"]), GRUPolicy(
        GRUConfig("gru", hidden_sizes=[8], memory_size=5), SPACES["continuous"]
    )  # fmt: skip
    worker.load_weights(policy.acting_weights())
    asked = (observations_of(SPACES["continuous"], 2), torch.ones(2, 2), torch.ones(2, 10))
    for own, other in zip(policy.decide(*asked), worker.decide(*asked), strict=True):
        assert torch.equal(own, other)
    assert "critic.0.weight" not in policy.acting_weights()


def fragments(simulator, policy, horizon, count, chunks=SINGLE_ACTIONS, whole_episodes=False):
    """Fragments that one worker collects one after the other."""
    collector = Collector(
        simulator, policy, horizon, 0, 0, [1], memory_width=10, whole_episodes=whole_episodes
    )  # fmt: skip
    return [collector.collect(0, chunks=chunks)[0] for _ in range(count)]


def scripted(script):
    return Scripted.make(ScriptedConfig("scripted", script=script), len(script), lambda _: 7)


class TestCollection:
    def test_the_memory_is_empty_at_the_first_decision_of_each_episode_and_only_there(self):
        simulator = scripted([[SHORT], [LONG, SHORT]])
        found = fragments(simulator, policy_for(simulator.spec), 1, 20)
        for batch in found:
            begins = batch.observations[0, :, 2] == 0  # the step of the episode
            assert batch.memories.shape == (2, 10)
            assert (~batch.memories.any(axis=1)).tolist() == begins.tolist()

    def test_chunks_remember_from_decision_to_decision(self):
        simulator, chunks = scripted([[SHORT], [LONG]]), Chunks(2, 2)
        policy = policy_for(simulator.spec, chunk_size=2)
        for batch in fragments(simulator, policy, 1, 12, chunks):
            assert (~batch.memories.any(axis=1)).tolist() == (batch.observations[0, :, 2] == 0).tolist()

    def test_collections_of_whole_episodes_begin_empty(self):
        simulator = scripted([[SHORT], [LONG]])
        for batch in fragments(simulator, policy_for(simulator.spec), 5, 2, whole_episodes=True):
            assert not batch.memories.any()

    @pytest.mark.parametrize("horizon", [1, 5, 16])
    def test_an_environment_that_takes_a_step_to_reset_itself_begins_empty_after_it(self, horizon):
        config = GymnasiumConfig("gymnasium", id="CartPole-v1", vectorized=True, total_num_envs=3)
        simulator = GymnasiumVector.make(config, 3, lambda n: n)
        policy = policy_for(simulator.spec)
        batches = fragments(simulator, policy, horizon, 64 // horizon)
        assert not all(batch.valid.all() for batch in batches)
        for batch in batches:
            check_replay(policy, batch)


def check_replay(policy, batch):
    """The decisions of a fragment have the log-probabilities, when replayed, that they had when they were taken."""
    t = join([batch], CPU, 0)
    with torch.no_grad():
        close(policy.evaluate_actions(*t.decisions)[0], t.log_probs[t.valid])


class TestReplayOfFragments:
    @pytest.mark.parametrize("chunk_size", [1, 2])
    def test_every_fragment_has_the_log_probabilities_of_its_collection(self, chunk_size):
        simulator, chunks = scripted([[SHORT], [LONG, SHORT]]), Chunks(chunk_size, chunk_size)
        policy = policy_for(simulator.spec, chunk_size=chunk_size)
        for batch in fragments(simulator, policy, 4, 5, chunks):
            check_replay(policy, batch)

    def test_a_wrong_memory_shows(self):
        simulator = scripted([[LONG]])
        policy = policy_for(simulator.spec)
        _, batch = fragments(simulator, policy, 4, 2)
        with pytest.raises(AssertionError):
            check_replay(policy, replace(batch, memories=np.zeros_like(batch.memories)))

    @torch.no_grad()
    def test_values_of_successors_are_those_of_the_next_decision_or_of_what_ended_the_episode(self):
        simulator = scripted([[SHORT], [LONG]])
        policy = policy_for(simulator.spec)
        one, two = fragments(simulator, policy, 4, 2)
        t = join([one], CPU, 0)
        values = policy.value(t.seen)
        grid, finals = values[:10].view(5, 2), values[10:]
        close(grid[:-1][t.valid], policy.value(t.decided))
        follows = join([two], CPU, 0)
        close(grid[4], policy.value(follows.decided)[:2])  # the last observation is the first of the next fragment
        episode = torch.cat([t.observations[:3, 0], t.final_observations])
        close(finals, policy.value(sequences(episode, [4], torch.zeros(1, 10)))[3:])

    @torch.no_grad()
    def test_a_share_of_the_environments_keeps_their_memories(self):
        simulator = scripted([[SHORT], [LONG], [{"length": 4}]])
        policy = policy_for(simulator.spec)
        batch = fragments(simulator, policy, 4, 2)[1]
        whole, part = join([batch], CPU, 0), join([batch], CPU, 0, Share(range(1), range(1, 3), 1, 3))
        of_all = torch.zeros(4, 3).masked_scatter(whole.valid, policy.value(whole.decided))
        close(policy.value(part.decided), of_all[:, 1:][part.valid])
        assert part.numbers().tolist() == whole.numbers()[:, 1:].tolist()


@torch.no_grad()
def test_acting_computes_a_shared_encoder_once():
    policy, calls = policy_for(SPACES["tree"], shared_encoder=True), []
    policy.actor_features.register_forward_hook(lambda *_: calls.append(1))
    policy.decide(observations_of(SPACES["tree"], 2), None, torch.zeros(2, 10))
    assert len(calls) == 1
