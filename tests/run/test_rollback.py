"""A run directory is taken back to a checkpoint line by line: nothing else decides than each line's iteration."""

from __future__ import annotations

import json
import math
import tempfile
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from rlpipe.run.rollback import Rollback, roll_back

DAMAGED = (b"\n", b"{}\n", b"[3]\n", b'{"iteration": null}\n', b'{"iteration": 1, "x\n', b"\xff\n")


def line(iteration: int, **more: str) -> bytes:
    return json.dumps({"iteration": iteration, **more}).encode() + b"\n"


def iteration_of(text: bytes) -> float:
    """As ``docs/run_directory.md`` says it: what is not a whole line with an iteration comes after everything."""
    try:
        return float(json.loads(text)["iteration"]) if text.endswith(b"\n") else math.inf
    except (ValueError, KeyError, TypeError):
        return math.inf


LINES = st.lists(st.builds(line, st.integers(1, 6)) | st.sampled_from(DAMAGED), max_size=12)


@given(LINES, st.sampled_from([b"", b'{"iteration": 2', b'{"iteration": 9}']))
@example([line(1), line(2), line(3), line(2)], b"")
def test_the_lines_of_a_file_are_divided_by_their_iterations_and_keep_their_order(lines, torn):
    lines = [*lines, *([torn] if torn else [])]
    later = [text for text in lines if iteration_of(text) > 3]
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "metrics.jsonl"
        file.write_bytes(b"".join(lines))
        result = roll_back(Path(folder), 3, 3)
        assert file.read_bytes() == b"".join(text for text in lines if text not in later)
        discarded = Path(folder) / "discarded-1-metrics.jsonl"
        assert (discarded.read_bytes() if discarded.exists() else b"") == b"".join(later)
    has_torn = bool(later) and math.isinf(iteration_of(later[-1]))
    assert result == Rollback(len(later), ("metrics.jsonl",) if has_torn else ())


def test_events_only_lose_what_was_torn(tmp_path):
    path_that_is_no_text = line(9, message="\udc80")  # half a surrogate pair
    (tmp_path / "events.jsonl").write_bytes(line(8) + path_that_is_no_text + line(1) + b'{"iter')
    assert roll_back(tmp_path, 3, 3) == Rollback(0, ("events.jsonl",))
    assert (tmp_path / "events.jsonl").read_bytes() == line(8) + path_that_is_no_text + line(1)
    assert (tmp_path / "discarded-1-events.jsonl").read_bytes() == b'{"iter'


@pytest.mark.parametrize("size", [1, 7, 2**20])
def test_what_stays_is_copied_in_pieces_of_any_size(tmp_path, monkeypatch, size):
    monkeypatch.setattr("rlpipe.run.rollback._COPIED_BYTES", size)
    (tmp_path / "episodes.jsonl").write_bytes(line(1) + line(1) + line(2))
    roll_back(tmp_path, 1, 1)
    assert (tmp_path / "episodes.jsonl").read_bytes() == line(1) + line(1)
