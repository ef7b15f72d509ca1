"""Spaces as a file keeps them."""

from __future__ import annotations

import json

import numpy as np
import pytest

from rlpipe.trajectory import LeafSpec, SpaceSpec

BOUNDS = np.array([-np.inf, 0.1], dtype=np.float32), np.array([1.0, np.inf], dtype=np.float32)
LEAVES = {"camera/rgb": LeafSpec((8, 8, 3), "uint8"), "state": LeafSpec((4,)), "word": LeafSpec((2,), "int64", (3, 5))}


@pytest.mark.parametrize(
    "spec",
    [
        SpaceSpec(4, 1, 2),
        SpaceSpec(3, 2, (3, 5)),
        SpaceSpec(3, 2, None, *BOUNDS),
        SpaceSpec.of_tree(LEAVES, 2, None, *BOUNDS),
    ],
    ids=["discrete", "discrete parts", "continuous", "tree"],
)
def test_spaces_come_back_from_json_as_they_were(spec):
    text = json.dumps(spec.as_json(), allow_nan=False)
    restored = SpaceSpec.from_json(json.loads(text))
    assert restored.same_as(spec)
    for name in ("action_low", "action_high"):
        before, after = getattr(spec, name), getattr(restored, name)
        assert (before is None and after is None) or (before == after).all()
