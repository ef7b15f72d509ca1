"""Draws the README's pictures from real runs.

python docs/make_pictures.py RUN [RUN ...]     # writes curve.png, console.svg and explain.svg into docs/images
"""

from __future__ import annotations

import itertools
import sys
from pathlib import Path

import matplotlib as mpl
import matplotlib.ticker
from rich.console import Console as Terminal

from rlpipe.backends.base import Row
from rlpipe.backends.console import Console
from rlpipe.cli.metrics import explanation
from rlpipe.config import from_yaml, load_config, stages
from rlpipe.metric_logger import run_info
from rlpipe.metrics.dialects import find
from rlpipe.run_directory import RunDirectory, read_jsonl
from rlpipe.trajectory import SpaceSpec

IMAGES = Path(__file__).parent / "images"
COLOURS = ("#1b6ca8", "#d1603d", "#4a8f4f", "#8a5aa8")


def draw_curve(runs: list[RunDirectory]) -> None:
    """Training success over environment steps, evaluations with their intervals, and where the stages meet."""
    mpl.use("agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(8, 3.8), constrained_layout=True)
    for run, colour in zip(runs, COLOURS, strict=False):
        rows = list(read_jsonl(run.path / "metrics.jsonl"))
        seed = run.read_json()["seeds"]["seed"]
        steps = [row["total_timesteps"] for row in rows]
        successes, episodes = [], []
        for row in rows:
            count = row["metrics"]["env/num_trajectories"]
            episodes.append(count)
            successes.append(count * row["metrics"].get("env/success_once", 0.0))
        pooled = [  # over the last ten iterations, episodes pooled
            sum(successes[max(0, i - 9) : i + 1]) / max(1, sum(episodes[max(0, i - 9) : i + 1]))
            for i in range(len(rows))
        ]
        axes.plot(steps, pooled, color=colour, linewidth=1.6, label=f"seed {seed}")
        for row in rows:
            metrics = row["metrics"]
            if "eval/success_once" in metrics:
                value = metrics["eval/success_once"]
                low, high = metrics["eval/success_once_ci_low"], metrics["eval/success_once_ci_high"]
                axes.errorbar(
                    row["total_timesteps"],
                    value,
                    yerr=[[max(0.0, value - low)], [max(0.0, high - value)]],
                    fmt="o",
                    color=colour,
                    markersize=4,
                    capsize=3,
                )
    config = load_config(from_yaml((runs[0].path / "config.yaml").read_text()))
    plan = stages(config)
    for before, after in itertools.pairwise(plan):
        boundary = before.until * config.steps_per_iteration
        axes.axvline(boundary, color="0.6", linestyle=":", linewidth=1)
        axes.text(boundary, 1.04, f"{before.name} | {after.name}", ha="center", va="bottom", color="0.4", fontsize=9)
    axes.set(xlabel="environment steps", ylabel="success_once", ylim=(-0.02, 1.02), xlim=(0, None))
    axes.grid(alpha=0.25)
    axes.xaxis.set_major_formatter(mpl.ticker.StrMethodFormatter("{x:,.0f}"))
    axes.legend(frameon=False, loc="lower right", title="line: training, dots: evaluation, 95 %", title_fontsize=8)
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(IMAGES / "curve.png", dpi=150)


def draw_console(run: RunDirectory) -> None:
    """The live panel as it stood halfway through the run."""
    config = load_config(from_yaml((run.path / "config.yaml").read_text()))
    view = Console(run_info(run, config, stages(config), 1, SpaceSpec(35, 8)))
    view.terminal = _terminal()
    rows = list(read_jsonl(run.path / "metrics.jsonl"))
    for row in rows[: len(rows) // 2]:
        view.show(Row(row["iteration"], row["total_timesteps"], row["time"], row["metrics"]))
    view.terminal.print(view.panel())
    view.terminal.save_svg(str(IMAGES / "console.svg"), title="make quickstart")


def draw_explanation(name: str) -> None:
    """What ``rlpipe metrics explain`` prints."""
    terminal = _terminal()
    found = find(name)
    terminal.print(explanation(found[0].metric, [use.name for use in found[:1]], boxed=True))
    terminal.save_svg(str(IMAGES / "explain.svg"), title=f"rlpipe metrics explain {name}")


def _terminal() -> Terminal:
    return Terminal(record=True, force_terminal=True, width=100, file=Path("/dev/null").open("w"))


def main() -> None:
    """Draws all."""
    draw_explanation("ppo/policy/clipfrac")
    runs = [RunDirectory.existing(Path(argument)) for argument in sys.argv[1:]]
    IMAGES.mkdir(exist_ok=True)
    draw_curve(runs)
    draw_console(runs[0])


if __name__ == "__main__":
    main()
