"""``rlpipe configs`` and ``rlpipe configs NAME``"""

from __future__ import annotations

import re
import sys
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from rlpipe.cli.streams import PIPED_WIDTH, table_of_list

SCREEN_WIDTH = 100
"""Columns of a terminal that the table uses at most: longer lines are hard to read."""


def configs(
    name: Annotated[str | None, typer.Argument(help="Shipped configuration to print, such as ppo_push_cube.")] = None,
) -> None:
    """List the shipped configurations, or print one: rlpipe configs ppo_push_cube > my_task.yaml."""
    from rlpipe import files
    from rlpipe.config import shipped

    if name is not None:
        print(files.text(shipped.file_of(name)), end="")
        return
    width = min(SCREEN_WIDTH, Console().width) if sys.stdout.isatty() else PIPED_WIDTH
    console = Console(highlight=False, width=width)
    console.print(_table(boxed=console.is_terminal))
    if console.is_terminal:
        console.print("[dim]train[/]   rlpipe train NAME\n[dim]change[/]  rlpipe configs NAME > my_task.yaml")


def description(text: str) -> str:
    """Returns the first sentence of the comment at the top of a configuration file."""
    comment = re.match(r"(?:#.*\n)*", text)
    lines = [line.lstrip("# ") for line in comment[0].splitlines()] if comment else []
    return re.split(r"(?<=\.)\s", " ".join(lines), maxsplit=1)[0]


def _table(*, boxed: bool) -> Table:
    """One row for each shipped configuration; in a box, the first three columns share one."""
    from rlpipe import files
    from rlpipe.config import shipped
    from rlpipe.config.tree import from_yaml

    table = table_of_list(boxed=boxed)
    for column in ["name, task, algorithm"] if boxed else ["name", "task", "algorithm"]:
        table.add_column(column, no_wrap=True)
    table.add_column("description")
    for name in shipped.names():
        text = files.text(shipped.file_of(name))
        tree = from_yaml(text)
        train = tree["env"]["train"]
        task = f"{len(train['tasks'])} tasks" if train.get("tasks") else train["id"]
        facts = [Text(name, style="cyan"), Text(task), Text(tree["algorithm"]["name"])]
        cells = [Text.assemble(facts[0], "\n  ", Text(", ").join(facts[1:]))] if boxed else facts
        table.add_row(*cells, Text(description(text)))
    return table
