"""Success of DAgger beside that of cloning, against the number of episodes that the same expert has labelled.

    python benchmarks/corrections.py                               # all that is missing, then the table
    python benchmarks/corrections.py --seeds 0                     # some of it
    python benchmarks/corrections.py --report                      # the table and the picture alone

The expert is `--policy planner`. Cloning learns from N of its episodes, none of which fails. DAgger begins with ten of
these. In each further round, a clone of all that there is and the expert take turns in more episodes, each acting in
half of the steps (`--beta 0.5`), and the expert labels every step (`rlpipe collect --expert planner --aggregate`).
Both clone with the same settings, and both are
evaluated in the same held-out episodes. Results are stored in benchmarks/results/corrections.json, one at a time, so
that the same command goes on after an interruption; runs and datasets lie in runs/corrections.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent))
import rlpipe
from benchmarks import machine
from benchmarks.machine import ROOT
from benchmarks.sparse_rows.page import difference, interval
from rlpipe.config.loading import load_pretraining
from rlpipe.demonstrations.formats.registry import open_dataset
from rlpipe.files import replacing

RESULTS = ROOT / "benchmarks" / "results" / "corrections.json"
PICTURE = ROOT / "docs" / "images" / "corrections.png"
RUNS = ROOT / "runs" / "corrections"
METHODS = ("cloning", "DAgger")
FIRST_SEEDS = 10_000
"""Seeds of the episodes that each repetition may label; they begin at so many times its number."""
TASK: dict[str, Any] = {
    "env": {
        "train": {
            "name": "maniskill", "id": "PickCube-v1", "control_mode": "pd_ee_delta_pos", "reward_mode": "sparse",
            "total_num_envs": 1,
        },
        "eval": {"total_num_envs": 8},
    },
    "policy": {"name": "mlp", "hidden_sizes": [256, 256, 256], "activation": "relu"},
    "algorithm": {"name": "behaviour_cloning", "loss": "absolute", "held_out": 0, "batch_size": 64},
    "learner": {"lr": 1.0e-3, "lr_schedule": "linear", "max_grad_norm": 1.0},
}  # fmt: skip
EPISODES = 100
"""Held-out episodes of each evaluation."""
ROUNDS = (10, 20, 30, 40, 60, 80, 120, 160)
"""Labelled episodes after each round of DAgger."""
CLONED = (40, 160)
"""Episodes that are also cloned from the expert alone."""
BETA = 0.5
"""Probability with which the expert acts in a step."""
UPDATES = 10_000
"""Gradient steps of each clone, about: few episodes are read more often."""


def clone(demos: Path, steps: int, seed: int) -> tuple[Path, str]:
    """Clones a dataset; returns the checkpoint, and a digit for each episode of its evaluation, 1 for a success."""
    epochs = math.ceil(UPDATES * TASK["algorithm"]["batch_size"] / steps)
    overrides = [
        f"demos={demos}", f"algorithm.epochs={epochs}",
        f"runner.seed={seed}", f"runner.logger.log_path={RUNS / 'runs'}",
        "runner.logger.logger_backends=[jsonl]", "runner.report=false", f"evaluation.episodes={EPISODES}",
    ]  # fmt: skip
    result = rlpipe.train(load_pretraining(write_task(), overrides), local=True)
    if result.checkpoint is None or not result.is_trained:
        raise KeyboardInterrupt
    lines = (result.directory / "eval_episodes.jsonl").read_text(encoding="utf-8").splitlines()
    in_order = sorted(map(json.loads, lines), key=lambda episode: episode["seed"])
    return result.checkpoint, "".join(str(int(episode["success_once"])) for episode in in_order)


def write_task() -> Path:
    """Writes the configuration; returns its file."""
    RUNS.mkdir(parents=True, exist_ok=True)
    file = RUNS / "task.yaml"
    file.write_text(json.dumps(TASK))
    return file


def collect(source: Path, name: str, count: int, **options: Any) -> Path:
    """Collects episodes into a dataset of a name, unless it is there; returns its folder."""
    folder = RUNS / "data" / name
    if not (folder / "demonstrations.h5").exists():
        rlpipe.collect(source, folder, count=count, local=True, **options)
    return folder


def demonstrated(seed: int, count: int) -> Path:
    """Returns the folder of the expert's own episodes."""
    options = {"policy": "planner", "first_seed": FIRST_SEEDS * seed, "only": "successes"}
    return collect(write_task(), f"demonstrated-{seed}-{count}", count, **options)


def measure(results: dict[str, Any], seed: int) -> None:
    """Measures what is missing of one repetition, and stores each result."""

    def measured(method: str, count: int, demos: Path) -> Path:
        key = f"{method}/{seed}/{count}"
        if key not in results:
            began = time.process_time()
            steps = sum(entry.length for entry in open_dataset(demos, "demos").episodes)
            checkpoint, outcomes = clone(demos, steps, seed)
            results[key] = {
                "method": method, "seed": seed, "count": count, "steps": steps, "outcomes": outcomes,
                "checkpoint": str(checkpoint.resolve().relative_to(ROOT)),
                "seconds": round(time.process_time() - began),
            }  # fmt: skip
            with replacing(RESULTS) as file:
                file.write(json.dumps(results, indent=1).encode())
            print(f"{key}: {outcomes.count('1') / len(outcomes):.3f} from {steps} steps", flush=True)
        return ROOT / results[key]["checkpoint"]

    demos = demonstrated(seed, ROUNDS[0])
    policy = measured("DAgger", ROUNDS[0], demos)
    for before, count in itertools.pairwise(ROUNDS):
        options = {"expert": "planner", "beta": BETA, "aggregate": demos}
        demos = collect(policy, f"corrected-{seed}-{count}", count - before, **options)
        policy = measured("DAgger", count, demos)
    for count in CLONED:
        measured("cloning", count, demonstrated(seed, count))


def by_count(results: dict[str, Any], method: str) -> dict[int, list[dict[str, Any]]]:
    """Returns the results of a method by number of episodes, of each those of all seeds in order. Both methods begin
    with the same clone."""
    found = [r for r in results.values() if r["method"] == method or (method == "cloning" and r["count"] == ROUNDS[0])]
    counts = sorted({result["count"] for result in found})
    in_order = sorted(found, key=lambda result: result["seed"])
    return {count: [result for result in in_order if result["count"] == count] for count in counts}


def rate(found: Sequence[dict[str, Any]]) -> tuple[float, float, float]:
    """Returns the success rate of some results, and its 95 % interval over seeds and episodes."""
    return interval(tuple(result["outcomes"] for result in found))


def table(results: dict[str, Any]) -> str:
    """Returns the table of docs/demonstrations.md."""
    lines = [
        "| labelled episodes | cloning | steps | DAgger | steps | difference |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    cloned, corrected = (by_count(results, method) for method in METHODS)
    for count in sorted({*cloned} & {*corrected}):
        cells = []
        for found in (cloned[count], corrected[count]):
            steps = sum(result["steps"] for result in found) / len(found)
            cells += ["{:.3f} [{:.3f}, {:.3f}]".format(*rate(found)), f"{steps:,.0f}"]
        plain, ours = ([result["outcomes"] for result in by[count]] for by in (cloned, corrected))
        more = "{:+.3f} [{:+.3f}, {:+.3f}]".format(*difference(ours, plain)) if ours != plain else ""
        lines.append(f"| {count} | {' | '.join(cells)} | {more} |")
    return "\n".join(lines)


def draw(results: dict[str, Any], file: Path) -> None:
    """Draws success against labelled episodes, with a faint point for each seed."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6.4, 3.4), dpi=110, layout="constrained")
    axes = figure.add_subplot()
    for method, colour in zip(METHODS, ("#8a8a8a", "#0072b2"), strict=True):
        points = by_count(results, method)
        at = [*points]
        middle, low, high = zip(*map(rate, points.values()), strict=True)
        axes.fill_between(at, low, high, color=colour, alpha=0.15, linewidth=0)
        axes.plot(at, middle, color=colour, marker="o", label=method)
        for count, found in points.items():
            each = [result["outcomes"].count("1") / len(result["outcomes"]) for result in found]
            axes.plot([count] * len(each), each, ".", color=colour, alpha=0.5)
    axes.set_xscale("log", base=2)
    ticks = [*by_count(results, "cloning")]
    axes.set_xticks(ticks, [str(count) for count in ticks])
    axes.minorticks_off()
    axes.set(xlabel="episodes that the expert has labelled", ylabel="success", ylim=(0, 1.02))
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis="y", color="#e6e6e6")
    axes.legend(frameon=False, loc="lower right")
    figure.savefig(file)


def main() -> None:
    """Measures what is missing, and prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", default="0,1,2", help="of the repetitions, such as 0,1,2")
    parser.add_argument("--report", action="store_true", help="measure nothing; print the table and draw the picture")
    options = parser.parse_args()
    results = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    if not options.report:
        print(machine.sentence(machine.describe("mani_skill", "torch")))
        for seed in map(int, options.seeds.split(",")):
            measure(results, seed)
    print(table(results))
    draw(results, PICTURE)


if __name__ == "__main__":
    main()
