"""Success under variations of a policy that was trained clean, and after it went on with them, or with widening ranges.

    python benchmarks/variations.py                                 # all that is missing, then the tables
    python benchmarks/variations.py push_cube --seeds 0 --methods clean,varied
    python benchmarks/variations.py --report                        # the tables and the picture alone

Both methods continue the clean policy of their seed for as many steps, and `rlpipe stress` evaluates all policies in
the same arms and episodes. Each result is a file in benchmarks/results/variations, so that the same command goes on
after an interruption; runs lie in runs/variations. Commands with other seeds may run side by side.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parent.parent))
import rlpipe
from benchmarks import machine
from benchmarks.machine import ROOT
from rlpipe.files import replacing
from rlpipe.functional.intervals import difference_interval

RESULTS = ROOT / "benchmarks" / "results" / "variations"
PICTURE = ROOT / "docs" / "images" / "variations.png"
RUNS = ROOT / "runs" / "variations"
Result = dict[str, Any]
METHODS = ("clean", "varied", "widening")
COLOURS = {"clean": "#8a8a8a", "varied": "#0072b2", "widening": "#d55e00"}
EPISODES = 100
"""Held-out episodes of each arm."""
LEVELS = 3
"""Levels of each axis in the stress test."""


@dataclass(frozen=True)
class Row:
    """Task with the ranges of its variations.

    Attributes:
        config: configuration that all methods train with
        ranges: widest ranges, of the training and of the stress test
        overrides: changes of the configuration
        then: further changes of it for what goes on from the clean policy
    """

    config: str
    ranges: dict[str, dict[str, list[float]]]
    overrides: tuple[str, ...]
    then: tuple[str, ...]

    @property
    def axes(self) -> str:
        """Ranges as --axes of rlpipe stress."""
        bounds = {name: next(iter(levels.values())) for name, levels in self.ranges.items()}
        return ",".join(f"{name}={min(values):g}:{max(values):g}" for name, values in bounds.items())


ROWS = {
    "push_cube": Row(
        "ppo_push_cube",
        {
            "action_latency": {"choice": [0, 0, 0, 0, 1, 2, 3, 4]},
            "action_hold": {"choice": [1, 1, 1, 2, 3, 4]},
            "start": {"uniform": [1, 2]},
        },
        ("runner.pipeline=sync", "runner.val_check_interval=0"),
        ("stages=[]", "policy.initial_log_std=-1.4", "learner.lr=1.0e-4", "learner.critic_lr=3.0e-4"),
    ),
    "pick_cube": Row(
        "sparse_pick_cube_few",
        {
            "action_latency": {"choice": [0, 0, 0, 0, 1, 2]},
            "action_hold": {"choice": [1, 1, 1, 1, 2, 3]},
            "start": {"uniform": [1, 2]},
        },
        (),
        ("runner.total_timesteps=200_000", "learner.lr_schedule=linear"),
    ),
}


def train(row: Row, method: str, seed: int, name: str) -> Path:
    """Trains a policy by a method, as far as that is not done; returns the run directory."""
    experiment = f"{name}-{method}-{seed}"
    for file in (RUNS / experiment).glob("*/run.json"):
        if json.loads(file.read_text())["status"] == "completed":
            return file.parent
    overrides = [
        *row.overrides, f"runner.seed={seed}", f"runner.logger.log_path={RUNS}",
        f"runner.logger.experiment_name={experiment}", "runner.logger.logger_backends=[jsonl]",
        "runner.report=false", "runner.auto_resume=true",
    ]  # fmt: skip
    if method != "clean":
        clean = train(row, "clean", seed, name)
        overrides += [
            *row.then, f"policy.warm_start={clean}", f"env.train.variations={json.dumps(row.ranges)}",
            "curriculum={}", f"curriculum.name={'widening' if method == 'widening' else 'none'}",
        ]  # fmt: skip
    result = rlpipe.train(rlpipe.load_config(row.config, overrides), local=True)
    if not result.is_trained:
        raise KeyboardInterrupt
    return result.directory


def measure(name: str, method: str, seed: int) -> None:
    """Trains a policy by a method, unless it has a result, stresses it, and stores what came out."""
    file = RESULTS / f"{name}-{method}-{seed}.json"
    if file.exists():
        return
    row = ROWS[name]
    policy = train(row, method, seed, name)
    report = rlpipe.stress(policy, axes=row.axes, levels=LEVELS, episodes=EPISODES, local=True)
    first = report.protocol["evaluation_first_seed"]
    failed = {arm.label: {seed for _, seed in arm.failed} for arm in report.arms}
    outcomes = {
        arm: "".join("01"[seed not in seeds] for seed in range(first, first + EPISODES))
        for arm, seeds in failed.items()
    }
    result = {
        "row": name, "method": method, "seed": seed, "axes": [asdict(axis) for axis in report.axes],
        "outcomes": outcomes,
    }  # fmt: skip
    RESULTS.mkdir(parents=True, exist_ok=True)
    with replacing(file) as written:
        written.write(json.dumps(result, indent=1).encode())
    print(f"{name}, {method}, seed {seed}: clean {report.arms[0].value:.3f}, "
          f"varied {np.mean(success(result, varied_arms(result))):.3f}", flush=True)  # fmt: skip


def varied_arms(result: Result) -> list[str]:
    """Names of the arms that vary."""
    return [arm for arm in result["outcomes"] if arm not in ("clean", "clean again")]


def success(result: Result, arms: Sequence[str]) -> list[float]:
    """[EPISODES] success of each episode, mean over some arms."""
    return np.array([[*map(int, result["outcomes"][arm])] for arm in arms]).mean(0).tolist()  # type: ignore[no-any-return]


def load(name: str) -> dict[str, list[Result]]:
    """Returns the results of a row by method, in the order of the seeds."""
    results = [json.loads(file.read_text()) for file in sorted(RESULTS.glob(f"{name}-*.json"))]
    return {method: found for method in METHODS if (found := [r for r in results if r["method"] == method])}


def cell(ours: Sequence[Result], theirs: Sequence[Result] | None, arms: Sequence[str]) -> tuple[str, str]:
    """Success in some arms, and how much higher it is than that of another method, with its 95 % interval."""
    values = [success(result, arms) for result in ours]
    rate = f"{np.mean(values):.3f}"
    if theirs is None:
        return rate, ""
    others = [success(result, arms) for result in theirs]
    low, high = difference_interval(values, others, shares=len(arms) == 1, shared=True)
    return rate, f"{np.mean(values) - np.mean(others):+.3f} [{low:+.3f}, {high:+.3f}]"


def tables(name: str, methods: dict[str, list[Result]]) -> str:
    """Returns the tables of docs/variations.md for a row: all varied arms together, and those of each axis."""
    plain, arms = methods["clean"], varied_arms(methods["clean"][0])
    lines = [
        f"| {name} | seeds | without variations | difference | all varied arms | difference |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for method, results in methods.items():
        seeds = {result["seed"] for result in results}  # of a method that has not had all of them yet
        base = None if method == "clean" else [result for result in plain if result["seed"] in seeds]
        cells = (*cell(results, base, ["clean"]), *cell(results, base, arms))
        lines.append(f"| {method} | {len(results)} | {' | '.join(cells)} |")
    axes = [axis["name"] for axis in plain[0]["axes"]]
    lines += ["", f"| mean over the levels of | {' | '.join(axes)} | all together |", "| --- " * (len(axes) + 2) + "|"]
    for method, results in methods.items():
        of_axes = [[arm for arm in arms if arm.startswith(f"{axis} ")] for axis in axes]
        means = [cell(results, None, of_axis)[0] for of_axis in (*of_axes, ["all together"])]
        lines.append(f"| {method} | {' | '.join(means)} |")
    return "\n".join(lines)


def draw(rows: dict[str, dict[str, list[Result]]], file: Path) -> None:
    """Draws success against each axis, by method, with a faint line for each seed."""
    from matplotlib.figure import Figure

    width = max(len(methods["clean"][0]["axes"]) for methods in rows.values())
    figure = Figure(figsize=(2.6 * width, 2.5 * len(rows)), dpi=110, layout="constrained")
    grid = figure.subplots(len(rows), width, sharey=True, squeeze=False)
    for panels, (name, methods) in zip(grid, rows.items(), strict=True):
        for panel in panels:
            panel.set_axis_off()
        for panel, axis in zip(panels, sorted(entry["name"] for entry in methods["clean"][0]["axes"]), strict=False):
            panel.set_axis_on()
            for method, results in methods.items():
                found = [next(entry for entry in result["axes"] if entry["name"] == axis) for result in results]
                for one in found:
                    panel.plot(one["levels"], one["values"], color=COLOURS[method], alpha=0.25, linewidth=0.8)
                mean = np.mean([one["values"] for one in found], axis=0)
                panel.plot(found[0]["levels"], mean, color=COLOURS[method], marker=".", label=method)
            if found[0]["is_log"]:
                panel.set_xscale("log", base=2)
            panel.set_xticks(found[0]["levels"], [f"{level:.3g}" for level in found[0]["levels"]])
            panel.set_xlabel(axis if found[0]["unit"] in ("", "x") else f"{axis}, {found[0]['unit']}")
            panel.set_ylim(0, 1.03)
            panel.spines[["top", "right"]].set_visible(False)
            panel.grid(axis="y", color="#e6e6e6")
        panels[0].set_ylabel(f"{name}\nsuccess")
    grid[0][0].legend(frameon=False, loc="lower left", fontsize="small")
    figure.savefig(file)


def main() -> None:
    """Measures what is missing, and prints the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("rows", nargs="*", metavar="ROW", help=f"{', '.join(ROWS)}; all by default")
    parser.add_argument("--seeds", default="0,1,2", help="of the repetitions, such as 0,1,2")
    parser.add_argument("--methods", default=",".join(METHODS), help="such as clean,varied")
    parser.add_argument("--report", action="store_true", help="measure nothing; print the tables and draw the picture")
    options = parser.parse_args()
    names = options.rows or [*ROWS]
    if unknown := {*names} - {*ROWS}:
        parser.error(f"there is no row {', '.join(unknown)}; there are {', '.join(ROWS)}.")
    if not options.report:
        print(machine.sentence(machine.describe("mani_skill", "torch")))
        for name in names:
            for seed in map(int, options.seeds.split(",")):
                for method in options.methods.split(","):
                    measure(name, method, seed)
    rows = {name: methods for name in names if "clean" in (methods := load(name))}
    print("\n\n".join(tables(name, methods) for name, methods in rows.items()))
    if rows:
        draw(rows, PICTURE)


if __name__ == "__main__":
    main()
