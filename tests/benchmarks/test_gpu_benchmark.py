"""``benchmarks/gpu.py --small`` rehearses every measurement on the CPU."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from benchmarks import gpu
from benchmarks.device import updates
from tests.helpers.commands import command

COST = {"seconds", "samples_per_second", "copies_to_device", "bytes_to_device", "kernel_share", "peak_memory_mib"}
LABEL = {"group", "name", "precision", "mode"}

pytestmark = [pytest.mark.ray, pytest.mark.extras]


def in_this_process(program, **_):
    """In place of a command of rlpipe in a process of its own, with a Ray of its own."""
    assert program[:4] == [sys.executable, "-m", "rlpipe", "train"]
    answer = command(*program[3:])
    return SimpleNamespace(returncode=answer.code, stderr=answer.err)


@pytest.fixture(scope="module")
def rows(ray_cluster, tmp_path_factory):
    """Rows of a rehearsal with one pass over two minibatches, because profiling takes most of the time."""
    file = tmp_path_factory.mktemp("benchmark") / "gpu.json"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gpu, "gc", SimpleNamespace(collect=lambda: None))  # long in a process of many tests
        patch.setattr(gpu, "subprocess", SimpleNamespace(run=in_this_process))
        patch.setattr(updates, "EPOCHS", 1)
        patch.setattr(updates, "MINIBATCHES", 2)
        patch.setattr(gpu, "SMALL", replace(gpu.SMALL, gradient_steps=2, repeats=1, iterations=4))
        patch.setattr(sys, "argv", ["gpu.py", "--small", "--budget", "100_000", "--json", str(file)])
        gpu.main()  # exits if a row failed
    return json.loads(file.read_text())["rows"]


def test_the_script_says_how_it_is_called():
    asked = [sys.executable, str(Path(gpu.__file__)), "--help"]
    told = subprocess.run(asked, capture_output=True, text=True, timeout=600, check=True).stdout
    assert "--small" in told


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
            ("minibatch", "0.3 M, 256 samples"),
            ("minibatch", "0.3 M, 128 samples"),
        )
    }
    once = {("run", "scripted simulators"), ("steps", "RLPD, 2 steps")}
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
