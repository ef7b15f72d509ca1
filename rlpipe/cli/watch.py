"""``rlpipe watch RUN``: a page of the terminal about a run in progress, here or on the file system of a cluster."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich import box
from rich.columns import Columns
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.panel import Panel as Frame
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from rlpipe.backends.console import MARKS, clock, seconds_left, sparkline, verdict
from rlpipe.cli import arguments
from rlpipe.metrics import catalogue as m
from rlpipe.metrics.panels import GROUPS, shown
from rlpipe.report.formats import digits

if TYPE_CHECKING:
    from rlpipe.analysis.watching import Watched

CURVE_WIDTH = 18
"""Characters of a curve; each shows the mean of its share of the kept iterations."""
MOST_EVENTS = 6
MOST_ALERTS = 4
MOST_WORKERS = 8
WAITING = "wait"
"""Beginning of the names of spans in which an actor does nothing."""


def watch(
    run: Annotated[Path, typer.Argument(parser=arguments.run, help="Run directory; it is only read.")],
    every: Annotated[float, typer.Option(help="Seconds between two looks.", min=0.1)] = 1.0,
    once: Annotated[bool, typer.Option("--once", help="Print the page once and exit.")] = False,
) -> None:
    """Watch a run in progress: curves, health, workers, where time goes, and the last events. It only reads."""
    from rlpipe.analysis.watching import Watcher

    watcher, console = Watcher(run), Console(highlight=False)
    state = watcher.look()
    if once or not console.is_terminal or not state.running:
        console.print(page(state, time.time()))
        return
    with Live(fitting(state, time.time(), console), console=console, screen=True, auto_refresh=False) as live:
        try:
            while state.running:
                time.sleep(every)
                state = watcher.look()
                live.update(fitting(state, time.time(), console), refresh=True)
        except KeyboardInterrupt:
            pass
    console.print(page(state, time.time()))


def fitting(state: Watched, now: float, console: Console) -> RenderableType:
    """Lays out the state of a run with as many curves as the terminal has room for, because it cannot be scrolled."""
    screen = page(state, now)
    for most_groups in range(len(GROUPS) - 1, -1, -1):
        if len(console.render_lines(screen, pad=False)) <= console.height:
            break
        screen = page(state, now, most_groups)
    return screen


def page(state: Watched, now: float, most_groups: int = len(GROUPS)) -> RenderableType:
    """Lays out the state of a run at a time, in seconds since 1970, with so many groups of curves."""
    parts: list[RenderableType] = [_head(state, now), _alerts(state)]
    groups = [*shown({name for row in state.rows for name in row.metrics})][:most_groups]
    curves = [_curves(state, group.title, [panel.metrics[0] for panel in group.panels]) for group in groups]
    parts += ["", Columns(curves, padding=(1, 3))] if curves else []
    parts += ["", _work(state)] if state.work else []
    parts += ["", _events(state)]
    style = {"running": "cyan", "completed": "green"}.get(state.status, "yellow")
    title = Text.assemble((str(state.run["experiment"]), "bold"), " ", (str(state.run["run_id"]), "dim"))
    ends = "Ctrl-C ends the watching, not the run" if state.running else state.status
    return Frame(Group(*parts), title=title, subtitle=f"[dim]{ends}[/]", box=box.ROUNDED, border_style=style)


def _head(state: Watched, now: float) -> RenderableType:
    """Progress, the latest success, and when the last row was written."""
    view, last = state.run.get("view", {}), state.rows[-1] if state.rows else None
    total = view.get("total_iterations", 0)
    done = 0 if last is None else last.iteration
    bar = Table.grid(padding=(0, 1), expand=True)
    bar.add_column()
    bar.add_column(ratio=1)
    bar.add_column(justify="right")
    left = seconds_left(state.rows_since_resume, total) if state.running else None
    eta = "" if left is None else f"  {clock(left)} left"
    steps = "" if last is None else f"{last.total_timesteps:,} steps  "
    bar.add_row(
        Text(state.status, style="bold"),
        ProgressBar(total=max(total, 1), completed=done, complete_style="cyan", finished_style="green"),
        Text(f"{steps}{done:,}/{total:,}{eta}"),
    )
    return Group(bar, _headline(state, now))


def _headline(state: Watched, now: float) -> Text:
    line = Text()
    if state.evaluated is not None:
        metrics = state.evaluated.metrics
        success, mean_return = (metrics.get(metric.name) for metric in (m.EVAL.success_once, m.EVAL.episode_return))
        if success is not None:
            line.append(f"{m.EVAL.success_once.name} {success:.3f}", "bold green")
            line.append(f" [{metrics[m.EVAL_CI_LOW.name]:.3f}, {metrics[m.EVAL_CI_HIGH.name]:.3f}]")
        elif mean_return is not None:
            line.append(f"{m.EVAL.episode_return.name} {mean_return:.4g}", "bold green")
        else:
            line.append("no finite return", "yellow")
        episodes = int(metrics[m.EVAL.num_trajectories.name])
        line.append(f"  {episodes} episodes, iteration {state.evaluated.iteration:,}   ", "dim")
    elif (result := state.result) is not None:
        metric, value, episodes = result
        line.append(f"{metric.name} {value:{'.3f' if metric is m.ENV.success_once else '.4g'}}", "bold")
        line.append(f"  {episodes:,} training episode{'' if episodes == 1 else 's'}, not evaluated   ", "dim")
    if state.rows:
        since = now - state.rows[-1].time
        silent = state.silence(now) is not None
        text = f"silent for {clock(since)}: it was killed, or it hangs" if silent else f"last row {clock(since)} ago"
        line.append(text if state.running else "", "bold red" if silent else "dim")
    else:
        line.append("no iteration is complete yet", "dim")
    return line


def _alerts(state: Watched) -> RenderableType:
    """Alerts that stand, the gravest first, each with what to try."""
    if not (standing := state.alerts.standing):
        return Text("✔ every metric is within its limits" if state.rows else "", style="green")
    order = sorted(standing.values(), key=lambda data: -list(MARKS).index(data["level"]))
    lines = Text()
    for data in order[:MOST_ALERTS]:
        mark, style = MARKS[data["level"]]
        lines.append(f"{mark} {data['metric']} is {data['value']:.4g}", style)
        lines.append(f", {data['demanded']}", "dim")
        lines.append(f"  {data['remedy']}\n" if data.get("remedy") else "\n")
    if (rest := len(order) - MOST_ALERTS) > 0:
        lines.append(f"and {rest} more alerts\n", "dim")
    lines.rstrip()
    return lines


def _curves(state: Watched, title: str, names: list[str]) -> RenderableType:
    """A group of metrics: name, curve, last number, and whether it is healthy."""
    table = Table(box=None, padding=(0, 1, 0, 0), show_header=True, header_style="bold", pad_edge=False)
    table.add_column(title, no_wrap=True)
    table.add_column("", no_wrap=True, width=CURVE_WIDTH)
    table.add_column("", justify="right", no_wrap=True, min_width=8)
    for name in names:
        values = state.curve(name)
        _, style = verdict(name, values[-1])
        table.add_row(Text(name, "dim"), Text(sparkline(values, CURVE_WIDTH), "cyan"), Text(digits(values[-1]), style))
    return table


def _work(state: Watched) -> RenderableType:
    """Where each actor's time of an iteration went."""
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="bold")
    table.add_column("Time", no_wrap=True, min_width=max(map(len, list(state.work)[:MOST_WORKERS])))
    table.add_column("", width=20, no_wrap=True)
    table.add_column("", no_wrap=True)
    for actor, shares in list(state.work.items())[:MOST_WORKERS]:
        busy = sum(share for name, share in shares.items() if not name.startswith(WAITING))
        names = ", ".join(f"{name} {share:.0%}" for name, share in shares.items() if share >= 0.005)
        bar = Text("━" * round(20 * min(1.0, busy)), "cyan") + Text("━" * (20 - round(20 * min(1.0, busy))), "grey30")
        table.add_row(Text(actor, "dim"), bar, Text(names, overflow="ellipsis"))
    if (rest := len(state.work) - MOST_WORKERS) > 0:
        table.add_row(Text(f"and {rest} more", "dim"))
    return table


def _events(state: Watched) -> RenderableType:
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="bold", expand=True)
    table.add_column("Events", no_wrap=True, width=8)
    table.add_column("iteration", justify="right", no_wrap=True, width=9, header_style="dim")
    table.add_column("", overflow="ellipsis", no_wrap=True, ratio=1)
    for event in list(state.events)[-MOST_EVENTS:]:
        moment = datetime.fromtimestamp(event.time, UTC).astimezone().strftime("%H:%M:%S")
        _, style = MARKS.get(event.data.get("level", ""), ("", ""))
        style = "green" if event.data.get("cleared") else style
        table.add_row(Text(moment, "dim"), Text(f"{max(event.iteration, 0):,}", "dim"), Text(event.message, style))
    return table
