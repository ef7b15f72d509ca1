"""The rows that ``rows.yaml`` declares: what is run, with which seeds, and whether it is still what a result was of."""

from __future__ import annotations

import hashlib
import json
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from pydantic import ConfigDict
from typing_extensions import TypedDict

from rlpipe import files
from rlpipe.config.fields import Affects, affected_by
from rlpipe.config.loading import load_pretraining
from rlpipe.config.protocol import protocol
from rlpipe.config.schema import Config
from rlpipe.config.sections import build
from rlpipe.config.tree import container, from_yaml, leaves, read_tree
from rlpipe.errors import ConfigError
from rlpipe.files import whole_file

DECLARED = Path(__file__).with_name("rows.yaml")
PREVIOUS = "PREVIOUS"
"""Stands in a command for the run directory of the command before it."""
_BASELINE_KEYS = ("env", "evaluation", "demos", "num_demos")
"""Sections of a configuration on which the result of a baseline depends."""


@dataclass(frozen=True)
class Command:
    """A command of rlpipe.

    Attributes:
        verb: ``train``, ``pretrain`` or ``evaluate``
        config: name of a shipped configuration, or a file below the checkout
        overrides: what differs from it
    """

    verb: str
    config: str
    overrides: tuple[str, ...]

    @classmethod
    def of(cls, text: str) -> Command:
        """Parses a command as one would type it after ``rlpipe``."""
        words = shlex.split(text)
        return cls("".join(words[:1]), "".join(words[1:2]), tuple(words[2:]))

    def settings(self) -> dict[str, Any]:
        """Returns what the configuration and the overrides say of the results, by full key.

        Raises:
            ConfigError: the configuration cannot be read.
        """
        given = leaves(container(read_tree(self.config, self.overrides)))
        return {
            key: value
            for key, value in given
            if Affects.RESULTS in affected_by(Config, key)
            and (self.verb != "evaluate" or key.split(".")[0] in _BASELINE_KEYS)
        }

    def configuration(self) -> Config:
        """Returns the whole configuration, without asking for its simulator, which need not be installed.

        Raises:
            ConfigError: it cannot be read.
        """
        if self.verb == "pretrain":
            return load_pretraining(self.config, self.overrides)
        return build(read_tree(self.config, self.overrides), Config)


@dataclass(frozen=True)
class Row:
    """A row of the table.

    Attributes:
        task: name of the task
        group: group in which the row stands
        about: a sentence of what it is
        commands: commands that make one result
        demonstrations: number that a run learns from
        seeds: a result for each
        policies: of baselines; a result for each, in place of the seeds
        against: name of the row with which this one is compared, itself included, because they differ in one thing
        published: what others have published of success in the last step, shown beside ours
        after: name of the row whose policies this one evaluates under another protocol
        name: of the row
        trained: the row that ``after`` names
    """

    __pydantic_config__ = ConfigDict(extra="forbid")

    task: str
    group: str
    about: str
    commands: tuple[str, ...]
    demonstrations: int = 0
    seeds: tuple[int, ...] = ()
    policies: tuple[str, ...] = ()
    against: str = ""
    published: str = ""
    after: str = ""
    name: str = ""
    trained: Row | None = None

    @property
    def parts(self) -> list[str]:
        """Seeds or policies, each of which has a result of its own."""
        return list(self.policies) or [str(seed) for seed in self.seeds]

    @property
    def sequence(self) -> list[Command]:
        """The commands."""
        return [Command.of(text) for text in self.commands]

    @property
    def learnt_by(self) -> Row:
        """The row whose commands train: this one, or the one whose policies it evaluates."""
        return self.trained or self

    @property
    def evaluated(self) -> Command:
        """Configuration, with what differs from it, that says how the policies are evaluated."""
        last = self.learnt_by.sequence[-1]
        return replace(last, overrides=last.overrides + (self.sequence[-1].overrides if self.trained else ()))

    @cached_property
    def settings(self) -> str:
        """Digest of everything that the row and its configurations set, for results and for the names of folders.

        Defaults are not in it, so that a new key of rlpipe leaves results as they are; nor are comments.

        Raises:
            ConfigError: a configuration cannot be read.
        """
        given = [[command.verb, command.settings()] for command in self.learnt_by.sequence]
        if self.trained:
            given.append(["evaluate", self.evaluated.settings()])
        return hashlib.blake2b(json.dumps(given, sort_keys=True).encode(), digest_size=4).hexdigest()

    @cached_property
    def protocol(self) -> dict[str, Any]:
        """Protocol under which the policies are evaluated."""
        found: dict[str, Any] = json.loads(json.dumps(protocol(self.evaluated.configuration())))
        return found

    def check(self, groups: Mapping[str, str]) -> None:
        """Checks what a shape cannot say.

        Raises:
            ConfigError: the row cannot be run as it is declared.
        """
        verbs = {"evaluate"} if self.policies or self.after else {"train", "pretrain"}
        where = f"row {self.name}"
        if not self.name.isidentifier():
            raise ConfigError(f"{where}: its name is also one of files; use letters, digits and underscores.")
        if self.group not in groups:
            raise ConfigError(f"{where}: its group is {self.group!r}; declared are {', '.join(groups)}.")
        if not self.commands or any(command.verb not in verbs or not command.config for command in self.sequence):
            raise ConfigError(
                f"{where}: its commands must be {' or '.join(sorted(verbs))}, each with a configuration; they are "
                f"{list(self.commands)}."
            )
        if (self.policies or self.after) and len(self.commands) > 1:
            raise ConfigError(f"{where}: it is measured by one command; it has {len(self.commands)}.")
        if self.after and self.sequence[0].config != PREVIOUS:
            raise ConfigError(f"{where}: its command must evaluate {PREVIOUS}, a policy of {self.after}.")
        if not self.after and PREVIOUS in self.commands[0]:
            raise ConfigError(f"{where}: its first command names {PREVIOUS}, but there is no run before it.")


@whole_file
class _Declared(TypedDict):
    """``rows.yaml``."""

    seeds: tuple[int, ...]
    groups: dict[str, str]
    rows: dict[str, Row]


@dataclass(frozen=True)
class Table:
    """All declared rows.

    Attributes:
        groups: title of each group
        rows: each row by name
    """

    groups: dict[str, str]
    rows: dict[str, Row]

    @classmethod
    def read(cls, file: Path = DECLARED) -> Table:
        """Reads the declared rows.

        Raises:
            ConfigError: the file cannot be read, or a row is not well declared.
        """
        found = files.checked(_plain(from_yaml(files.text(file), str(file))), _Declared, str(file))
        rows = {
            name: replace(row, name=name, seeds=() if row.policies else row.seeds or found["seeds"])
            for name, row in found["rows"].items()
        }
        for row in [*rows.values()]:
            row.check(found["groups"])
            if row.against and (row.against not in rows or rows[row.against].group != row.group):
                raise ConfigError(f"row {row.name}: there is no row {row.against!r} in its group to compare it with.")
            if row.after:
                rows[row.name] = replace(row, trained=_trained(row, rows))
        return cls(found["groups"], rows)

    def of_group(self, group: str) -> list[Row]:
        """Rows of a group, in their order."""
        return [row for row in self.rows.values() if row.group == group]

    @property
    def results(self) -> list[Row]:
        """Rows with something learnt under a protocol of ours, each for itself."""
        return [row for row in self.rows.values() if not (row.policies or row.against or row.published)]

    @property
    def choices(self) -> list[Row]:
        """Rows that are there to be compared with another one."""
        return [row for row in self.rows.values() if row.against]

    @property
    def baselines(self) -> list[Row]:
        """Rows with nothing learnt."""
        return [row for row in self.rows.values() if row.policies]


def _trained(row: Row, rows: Mapping[str, Row]) -> Row:
    """Returns the row whose policies another one evaluates.

    Raises:
        ConfigError: no such row trains, or its task, demonstrations or seeds differ.
    """
    found = rows.get(row.after)
    if found is None or found.policies or found.after:
        raise ConfigError(f"row {row.name}: there is no row {row.after!r} that trains.")
    if (found.task, found.demonstrations, found.seeds) != (row.task, row.demonstrations, row.seeds):
        raise ConfigError(f"row {row.name}: its task, demonstrations and seeds must be those of {row.after}.")
    return found


def _plain(value: Any) -> Any:
    """Replaces the lists of YAML by tuples, which a strict shape wants."""
    if isinstance(value, Mapping):
        return {str(key): _plain(inner) for key, inner in value.items()}
    return tuple(map(_plain, value)) if isinstance(value, list) else value
