"""Reference of the command line, from its own help."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any

import typer

from docs.generate.markdown import code, prose, table, wrapped
from docs.generate.source import body_of, texts_below
from rlpipe.cli import app
from rlpipe.cli.exit_codes import ExitCode

PATH = "reference/commands.md"
HEAD = """\
# Commands

[Which run a command takes, and exit codes by command](../commands.md) · [all pages](index.md)

Every command also has `--help`, which prints its part of this page.
"""


def commands(command: Any, name: str) -> Iterator[tuple[str, Any]]:
    """Yields each command with its full name; of a group, those in it."""
    for below, inner in getattr(command, "commands", {}).items():
        yield from commands(inner, f"{name} {below}")
    if not hasattr(command, "commands"):
        yield name, command


def usage(name: str, parameters: list[Any]) -> str:
    """Writes how a command is typed."""
    arguments = [shown(parameter) for parameter in parameters if is_argument(parameter)]
    required = [shown(parameter) for parameter in parameters if parameter.required and not is_argument(parameter)]
    return " ".join([name, *required, "[OPTIONS]", *arguments])


def is_argument(parameter: Any) -> bool:
    """Tells an argument from an option."""
    return not parameter.opts[0].startswith("-")


def shown(parameter: Any) -> str:
    """Writes a parameter as in the help: an argument in brackets if it may be left out, an option with its value."""
    if not is_argument(parameter):
        return " ".join([*parameter.opts, kind(parameter)]).strip()
    name = parameter.metavar or parameter.name.upper()
    several = "..." if parameter.nargs == -1 and not name.endswith("...") else ""
    return f"{name}{several}" if parameter.required or name.startswith("[") else f"[{name}{several}]"


def kind(option: Any) -> str:
    """Names what stands behind an option; empty for a flag."""
    return "" if option.is_flag else option.metavar or option.type_descriptor.annotation.__name__.upper()


def default(parameter: Any) -> str:
    """Writes what holds where an option is not given."""
    if isinstance(parameter.show_default, str):
        return prose(parameter.show_default, 1)
    return "" if parameter.default in (None, False, [], ()) else code(str(parameter.default))


def entry(name: str, command: Any) -> str:
    """Writes a command: usage, help, arguments and options."""
    parameters = [parameter for parameter in command.params if not parameter.hidden]
    lines = [f"## `{name}`\n", f"```\n{usage(name, parameters)}\n```\n"]
    lines += [wrapped(prose(paragraph, 1)) for paragraph in inspect.cleandoc(command.help).split("\n\n")]
    rows = [(code(shown(parameter)), default(parameter), prose(parameter.help or "", 1)) for parameter in parameters]
    return "\n".join([*lines, table(("argument or option", "default", "meaning"), rows)] if rows else lines)


def pages() -> dict[str, str]:
    """Writes the page, by its path below docs/."""
    meanings = texts_below(body_of(ExitCode))
    codes = [(str(ExitCode[name].value), prose(" ".join(text.split()), 1)) for name, text in meanings.items()]
    every = [entry(name, command) for name, command in commands(typer.main.get_command(app), "rlpipe")]
    exit_codes = f"## Exit codes\n\n{table(('code', 'meaning'), codes)}"
    return {PATH: "\n".join([HEAD, *every, exit_codes])}
