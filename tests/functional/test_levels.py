"""Levels: the units of a decision, and what was never taken."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rlpipe.functional.levels import at_level

PARTS = torch.tensor([[[1.0, 2.0], [4.0, 8.0]]])  # one decision of two actions with two parts


@pytest.mark.parametrize(
    ("level", "values", "after_one_step"),
    [("token", [1, 2, 4, 8], [1, 2, 0, 0]), ("action", [3, 12], [3, 0]), ("chunk", [15], [3])],
)
def test_a_unit_sums_its_parts_as_far_as_they_were_taken(level, values, after_one_step):
    assert at_level(PARTS, None, level).values.tolist() == [values]
    assert at_level(PARTS, torch.tensor([1]), level).values.tolist() == [after_one_step]


def test_means_are_over_what_was_taken():
    assert at_level(PARTS, None, "token").mean().tolist() == [3.75]
    assert at_level(PARTS, torch.tensor([1]), "token").mean().tolist() == [1.5]
    assert at_level(PARTS, torch.tensor([1]), "action").of(torch.tensor([[7.0, 9.0]])).tolist() == [7]


@given(st.integers(1, 4), st.integers(1, 4), st.data())
def test_units_of_every_level_add_up_to_the_decision(size, width, data):
    parts = torch.randn(3, size, width, dtype=torch.float64)
    steps = torch.tensor(data.draw(st.lists(st.integers(1, size), min_size=3, max_size=3)))
    whole = at_level(parts, steps, "chunk").values.squeeze(-1)
    for level in ("token", "action"):
        assert torch.allclose(at_level(parts, steps, level).values.sum(-1), whole)
