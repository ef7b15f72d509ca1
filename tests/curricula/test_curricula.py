"""Curricula: which starts they offer, and how these move with success."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlpipe.curricula.base import DemonstratedEpisode
from rlpipe.curricula.forward import ForwardCurriculum
from rlpipe.curricula.none import NoCurriculum
from rlpipe.curricula.reverse import ReverseCurriculum
from rlpipe.curricula.reverse_forward import ReverseForwardCurriculum
from rlpipe.curricula.reverse_spread import ReverseSpreadCurriculum, SpreadCurriculum
from rlpipe.functional.curricula import pairs
from rlpipe.trajectory import Episode


def shown(*lengths):
    """Demonstrations whose state counts the steps."""
    return [DemonstratedEpisode(100 + n, {"t": np.arange(length + 1)}) for n, length in enumerate(lengths)]


def made(kind, demonstrations=(), **options):
    return kind(kind.Config("name", **options), demonstrations, 0)


def tried(start, success, seed=0):
    """An episode that began in a chosen start."""
    return Episode(
        worker=0, slot=0, seed=seed if start is None else start.seed, policy_version=0, episode_return=float(success),
        length=1, success_once=success, success_at_end=success, success_at_reset=False, terminated=success,
        truncated=not success, chosen=True, demonstration=None if start is None else start.demonstration,
        demonstration_step=None if start is None else start.step, blend=None if start is None else start.blend,
        towards=None if start is None else start.towards,
    )  # fmt: skip


def at_the_front(curriculum, demonstration=0):
    """The start from which a demonstration must succeed to move back."""
    return next(start for start in curriculum.starts().offered if start.demonstration == demonstration)


def test_without_a_curriculum_the_task_draws_every_start():
    assert made(NoCurriculum).starts() is None


class TestReverse:
    def test_begins_near_the_end_of_each_demonstration(self):
        curriculum = made(ReverseCurriculum, shown(40, 20), step_back=4)
        assert curriculum.at.tolist() == [36, 16]
        starts = curriculum.starts()
        assert [start.step for start in starts.offered] == [36, 37, 38, 39, 39, 16, 17, 18, 19, 19]
        assert starts.probabilities.sum() == pytest.approx(1.0)

    def test_a_start_has_the_state_and_the_seed_of_its_demonstration(self):
        start = at_the_front(made(ReverseCurriculum, shown(40, 20), step_back=4), 1)
        assert (start.seed, start.state, start.demonstration, start.step) == (101, {"t": 16}, 1, 16)

    def test_an_episode_has_sixteen_steps_and_a_multiple_of_what_the_demonstration_has_left(self):
        assert at_the_front(made(ReverseCurriculum, shown(40), step_back=9)).limit == 16 + 9
        assert at_the_front(made(ReverseCurriculum, shown(40), step_back=9, limit_factor=1 / 3)).limit == 16 + 3

    def test_moves_back_after_successes_in_a_row(self):
        curriculum = made(ReverseCurriculum, shown(40), step_back=4, successes=2)
        for outcome, expected in ((True, 36), (False, 36), (True, 36), (True, 32)):
            curriculum.observe([tried(at_the_front(curriculum), outcome)])
            assert curriculum.at.tolist() == [expected]

    def test_only_episodes_from_the_present_start_count(self):
        curriculum = made(ReverseCurriculum, shown(40), step_back=4, successes=1)
        easier = curriculum.starts().offered[1]
        curriculum.observe([tried(easier, True)])
        assert curriculum.at.tolist() == [36]

    def test_each_demonstration_has_its_own_pace(self):
        curriculum = made(ReverseCurriculum, shown(40, 40), step_back=10, successes=1)
        curriculum.observe([tried(at_the_front(curriculum, 1), True)])
        assert curriculum.at.tolist() == [30, 20]

    def test_a_demonstration_is_solved_when_it_succeeds_from_its_beginning(self):
        curriculum = made(ReverseCurriculum, shown(10), step_back=10, successes=1)
        assert curriculum.at.tolist() == [0]
        curriculum.observe([tried(at_the_front(curriculum), True)])
        assert curriculum.solved.tolist() == [True]

    def test_the_task_draws_every_start_once_all_are_solved(self):
        curriculum = made(ReverseCurriculum, shown(10), step_back=10, successes=1)
        curriculum.observe([tried(at_the_front(curriculum), True)])
        assert curriculum.starts() is None

    def test_a_share_of_the_episodes_begins_as_the_task_draws_it(self):
        starts = made(ReverseCurriculum, shown(40), own_starts=0.25).starts()
        generator = np.random.default_rng(0)
        drawn = Counter(starts.draw(generator) is None for _ in range(4000))
        assert drawn[True] / 4000 == pytest.approx(0.25, abs=0.03)

    @given(st.lists(st.booleans(), max_size=60), st.integers(0, 60))
    def test_a_resumed_curriculum_goes_on_as_if_nothing_had_happened(self, outcomes, cut):
        def follow(curriculum, some):
            for outcome in some:
                if curriculum.starts() is not None:
                    curriculum.observe([tried(at_the_front(curriculum), outcome)])
            return curriculum

        whole = follow(made(ReverseCurriculum, shown(30), step_back=4), outcomes)
        first = follow(made(ReverseCurriculum, shown(30), step_back=4), outcomes[:cut])
        second = made(ReverseCurriculum, shown(30), step_back=4)
        second.load_state(first.state())
        follow(second, outcomes[cut:])
        assert {name: values.tolist() for name, values in second.state().items()} == {
            name: values.tolist() for name, values in whole.state().items()
        }

    def test_the_state_of_other_demonstrations_is_refused(self):
        with pytest.raises(ValueError, match="had 2 demonstrations, and now has 1"):
            made(ReverseCurriculum, shown(30)).load_state(made(ReverseCurriculum, shown(30, 30)).state())


class TestForward:
    def test_offers_every_seed_and_begins_with_equal_shares(self):
        starts = made(ForwardCurriculum, seeds=10).starts()
        assert len({start.seed for start in starts.offered}) == 10
        assert min(start.seed for start in starts.offered) >= 2**30
        assert starts.probabilities == pytest.approx(np.full(10, 0.1))

    def test_prefers_seeds_that_succeed_sometimes_to_unsolved_ones_and_those_to_mastered_ones(self):
        curriculum = made(ForwardCurriculum, seeds=3, history=4, staleness=0.0, temperature=1.0)
        unsolved, sometimes, mastered = (start.seed for start in curriculum.starts().offered)
        for seed, outcomes in ((unsolved, [0, 0, 0, 0]), (sometimes, [0, 0, 1, 1]), (mastered, [0, 1, 1, 1])):
            curriculum.observe([tried(None, bool(outcome), seed) for outcome in outcomes])
        assert curriculum.starts().probabilities == pytest.approx(np.array([1 / 2, 1, 1 / 3]) / (11 / 6))

    def test_comes_back_to_seeds_that_were_not_tried_for_long(self):
        curriculum = made(ForwardCurriculum, seeds=3, staleness=1.0, temperature=1.0)
        first, second, _ = (start.seed for start in curriculum.starts().offered)
        curriculum.observe([tried(None, True, first), tried(None, True, second)])
        assert curriculum.starts().probabilities.argmax() == 2

    def test_only_its_last_episodes_count_for_a_seed(self):
        curriculum = made(ForwardCurriculum, seeds=2, history=2, staleness=0.0, temperature=1.0)
        seed = curriculum.starts().offered[0].seed
        curriculum.observe([tried(None, outcome, seed) for outcome in (True, True, False, False)])
        assert curriculum.starts().probabilities.tolist() == [0.5, 0.5]


class TestReverseForward:
    def test_goes_on_with_seeds_once_the_demonstrations_are_solved(self):
        curriculum = made(ReverseForwardCurriculum, shown(10), step_back=10, successes=1, seeds=7)
        assert at_the_front(curriculum).demonstration == 0
        curriculum.observe([tried(at_the_front(curriculum), True)])
        assert [start.demonstration for start in curriculum.starts().offered] == [None] * 7

    def test_continues_where_it_was(self):
        curriculum = made(ReverseForwardCurriculum, shown(10), step_back=10, successes=1, seeds=7)
        curriculum.observe([tried(at_the_front(curriculum), True)])
        seed = curriculum.starts().offered[3].seed
        curriculum.observe([tried(None, False, seed), tried(None, True, seed)])
        again = made(ReverseForwardCurriculum, shown(10), step_back=10, successes=1, seeds=7)
        again.load_state(curriculum.state())
        assert again.starts().probabilities.tolist() == curriculum.starts().probabilities.tolist()


TEN = {"levels": 10, "spread_window": 4, "spread_success": 0.75}


class TestSpread:
    """Ten levels, each of which is left after three successes among four episodes."""

    def test_begins_at_the_beginnings_of_the_demonstrations_in_scenes_of_the_tasks_own(self):
        starts = made(SpreadCurriculum, shown(40, 20), **TEN).starts()
        assert {(start.seed, start.state["t"], start.blend) for start in starts.offered} == {(None, 0, 0.0)}
        assert Counter(start.demonstration for start in starts.offered) == {0: 5, 1: 5}
        assert starts.probabilities.sum() == pytest.approx(1.0)

    def test_moves_on_when_most_of_the_last_episodes_at_its_level_succeed(self):
        curriculum = made(SpreadCurriculum, shown(40), **TEN)
        for outcome, expected in ((True, 0), (False, 0), (False, 0), (True, 0), (True, 0), (True, 1), (True, 1)):
            curriculum.observe([tried(at_the_front(curriculum), outcome)])
            assert curriculum.level == expected

    def test_half_of_the_episodes_begin_at_the_present_level_and_the_others_at_easier_ones(self):
        curriculum = made(SpreadCurriculum, shown(40), **TEN)
        curriculum.level = 6
        starts = curriculum.starts()
        assert [start.blend for start in starts.offered] == [0.6, 0.5, 0.4, 0.3, 0.2]
        assert starts.probabilities.tolist() == [0.5, 0.25, 0.125, 0.0625, 0.0625]

    def test_episodes_of_an_easier_level_do_not_count(self):
        curriculum = made(SpreadCurriculum, shown(40), **TEN)
        curriculum.level = 6
        curriculum.observe([tried(curriculum.starts().offered[1], True)] * 9)
        assert curriculum.level == 6

    def test_the_task_draws_every_start_once_the_last_level_is_left(self):
        curriculum = made(SpreadCurriculum, shown(40), levels=1, spread_window=2)
        curriculum.observe([tried(at_the_front(curriculum), True)] * 2)
        assert curriculum.starts() is None

    def test_continues_where_it_was(self):
        curriculum = made(SpreadCurriculum, shown(40), **TEN)
        for successes in (4, 3):
            curriculum.observe([tried(at_the_front(curriculum), True)] * successes)
        again = made(SpreadCurriculum, shown(40), **TEN)
        again.load_state(curriculum.state())
        assert again.level == 1
        again.observe([tried(at_the_front(again), True)])
        assert again.level == 2


TWO_AMONG = {"levels": 2, "spread_window": 2, "spread_success": 0.75, "spread_demonstrations": True}


class TestSpreadAmongDemonstrations:
    """Two levels between each demonstration and every other one, before those towards the task's own starts."""

    def test_begins_between_demonstrations_with_what_the_seed_of_the_first_fixes(self):
        curriculum = made(SpreadCurriculum, shown(40, 20, 30), **TWO_AMONG)
        curriculum.demonstration_level = 1
        offered = {
            (start.seed, start.demonstration, start.towards, start.blend) for start in curriculum.starts().offered
        }
        pairs = [(0, 1), (0, 2), (1, 0), (1, 2), (2, 0), (2, 1)]
        assert offered == {(100 + one, one, other, blend) for one, other in pairs for blend in (0.5, 0.0)}
        assert curriculum.starts().probabilities.sum() == pytest.approx(1.0)

    def test_goes_on_to_the_tasks_own_scenes(self):
        curriculum = made(SpreadCurriculum, shown(40, 20), **TWO_AMONG)
        for among, level in ((0, 0), (1, 0), (2, 0), (2, 1)):
            assert (curriculum.demonstration_level, curriculum.level) == (among, level)
            assert {start.towards is None for start in curriculum.starts().offered} == {among == 2}
            curriculum.observe([tried(at_the_front(curriculum), True)] * 2)
        assert curriculum.starts() is None

    def test_an_episode_in_a_scene_of_the_tasks_own_does_not_count_among_demonstrations(self):
        curriculum = made(SpreadCurriculum, shown(40, 20), **TWO_AMONG)
        curriculum.observe([tried(replace(at_the_front(curriculum), seed=None, towards=None), True)] * 9)
        assert curriculum.demonstration_level == 0

    def test_an_episode_that_began_among_demonstrations_does_not_count_once_that_is_over(self):
        curriculum = made(SpreadCurriculum, shown(40, 20), **TWO_AMONG)
        began = at_the_front(curriculum)
        curriculum.demonstration_level = 2
        curriculum.observe([tried(began, True)] * 9)
        assert curriculum.level == 0

    def test_a_checkpoint_of_an_earlier_version_begins_among_demonstrations(self):
        curriculum = made(SpreadCurriculum, shown(40, 20), **TWO_AMONG)
        curriculum.load_state({"level": np.array(0), "outcomes": np.array([True])})
        curriculum.observe([tried(at_the_front(curriculum), True)])
        assert (curriculum.demonstration_level, curriculum.level) == (0, 0)

    @pytest.mark.parametrize("before", [False, True])
    def test_a_resumed_run_follows_its_new_options_and_counts_episodes_anew(self, before):
        curriculum = made(SpreadCurriculum, shown(40, 20), **(TWO_AMONG | {"spread_demonstrations": before}))
        curriculum.observe([tried(at_the_front(curriculum), True)])
        again = made(SpreadCurriculum, shown(40, 20), **(TWO_AMONG | {"spread_demonstrations": not before}))
        again.load_state(curriculum.state())
        assert {start.towards is None for start in again.starts().offered} == {before}
        again.observe([tried(at_the_front(again), True)])
        assert at_the_front(again).blend == 0.0

    def test_a_resumed_run_with_another_number_of_levels_is_as_far_as_it_was(self):
        curriculum = made(SpreadCurriculum, shown(40, 20), **TWO_AMONG)
        for among, level in ((1, 0), (2, 1)):
            curriculum.demonstration_level, curriculum.level = among, level
            again = made(SpreadCurriculum, shown(40, 20), **(TWO_AMONG | {"levels": 10}))
            again.load_state(curriculum.state())
            assert (again.demonstration_level, again.level) == (5 * among, 5 * level)

    def test_one_demonstration_has_no_others(self):
        curriculum = made(SpreadCurriculum, shown(40), **TWO_AMONG)
        assert {start.seed for start in curriculum.starts().offered} == {None}

    def test_continues_where_it_was(self):
        curriculum = made(SpreadCurriculum, shown(40, 20), **TWO_AMONG)
        for successes in (2, 1):
            curriculum.observe([tried(at_the_front(curriculum), True)] * successes)
        again = made(SpreadCurriculum, shown(40, 20), **TWO_AMONG)
        again.load_state(curriculum.state())
        assert again.demonstration_level == 1
        again.observe([tried(at_the_front(again), True)])
        assert again.demonstration_level == 2


@given(st.integers(2, 60), st.integers(1, 300))
def test_pairs_have_every_number_first_and_second_equally_often(count, most):
    first, second = pairs(count, most).T
    assert len(set(zip(first, second, strict=True))) == len(first) <= max(most, count)
    assert len(set(Counter(first.tolist()).values()) | set(Counter(second.tolist()).values())) == 1
    assert set(first) == set(range(count))
    assert not (first == second).any()


class TestReverseSpread:
    def test_goes_on_from_the_beginnings_once_the_demonstrations_are_solved(self):
        curriculum = made(ReverseSpreadCurriculum, shown(10), step_back=10, successes=1)
        assert at_the_front(curriculum).seed == 100
        curriculum.observe([tried(at_the_front(curriculum), True)])
        assert {(start.seed, start.step, start.blend) for start in curriculum.starts().offered} == {(None, 0, 0.0)}
