"""Speed of ``rlpipe collect`` beside that of an evaluation of the same episodes, which writes none of them.

    python benchmarks/collecting.py                                     # PickCube, random actions, in this process
    python benchmarks/collecting.py --ray --workers 2 --episodes 256

Both take turns, and time is that of the processor in this process and all that it starts, so that what else the machine
does weighs little, and on both alike. Only the time after the first step counts, not that in which simulators are made;
for a collection, it includes the time in which the dataset is finished.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil

import rlpipe
from benchmarks import machine

TASK = "{name: maniskill, id: PickCube-v1, control_mode: pd_ee_delta_pos, max_episode_steps: 50, total_num_envs: 16}"


def processor_time() -> float:
    """Returns the seconds that processors have spent on this process, and on all that it has started."""
    this = psutil.Process()
    return sum(sum(process.cpu_times()[:4]) for process in (this, *this.children(recursive=True)))


def seconds(run: Callable[..., Any]) -> float:
    """Returns the processor time from the first step of a run to its end."""
    moments: list[float] = []
    run(progress=lambda *_: moments.append(processor_time()))
    return processor_time() - moments[0]


def main() -> None:
    """Runs both in turn, and prints the ratio of their speeds."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--task", default=TASK, help="env.train, as YAML")
    parser.add_argument("--episodes", type=int, default=128)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--ray", action="store_true", help="on Ray instead of in this process")
    options = parser.parse_args()
    print(machine.sentence(machine.describe("mani_skill", "h5py", "torch")))
    with tempfile.TemporaryDirectory() as name:
        folder, config = Path(name), Path(name, "task.yaml")
        config.write_text(f"env: {{train: {options.task}}}\npolicy: {{name: mlp}}\nalgorithm: {{name: ppo}}\n")
        overrides = [f"rollout.num_workers={options.workers}", f"runner.logger.log_path={folder}"]
        common = {"policy": "random", "local": not options.ray}

        def evaluate(**more: Any) -> Any:
            seeds = ["evaluation.first_seed=0"]
            return rlpipe.evaluate(config, episodes=options.episodes, overrides=overrides + seeds, **common, **more)

        def collect(**more: Any) -> Any:
            out = folder / f"collected-{time.monotonic_ns()}"
            return rlpipe.collect(config, out, count=options.episodes, overrides=overrides, **common, **more)

        ratios = []
        for _ in range(options.repeats):
            evaluating, collecting = (seconds(run) for run in (evaluate, collect))
            ratios.append(evaluating / collecting)
            print(f"evaluating {evaluating:6.1f} s   collecting {collecting:6.1f} s   {ratios[-1]:.2f}", flush=True)
    print(f"median ratio of the speeds: {statistics.median(ratios):.2f}")


if __name__ == "__main__":
    main()
