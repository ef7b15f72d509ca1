"""The shape of a line follows from what is written: each field of a dataclass is a key of its line, and documented."""

from __future__ import annotations

import json
import re
from dataclasses import asdict, fields, replace
from pathlib import Path

import pytest

from rlpipe.errors import ConfigError
from rlpipe.metrics.row import Event, HistogramView, Row
from rlpipe.metrics.spans import Span
from rlpipe.run.shapes import SHAPES, Lines
from rlpipe.trajectory import Episode
from rlpipe.trajectory.fingerprint import FragmentFingerprint, UpdateFingerprint

PAGE = Path(__file__).parents[2] / "docs" / "run_directory.md"
EPISODE = Episode(
    worker=0, slot=1, seed=-7, policy_version=2, episode_return=0.5, length=3, success_once=True, success_at_end=None,
    success_at_reset=False, terminated=True, truncated=False, step=4, log_prob=-1.5, first_success=2, fail_once=None,
    fail_at_end=None, reward_terms={"reach": 0.25}, variations={"mass": 1.5}, edge="mass_high", start="a" * 64,
    commitment="b" * 64,
)  # fmt: skip
ROW = Row(
    1, 2, 3.0, {"env/return": 1.0}, {"train/loss": 1}, {"env/return": HistogramView([0.0, 1.0], [1], {"p50": 0.5})},
    {"sb3": {"rollout/ep_rew_mean": 1.0}}, {"0": {"env/return": 1.0}},
)  # fmt: skip
WRITTEN = {
    "metrics.jsonl": ROW.as_json(),
    "episodes.jsonl": EPISODE.as_row(1),
    "eval_episodes.jsonl": EPISODE.as_row(1),
    "events.jsonl": Event("note", "A sentence.", 1, 2.0, {"more": [1]}).as_json(),
    "timeline.jsonl": {"iteration": 1, "spans": [Span("learner-0", "train", 1.0, 2.0).as_json()]},
    "fingerprints.jsonl": {
        "iteration": 1,
        "fragments": [asdict(FragmentFingerprint(0, 4, None, "ab", "0123", "45", "67"))],
        "updates": [asdict(UpdateFingerprint("cd", "ef"))],
    },
}


def read(name: str, record: dict) -> dict:
    return Lines(Path(name)).record(json.dumps(record).encode())


@pytest.mark.parametrize("name", SHAPES)
def test_a_line_is_read_as_it_was_written(name):
    assert read(name, WRITTEN[name]) == WRITTEN[name]


def test_a_row_and_an_episode_are_read_back_whole():
    assert Row.from_json(read("metrics.jsonl", ROW.as_json())) == ROW
    assert Episode.from_row(read("episodes.jsonl", EPISODE.as_row(1))) == EPISODE


@pytest.mark.parametrize("key", ["iteration", "worker", "return", "success_once", "terminated"])
def test_a_key_without_a_default_is_demanded(key):
    episode = {name: value for name, value in EPISODE.as_row(1).items() if name != key}
    with pytest.raises(ConfigError, match=rf"episodes\.jsonl, line 1: {key} is missing\. Correct the line"):
        read("episodes.jsonl", episode)


@pytest.mark.parametrize("key", ["step", "log_prob", "first_success", "fail_once", "fail_at_end", "reward_terms"])
def test_a_key_with_a_default_may_be_missing_as_in_files_of_earlier_versions(key):
    episode = {name: value for name, value in EPISODE.as_row(1).items() if name != key}
    assert Episode.from_row(read("episodes.jsonl", episode)) == replace(
        EPISODE, **{key: next(field.default for field in fields(Episode) if field.name == key)}
        if key != "reward_terms" else {key: {}},
    )  # fmt: skip


@pytest.mark.parametrize(
    ("name", "change", "found"),
    [
        ("episodes.jsonl", {"worker": -1}, "worker is -1; it must be greater than or equal to 0"),
        ("episodes.jsonl", {"first_success": -1}, "first_success is -1"),
        ("episodes.jsonl", {"seed": 2**63}, "seed is 9223372036854775808"),
        ("episodes.jsonl", {"length": 3.0}, "length is 3.0; it must be a valid integer"),
        ("episodes.jsonl", {"reward_terms": {"reach": "far"}}, "reward_terms.reach is 'far'"),
        ("metrics.jsonl", {"iteration": 0}, "iteration is 0"),
        ("metrics.jsonl", {"nonfinite": {"train/loss": -1}}, "nonfinite.train/loss is -1"),
        ("metrics.jsonl", {"histograms": {"env/return": {"edges": []}}}, "histograms.env/return.counts is missing"),
        ("events.jsonl", {"iteration": -1}, "iteration is -1"),
        ("timeline.jsonl", {"spans": [{"part": "a b"}]}, r"spans\[0\].part is 'a b'"),
    ],
)
def test_a_wrong_value_is_named_with_its_place(name, change, found):
    with pytest.raises(ConfigError, match=found):
        read(name, WRITTEN[name] | change)


def test_a_number_that_is_not_finite_is_refused():
    with pytest.raises(ConfigError, match=r"data\.more is \[inf\]"):
        read("events.jsonl", WRITTEN["events.jsonl"] | {"data": {"more": [float("inf")]}})


def test_a_training_episode_has_no_commitment_in_its_line():
    training = replace(EPISODE, start=None, commitment=None).as_row(1)
    assert EPISODE.as_row(1).keys() - training.keys() == {"start", "commitment"}


def test_the_page_about_the_run_directory_lists_each_field_of_an_episode():
    section = re.search(r"## episodes\.jsonl.*?\n## ", PAGE.read_text("utf-8"), flags=re.DOTALL)
    assert section is not None
    rows = [line.split("|")[1] for line in section[0].splitlines() if line.startswith("| `")]
    assert {name for row in rows for name in re.findall(r"`(\w+)`", row)} == EPISODE.as_row(1).keys()
