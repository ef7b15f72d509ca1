"""Parts of ``benchmarks/gpu.py`` that need neither a GPU nor a rehearsal: what a machine must not find out first."""

from __future__ import annotations

import itertools
import json
import os
import sys
import time
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch

from benchmarks import gpu
from benchmarks.device import host, plan, tables
from benchmarks.device.cost import WARM_UP, compare_with_eager, differences, measure_update, summary
from benchmarks.device.plan import Skipped
from benchmarks.device.updates import Work, plan_of
from benchmarks.device.worker import Worker
from rlpipe.learning import stepper
from tests.helpers.emulated_graphs import EmulatedGraphs

FULL = plan.full()
EVERY_UPDATE = [*FULL.decisive, *FULL.others, *FULL.acting, *FULL.compiled]
TIMED = {"per_second": 100.0, "seconds": 1.0, "count": 100, "parameters": 10, "peak_mib": 1.0, "gradient_steps": 8}


class GPU:
    """Stands in for the processes on a machine with a GPU: graphs are ten times as fast."""

    def call(self, function, *args, timeout):
        if function.__name__ == "measure_update":
            mode = args[2]
            graphs = {"per_second": 1000.0, "equal": True, "largest_difference": 0.0} if mode == "graphs" else {}
            return TIMED | graphs
        return {"kernel_share": 0.5, "launches": 3} if function.__name__ == "profile_update" else {}


def of_gpu(folder):
    return [
        gpu.measured(row, time.monotonic() + 100, "cuda")
        for row in gpu.Bench(FULL, "cuda", folder, GPU(), GPU()).rows()
    ]


def update(mode, name="PPO", **numbers):
    return {"part": "update", "name": name, "precision": "float32", "mode": mode, **TIMED, **numbers}


def verdicts(*rows):
    return [(line[2], line[3]) for line in tables.goal_table(rows).lines]


@pytest.fixture
def worker():
    process = Worker()
    yield process
    process.close()


@pytest.mark.parametrize("update", EVERY_UPDATE, ids=lambda update: f"{update.name}, {update.precision}")
def test_every_configuration_that_a_gpu_would_measure_is_legal(update):
    config = plan_of(update, "cuda")
    assert config.learner.precision == update.precision
    assert config.env.train.name == "scripted"  # no simulator is installed there


def test_what_decides_most_is_measured_first(tmp_path, monkeypatch):
    monkeypatch.setattr(gpu, "measure_run", lambda *_: {})
    first = [(row["name"], row["mode"]) for row in itertools.islice(of_gpu(tmp_path), 8)]
    assert first == [
        ("RLPD, 128 steps", "eager"), ("RLPD, 128 steps", "graphs"), ("RLPD, 128 steps", "cpu"),
        ("PPO, 0.3 M, 3,200 samples", "eager"), ("PPO, 0.3 M, 3,200 samples", "graphs"),
        ("PPO, 0.3 M, 3,200 samples", "cpu"),
        ("PPO, 0.3 M, 65,536 samples", "eager"), ("PPO, 0.3 M, 65,536 samples", "graphs"),
    ]  # fmt: skip


def test_all_goals_have_a_verdict_on_a_gpu(tmp_path, monkeypatch):
    monkeypatch.setattr(gpu, "measure_run", lambda *_: {})
    rows = of_gpu(tmp_path)
    graphs = sum(row["part"] == "update" and row["mode"] == "graphs" for row in rows)
    assert verdicts(*rows) == [
        ("1,000", "reached"), ("10.0", "reached"), ("50%", "NOT reached"), ("10.0", "reached"),
        (f"{graphs} of {graphs}", "reached"),
    ]  # fmt: skip


def test_a_gain_is_that_of_graphs_over_eager():
    eager, graphs = update("eager"), update("graphs", per_second=390.0, goals={"gain": 4.0})
    assert verdicts(eager, graphs)[0] == ("3.9", "NOT reached")


def test_a_goal_without_its_number_is_not_measured():
    skipped = {"part": "update", "name": "PPO", "precision": "float32", "mode": "graphs", "goals": {"gain": 4.0}}
    assert verdicts(update("cpu"), skipped | {"skipped": "no GPU"})[0] == ("", "not measured")


@pytest.mark.parametrize(
    ("difference", "repeats", "verdict"),
    [(1e-8, True, "reached"), (1e-4, True, "NOT reached"), (1e-4, False, "reached")],
)
def test_other_weights_miss_the_goal_if_they_are_far_off_and_eager_repeats_its_own(difference, repeats, verdict):
    unlike = {"equal": False, "largest_difference": difference, "eager_repeats_itself": repeats}
    assert verdicts(update("graphs", **unlike))[-1] == ("0 of 1", verdict)


@pytest.mark.extras
@pytest.mark.parametrize("algorithm", ["ppo", "grpo"])
def test_an_emulation_of_replay_ends_with_the_weights_of_eager_steps(algorithm, tmp_path, monkeypatch):
    update = next(update for update in plan.small().decisive if update.algorithm == algorithm)
    weights = str(tmp_path / "weights.npz")
    measure_update(update, "cpu", "eager", weights)
    recorder = EmulatedGraphs()
    with monkeypatch.context() as patch:
        patch.setattr(stepper, "make_recorder", lambda _: recorder)
        work = Work(update, "cpu", "graphs")
        for _ in range(WARM_UP + update.repeats):
            work()
    compared = compare_with_eager(update, "cpu", weights, work.state())
    assert recorder.replays > 0
    assert compared["largest_difference"] <= tables.BOUND
    assert compared["equal"] or update.algorithm == "grpo"  # its minibatches are padded


def test_states_are_equal_to_the_bit_or_differ_by_the_largest_weight():
    first = {"policy/weight": np.array([1.0, 2.0]), "optimizer/m": np.array([5.0])}
    assert differences(first, first) == {"equal": True, "largest_difference": 0.0}
    weights = {"policy/weight": np.array([1.0, 2.25]), "optimizer/m": np.array([9.0])}
    assert differences(first, weights) == {"equal": False, "largest_difference": 0.25}
    moments = {"policy/weight": np.array([1.0, 2.0]), "optimizer/m": np.array([9.0])}
    assert differences(first, moments) == {"equal": False, "largest_difference": 0.0}


def test_an_eager_learner_repeats_itself_where_graphs_end_with_other_weights(tmp_path):
    sac = next(update for update in plan.small().decisive if update.algorithm == "sac")
    weights = str(tmp_path / "weights.npz")
    measure_update(sac, "cpu", "eager", weights)
    with np.load(weights) as file:
        state = dict(file)
    assert compare_with_eager(sac, "cpu", weights, state) == {"equal": True, "largest_difference": 0.0}
    name = next(name for name in state if name.startswith("policy/"))
    state[name] = state[name] + np.float32(0.5)
    compared = compare_with_eager(sac, "cpu", weights, state)
    assert (compared["equal"], compared["eager_repeats_itself"]) == (False, True)
    assert compared["largest_difference"] == pytest.approx(0.5, abs=1e-6)


def test_a_state_that_is_not_a_number_differs_by_a_number():
    broken = differences({"policy/weight": np.array([1.0])}, {"policy/weight": np.array([np.nan])})
    assert json.loads(json.dumps(broken, allow_nan=False))["largest_difference"] > 1e38


def test_a_trace_sums_up_to_kernels_launches_and_copies():
    events = [
        {"cat": "kernel", "name": "add", "dur": 300.0},
        {"cat": "kernel", "name": "mul", "dur": 200.0},
        {"cat": "cuda_runtime", "name": "cudaGraphLaunch", "dur": 9.0},
        {"cat": "cuda_runtime", "name": "cudaLaunchKernel", "dur": 9.0},
        {"cat": "cuda_runtime", "name": "cudaMemcpyAsync", "dur": 9.0},
        {"cat": "gpu_memcpy", "name": "Memcpy HtoD (Pinned -> Device)", "dur": 1.0, "args": {"bytes": 64}},
        {"cat": "gpu_memcpy", "name": "Memcpy DtoH (Device -> Pinned)", "dur": 1.0, "args": {"bytes": 8}},
        {"name": "process_name"},
    ]
    assert summary(events, seconds=1e-3) == {
        "kernel_share": pytest.approx(0.5), "kernels": 2, "launches": 2, "copies_to_device": 1, "bytes_to_device": 64,
    }  # fmt: skip


def test_reads_on_a_cpu_are_values_and_masks():
    values = torch.arange(4.0)
    with host.counted_reads("cpu") as places:
        values.sum().item()
        values[values > 1]
        values[torch.tensor([0, 1])] + 1
    assert places.total() == 2


def test_reads_on_a_gpu_are_the_warnings_of_torch_and_waits(monkeypatch):
    modes = []
    monkeypatch.setattr(torch.cuda, "set_sync_debug_mode", modes.append)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    with host.counted_reads("cuda") as places:
        for _ in range(3):
            warnings.warn("called a synchronizing CUDA operation (Triggered internally)", stacklevel=1)
        warnings.warn("does not yet detect all synchronizing operations", stacklevel=1)
        torch.cuda.synchronize()
    torch.cuda.synchronize()
    assert (places.total(), modes) == (4, ["warn", "default"])


def test_a_process_that_dies_costs_one_row(worker):
    with pytest.raises(RuntimeError, match="exit code 7"):
        worker.call(os._exit, 7, timeout=60)
    assert worker.call(dict, [("one", 1)], timeout=60) == {"one": 1}


def test_a_process_that_hangs_is_given_up(worker):
    worker.call(dict, timeout=60)
    with pytest.raises(RuntimeError, match="not done in 0 s"):
        worker.call(time.sleep, 600, timeout=0.1)


def test_what_lacks_a_package_is_skipped(worker):
    with pytest.raises(Skipped, match="not installed: absent_package"):
        worker.call(__import__, "absent_package", timeout=60)
    with pytest.raises(RuntimeError, match="No module named 'rlpipe"):
        worker.call(__import__, "rlpipe.absent", timeout=60)


def test_rows_without_a_package_name_it(monkeypatch, tmp_path):
    monkeypatch.setitem(gpu.NEEDS, "update", ("torch", "absent_package"))
    row = next(gpu.Bench(plan.small(), "cpu", tmp_path, GPU(), GPU()).rows())
    assert gpu.measured(row, time.monotonic() + 100, "cpu")["skipped"] == "not installed: absent_package"


def test_a_budget_that_is_used_up_skips_the_rest(tmp_path):
    row = next(gpu.Bench(FULL, "cuda", tmp_path, GPU(), GPU()).rows())
    assert gpu.measured(row, time.monotonic() - 1, "cuda")["skipped"] == "the budget was used up"


def test_an_update_that_cannot_be_profiled_keeps_its_time(tmp_path):
    class Broken:
        def call(self, *_, timeout):
            raise RuntimeError("no profiler")

    row = next(gpu.Bench(FULL, "cuda", tmp_path, GPU(), Broken()).rows())
    measured = gpu.measured(row, time.monotonic() + 100, "cuda")
    assert (measured["per_second"], measured["unprofiled"]) == (100.0, "no profiler")


def test_tables_of_a_file_are_printed_again(tmp_path, monkeypatch, capsys):
    file = Path(tmp_path) / "gpu.jsonl"
    machine = {"processor": "EPYC", "cores": 2, "gpu": "H200", "versions": {"torch": "2.11"}, "commit": "abc"}
    for line in ({"machine": machine}, update("eager", took=1.0), update("graphs", per_second=390.0, took=1.0)):
        gpu.append(file, line)
    monkeypatch.setattr(sys, "argv", ["gpu.py", "--show", str(file), "--markdown"])
    gpu.main()
    printed = capsys.readouterr().out
    assert "| PPO    | float32   |" in printed
    assert "EPYC, 2 cores, H200; torch 2.11; commit abc" in printed
