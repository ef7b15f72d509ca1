"""Hindsight in the replay buffer: which goals a stored step may be given, and what follows from them."""

from __future__ import annotations

from collections import defaultdict

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rlpipe.envs.shared.goals import GoalTask
from rlpipe.learning.hindsight import HindsightBuffer
from rlpipe.metrics import catalogue as m
from rlpipe.trajectory import LeafSpec, SpaceSpec, Tree
from rlpipe.trajectory.batch import TrajectoryBatch

GOAL = LeafSpec((1,))
SPEC = SpaceSpec.of_tree({"observation": LeafSpec((1,)), "achieved_goal": GOAL, "desired_goal": GOAL}, 1)
CPU = torch.device("cpu")
OWN = -1.0
"""Goal that every step is collected for; no step achieves it."""
SPARSE = GoalTask(
    rewards=lambda achieved, goals: (achieved == goals)[:, 0] - 1.0,
    terminated=lambda achieved, goals: np.zeros(len(achieved), dtype=bool),
)
ENDING = GoalTask(SPARSE.rewards, lambda achieved, goals: (achieved == goals)[:, 0])


class Slots:
    """Slots whose steps achieve 1, 2, 3, ... one after the other, so that each number stands for one step.

    Attributes:
        achieved: by episode, what its steps achieved.
    """

    def __init__(self, count, first_slot=0):
        self.first_slot, self.count = first_slot, count
        self.taken = 0
        self.achieved = defaultdict(list)
        self.running = list(range(count))
        self.episodes = count
        self.lengths = np.zeros(count, dtype=np.int64)

    def interrupt(self):
        """Begins other episodes without an end, as a replaced worker does."""
        for n in range(self.count):
            self._begin(n)

    def _begin(self, n):
        self.running[n], self.lengths[n] = self.episodes, 0
        self.episodes += 1

    def fragment(self, steps, ends=(), terminated=False):
        """A fragment in which episodes end after the (step, slot) in ``ends``."""
        shape, before = (steps, self.count), self.lengths.copy()
        ended, outcomes = np.zeros(shape, dtype=bool), np.zeros(shape)
        for t, n in np.ndindex(shape):
            self.taken += 1
            outcomes[t, n] = self.taken
            self.achieved[self.running[n]].append(self.taken)
            self.lengths[n] += 1
            if (t, n) in ends:
                ended[t, n] = True
                self._begin(n)
        number = np.concatenate([np.zeros((1, self.count)), outcomes])[..., None].astype(np.float32)
        number[1:][ended] = 0.0  # what follows an end is the first observation of the next episode
        finals = outcomes[ended].reshape(-1, 1).astype(np.float32)

        def tree(values):
            return Tree({"observation": values, "achieved_goal": values, "desired_goal": np.full_like(values, OWN)})

        return TrajectoryBatch(
            observations=tree(number), actions=np.zeros((*shape, 1), np.float32), log_probs=np.zeros(shape, np.float32),
            rewards=np.full(shape, -1.0, np.float32), terminated=ended & terminated, truncated=ended & (not terminated),
            valid=np.ones(shape, dtype=bool), final_observations=tree(finals), final_index=np.flatnonzero(ended),
            policy_version=0, first_slot=self.first_slot, steps_before=before,
        )  # fmt: skip


NEAR = GoalTask(lambda achieved, goals: (abs(achieved - goals) <= 2)[:, 0] - 1.0, SPARSE.terminated)
"""A goal is achieved from two before it on."""


def make(capacity=1000, share=1.0, task=SPARSE, candidates=1):
    return HindsightBuffer(capacity, SPEC, CPU, 0.9, share, candidates, task)


def drawn(buffer, count=2000, seed=0):
    return buffer.transitions(buffer.draw(count, torch.Generator().manual_seed(seed))[0])


def goals(buffer, count=2000):
    """By step, the goals that it was drawn with."""
    batch, found = drawn(buffer, count), defaultdict(set)
    pairs = (batch.next_observations["achieved_goal"], batch.next_observations["desired_goal"])
    for step, goal in zip(*(column.flatten().tolist() for column in pairs), strict=True):
        found[int(step)].add(goal)
    return dict(found)


def test_a_goal_is_what_the_step_or_a_later_one_of_its_episode_achieved():
    buffer = make()
    buffer.add(Slots(1).fragment(5, ends=[(2, 0), (4, 0)]))
    assert goals(buffer) == {1: {1, 2, 3}, 2: {2, 3}, 3: {3}, 4: {4, 5}, 5: {5}}


def test_slots_have_episodes_of_their_own():
    buffer = make()
    buffer.add(Slots(2).fragment(2, ends=[(1, 0), (1, 1)]))  # slot 0 achieves 1 and 3, slot 1 achieves 2 and 4
    assert goals(buffer) == {1: {1, 3}, 3: {3}, 2: {2, 4}, 4: {4}}


def test_an_episode_continues_in_the_next_fragment_of_its_slots():
    buffer, slots, others = make(), Slots(1), Slots(1, first_slot=1)
    others.taken = 100
    buffer.add(slots.fragment(2))
    buffer.add(others.fragment(2, ends=[(1, 0)]))
    buffer.add(slots.fragment(1))
    buffer.add(slots.fragment(1, ends=[(0, 0)]))
    assert goals(buffer) == {
        1: {1, 2, 3, 4}, 2: {2, 3, 4}, 3: {3, 4}, 4: {4}, 101: {101, 102}, 102: {102}
    }  # fmt: skip


def test_steps_keep_their_goal_until_their_episode_has_ended():
    buffer, slots = make(), Slots(1)
    buffer.add(slots.fragment(3, ends=[(1, 0)]))
    assert goals(buffer)[3] == {OWN}
    buffer.add(slots.fragment(1, ends=[(0, 0)]))
    assert goals(buffer)[3] == {3, 4}


def test_an_episode_that_was_broken_off_ends_where_another_begins():
    buffer, slots = make(), Slots(1)
    buffer.add(slots.fragment(2))
    slots.interrupt()
    buffer.add(slots.fragment(2, ends=[(1, 0)]))
    assert goals(buffer) == {1: {1, 2}, 2: {2}, 3: {3, 4}, 4: {4}}


def test_an_episode_with_a_fragment_missing_is_not_continued():
    buffer, slots = make(), Slots(1)
    buffer.add(slots.fragment(2))
    slots.fragment(2)
    buffer.add(slots.fragment(2, ends=[(1, 0)]))
    assert goals(buffer) == {1: {1, 2}, 2: {2}, 5: {5, 6}, 6: {6}}


def test_the_drawn_goal_stands_in_both_observations_and_only_there():
    buffer = make()
    buffer.add(Slots(1).fragment(3, ends=[(2, 0)]))
    batch = drawn(buffer)
    before, after = batch.observations, batch.next_observations
    assert torch.equal(before["desired_goal"], after["desired_goal"])
    assert torch.equal(before["achieved_goal"], after["achieved_goal"] - 1)
    assert torch.equal(after["observation"], after["achieved_goal"])
    assert set(buffer.state()["frames/desired_goal"].flatten().tolist()) == {OWN}


def test_later_steps_are_drawn_equally_often():
    buffer = make()
    buffer.add(Slots(1).fragment(4, ends=[(3, 0)]))
    batch = drawn(buffer, 16000)
    first = batch.next_observations["achieved_goal"][:, 0] == 1
    counts = torch.bincount(batch.next_observations["desired_goal"][first, 0].long(), minlength=5)[1:]
    assert ((counts - 1000).abs() < 150).all()  # 16,000 / 4 steps / 4 goals


def test_the_reward_is_that_of_the_new_goal():
    buffer = make()
    buffer.add(Slots(1).fragment(3, ends=[(2, 0)]))
    batch = drawn(buffer)
    reached = batch.next_observations["achieved_goal"] == batch.next_observations["desired_goal"]
    assert torch.equal(batch.rewards, reached[:, 0].float() - 1.0)
    assert not batch.terminated.any()


def test_where_a_goal_ends_the_task_the_step_that_achieves_the_new_one_does():
    buffer = make(task=ENDING)
    buffer.add(Slots(1).fragment(3, ends=[(2, 0)]))
    batch = drawn(buffer)
    assert torch.equal(batch.terminated, batch.rewards + 1.0)


def test_a_step_that_ended_the_task_for_another_reason_still_does():
    buffer = make(task=ENDING)
    buffer.add(Slots(1).fragment(3, ends=[(2, 0)], terminated=True))
    batch = drawn(buffer)
    last = batch.next_observations["achieved_goal"][:, 0] == 3
    assert batch.terminated[last].all()


def test_the_share_of_relabelled_steps_is_that_of_the_option_and_is_measured():
    buffer = make(share=0.25)
    buffer.add(Slots(1).fragment(40, ends=[(39, 0)]))
    rows, observed = buffer.draw(8000, torch.Generator().manual_seed(0))
    relabelled = rows.observations[1]["desired_goal"][:, 0] != OWN
    assert relabelled.double().mean().item() == pytest.approx(0.25, abs=0.02)
    assert torch.equal(observed[m.RELABELLED], relabelled.double())
    assert torch.equal(observed[m.RELABELLED_REWARD], buffer.transitions(rows).rewards[relabelled])
    assert observed[m.RELABELLED_REWARD_BEFORE].unique().tolist() == [-1.0]
    assert observed[m.RELABELLED_AHEAD].double().mean().item() == pytest.approx(39 / 4, abs=0.5)


def ahead(buffer):
    """By drawn step, how far its new goal was away before it, the mean of the metric of that, and the drawn steps."""
    rows, observed = buffer.draw(4000, torch.Generator().manual_seed(0))
    before, after = rows.observations
    distance = after["desired_goal"] - before["achieved_goal"]
    return distance[:, 0], observed[m.GOALS_AHEAD].double().mean().item(), after["achieved_goal"][:, 0]


def test_with_one_candidate_goals_are_taken_that_had_been_achieved_before():
    buffer = make(task=NEAR)
    buffer.add(Slots(1).fragment(10, ends=[(9, 0)]))
    distance, share, _ = ahead(buffer)
    assert distance.min() == 1
    assert share == (distance > 2).double().mean().item()


def test_with_several_candidates_a_goal_that_lies_ahead_is_taken():
    buffer = make(task=NEAR, candidates=100)
    buffer.add(Slots(1).fragment(10, ends=[(9, 0)]))
    distance, _, steps = ahead(buffer)
    assert distance.min() == 3
    assert sorted(steps.unique().tolist()) == [1, 2, 3, 4, 5, 6, 7, 8]  # after 8 none is far enough


def test_where_no_goal_lies_ahead_the_first_candidate_is_taken():
    buffer = make(task=NEAR, candidates=100)
    buffer.add(Slots(1).fragment(2, ends=[(1, 0)]))
    distance, share, _ = ahead(buffer)
    assert distance.unique().tolist() == [1, 2]
    assert share == 0


def test_steps_that_keep_their_goal_are_not_chosen_by_it():
    buffer = make(task=NEAR, candidates=100, share=0.0)
    buffer.add(Slots(1).fragment(10, ends=[(9, 0)]))
    assert ahead(buffer)[2].unique().numel() == 10


FRAGMENTS = st.lists(
    st.tuples(
        st.integers(0, 1),  # worker
        st.integers(1, 4),  # steps
        st.sets(st.tuples(st.integers(0, 3), st.integers(0, 1)), max_size=3),  # where episodes end
        st.booleans(),  # interrupted before it
    ),
    min_size=1,
    max_size=12,
)


def told(fragments, capacity):
    """A buffer after a story of two workers with two slots each; their episodes, and what is stored."""
    buffer, workers = make(capacity), [Slots(2), Slots(2, first_slot=2)]
    workers[1].taken = 1000
    for worker, steps, ends, interrupted in fragments:
        if interrupted:
            workers[worker].interrupt()
        buffer.add(workers[worker].fragment(steps, ends))
    episodes = [achieved for slots in workers for achieved in slots.achieved.values()]
    unfinished = [slots.achieved[running] for slots in workers for running in slots.running]
    return buffer, episodes, [achieved for achieved in unfinished if achieved]


def check(buffer, episodes, unfinished):
    """Checks that steps of episodes that have ended have the goals that they may have, and others their own."""
    for step, given_goals in goals(buffer, 500).items():
        (episode,) = (achieved for achieved in episodes if step in achieved)
        later = {OWN} if episode in unfinished else set(episode[episode.index(step) :])
        assert given_goals <= later


@given(FRAGMENTS, st.integers(14, 60))
def test_whatever_happens_a_goal_comes_from_a_later_step_of_the_same_episode(fragments, capacity):
    check(*told(fragments, capacity))


@given(FRAGMENTS, st.integers(14, 60), st.integers(14, 60))
def test_a_restored_buffer_gives_the_same_goals_and_with_another_capacity_legal_ones(fragments, capacity, other):
    buffer, episodes, unfinished = told(fragments, capacity)
    restored = make(other)
    restored.load_state(buffer.state())
    check(restored, episodes, unfinished)
    if other >= capacity:
        ways = [drawn(one) for one in (buffer, restored)]
        assert all(torch.equal(way.rewards, ways[0].rewards) for way in ways)
        state = restored.state()
        assert all(torch.equal(array, state[name]) for name, array in buffer.state().items())


def test_a_restored_buffer_continues_the_episodes_that_had_not_ended():
    buffer, slots = make(), Slots(1)
    buffer.add(slots.fragment(2))
    restored = make()
    restored.load_state(buffer.state())
    restored.add(slots.fragment(1, ends=[(0, 0)]))
    assert goals(restored) == {1: {1, 2, 3}, 2: {2, 3}, 3: {3}}
