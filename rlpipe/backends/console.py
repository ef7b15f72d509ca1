"""Terminal output: a live panel, or one plain line per iteration where output does not go to a terminal.

``runner.logger.console_style`` selects instead a boxed table per iteration, as Stable-Baselines3 draws it, or one short
line.
"""

from __future__ import annotations

import itertools
import sys
from collections import deque
from collections.abc import Mapping, Sequence
from datetime import timedelta
from statistics import fmean, median
from typing import NamedTuple

from rich import box
from rich.console import Console as Terminal
from rich.console import Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from rlpipe.backends.base import Backend, Place, RunInfo
from rlpipe.metrics import CATALOGUE
from rlpipe.metrics import catalogue as m
from rlpipe.metrics.alerts import ToldAlerts
from rlpipe.metrics.declaration import Metric
from rlpipe.metrics.row import Event, Row, Status
from rlpipe.metrics.rules import LEVELS

__all__ = ["Console"]

_BARS = "▁▂▃▄▅▆▇█"
_HISTORY = 40
_VALUE = 7
"""Characters of a value in the panel."""
_PACED = 20
"""Newest iterations whose median time is the pace of a run."""
MARKS = {"info": ("·", "dim"), "warn": ("▲", "yellow"), "critical": ("✖", "bold red")}
"""Mark and style of an alert by its level."""
_SB3_COUNTS = ("time/fps", "time/iterations", "time/time_elapsed", "time/total_timesteps", "train/n_updates")
"""Numbers that Stable-Baselines3 shows as integers."""


class _Headline(NamedTuple):
    """Metric at the top of the panel, and the number of episodes behind it."""

    metric: Metric
    episodes: Metric


_OWN = _Headline(m.ENV.success_once, m.ENV.num_trajectories)
_CHOSEN = _Headline(m.CURRICULUM_SUCCESS_ONCE, m.CURRICULUM_NUM_TRAJECTORIES)
_RETURN = _Headline(m.ENV.episode_return, m.ENV.num_trajectories)


class EvaluationProgress:
    """Prints how far an evaluation is: after ten seconds, and then ever more rarely, up to every five minutes."""

    def __init__(self, terminal: Terminal) -> None:
        """Prints on a terminal."""
        self._terminal, self._due = terminal, 10.0
        self._ended, self._episodes = 0, 0

    def __call__(self, ended: int, episodes: int, seconds: float) -> None:
        """Takes the number of episodes that have ended, of all, and the seconds since the evaluation began."""
        self._ended, self._episodes = ended, episodes
        if seconds >= self._due:
            self._due = seconds + min(seconds, 300.0)
            message = f"· Evaluating: {ended:,} of {episodes:,} episodes after {clock(seconds)}."
            self._terminal.print(Text(message, style="dim"), soft_wrap=True)

    def interrupted(self) -> None:
        """Prints how far the evaluation was, as of the last count, when it was interrupted."""
        far = (
            f": {self._ended:,} of {self._episodes:,} episodes had ended"
            if self._episodes
            else " before its first step"
        )
        self._terminal.print(Text(f"interrupted{far}, nothing was recorded.", style="yellow"), soft_wrap=True)


class Console(Backend):
    """Shows progress, time left, success with its number of episodes, throughput, and the health of learning."""

    place = Place.TERMINAL

    def __init__(self, run: RunInfo) -> None:
        """Draws the live panel if both output streams are terminals, so that no pipe or log file receives it."""
        self._run = run
        self.terminal = Terminal(stderr=True, highlight=False)
        self._row: Row | None = None
        self._evaluated: Row | None = None
        self._recent: deque[Row] = deque(maxlen=_PACED)
        self._headlines = [_OWN, _CHOSEN] if _CHOSEN.metric.name in run.console_metrics else [_OWN]
        self._known: dict[str, Row] = {}
        self._history: dict[str, deque[float]] = {}
        self._alerts = ToldAlerts()
        self._not_finite_in: int | None = None
        self._live: Live | None = None
        self._kinds_shown: set[str] = set()
        self._evaluation = EvaluationProgress(self.terminal)
        if run.console_style == "table" and sys.stdout.isatty() and self.terminal.is_terminal:
            self._live = Live(self.panel(), console=self.terminal, refresh_per_second=4, transient=False)
            self._live.start()

    def write(self, row: Row) -> None:
        self._evaluation = EvaluationProgress(self.terminal)  # of the next evaluation
        self.show(row)
        if self._live is not None:
            self._live.update(self.panel())
        else:
            self.terminal.print(self._printed(row), soft_wrap=True)

    def evaluating(self, ended: int, episodes: int, seconds: float) -> None:
        self._evaluation(ended, episodes, seconds)

    def _printed(self, row: Row) -> Text:
        """Text of one iteration without a panel, in the style of the run."""
        match self._run.console_style:
            case "sb3":
                return boxed_table(row.dialects.get("sb3", {}))
            case "line":
                return Text(self._short_line(row))
            case _:
                return Text(self._line(row))

    def show(self, row: Row) -> None:
        """Adds a row to the panel, without drawing it."""
        self._row = row
        self._recent.append(row)
        tells_success = m.ENV.success_once.name in row.metrics
        if self._headlines == [_OWN] and row.metrics.get(m.ENV.num_trajectories.name) and not tells_success:
            self._headlines = [_RETURN]
        elif self._headlines == [_RETURN] and tells_success:  # no step had told it before
            self._headlines = [_OWN]
        for headline in self._headlines:
            name = headline.metric.name
            if name in row.metrics:
                self._known[name] = row
                self._history.setdefault(name, deque(maxlen=_HISTORY)).append(row.metrics[name])
        if m.EVAL.num_trajectories.name in row.metrics:
            self._evaluated = row

    def event(self, event: Event) -> None:
        self._alerts.add(event)
        if event.kind == "alert":
            self._alert(event)
        elif event.kind != "target_kl" or event.kind not in self._kinds_shown:  # it may come in every iteration
            self._kinds_shown.add(event.kind)
            style = "dim" if event.kind == "note" else "cyan"
            self.terminal.print(Text(f"· {event.message}", style=style), soft_wrap=True)

    def _alert(self, event: Event) -> None:
        """Prints an alert as it is raised or cleared. In one iteration, what is not finite follows from the first that
        is not, so the others are only named."""
        data = event.data
        if data["cleared"]:
            self.terminal.print(Text(f"✔ {event.message}", style="green"), soft_wrap=True)
        else:
            mark, style = MARKS[data["level"]]
            message = event.message
            if data.get("nonfinite"):
                if self._not_finite_in == event.iteration:
                    message = f"{data['metric']} is not finite either"
                self._not_finite_in = event.iteration
            self.terminal.print(Text(f"{mark} {data['level']}: {message}", style=style), soft_wrap=True)
        if self._live is not None:
            self._live.update(self.panel())

    def close(self, status: Status) -> None:
        if self._live is not None:
            self._live.update(self.panel(status))
            self._live.stop()

    def _standing(self) -> tuple[Text, Text]:
        """Number of standing alerts, and the latest of the gravest level."""
        if not (standing := self._alerts.standing):
            return Text("none", style="green"), Text("")
        gravest = max(reversed(standing.values()), key=lambda alert: LEVELS.index(alert["level"]))
        mark, style = MARKS[gravest["level"]]
        return Text(str(len(standing)), style=style), Text(f"{mark} {gravest['metric']}", style=style)

    def _eta(self) -> str:
        left = seconds_left(self._recent, self._run.total_iterations)
        return "--:--" if left is None else clock(left)

    def _stage(self, iteration: int) -> str:
        stages = self._run.stages
        index = next((i for i, (_, until) in enumerate(stages) if iteration <= until), len(stages) - 1)
        return f"{stages[index][0]} ({index + 1}/{len(stages)})" if len(stages) > 1 else stages[0][0]

    def _line(self, row: Row) -> str:
        """One plain line for an iteration."""
        metrics = row.metrics
        episodes = int(metrics.get(m.ENV.num_trajectories.name, 0))
        success = _number(metrics.get(m.ENV.success_once.name))
        fields = [
            f"{row.iteration:>{len(str(self._run.total_iterations))}}/{self._run.total_iterations}",
            self._stage(row.iteration),
            f"{episodes:>3} episodes",
            *([] if self._headlines == [_RETURN] else [f"success_once {success}"]),
            f"return {_number(metrics.get(m.ENV.episode_return.name))}",
            f"{metrics.get(m.FPS_INTERVAL.name, 0.0):>6,.0f} steps/s",
            *(f"{_short(name)} {_number(metrics[name])}" for name in self._run.console_metrics if name in metrics),
            f"ETA {self._eta()}",
        ]
        if m.EVAL.num_trajectories.name in metrics:
            fields.append(f"eval {_outcome(row)}")
        return "  ".join(fields)

    def _short_line(self, row: Row) -> str:
        """One short line for an iteration, with the fields and formats of the line style."""

        def number(metric: Metric, form: str) -> str:
            value = row.metrics.get(metric.name)
            return "-" if value is None else format(value, form)

        fields = (
            f"Iteration {number(m.ITERATIONS, '.0f')}/{self._run.total_iterations}",
            f"Episodes: {number(m.ENV.num_trajectories, '.0f')}",
            f"Mean Reward: {number(m.ENV.episode_return, '.1f')}",
            f"KL: {number(m.APPROX_KL, '.4f')}",
            f"clip%: {number(m.RATIO_OUTSIDE_FRACTION, '.1%')}",
        )
        return " | ".join(fields)

    def _add_headline(self, body: Table, headline: _Headline, room: int) -> None:
        """Adds the newest value of a headline, its curve, and of which episodes it is, in so many characters."""
        name, value, about = headline.metric.name, None, "0 episodes"
        if (row := self._known.get(name)) is not None:
            value, count = row.metrics[name], int(row.metrics.get(headline.episodes.name, 0))
            about = f"{count} episode{'' if count == 1 else 's'}"
            about += "" if row is self._row else f" of iteration {row.iteration}"
        curve = sparkline(list(self._history.get(name, ())), max(1, min(_HISTORY, room - len(about) - 2)))
        body.add_row(
            Text(name, style="bold"),
            Text(_number(value), style="bold green"),
            Text.assemble((curve, "green"), f"  {about}"),
        )

    def panel(self, status: Status | None = None) -> RenderableType:
        """The live panel in its present state."""
        run, row = self._run, self._row
        metrics = row.metrics if row else {}
        iteration = row.iteration if row else run.first_iteration - 1
        bar = Table.grid(padding=(0, 1), expand=True)
        bar.add_column()
        bar.add_column(ratio=1)
        bar.add_column(justify="right")
        ended = status in (Status.INTERRUPTED, Status.FAILED)
        bar.add_row(
            Text(self._stage(iteration + (row is None)), style="bold"),
            ProgressBar(
                total=run.total_iterations,
                completed=iteration,
                style="grey30",
                complete_style="yellow" if ended else "cyan",
                finished_style="green",
            ),
            Text(f"{iteration}/{run.total_iterations}  ETA {self._eta()}"),
        )
        width = min(100, self.terminal.width)
        names = max(map(len, [*run.console_metrics, *(headline.metric.name for headline in self._headlines)]))
        body = Table.grid(padding=(0, 2, 0, 0))
        body.add_column(no_wrap=True, min_width=names)
        body.add_column(no_wrap=True, min_width=_VALUE)
        body.add_column(no_wrap=True)
        for headline in self._headlines:
            self._add_headline(body, headline, width - names - _VALUE - 8)  # without borders and paddings
        outcome = "-" if self._evaluated is None else _outcome(self._evaluated)
        when = "" if self._evaluated is None else f"at iteration {self._evaluated.iteration}"
        body.add_row(Text("eval"), Text(outcome.split(" ")[0]), Text(" ".join([*outcome.split(" ")[1:], when]).strip()))
        body.add_row(
            Text("steps/s"),
            Text(f"{metrics[m.FPS.name]:,.0f}" if m.FPS.name in metrics else "-"),
            Text(f"{row.total_timesteps if row else 0:,} of {run.total_timesteps:,} steps"),
        )
        for name in run.console_metrics:
            if (metrics and name not in metrics) or any(name == headline.metric.name for headline in self._headlines):
                continue  # not yet, or not any more, as of a curriculum's earlier part
            value = metrics.get(name)
            words, style = verdict(name, value)
            body.add_row(Text(name), Text(_number(value), style=style), Text(words, style=style))
        if metrics:
            body.add_row(Text("alerts"), *self._standing())
        return Panel(
            Group(bar, "", body),
            title=Text.assemble(("rlpipe", "bold"), f" {run.experiment} ", (run.run_id, "dim")),
            subtitle=f"[dim]{status or 'Ctrl-C stops after the current iteration and saves'}[/dim]",
            box=box.ROUNDED,
            border_style="cyan",
            width=width,
        )


def boxed_table(values: Mapping[str, float]) -> Text:
    """Numbers, by ``group/key``, in the box that Stable-Baselines3 draws, with as many digits."""
    lines: list[tuple[str, str]] = []
    for key in sorted(values):
        group, _, name = key.partition("/")
        if (f"{group}/", "") not in lines:
            lines.append((f"{group}/", ""))
        lines.append((f"   {name}", f"{values[key]:.0f}" if key in _SB3_COUNTS else f"{values[key]:<8.3g}"))
    wide, narrow = (max((len(line[column]) for line in lines), default=0) for column in (0, 1))
    rule = "-" * (wide + narrow + 7)
    body = Text("\n").join(
        Text.assemble("| ", (key.ljust(wide), "" if value else "bold cyan"), f" | {value.ljust(narrow)} |")
        for key, value in lines
    )
    return Text("\n").join([Text(rule), body, Text(rule)])


def seconds_left(rows: Sequence[Row], total_iterations: int) -> float | None:
    """Estimates the time until the end of a run at the median pace of its newest rows, oldest first; None without any.

    Iterations before the first gradient step (``algorithm.learning_starts``) say nothing about those that learn."""
    left = total_iterations - rows[-1].iteration if rows else total_iterations
    newest = reversed([*itertools.islice(reversed(rows), _PACED)])
    learning = itertools.dropwhile(lambda row: row.metrics.get(m.GRADIENT_STEPS.name) == 0, newest)
    seconds = [row.metrics[m.STEP.name] for row in learning]
    return left * median(seconds) if seconds else None if left else 0.0


def clock(seconds: float) -> str:
    """Writes a duration as ``1:02:03``."""
    return str(timedelta(seconds=max(0, round(seconds))))


def _number(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:.3f}" if abs(value) < 100 else f"{value:,.0f}"


def _short(name: str) -> str:
    """Last part of a metric's name; the last two where the namespace has parts of its own, as env/curriculum/ has."""
    parts = name.split("/")
    return "/".join(parts[1:] if parts[0] == "env" else parts[-1:]).removesuffix("_loss")


def _outcome(row: Row) -> str:
    """Result of an evaluation: success with its interval, or the return if the task has no success."""
    metrics = row.metrics
    episodes = int(metrics[m.EVAL.num_trajectories.name])
    success = metrics.get(m.EVAL.success_once.name)
    if success is None:
        mean, std = metrics.get(m.EVAL.episode_return.name), metrics.get(m.EVAL.return_std.name)
        return f"{_number(mean)} +- {_number(std)} return, {episodes} episodes"
    low, high = metrics[m.EVAL_CI_LOW.name], metrics[m.EVAL_CI_HIGH.name]
    return f"{success:.3f} [{low:.3f}, {high:.3f}] {episodes} held-out episodes"


def sparkline(values: Sequence[float], width: int = _HISTORY) -> str:
    """Draws a curve, oldest value first; rates on a scale from 0 to 1, other values between their extremes. Of more
    values than characters, each shows the mean of its share."""
    if not values:
        return ""
    count = min(width, len(values))
    bounds = [place * len(values) // count for place in range(count + 1)]
    means = [fmean(values[first:last]) for first, last in itertools.pairwise(bounds)]
    low, high = min(means), max(means)
    if low >= 0.0 and high <= 1.0:
        low, high = 0.0, 1.0
    span = (high - low) or 1.0
    return "".join(_BARS[min(7, int((mean - low) / span * 8))] for mean in means)


def verdict(name: str, value: float | None) -> tuple[str, str]:
    """Compares a value with the healthy band of its metric. Returns words and a colour."""
    band = CATALOGUE[name].healthy
    if value is None or band is None:
        return "", ""
    if band.low is not None and value < band.low:
        return f"below {band.low:g}", "yellow"
    if band.high is not None and value > band.high:
        return f"above {band.high:g}", "yellow"
    return "healthy", "green"
