"""``rlpipe compare`` of policies that ran the same episodes: who solves which, and what that shows."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest

import rlpipe
from rlpipe.analysis.comparison import compare
from rlpipe.analysis.evaluated_run import EvaluatedRun
from rlpipe.analysis.pairs import pairs_of
from rlpipe.config.loading import load_config
from rlpipe.config.protocol import protocol
from rlpipe.errors import ConfigError
from rlpipe.functional.intervals import difference_interval, difference_test
from rlpipe.functional.paired import holm_adjusted, mcnemar_test, tango_interval
from rlpipe.metrics import catalogue as m
from rlpipe.run.replays import FOLDER, ReplayFolder, ReplaySet
from rlpipe.trajectory import Episode, Replay
from tests.helpers.commands import command
from tests.helpers.runs import scripted
from tests.helpers.simulators import RACE

SEED = 1_000_000
OURS = "1" * 12 + "0" * 3 + "1" * 30 + "0" * 5
THEIRS = "0" * 12 + "1" * 3 + "1" * 30 + "0" * 5
"""Fifty episodes: ours alone solves twelve, theirs alone three, both or neither 35."""


def episode(number: int, solved: bool, task: str | None = None) -> Episode:
    return Episode(
        0, number, SEED + number, 0, float(solved), 9, solved, solved, success_at_reset=False, terminated=solved,
        truncated=not solved, task=task,
    )  # fmt: skip


def record(folder: Path, number: int, outcomes: str, policy: str | None = None, **changes) -> Path:
    """A record of ``rlpipe evaluate``: a digit for each episode, 1 for a success."""
    settings = protocol(load_config({"env": {"train": {"name": "scripted"}}}, [f"evaluation.episodes={len(outcomes)}"]))
    contents = {
        "policy": policy,
        "checkpoint": None if policy else "runs/reach/20261121-seed3/checkpoints/iteration-000004.npz",
        "iteration": 0 if policy else 4,
        "protocol": settings | {"seed": 3} | changes.pop("protocol", {}),
        "episodes": [episode(number, one == "1").as_row(0) for number, one in enumerate(outcomes)],
        **changes,
    }
    file = folder / f"{number}.json"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(contents))
    return file


@pytest.fixture
def records(tmp_path) -> list[Path]:
    folder = tmp_path / "evaluations"
    return [record(folder, 1, OURS), record(folder, 2, THEIRS, "my_policies:act")]


# --- records as sides


def test_a_record_is_a_row_of_its_own_under_the_name_of_its_policy(tmp_path):
    folder = tmp_path / "evaluations"
    files = [record(folder, 1, OURS)]
    files += [record(folder, n, OURS, policy) for n, policy in enumerate(("my_policies:act", "a.onnx", "random"), 2)]
    assert [group.label for group in compare(files).groups] == [
        "reach seed 3, iteration 4", "my_policies:act", "a.onnx", "floor: random",
    ]  # fmt: skip


def test_two_records_of_one_policy_are_told_apart_by_their_files(tmp_path):
    files = [record(tmp_path / "evaluations", number, OURS, "my_policies:act") for number in (1, 2)]
    assert [group.label for group in compare(files).groups] == [f"my_policies:act record={file}" for file in files]


def test_a_record_stands_beside_runs_and_no_longer_among_the_baselines(tmp_path):
    config = scripted(tmp_path, "rollout.horizon=4", "algorithm.num_minibatches=2", "runner.total_timesteps=24",
                      env=RACE)  # fmt: skip
    run = rlpipe.train(config, local=True).directory
    floor = rlpipe.evaluate(run, policy="zero", local=True).record
    assert floor is not None
    alone, beside = compare([run]), compare([run, Path(floor)])
    assert [one.label for one in alone.baselines] == ["floor: zero"]
    assert ([group.label for group in beside.groups], beside.baselines) == (["scripted", "floor: zero"], [])
    assert beside.groups[1].reached is None
    assert (beside.pairs[0].pairs, beside.pairs[0].difference) == (6, 0)


def test_a_policy_from_elsewhere_may_sample_its_actions_where_a_run_takes_the_most_likely_ones(tmp_path):
    sampled = {"deterministic_actions": False}
    ours, theirs = record(tmp_path, 1, OURS), record(tmp_path, 2, THEIRS, "my_policies:act", protocol=sampled)
    assert len(compare([ours, theirs]).pairs) == 1
    with pytest.raises(ConfigError, match=r"evaluation.deterministic is True in .*1.json and False in .*3.json"):
        compare([ours, record(tmp_path, 3, THEIRS, protocol=sampled)])


def test_a_file_that_is_no_record_is_refused_by_the_key_that_is_missing(tmp_path):
    (tmp_path / "other.json").write_text("{}")
    with pytest.raises(ConfigError, match=r"other.json: iteration is missing"):
        compare([tmp_path / "other.json"])


# --- what a pair says


def test_a_pair_has_tangos_interval_the_exact_test_and_the_seeds_that_flip(records):
    (pair,) = compare(records).pairs
    assert (pair.first, pair.second, pair.pairs) == ("reach seed 3, iteration 4", "my_policies:act", 50)
    assert pair.first_only == [("", SEED + number) for number in range(12)]
    assert pair.second_only == [("", SEED + number) for number in range(12, 15)]
    assert pair.difference == 9 / 50
    assert (pair.low, pair.high) == tango_interval(50, 12, 3)
    assert pair.p_value == pair.p_adjusted == mcnemar_test(12, 3)
    assert pair.is_decided


def test_the_difference_from_the_first_is_that_of_the_pair(records):
    comparison = compare(records)
    (difference,), (pair,) = comparison.differences, comparison.pairs
    assert (difference.value, difference.low, difference.high) == pytest.approx(
        (-pair.difference, -pair.high, -pair.low)
    )


def test_p_values_are_adjusted_over_all_pairs(tmp_path, records):
    same = record(tmp_path / "evaluations", 3, OURS, "b:act")
    p_values = {(pair.first, pair.second): pair for pair in compare([*records, same]).pairs}
    ours, equal = (
        p_values["reach seed 3, iteration 4", "my_policies:act"],
        p_values["reach seed 3, iteration 4", "b:act"],
    )
    assert (ours.p_value, ours.p_adjusted) == (mcnemar_test(12, 3), pytest.approx(3 * mcnemar_test(12, 3)))
    assert (equal.p_value, equal.p_adjusted) == (1, 1)


def test_the_set_of_the_best_holds_all_that_cannot_be_told_from_it(tmp_path, records):
    close = record(tmp_path / "evaluations", 3, "0" + OURS[1:], "b:act")
    assert compare([*records, close]).best_set == ["reach seed 3, iteration 4", "b:act"]
    assert compare(records).best_set == ["reach seed 3, iteration 4"]
    assert compare(records[1:]).best_set == ["my_policies:act"]


def test_an_undecided_pair_says_how_many_more_it_needs(tmp_path):
    """Two of ten differ; the upper bound of their share is 0.51: Connor needs 98 pairs for a difference of 0.2."""
    pair = compare([record(tmp_path, 1, "1100000000"), record(tmp_path, 2, "0000000000", "b")]).pairs[0]
    assert (pair.is_decided, pair.is_too_alike) == (False, True)
    assert (pair.for_difference, pair.further_pairs) == (0.2, 98 - 10)


def test_episodes_of_only_one_are_left_out_and_counted(tmp_path):
    ours, theirs = record(tmp_path, 1, OURS), record(tmp_path, 2, THEIRS[:20], "my_policies:act")
    (pair,) = compare([ours, theirs], anyway=True).pairs
    assert (pair.pairs, pair.unpaired, len(pair.first_only)) == (20, 30, 12)


def test_tasks_are_paired_by_their_name_and_their_seed(tmp_path):
    ours, theirs = (EvaluatedRun.of_record(record(tmp_path, number, "11")) for number in (1, 2))
    tasks = [episode(0, True, "push"), episode(0, True, "pull")]
    one, other = dataclasses.replace(ours, episodes=tasks), dataclasses.replace(theirs, episodes=tasks[::-1])
    (pair,) = pairs_of(m.EVAL_SUCCESS_ONCE, [("one", [one]), ("other", [other])])
    assert (pair.pairs, pair.first_only, pair.second_only) == (2, [], [])


@pytest.mark.parametrize(
    "changes",
    [
        {"versions": {"torch": "1.0"}},
        {"protocol": {"eval_env": {"name": "scripted", "total_num_envs": 4, "ignore_terminations": True}}},
    ],
)
def test_other_versions_or_options_of_a_simulator_make_other_episodes(tmp_path, changes):
    ours = record(tmp_path, 1, OURS, versions={"torch": "2.0"})
    theirs = record(tmp_path, 2, THEIRS, "my_policies:act", **changes)
    comparison = compare([ours, theirs], anyway=True)
    assert comparison.pairs == []
    assert comparison.differences[0].low < -tango_interval(50, 12, 3)[1]  # not paired, so wider


@pytest.mark.parametrize(
    ("theirs", "independent", "words"), [(4, False, "ran 16 and 4 environments"), (16, False, ""), (4, True, "")]
)
def test_other_numbers_of_environments_are_named_where_episodes_depend_on_those_before(
    tmp_path, theirs, independent, words
):
    def of(number: int, environments: int, policy: str | None = None) -> Path:
        simulator = {"name": "scripted", "total_num_envs": environments}
        settings = {"eval_env": simulator, "independent_episodes": independent}
        return record(tmp_path, number, OURS, policy, protocol=settings)

    comparison = compare([of(1, 16), of(2, theirs, "my_policies:act")])
    assert len(comparison.pairs) == 1
    assert [words in warning for warning in comparison.warnings] == ([True] if words else [])


def test_returns_are_not_paired_but_have_a_set_of_the_best(records):
    comparison = compare(records, metric="eval/return")
    assert (comparison.pairs, comparison.best_set) == ([], ["reach seed 3, iteration 4"])


def test_of_a_metric_that_ranks_no_policies_none_is_the_best(records):
    assert compare(records, metric="eval/episode_len").best_set == []


# --- what is shown


def store_replays(record: Path, *numbers: int) -> None:
    """Stores replays of some episodes of a record."""
    replays = [Replay(episode(number, True), np.zeros(1), None, np.zeros((1, 1)), {}, None, "") for number in numbers]
    ReplayFolder(record.parent.parent / FOLDER).write(
        f"evaluation-{record.stem}", ReplaySet(4, "evaluation", "", replays), {}
    )


def test_an_episode_that_flips_can_be_seen_where_both_have_a_replay(tmp_path, records):
    assert compare(records).pairs[0].replays == []
    store_replays(records[0], 20, 1, 2)
    store_replays(records[1], 2, 13)
    commands = compare(records).pairs[0].replays
    assert [line.split(" --out ")[0] for line in commands] == [
        f"rlpipe replay {tmp_path} --set evaluation-1 --episode 3",
        f"rlpipe replay {tmp_path} --set evaluation-2 --episode 1",
    ]
    for line in commands:
        assert command(*line.split()[1:]).code == 0
    assert len(list(tmp_path.glob("replay-*.html"))) == 2


def test_the_table_shows_pairs_flips_and_the_set_of_the_best(records):
    screen = " ".join(command("compare", *map(str, records)).out.split())
    for line in (
        "success_once, pair by pair in the same episodes",
        "reach seed 3, iteration 4 0.840*",
        "+0.180 [+0.031, +0.330] 12 3 0.035 1st -",
        "pairs: over 50 episodes that both ran",
        "only the second: 1000012, 1000013, 1000014",
        "and 7 more",
        "other training seeds are not covered",
    ):
        assert line in screen
    assert "difference from" not in screen  # the pair says it


def test_the_table_says_where_too_few_episodes_differ_to_decide(tmp_path):
    files = [record(tmp_path, 1, "1100000000"), record(tmp_path, 2, "0000000000", "b")]
    screen = " ".join(command("compare", *map(str, files)).out.split())
    assert "2 0 0.500 ? 88" in screen
    assert "fewer than 6 episodes that only one solves can decide nothing" in screen
    assert "more: episodes missing to show this difference, or 0.05 if smaller (power 0.8)" in screen


def test_that_it_cannot_be_told_is_said_once_for_all_pairs(tmp_path):
    files = [record(tmp_path, number, "1010101010", f"policy_{number}.onnx") for number in range(1, 5)]
    screen = command("compare", *map(str, files)).out
    assert screen.count("cannot be told") == 1
    assert screen.count("only the ") == 0  # no episode flips


def test_whether_actions_are_the_most_likely_ones_is_said_of_policies_that_were_trained_here(tmp_path, records):
    theirs = [records[1], record(tmp_path / "evaluations", 3, OURS, "a.onnx")]
    assert "actions of each policy" in (screen := command("compare", *map(str, theirs)).out)
    assert "most likely actions" not in screen
    assert "most likely actions" in command("compare", *map(str, records)).out


# --- training seeds


@pytest.fixture
def seeds(tmp_path) -> list[Group]:
    """Two groups of three seeds each that meet in the same 50 episodes, and a policy that fails in all of them."""
    runs = [EvaluatedRun.of_record(record(tmp_path, number, OURS)) for number in (1, 2, 3)]
    others = [EvaluatedRun.of_record(record(tmp_path, number, "0" * 25 + "1" * 5 + "0" * 20)) for number in (4, 5, 6)]
    nothing = [EvaluatedRun.of_record(record(tmp_path, 7, "0" * 50, "random"))]
    return [("ours", runs), ("others", others), ("random", nothing)]


Group = tuple[str, list[EvaluatedRun]]


def test_groups_of_seeds_have_a_row_among_the_pairs_over_seeds_and_shared_episodes(seeds):
    first = pairs_of(m.EVAL_SUCCESS_ONCE, seeds)[0]
    ours, others = ([float(digit) for digit in outcomes] for outcomes in (OURS, "0" * 25 + "1" * 5 + "0" * 20))
    rows = [ours] * 3, [others] * 3
    assert (first.first, first.second, first.runs, first.pairs) == ("ours", "others", (3, 3), 50)
    assert first.difference == 37 / 50
    assert (first.low, first.high) == difference_interval(*rows, shares=True, shared=True)
    assert first.p_value == difference_test(*rows, shared=True)
    assert (first.first_only, first.second_only, first.is_too_alike, first.further_pairs) == ([], [], False, None)


def test_p_values_are_adjusted_over_pairs_of_policies_and_of_groups_of_seeds(seeds):
    pairs = pairs_of(m.EVAL_SUCCESS_ONCE, seeds)
    assert [pair.runs for pair in pairs] == [(3, 3), (3, 1), (3, 1)]
    assert [pair.p_adjusted for pair in pairs] == holm_adjusted([pair.p_value for pair in pairs])


def test_a_group_of_which_one_run_met_other_episodes_is_paired_in_those_that_all_met(seeds, tmp_path):
    (_, runs), others, _ = seeds
    short = EvaluatedRun.of_record(record(tmp_path, 8, OURS[:20]))
    pair = pairs_of(m.EVAL_SUCCESS_ONCE, [("ours", [*runs, short]), others])[0]
    assert (pair.runs, pair.pairs, pair.unpaired) == ((4, 3), 20, 30)


def test_json_holds_pairs_and_the_set_of_the_best(records):
    comparison = json.loads(command("compare", *map(str, records), "--json").out)
    assert comparison["best_set"] == ["reach seed 3, iteration 4"]
    assert comparison["pairs"][0]["second_only"] == [["", SEED + 12], ["", SEED + 13], ["", SEED + 14]]
