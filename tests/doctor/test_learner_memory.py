"""The learner's memory: judged beside what is free, and shown part by part."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from rlpipe.cli.doctor import screen
from rlpipe.doctor.memory import check_learner_memory, in_units
from rlpipe.doctor.results import CheckReport

PARTS = {"policy": 100_000_000, "replay buffer, 1,000,000 transitions": 1_900_000_000}
"""Sum of 2 GB. An allocator takes a tenth more, CUDA 0.6 GB, Python and torch 0.3 GB."""


@pytest.mark.parametrize(
    ("free", "on_gpu", "beside", "status"),
    [(2.79e9, True, 0, "fail"), (2.81e9, True, 0, "ok"), (2.51e9, False, 0, "ok"), (2.6e9, False, 0.2e9, "warn")],
)
def test_the_estimate_is_compared_with_what_is_free(free, on_gpu, beside, status):
    assert check_learner_memory(PARTS, free, on_gpu=on_gpu, beside=beside).status == status


@pytest.mark.parametrize(
    ("largest", "key"),
    [
        ("replay buffer, 10 transitions", "algorithm.replay_capacity"),
        ("activations, 10 decisions", "learner.micro_batch, or policy.checkpoint_gradients=true"),
        ("gradient step, 10 transitions", "algorithm.batch_size"),
        ("values before an update, 10 decisions", "learner.micro_batch"),
        ("samples, 10 decisions", "rollout.horizon"),
        ("demonstrations, 10 steps", "num_demos"),
        ("optimiser", "policy.adapters"),
    ],
)
def test_the_remedy_is_for_the_largest_part(largest, key):
    result = check_learner_memory({"gradients": 1, largest: 10**9}, 1e9, on_gpu=True)
    assert key in result.remedy


def test_the_parts_add_up_to_the_total_and_are_shown_the_largest_first():
    result = check_learner_memory(PARTS, 4e9, on_gpu=True)
    assert result.message == "about 2.8 GB at its peak, of 4.0 GB free on the GPU"
    assert sum(result.parts.values()) == pytest.approx(2.8e9)
    console = Console(file=(shown := io.StringIO()), width=120)
    console.print(screen(CheckReport([result], ["node"], 1.0)))
    rows = [line.split("  ") for line in shown.getvalue().splitlines()]
    (largest, second, third) = (" ".join(filter(None, row)) for row in rows[1:4])
    assert largest.startswith(" replay buffer, 1,000,000 transitions 1.9 GB ━━")
    assert second.startswith(" CUDA and its allocator 800 MB ━━")
    assert third.startswith(" policy 100 MB ━")


def test_parts_below_one_percent_are_shown_together():
    parts = {"replay buffer, 5 transitions": 10**9, "policy and critics, with": 10**6, "demonstrations, 3 steps": 10**6}
    console = Console(file=(shown := io.StringIO()), width=120)
    console.print(screen(CheckReport([check_learner_memory(parts, 4e9, on_gpu=True)], ["node"], 1.0)))
    assert "policy and critics, demonstrations" in shown.getvalue()


def test_the_parts_are_bytes_in_the_json_and_other_findings_have_none():
    report = CheckReport([check_learner_memory(PARTS, 4e9, on_gpu=True)], ["node"], 1.0).as_json()
    assert report["findings"][0]["parts"]["policy"] == 100_000_000


@pytest.mark.parametrize(
    ("size", "text"), [(3_140_000_000, "3.1 GB"), (999_000_000, "999 MB"), (999_900_000, "1.0 GB"), (10, "below 1 MB")]
)
def test_bytes_are_written_as_they_are_read(size, text):
    assert in_units(size) == text
