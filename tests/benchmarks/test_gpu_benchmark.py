"""``benchmarks/gpu.py --small`` rehearses every measurement on the CPU."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from benchmarks import gpu
from tests.helpers.commands import command

COST = {"seconds", "count", "per_second", "parameters", "gradient_steps", "peak_mib", "kernel_share"}
UPDATES = [
    "RLPD, 8 steps", "PPO, 0.3 M, 256 samples", "GRPO, 0.3 M, 8 episodes", "SAC, 8 steps", "cloning, one epoch",
    "PPO, camera, 64 samples", "PPO, tokens, 64 samples",
]  # fmt: skip

pytestmark = [pytest.mark.ray, pytest.mark.extras]


def in_this_process(program, **_):
    """In place of a command of rlpipe in a process of its own, with a Ray of its own."""
    assert program[:4] == [sys.executable, "-m", "rlpipe", "train"]
    answer = command(*program[3:])
    return SimpleNamespace(returncode=answer.code, stderr=answer.err)


@pytest.fixture(scope="module")
def rows(ray_cluster, tmp_path_factory):
    file = tmp_path_factory.mktemp("benchmark") / "gpu.jsonl"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gpu, "subprocess", SimpleNamespace(run=in_this_process))
        patch.setattr(sys, "argv", ["gpu.py", "--small", "--budget", "100_000", "--json", str(file)])
        gpu.main()  # exits if a row failed
    _, *lines = map(json.loads, file.read_text().splitlines())
    return lines


def measured(rows, part):
    return [row for row in rows if row["part"] == part and "skipped" not in row]


def test_the_script_says_how_it_is_called():
    program = [sys.executable, str(Path(gpu.__file__)), "--help"]
    printed = subprocess.run(program, capture_output=True, text=True, timeout=600, check=True).stdout
    assert "--small" in printed


def test_every_learner_is_measured_on_the_cpu(rows):
    names = [row["name"] for row in measured(rows, "update") if (row["mode"], row["precision"]) == ("cpu", "float32")]
    assert names == UPDATES


def test_every_update_has_a_row_with_graphs_which_need_a_gpu(rows):
    graphs = [row for row in rows if row.get("mode") == "graphs"]
    assert {row["name"] for row in graphs} == set(UPDATES)
    assert {row["skipped"] for row in graphs} == {"CUDA graphs need a GPU"}


def test_only_graphs_and_what_this_version_lacks_are_skipped(rows):
    reasons = {row["skipped"] for row in rows if "skipped" in row}
    assert reasons <= {"CUDA graphs need a GPU", "TF32 needs a GPU"}


def test_every_measured_number_is_finite_and_sensible(rows):
    for row in measured(rows, "update"):
        assert set(row) >= COST, row
        assert all(math.isfinite(row[name]) and row[name] > 0 for name in COST), row
        assert row["per_second"] == pytest.approx(row["count"] / row["seconds"]), row
        assert row["kernel_share"] <= 1, row


def test_the_small_policy_has_about_300_000_parameters(rows):
    counts = {row["name"]: row["parameters"] for row in measured(rows, "update")}
    assert 280_000 < counts["PPO, 0.3 M, 256 samples"] < 320_000


def test_reads_are_counted_for_three_learners(rows):
    counted = {row["name"]: row for row in measured(rows, "reads")}
    assert set(counted) == {"PPO, 0.3 M, 256 samples", "RLPD, 8 steps", "cloning, one epoch"}
    assert all(row["reads"] == sum(row["places"].values()) for row in counted.values())


def test_a_run_learns_for_part_of_each_iteration(rows):
    (run,) = measured(rows, "run")
    assert 0 < run["update_seconds"] < run["seconds"]


def test_the_floor_and_acting_take_time(rows):
    (host,) = measured(rows, "floor")
    assert all(host[name] > 0 for name in ("add", "item", "pageable copy", "mask"))
    assert [row["name"] for row in measured(rows, "act")] == ["PPO, 0.3 M", "PPO, camera", "PPO, tokens"]
