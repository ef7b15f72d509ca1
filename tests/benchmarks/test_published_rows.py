"""Published rows whose checkpoints are kept: `rlpipe verify docs/benchmarks` accepts them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import rlpipe
from benchmarks.published import ROWS, acting_checkpoint
from rlpipe.analysis.verification import Record, Verdict
from rlpipe.run import checkpoint
from tests.helpers.acting import trained

NAMES = sorted(folder.name for folder in ROWS.iterdir())
SLOW = ("fetch_reach", "ppo_push_cube")
"""Rows that take more than ten seconds on a busy machine."""


@pytest.mark.parametrize("row", [pytest.param(name, marks=[pytest.mark.soak] * (name in SLOW)) for name in NAMES])
def test_a_published_row_is_verified(row):
    """To the bit on the kind of machine that made it, statistically on another."""
    result = rlpipe.verify(ROWS / row / "1.json", local=True)
    assert result.verdict in (Verdict.VERIFIED, Verdict.STATISTICALLY)
    assert result.checkpoint is not None
    assert Path(result.checkpoint).parent == ROWS / row


@pytest.mark.parametrize("row", NAMES)
def test_its_checkpoint_is_small_and_its_numbers_are_those_of_the_page(row):
    record = Record.read(ROWS / row / "1.json")
    (file,) = (ROWS / row).glob("*.npz")
    assert file.stat().st_size < 2**20
    assert {name.partition("/")[0] for name in checkpoint.load(file).arrays} == {"policy", "version"}
    page = (ROWS.parent / "benchmarks.md").read_text(encoding="utf-8")
    (line,) = re.findall(rf"^\| `{row}` \| seed 0: (.+) \|$", page, flags=re.MULTILINE)
    first = record.contents["estimates"][0]
    assert line == f"{first['metric'].removeprefix('eval/')} {first['value']:.3f} | {first['episodes']}"


def test_a_checkpoint_without_its_critic_has_the_same_episodes(tmp_path):
    run = trained(tmp_path, "CartPole-v1", {"name": "mlp"}).directory
    whole = checkpoint.newest(run)
    acting = acting_checkpoint(whole, tmp_path / "row")
    assert not any("critic" in name for name in checkpoint.load(acting).arrays)
    ours, theirs = (rlpipe.evaluate(path, local=True) for path in (whole.path, acting))
    assert ours.episodes_root != ""
    assert [(row.seed, row.commitment) for row in ours.episodes] == [
        (row.seed, row.commitment) for row in theirs.episodes
    ]
