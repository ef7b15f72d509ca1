"""``benchmarks/gpu.py --small`` rehearses every measurement on the CPU."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
COST = {"seconds", "samples_per_second", "copies_to_device", "bytes_to_device", "kernel_share", "peak_memory_mib"}
LABEL = {"group", "name", "precision", "mode"}

pytestmark = pytest.mark.ray


@pytest.fixture(scope="module")
def rows(tmp_path_factory):
    file = tmp_path_factory.mktemp("benchmark") / "gpu.json"
    environment = {name: value for name, value in os.environ.items() if name != "RAY_ADDRESS"}
    command = [sys.executable, str(ROOT / "benchmarks" / "gpu.py"), "--small", "--json", str(file)]
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=280, check=False)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return json.loads(file.read_text())["rows"]


def test_every_kind_of_row_is_there_in_both_precisions(rows):
    found = {(row["group"], row["name"], row["precision"]) for row in rows}
    expected = {
        (group, name, precision)
        for precision in ("float32", "bfloat16")
        for group, name in (
            ("update", "0.3 M, 512 samples"),
            ("update", "0.3 M, 256 samples"),
            ("update", "camera, 64 samples"),
            ("update", "tokens, 64 samples"),
            ("minibatch", "0.3 M, 64 samples"),
            ("minibatch", "0.3 M, 32 samples"),
        )
    }
    once = {("run", "scripted simulators"), ("steps", "RLPD, 8 steps")}
    once |= {("act", f"{policy}, 4 rows") for policy in ("0.3 M", "camera", "tokens")}
    assert found == expected | {(*each, "float32") for each in once}


def test_only_the_graphs_are_skipped_without_a_gpu(rows):
    assert {(row["mode"], row["skipped"]) for row in rows if "skipped" in row} == {("graph", "CUDA graphs need a GPU")}
    assert {row["mode"] for row in rows if "skipped" not in row} == {"eager"}


def test_every_measured_number_is_finite_and_sensible(rows):
    for row in rows:
        if "skipped" in row:
            continue
        numbers = {name: value for name, value in row.items() if name not in LABEL}
        assert all(math.isfinite(value) for value in numbers.values()), row
        assert numbers["seconds"] > 0, row
        if row["group"] == "run":
            assert 0 < numbers["update_seconds"] < numbers["seconds"], row
            continue
        assert set(numbers) >= COST, row
        assert numbers["samples_per_second"] == pytest.approx(numbers["samples"] / numbers["seconds"]), row
        assert 0 < numbers["kernel_share"] <= 1, row


def test_the_small_policy_has_about_300_000_parameters(rows):
    counts = {row["name"].split(",")[0]: row["parameters"] for row in rows if row["group"] == "update"}
    assert 280_000 < counts["0.3 M"] < 320_000
