"""``rlpipe evaluate RUN_OR_CHECKPOINT``"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table


def add_to(app: typer.Typer) -> None:
    """Adds the command."""
    app.command(name="evaluate")(evaluate)


def evaluate(
    path: Annotated[Path, typer.Argument(help="Run directory (its newest checkpoint) or checkpoint file.")],
    overrides: Annotated[
        list[str] | None,
        typer.Argument(help="Changes, such as evaluation.deterministic=false.", metavar="[key=value]..."),
    ] = None,
    episodes: Annotated[int | None, typer.Option(help="Whole episodes to run, on held-out seeds.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the report as JSON.")] = False,
    local: Annotated[bool, typer.Option("--local", help="Run everything in this process, without Ray.")] = False,
    ray_address: Annotated[
        str | None, typer.Option(help="Ray cluster to join; else RAY_ADDRESS, else one is started.")
    ] = None,
) -> None:
    """Evaluate a policy on whole episodes with held-out seeds."""
    import rlpipe

    report = rlpipe.evaluate(path, episodes=episodes, overrides=overrides or [], local=local, ray_address=ray_address)
    if as_json:
        print(json.dumps(asdict(report), indent=2))
        return
    console = Console(highlight=False, soft_wrap=True)
    console.print(f"[bold green]{headline(report.metrics)}[/]")
    table = Table.grid(padding=(0, 2))
    for name, value in report.metrics.items():
        table.add_row(name, f"{value:,.0f}" if name.endswith("num_trajectories") else f"{value:.4g}")
    table.add_row("checkpoint", report.checkpoint)
    console.print(table)


def headline(metrics: Mapping[str, float]) -> str:
    """The result in a line: success with its interval, or the return where there is no success; empty without one."""
    if "eval/num_trajectories" not in metrics:
        return ""
    episodes = f"over {metrics['eval/num_trajectories']:.0f} held-out episodes"
    if "eval/success_once" in metrics:
        low, high = metrics["eval/success_once_ci_low"], metrics["eval/success_once_ci_high"]
        return f"success_once {metrics['eval/success_once']:.3f}  95 % [{low:.3f}, {high:.3f}]  {episodes}"
    if "eval/return" not in metrics:
        return f"no return was finite  {episodes}"
    return f"return {metrics['eval/return']:.1f} +- {metrics['eval/return_std']:.1f}  {episodes}"
