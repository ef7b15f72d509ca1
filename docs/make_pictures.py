"""Draws the pictures of the documentation in docs/images, most of them from real runs.

python docs/make_pictures.py readme RUN [RUN ...]         curve.png, console.svg
python docs/make_pictures.py cartpole RUN [RUN ...]       cartpole.png: variations of configs/cartpole_study.yaml
python docs/make_pictures.py failures RUN RUN RUN RUN     failures.png: docs/sparse.md, a panel for each
python docs/make_pictures.py tasks RUN [RUN ...]          tasks.png: docs/tasks.md, a panel for each task
python docs/make_pictures.py cluster                      cluster.png: which actor runs where
rlpipe curriculum RUN --out docs/images/curriculum.png    curriculum.png: progress of a curriculum
"""

from __future__ import annotations

import itertools
import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import matplotlib as mpl
import matplotlib.pyplot as plt
import matplotlib.ticker
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from rich.console import Console as Terminal

from rlpipe.backends.console import Console
from rlpipe.config.loading import load_config
from rlpipe.config.schema import Config
from rlpipe.config.tree import from_yaml
from rlpipe.envs.shared.tasks import SeveralTasks
from rlpipe.metrics.row import Row
from rlpipe.run.directory import RunDirectory, read_jsonl
from rlpipe.run.metric_logger import run_info
from rlpipe.trajectory import SpaceSpec

IMAGES = Path(__file__).parent / "images"
FAILURES = (
    "It works (PegInsertionSide, 20 demonstrations)",
    "1. No curriculum: nothing succeeds",
    "2. Hardly a seed is close enough (reverse_forward)",
    "3. Raw observations: the last steps fail (PegInsertionSide)",
)
COLOURS = ("#1b6ca8", "#d1603d", "#4a8f4f", "#8a5aa8")


@dataclass(frozen=True)
class Run:
    """A run directory, read on demand."""

    directory: RunDirectory

    @cached_property
    def config(self) -> Config:
        """Configuration of the run."""
        return load_config(from_yaml((self.directory.path / "config.yaml").read_text()))

    @cached_property
    def rows(self) -> list[dict[str, Any]]:
        """Rows of the run."""
        return list(read_jsonl(self.directory.path / "metrics.jsonl"))

    def series(self, metric: str) -> tuple[list[int], list[float]]:
        """Steps and values of a metric, where it has one."""
        found = [row for row in self.rows if metric in row["metrics"]]
        return [row["total_timesteps"] for row in found], [row["metrics"][metric] for row in found]

    def smooth(
        self, metric: str, window: int, count: str = "env/num_trajectories", least: int = 1
    ) -> tuple[list[int], list[float]]:
        """Steps, and means over all episodes of the last ``window`` iterations, where there are enough.

        Args:
            metric: mean over episodes
            window: iterations
            count: metric that counts these episodes
            least: smallest number of episodes
        """
        counts = [row["metrics"].get(count, 0.0) for row in self.rows]
        sums = [count * row["metrics"].get(metric, 0.0) for count, row in zip(counts, self.rows, strict=True)]
        steps, values = [], []
        for i, row in enumerate(self.rows):
            recent = slice(max(0, i - window + 1), i + 1)
            if sum(counts[recent]) >= least:
                steps.append(row["total_timesteps"])
                values.append(sum(sums[recent]) / sum(counts[recent]))
        return steps, values

    def over_episodes(self, metric: str, count: str, window: int, episodes: int) -> tuple[list[int], list[float]]:
        """Steps, and means over the last iterations: as many as it takes for enough episodes.

        Args:
            metric: mean over episodes
            count: metric that counts these episodes
            window: fewest iterations
            episodes: fewest episodes
        """
        steps, values, recent = [], [], []
        for row in self.rows:
            recent.append((row["metrics"].get(count, 0.0), row["metrics"].get(metric, 0.0)))
            while len(recent) > window and sum(number for number, _ in recent[1:]) >= episodes:
                recent.pop(0)
            if (total := sum(number for number, _ in recent)) >= episodes:
                steps.append(row["total_timesteps"])
                values.append(sum(number * value for number, value in recent) / total)
        return steps, values

    def evaluated(self, task: str) -> list[tuple[int, float, float, float]]:
        """Steps of the checkpoint, lower bound, success and upper bound of each ``rlpipe evaluate`` of this run."""
        steps = {row["iteration"]: row["total_timesteps"] for row in self.rows}
        found = []
        for file in sorted((self.directory.path / "evaluations").glob("*.json")):
            record = json.loads(file.read_text())
            found += [
                (steps[record["iteration"]], one["low"], one["value"], one["high"])
                for one in record["tasks"].get(task, [])
                if one["metric"] == "eval/success_once"
            ]
        return found


def draw_success(axes: Axes, runs: Sequence[Run]) -> None:
    """Draws training success over environment steps, evaluations with their intervals, and boundaries of stages."""
    for run, colour in zip(runs, itertools.cycle(COLOURS), strict=False):
        window = max(10, len(run.rows) // 40)
        axes.plot(*run.smooth("env/success_once", window), color=colour, linewidth=1.6,
                  label=f"seed {run.config.runner.seed}")  # fmt: skip
        for step, value, low, high in zip(
            *run.series("eval/success_once"),
            run.series("eval/success_once_ci_low")[1],
            run.series("eval/success_once_ci_high")[1],
            strict=True,
        ):
            bounds = [[max(0.0, value - low)], [max(0.0, high - value)]]
            axes.errorbar(step, value, yerr=bounds, fmt="o", color=colour, markersize=4, capsize=3)
    config = runs[0].config
    plan = config.schedule
    for before, after in itertools.pairwise(plan):
        boundary = before.until * config.steps_per_iteration
        axes.axvline(boundary, color="0.6", linestyle=":", linewidth=1)
        axes.text(boundary, 1.04, f"{before.name} | {after.name}", ha="center", va="bottom", color="0.4", fontsize=9)
    axes.set(ylabel="success_once", ylim=(-0.02, 1.02))
    _finish(axes)


def _finish(axes: Axes) -> None:
    axes.set(xlabel="environment steps", xlim=(0, None))
    axes.grid(alpha=0.25)
    axes.xaxis.set_major_locator(mpl.ticker.MaxNLocator(5))
    axes.xaxis.set_major_formatter(mpl.ticker.StrMethodFormatter("{x:,.0f}"))
    axes.spines[["top", "right"]].set_visible(False)


def draw_readme(runs: Sequence[Run]) -> Figure:
    """Draws the curves of the quickstart."""
    figure, axes = plt.subplots(figsize=(8, 3.8), constrained_layout=True)
    draw_success(axes, runs)
    axes.legend(frameon=False, loc="lower right", title="line: training, dots: evaluation, 95 %", title_fontsize=8)
    return figure


def draw_failures(runs: Sequence[Run]) -> Figure:
    """Draws where episodes begin and how they go: for a run that works, and for three that do not."""
    figure, panels = plt.subplots(2, 2, figsize=(10, 6.2), constrained_layout=True, sharey=True)
    for title, run, axes in zip(FAILURES, runs, panels.flat, strict=True):
        window = max(10, len(run.rows) // 30)
        lines = {
            "start, from the end (1) to the beginning (0)": run.series("env/curriculum/start"),
            "way to the task's own starts": run.series("env/curriculum/blend"),
            "success from chosen starts": run.smooth(
                "env/curriculum/success_once", window, "env/curriculum/num_trajectories", 10
            ),
            "success from the task's own": run.over_episodes("env/success_once", "env/num_trajectories", window, 20),
        }
        for (name, line), colour in zip(lines.items(), ("0.55", COLOURS[2], COLOURS[1], COLOURS[0]), strict=True):
            axes.plot(*line, color=colour, linewidth=2.2 if colour == COLOURS[0] else 1.5, label=name)
        axes.set_title(title, fontsize=10, loc="left")
        axes.set_ylim(-0.02, 1.02)
        _finish(axes)
    figure.legend(*panels.flat[0].get_legend_handles_labels(), loc="outside lower center", ncols=2, frameon=False)
    return figure


def draw_tasks(runs: Sequence[Run]) -> Figure:
    """Draws success by task: a panel for each task, with a line for each run and its evaluations."""
    labels = SeveralTasks.labels(runs[0].config.env.train, "env.train")
    rows = -(-len(labels) // 5)
    height = 2.1 * rows
    figure, panels = plt.subplots(rows, 5, figsize=(11, height), sharex=True, sharey=True, squeeze=False)
    figure.subplots_adjust(left=0.07, right=0.985, bottom=0.55 / height, top=1 - 0.3 / height, wspace=0.14, hspace=0.22)
    for label, axes in itertools.zip_longest(labels, panels.flat):
        if label is None:
            axes.set_axis_off()
            continue
        name = f"tasks/{label}/success_once"
        for run, colour in zip(runs, itertools.cycle(COLOURS), strict=False):
            window = max(5, len(run.rows) // 60)
            line = run.smooth(f"env/{name}", window, f"env/tasks/{label}/num_trajectories")
            axes.plot(*line, color=colour, linewidth=1.6)
            axes.plot(*run.series(f"eval/{name}"), "o", color=colour, markersize=4, clip_on=False)
            for step, low, value, high in run.evaluated(label):
                bounds = [[value - low], [high - value]]
                axes.errorbar(step, value, yerr=bounds, fmt="o", color="0.2", markersize=4, capsize=2, clip_on=False)
        axes.set_title(label, fontsize=9, loc="left")
        _finish(axes)
        axes.set(ylim=(-0.02, 1.02), xlabel="")
        axes.xaxis.set_major_locator(mpl.ticker.MaxNLocator(3))
        axes.xaxis.set_major_formatter(lambda step, _: f"{step / 1e6:g}")
    figure.supylabel("success_once", fontsize=9)
    figure.supxlabel(
        "million environment steps of all tasks together; line: episodes of training, dot: held-out episodes",
        fontsize=9, color="0.4",
    )  # fmt: skip
    return figure


def draw_cartpole(runs: Sequence[Run]) -> Figure:
    """Draws the effects of the learning rate, the length of the run, and the clip range."""
    figure, panels = plt.subplots(2, 2, figsize=(10, 6.4), constrained_layout=True)
    usual = (3e-4, 0.2, 80_000)

    def panel(
        axes: Axes,
        title: str,
        metric: str,
        label: str,
        chosen: Callable[[Config], tuple[float, float, int]],
        values: Sequence[Any],
        text: str,
        place: int,
    ) -> None:
        for value, colour in zip(values, itertools.cycle(COLOURS), strict=False):
            wanted = (*usual[:place], value, *usual[place + 1 :])
            members = [run for run in runs if chosen(run.config) == wanted]
            for number, run in enumerate(members):
                axes.plot(*run.series(metric), color=colour, linewidth=1.3, alpha=0.85,
                          label=text.format(value) if number == 0 else None)  # fmt: skip
                if metric == "env/return":
                    steps, means = run.series("eval/return")
                    axes.plot(steps, means, "o", color=colour, markersize=5)
        axes.set_title(title, fontsize=10, loc="left")
        axes.set_ylabel(label)
        axes.legend(frameon=False, fontsize=8)
        _finish(axes)

    def setting(config: Config) -> tuple[float, float, int]:
        return config.learner.lr, config.algorithm.clip_ratio_low, config.runner.total_timesteps

    panel(panels[0, 0], "Learning rate", "env/return", "env/return", setting, (3e-4, 3e-2), "learning rate {:g}", 0)
    lengths = (80_000, 50_000, 10_000, 5_000)
    panel(panels[0, 1], "Length of the run", "env/return", "env/return", setting, lengths, "{:,} steps", 2)
    panel(panels[1, 0], "Clip range", "train/actor/clip_fraction", "train/actor/clip_fraction", setting, (0.2, 0.5),
          "clip range {:g}", 1)  # fmt: skip
    panel(panels[1, 1], "Clip range", "train/actor/approx_kl", "train/actor/approx_kl", setting, (0.2, 0.5),
          "clip range {:g}", 1)  # fmt: skip
    figure.supxlabel("a line for each seed; dot: 20 held-out episodes, most likely actions", fontsize=9, color="0.4")
    return figure


def draw_console(run: Run) -> None:
    """Draws the live panel halfway through the run."""
    console = Console(run_info(run.directory, run.config, 1, SpaceSpec(35, 8)))
    console.terminal = terminal()
    for row in run.rows[: len(run.rows) // 2]:
        console.show(Row(row["iteration"], row["total_timesteps"], row["time"], row["metrics"]))
    console.terminal.print(console.panel())
    console.terminal.save_svg(str(IMAGES / "console.svg"), title="make quickstart")


def draw_cluster() -> Figure:
    """Draws which actor runs on which node of a cluster, and what they send each other."""
    figure, axes = plt.subplots(figsize=(10, 4.6), constrained_layout=True)
    axes.set(xlim=(0, 20), ylim=(0, 9.2))
    axes.set_axis_off()

    def box(x: float, y: float, width: float, height: float, text: str, colour: str = "") -> None:
        """Draws an actor in its colour, or a node without one."""
        style = {"facecolor": colour, "edgecolor": "none"} if colour else {"facecolor": "0.96", "edgecolor": "0.7"}
        axes.add_patch(mpl.patches.FancyBboxPatch((x, y), width, height, boxstyle="round,pad=0,rounding_size=0.2",
                                                  zorder=2 if colour else 1, **style))  # fmt: skip
        place = {"va": "center", "color": "white"} if colour else {"va": "top", "color": "0.35"}
        axes.text(x + width / 2, y + (height / 2 if colour else height - 0.2), text, ha="center", fontsize=9, zorder=3,
                  **place)  # fmt: skip

    def arrow(points: Sequence[tuple[float, float]], colour: str) -> None:
        *before, last = points
        axes.plot(*zip(*before, strict=True), color=colour, linewidth=1.8, solid_capstyle="butt", zorder=4)
        axes.annotate("", last, before[-1], arrowprops={"arrowstyle": "-|>", "color": colour, "linewidth": 1.8,
                                                        "shrinkA": 0, "shrinkB": 0}, zorder=4)  # fmt: skip

    batches, weights, windows, _ = COLOURS
    box(0.2, 0.6, 4.4, 8.2, "node where the run is started")
    box(0.6, 5.6, 3.6, 1.6, "driver: rlpipe train\npasses references on", "0.35")
    box(0.6, 2.6, 3.6, 1.6, "metric-logger\nrun directory, checkpoints", windows)
    box(0.6, 1.0, 3.6, 1.0, "a process for each tracker", "0.55")
    for node, (bottom, first) in enumerate([(5.0, 0), (0.6, 4)]):
        box(8.0, bottom, 5.0, 3.8, f"simulator node {node + 1}: cluster.worker_nodes")
        for rank in range(4):
            x, y = 8.3 + 2.3 * (rank % 2), bottom + 1.75 - 1.45 * (rank // 2)
            box(x, y, 2.1, 1.2, f"rollout-{first + rank}", batches)
    box(16.0, 2.8, 3.8, 3.8, "GPU node:\ncluster.learner_nodes")
    box(16.4, 3.2, 3.0, 1.8, "learner", weights)
    for y in (7.6, 3.2):
        arrow([(13.0, y), (14.4, y), (14.4, 3.6), (16.4, 3.6)], batches)
    arrow([(16.4, 4.6), (15.2, 4.6), (15.2, 8.98), (7.2, 8.98), (7.2, 7.0), (8.0, 7.0)], weights)
    arrow([(7.2, 7.0), (7.2, 1.8), (8.0, 1.8)], weights)
    for y in (5.6, 3.4):
        arrow([(8.0, y), (5.6, y), (5.6, 3.4), (4.2, 3.4)], windows)
    arrow([(17.9, 3.2), (17.9, 0.2), (5.6, 0.2), (5.6, 3.0), (4.2, 3.0)], windows)
    for x, y, text, colour in [(13.7, 7.7, "batches", batches), (10.5, 9.05, "weights", weights),
                               (15.4, 0.3, "windows of metrics", windows)]:  # fmt: skip
        axes.text(x, y, text, color=colour, fontsize=9, ha="center", va="bottom")
    return figure


def terminal() -> Terminal:
    """Returns a terminal whose output can be saved as a picture."""
    return Terminal(record=True, force_terminal=True, width=100, file=Path("/dev/null").open("w"))


def main() -> None:
    """Draws what the first argument names."""
    what, *paths = sys.argv[1:]
    mpl.use("agg")
    runs = [Run(RunDirectory.existing(Path(path))) for path in paths]
    if what == "readme":
        draw_readme(runs).savefig(IMAGES / "curve.png", dpi=150)
        draw_console(runs[0])
    elif what == "cluster":
        draw_cluster().savefig(IMAGES / "cluster.png", dpi=130)
    else:
        draw = {
            "cartpole": draw_cartpole,
            "failures": draw_failures,
            "tasks": draw_tasks,
        }[what]
        draw(runs).savefig(IMAGES / f"{what}.png", dpi=130)


if __name__ == "__main__":
    main()
