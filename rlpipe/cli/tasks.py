"""``rlpipe tasks``: tasks that can be trained here."""

from __future__ import annotations

import contextlib
import dataclasses
import io
import sys
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table
from rich.text import Text

from rlpipe.cli.streams import PIPED_WIDTH, console_for_results, print_json, table_of_list
from rlpipe.errors import ConfigError, ForeignError

MOST_TRIED = 12
"""Matching tasks that are made, to see what they are like; of more, only what is known without that is listed."""
MOST_SHOWN = 40
"""Tasks of a simulator in the table."""
_UNKNOWN = "-"


@dataclass(frozen=True)
class FoundTask:
    """Task of a simulator, with what making it has shown.

    Attributes:
        simulator: value of ``env.train.name``.
        id: value of ``env.train.id``.
        time_limit: environment steps after which every episode ends.
        settings: options that a configuration also needs.
        needs: packages or assets that this machine lacks for it, or why it cannot be made.
        demonstrations: shipped file of demonstrations.
        tried: True if it was made, and the next three are known.
        observation: its size, or the leaves of a tree with their shapes.
        action: its size and its kind.
        success: True if steps tell success.
        variations: axes on which its episodes can vary; none unless it was made.
    """

    simulator: str
    id: str
    time_limit: int | None
    settings: str
    needs: str
    demonstrations: str | None
    tried: bool = False
    observation: str = ""
    action: str = ""
    success: bool = False
    variations: tuple[str, ...] = ()


def tasks(
    search: Annotated[
        str | None,
        typer.Option(help=f"Part of a task's id. Up to {MOST_TRIED} matches are also made and looked at.",
                     metavar="WORD", show_default=False),
    ] = None,
    simulator: Annotated[
        str | None,
        typer.Option(help="Only tasks of this simulator, such as envpool.", metavar="NAME", show_default=False),
    ] = None,
    python: Annotated[
        str | None,
        typer.Option(help="Python of its own that has the simulator; with --simulator.", metavar="FILE",
                     show_default=False),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print all of them as JSON.")] = False,
) -> None:  # fmt: skip
    """List the tasks that the installed simulators offer, and what those that match a word are like."""
    listed, missing = find(search, simulator, python)
    if as_json:
        print_json([dataclasses.asdict(task) for task in listed])
        return
    console = console_for_results(PIPED_WIDTH)
    for name in dict.fromkeys(task.simulator for task in listed):
        members = [task for task in listed if task.simulator == name]
        console.print(_table(name, members, boxed=console.is_terminal))
        rest = len(members) - MOST_SHOWN
        for line in _axes(members):
            console.print(line, soft_wrap=not console.is_terminal)
        console.print(f"[dim]and {rest:,} more: --search WORD, or --json[/]\n" if rest > 0 else "")
    for name, reason in missing.items():
        console.print(f"[dim]{name}: {reason}[/]")


def find(search: str | None, simulator: str | None, python: str | None) -> tuple[list[FoundTask], dict[str, str]]:
    """Finds tasks, and makes them if there are only a few.

    Args:
        search: part of their ids, in any case; None for all.
        simulator: name of the only simulator to look at; None for all.
        python: interpreter that has it; None for this one.
    Returns:
        The tasks by simulator and id; and, by simulator, why its tasks are missing.
    Raises:
        ConfigError: there is no such simulator, or none of its tasks matches.
    """
    from rlpipe.config import shipped
    from rlpipe.envs.shared.child_process.simulator import tasks as tasks_elsewhere
    from rlpipe.plugins import available, nearest, resolve

    if python is not None and simulator is None:
        raise ConfigError(f"--python is {python!r}, which has one simulator: name it with --simulator.")
    names = available("envs") if simulator is None else [simulator]
    listed: list[FoundTask] = []
    missing: dict[str, str] = {}
    ids: list[str] = []
    for name in names:
        try:
            plugin = resolve("envs", name, "--simulator")
            entries = plugin.tasks() if python is None else tasks_elsewhere(name, python)
        except ConfigError as error:
            if simulator is not None:
                raise
            missing[name] = str(error)
            continue
        ids += [entry.id for entry in entries]
        for entry in entries:
            if search is None or search.lower() in entry.id.lower():
                file = Path("configs", "demonstrations", f"{entry.id}.h5")
                there = name == "maniskill" and shipped.located(file).is_file()
                facts = (entry.id, entry.time_limit, entry.settings, entry.needs)
                listed.append(FoundTask(name, *facts, demonstrations=str(file) if there else None))
    if search is not None and not listed:
        raise ConfigError(
            f"no task has {search!r} in its id{nearest(search, ids)}"
            + "".join(f" {name} could not be searched: {reason}" for name, reason in missing.items())
        )
    if search is not None and len(listed) <= MOST_TRIED:
        listed = [_tried(task, python) for task in listed]
    return listed, missing


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Drops what Python code prints, and answers no to what it asks, such as whether to download assets."""
    stdin, sys.stdin = sys.stdin, io.StringIO("n\n" * 100)
    try:
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            yield
    finally:
        sys.stdin = stdin


def _tried(task: FoundTask, python: str | None) -> FoundTask:
    """Makes one environment of a task, and looks at it."""
    from omegaconf import OmegaConf

    from rlpipe.config.schema import FIRST_TRAINING_SEED
    from rlpipe.config.sections import typed
    from rlpipe.config.simulators import task_facts
    from rlpipe.envs.shared.make import make_simulator
    from rlpipe.plugins import resolve
    from rlpipe.trajectory.tree import leaves_of

    settings: dict[str, Any] = {str(key): value for key, value in OmegaConf.from_dotlist(task.settings.split()).items()}
    try:
        with warnings.catch_warnings(action="ignore"), _quiet():
            options = {"name": task.simulator, "id": task.id, "python": python, **settings}
            config = typed(resolve("envs", task.simulator, "--simulator").Config, options, "env.train")
            facts = task_facts(config, "env.train")
            simulator = make_simulator(config, 1, lambda _: FIRST_TRAINING_SEED, key="--simulator")
            try:
                observations, _ = simulator.reset()
                spec, success = simulator.spec, simulator.has_success
            finally:
                simulator.close()
    except BaseException as raised:  # a simulator may raise anything, and the other tasks are still worth listing
        error = ForeignError.of(raised)
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        return dataclasses.replace(task, needs=task.needs or reason)
    shapes = [leaf.shape[1:] for leaf in leaves_of(observations)]
    if spec.leaves is None:
        observed = f"{spec.observation_dim} numbers"
    else:
        leaves = zip(spec.leaves, shapes, strict=True)
        observed = ", ".join(f"{name} {' x '.join(map(str, shape)) or 'one'}" for name, shape in leaves)
    choices = spec.num_actions
    if choices is None:
        action = f"{spec.action_dim} numbers"
    else:
        action = f"one of {choices}" if isinstance(choices, int) else f"one of each of {', '.join(map(str, choices))}"
    return dataclasses.replace(
        task,
        tried=True,
        observation=observed,
        action=action,
        success=success,
        time_limit=facts.time_limit or task.time_limit,
        variations=tuple(axis.name for axis in facts.axes),
    )


def _axes(members: Sequence[FoundTask]) -> Iterator[str]:
    """Yields a line on the axes of the tasks that were made, one for all that have the same."""
    by_axes: dict[tuple[str, ...], list[str]] = {}
    for task in members:
        if task.variations:
            by_axes.setdefault(task.variations, []).append(task.id)
    for axes, ids in by_axes.items():
        which = f" of {', '.join(ids)}" if len(by_axes) > 1 else ""
        yield f"[dim]env.train.variations{which}:[/] {', '.join(axes)}"


def _table(name: str, members: Sequence[FoundTask], *, boxed: bool) -> Table:
    """Lays out the tasks of one simulator."""
    tried = any(task.tried or task.needs for task in members) and len(members) <= MOST_TRIED
    rows = members[:MOST_SHOWN]
    table = table_of_list(Text(f"env.train.name={name}", style="bold") if boxed else None, boxed=boxed)
    table.add_column("env.train.id" if boxed else f"{name}: id", overflow="fold")
    columns: dict[str, Any] = {"limit": lambda task: f"{task.time_limit:,}" if task.time_limit else _UNKNOWN}
    if tried:
        columns["observation"] = lambda task: task.observation or _UNKNOWN
        columns["action"] = lambda task: task.action or _UNKNOWN
        columns["success"] = lambda task: ("yes" if task.success else "no") if task.tried else _UNKNOWN
    if any(task.settings for task in rows):
        columns["settings"] = lambda task: task.settings
    if any(task.demonstrations for task in rows):
        columns["demonstrations"] = lambda task: "shipped" if task.demonstrations else ""
    if any(task.needs for task in rows):
        columns["needs"] = lambda task: task.needs
    for column in columns:
        table.add_column(column, justify="right" if column == "limit" else "left")
    for task in rows:
        table.add_row(task.id, *(value(task) for value in columns.values()))
    return table
