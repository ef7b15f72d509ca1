"""Seconds and peak memory of each command on the directory of a long run, and whether memory grows with its episodes.

    python benchmarks/long_run.py                                    # 100,000 and 1,000,000 episodes
    python benchmarks/long_run.py --episodes 10000000 --folder DISK  # 5 GB of episodes, up to 12 GB in all

The directory is that of a real run of six iterations with a curriculum, whose lines are repeated until there are
``--iterations`` of them, with consistent counters, steps and times. Its checkpoint is ten iterations old, so the first
resume takes the directory back. Each command runs in its own process; peak memory is that process's largest resident
set.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

# rlpipe is imported in child processes alone: the memory of their parent counts in their peak.
ROOT = Path(__file__).parent.parent
ENVIRONMENTS, HORIZON = 128, 16
STEPS = ENVIRONMENTS * HORIZON
"""Environment steps of an iteration."""
SECONDS = 0.5
"""Time that an iteration is said to have taken."""
UNSAVED = 10
"""Iterations after the checkpoint."""
EVALUATION_INTERVAL = 100
Line = dict[str, Any]


# --- making the directory


@dataclass(frozen=True)
class Template:
    """Lines of one iteration of the real run.

    Attributes:
        row: its line of ``metrics.jsonl``
        episodes: its training episodes
        spans: its line of ``timeline.jsonl``
    """

    row: Line
    episodes: list[Line]
    spans: Line

    def episodes_of(self, iteration: int, count: int) -> Iterator[Line]:
        """Yields as many episodes of another iteration; the real ones are repeated where they do not suffice."""
        shift = (iteration - self.row["iteration"]) * HORIZON
        repeats, rest = divmod(count, len(self.episodes))
        for place, episode in enumerate(self.episodes):
            line = {**episode, "iteration": iteration, "policy_version": iteration, "step": episode["step"] + shift}
            yield from [line] * (repeats + (place < rest))

    def row_of(self, iteration: int, iterations: int, before: int, episodes: Sequence[Line], evaluation: Line) -> Line:
        """Returns the row of another iteration, before which so many episodes had ended."""
        chosen = sum(episode["chosen"] for episode in episodes)
        metrics = {name: value for name, value in self.row["metrics"].items() if not name.startswith("eval/")}
        metrics |= {
            "env/num_trajectories": float(len(episodes) - chosen),
            "env/curriculum/num_trajectories": float(chosen),
            "time/iterations": float(iteration),
            "time/total_timesteps": float(iteration * STEPS),
            "time/total_episodes": float(before + len(episodes)),
            "time/time_elapsed": iteration * SECONDS,
            "time/eta": (iterations - iteration) * SECONDS,
            **evaluation,
        }
        moved = {"iteration": iteration, "total_timesteps": iteration * STEPS, "time": iteration * SECONDS}
        return {**self.row, **moved, "metrics": metrics}

    def spans_of(self, iteration: int) -> Line:
        """Returns the timeline of another iteration."""
        began = self.spans["spans"][0]["began"]
        shift = (iteration - 1) * SECONDS - began
        moved = [
            {**span, "began": max(0.0, span["began"] + shift), "ended": max(0.0, span["ended"] + shift)}
            for span in self.spans["spans"]
        ]
        return {"iteration": iteration, "spans": moved}


def train_real(folder: Path) -> Path:
    """Trains a run of six iterations below a folder, and returns its directory."""
    import rlpipe
    from tests.helpers.curricula import reach

    options = (f"runner.total_timesteps={6 * STEPS}", "runner.save_interval=6", "runner.val_check_interval=6")
    options += ("algorithm.update_to_data=0.02",)  # what is learnt does not matter
    config = reach(
        folder, *options, f"env.train.total_num_envs={ENVIRONMENTS}", "evaluation.episodes=50", name="reverse_forward"
    )
    return rlpipe.train(config, local=True).directory


def lengthened(real: Path, run: Path, iterations: int, episodes: int) -> Path:
    """Makes the directory of a long run out of that of a real one, and returns it."""
    shutil.copytree(real, run)
    write_lines(run, read_templates(real), iterations, episodes)
    write_checkpoint(run, iterations, episodes)
    write_records(run, iterations)
    return run


def read_templates(run: Path) -> list[Template]:
    """Reads the iterations of the real run in which episodes of both kinds ended."""
    rows, spans, ended = (lines(run / f"{name}.jsonl") for name in ("metrics", "timeline", "episodes"))
    templates = [
        Template(row, [episode for episode in ended if episode["iteration"] == row["iteration"]], span)
        for row, span in zip(rows, spans, strict=True)
    ]
    return templates[1:]  # nothing was learnt in the first


def lines(file: Path) -> list[Line]:
    """Reads a small file of JSON lines."""
    return [json.loads(line) for line in file.read_text().splitlines()]


def write_lines(run: Path, templates: Sequence[Template], iterations: int, episodes: int) -> None:
    """Replaces metrics, episodes, evaluated episodes, events and timeline by long ones."""
    evaluated = lines(run / "eval_episodes.jsonl")
    results = {name: value for name, value in templates[-1].row["metrics"].items() if name.startswith("eval/")}
    note = {"kind": "note", "message": "An evaluation is complete.", "data": {}}
    started, completed = lines(run / "events.jsonl")[:: len(lines(run / "events.jsonl")) - 1]
    names = ("metrics", "episodes", "eval_episodes", "events")
    out = {name: (run / f"{name}.jsonl").open("w") for name in names}
    out["events"].write(json.dumps({**started, "time": 0.0}) + "\n")
    for iteration in range(1, iterations + 1):
        template = templates[iteration % len(templates)]
        before = episodes * (iteration - 1) // iterations
        ended = list(template.episodes_of(iteration, episodes * iteration // iterations - before))
        out["episodes"].writelines(json.dumps(episode) + "\n" for episode in ended)
        is_evaluated = iteration % EVALUATION_INTERVAL == 0 or iteration == iterations
        if is_evaluated:
            out["eval_episodes"].writelines(
                json.dumps({**episode, "iteration": iteration, "policy_version": iteration}) + "\n"
                for episode in evaluated
            )
            out["events"].write(json.dumps({**note, "iteration": iteration, "time": iteration * SECONDS}) + "\n")
        row = template.row_of(iteration, iterations, before, ended, results if is_evaluated else {})
        out["metrics"].write(json.dumps(row) + "\n")
    last = {**completed, "message": f"Completed after iteration {iterations}.", "iteration": iterations}
    out["events"].write(json.dumps({**last, "time": iterations * SECONDS}) + "\n")
    for file in out.values():
        file.close()
    newest = range(max(1, iterations - 149), iterations + 1)
    spans = (templates[iteration % len(templates)].spans_of(iteration) for iteration in newest)
    (run / "timeline.jsonl").write_text("".join(json.dumps(line) + "\n" for line in spans))


def write_checkpoint(run: Path, iterations: int, episodes: int) -> None:
    """Replaces the checkpoints by one from before the last iterations, with the counters of that iteration."""
    from rlpipe.run import checkpoint

    state = checkpoint.newest(run)
    shutil.rmtree(run / "checkpoints")
    iteration = iterations - UNSAVED
    ended = episodes * iteration // iterations
    counted = {
        "time/time_elapsed": iteration * SECONDS,
        "time/iterations": float(iteration),
        "time/total_timesteps": float(iteration * STEPS),
        "time/total_episodes": float(ended),
    }
    metrics = state.meta["metrics"]
    for name, total in counted.items():
        kind, fields = metrics[name]
        metrics[name] = [kind, {**fields, "parts": [total]}]
    meta = {
        **state.meta, "iteration": iteration, "run_id": run.name, "metrics": metrics,
        "config": with_steps(state.meta["config"], iterations),
    }  # fmt: skip
    checkpoint.save(run / "checkpoints", replace(state).arrays, meta)
    (run / "config.yaml").write_text(meta["config"])


def with_steps(config: str, iterations: int) -> str:
    """Returns a configuration of as many iterations."""
    before, after = (f"total_timesteps: {count * STEPS}\n" for count in (6, iterations))
    assert before in config
    return config.replace(before, after)


def write_records(run: Path, iterations: int) -> None:
    """Writes ``run.json`` of a run that was killed after its last iteration."""
    record = json.loads((run / "run.json").read_text())
    view = {"total_iterations": iterations, "total_timesteps": iterations * STEPS, "stages": [["training", iterations]]}
    record |= {"run_id": run.name, "status": "running", "view": {**record["view"], **view}}
    (run / "run.json").write_text(json.dumps(record, indent=2))


# --- measuring


def commands(run: Path, real: Path, iterations: int, folder: Path) -> dict[str, list[str]]:
    """Returns the arguments of each command by its name in the table, in the order in which they run."""
    longer = f"runner.total_timesteps={(iterations + 2) * STEPS}"
    local = ["--local", "runner.report=false", "runner.val_check_interval=1000"]
    return {
        "train, auto_resume": ["train", str(run / "config.yaml"), "--local", "runner.auto_resume=true"],
        "diagnose": ["diagnose", str(run)],
        "compare": ["compare", str(run), str(real)],
        "curriculum": ["curriculum", str(run)],
        "report": ["report", str(run)],
        "sync --to tensorboard": ["sync", str(run), "--to", "tensorboard"],
        "export": ["export", str(run), "--out", str(folder / "export")],
        "export --format csv": ["export", str(run), "--out", str(folder / "export"), "--format", "csv"],
        "train --resume": ["train", "--resume", str(run), longer, *local],
    }


def measured(arguments: Sequence[str], log: Path) -> tuple[float, float]:
    """Runs a command in a process of its own.

    Returns:
        Seconds, and its peak memory in MiB.
    Raises:
        RuntimeError: the command failed.
    """
    began = time.perf_counter()
    with log.open("wb") as out:
        process = subprocess.Popen(arguments, stdout=out, stderr=out, env={**os.environ, "PYTHONPATH": str(ROOT)})
        _, status, usage = os.wait4(process.pid, 0)
    process.returncode = code = os.waitstatus_to_exitcode(status)
    if code not in (0, 3):  # a critical finding of a diagnosis
        raise RuntimeError(f"{' '.join(arguments)} exited with {code}: {log.read_text()[-2000:]}")
    return time.perf_counter() - began, usage.ru_maxrss / 1024


def results(folder: Path, iterations: int, episodes: int, only: Sequence[str]) -> Iterator[tuple[str, float, float]]:
    """Makes a run below a folder; yields the name, the seconds and the memory of each command."""
    log = folder / "output.txt"
    measured([sys.executable, __file__, "--make", str(folder), str(iterations), str(episodes)], log)
    run, real = map(Path, json.loads(log.read_text().splitlines()[-1]))
    for name, arguments in commands(run, real, iterations, folder).items():
        if not only or name in only:
            yield name, *measured([sys.executable, "-m", "rlpipe", *arguments], log)
        shutil.rmtree(folder / "export", ignore_errors=True)


def main(arguments: Sequence[str] | None = None) -> None:
    """Measures and prints the table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--iterations", type=int, default=50_000)
    parser.add_argument("--episodes", default="100000,1000000", help="numbers of episodes, separated by commas")
    parser.add_argument("--folder", type=Path, help="where to write; a temporary folder by default")
    parser.add_argument("--only", action="append", default=[], help="name of a command in the table")
    parser.add_argument("--make", nargs=3, metavar=("FOLDER", "ITERATIONS", "EPISODES"), help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.make:
        folder, *counts = options.make
        real = train_real(Path(folder))
        run = lengthened(real, real.with_name("20260101-000000-seed0"), *map(int, counts))
        print(json.dumps([str(run), str(real)]))
        return
    sizes = [int(size) for size in options.episodes.split(",")]
    view = Table("command", *(f"{size:,} episodes" for size in sizes), title=f"{options.iterations:,} iterations")
    cells: dict[str, list[str]] = {}
    for size in sizes:
        with tempfile.TemporaryDirectory(dir=options.folder) as folder:
            for name, seconds, memory in results(Path(folder), options.iterations, size, options.only):
                cells.setdefault(name, []).append(f"{seconds:,.0f} s, {memory:,.0f} MiB")
                print(f"{size:,} episodes, {name}: {cells[name][-1]}", file=sys.stderr, flush=True)
    for name, row in cells.items():
        view.add_row(name, *row)
    Console(width=110).print(view)


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))
    main()
