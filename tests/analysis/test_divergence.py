"""Where two runs of one configuration and seed part: the first iteration, and the first thing in it."""

from __future__ import annotations

import copy
import json
import re
from typing import Any

import pytest
import torch

import rlpipe
from rlpipe.analysis.comparison import compare
from rlpipe.analysis.divergence import first_difference
from rlpipe.run.directory import FINGERPRINTS, read_jsonl
from tests.helpers.runs import scripted


def line(**changes: Any) -> dict[str, Any]:
    """Fingerprints of an iteration of one worker with 4 environments over 3 steps: eight digits for each."""
    fragment = {
        "first_slot": 0, "slots": 4, "start": None, "noise": "n", "observations": "a" * 32, "actions": "b" * 24,
        "outcomes": "c" * 24,
    }  # fmt: skip
    update = {"weights": "w", "updated": "u"}
    for name, value in changes.items():
        (update if name in update else fragment)[name] = value
    return {"iteration": 2, "fragments": [fragment], "updates": [update]}


def digests(letter: str, steps: int, step: int) -> str:
    """Digests of steps of which one is another."""
    return "".join(("z" if number == step else letter) * 8 for number in range(steps))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({}, ""),
        ({"weights": "x", "noise": "x"}, "the weights at its start"),
        ({"start": "x", "noise": "x"}, "the simulator: the same seeds begin other episodes"),
        ({"noise": "x", "actions": digests("b", 3, 0)}, "the noise of the actions"),
        ({"actions": digests("b", 3, 1), "observations": digests("a", 4, 2)}, "the policy: .* at step 1 of"),
        ({"observations": digests("a", 4, 2), "actions": digests("b", 3, 2)}, "other observations, at step 2 of"),
        ({"outcomes": digests("c", 3, 1), "observations": digests("a", 4, 2)}, "rewards or ends, at step 1 of"),
        ({"updated": "x"}, "the learner: the same weights and batch lead to other weights"),
        ({"slots": 2}, "the numbers of workers or of their environments differ"),
    ],
)
def test_the_first_thing_that_differs_is_named(changes, words):
    difference = first_difference(line(), line(**changes), 2)
    assert re.search(words, difference)
    assert bool(words) == bool(difference)


def test_the_earliest_step_of_all_workers_counts():
    first, second = line(), line()
    for fragments in (first["fragments"], second["fragments"]):
        fragments.append(copy.deepcopy(fragments[0]) | {"first_slot": 4})
    second["fragments"][0]["actions"] = digests("b", 3, 2)
    second["fragments"][1]["actions"] = digests("b", 3, 1)
    assert first_difference(first, second, 2).endswith("at step 1 of environments 4 to 7")


def last_warning(*runs) -> str:
    return compare(runs).warnings[-1]


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Two runs of four iterations that are equal."""
    folder = tmp_path_factory.mktemp("runs")
    return [rlpipe.train(scripted(folder), local=True).directory for _ in range(2)]


def test_equal_runs_are_equal_in_all_their_fingerprints(runs):
    assert "are equal to the bit in their first 4 iterations" in last_warning(*runs)


def test_only_the_first_iterations_leave_fingerprints(tmp_path):
    run = rlpipe.train(scripted(tmp_path, "runner.total_timesteps=512"), local=True).directory
    assert [line["iteration"] for line in read_jsonl(run / FINGERPRINTS)] == [1, 2, 3, 4, 5]


def test_the_number_of_workers_shows_in_the_fragments(tmp_path):
    run = rlpipe.train(scripted(tmp_path, "rollout.num_workers=2"), local=True).directory
    first = next(read_jsonl(run / FINGERPRINTS))
    assert [(fragment["first_slot"], fragment["slots"]) for fragment in first["fragments"]] == [(0, 2), (2, 2)]


class OtherSeed(torch.Generator):
    """Generator of minibatches that does not follow the seed of the run."""

    def manual_seed(self, seed: int) -> torch.Generator:
        return super().manual_seed(seed + 1)


def test_two_runs_that_part_say_where(runs, tmp_path, monkeypatch):
    """Other minibatches: the batch of iteration 1 is still the same."""
    monkeypatch.setattr("rlpipe.learning.base.torch.Generator", OtherSeed)
    other = rlpipe.train(scripted(tmp_path), local=True).directory
    assert "part in iteration 1 by the learner" in last_warning(runs[0], other)


def test_a_run_of_an_earlier_version_has_no_fingerprints_and_is_compared_as_before(runs, tmp_path):
    other = rlpipe.train(scripted(tmp_path), local=True).directory
    (other / FINGERPRINTS).unlink()
    assert "such runs are not independent" in last_warning(runs[0], other)


def test_a_resumed_run_keeps_the_fingerprints_of_before(tmp_path):
    run = rlpipe.train(scripted(tmp_path, "runner.total_timesteps=128"), local=True).directory
    config = json.loads((run / "run.json").read_text())
    assert config["status"] == "completed"
    rlpipe.train(rlpipe.load_config(run / "config.yaml", ["runner.total_timesteps=512"]), local=True, resume=run)
    assert [line["iteration"] for line in read_jsonl(run / FINGERPRINTS)] == [1, 2, 3, 4, 5]
