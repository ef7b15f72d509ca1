"""Interface of a metrics backend, which receives rows, events, and the end of the run. This is stop 7 of the data."""

from __future__ import annotations

import hashlib
import posixpath
import re
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any, ClassVar

from rlpipe.config.tree import from_yaml
from rlpipe.metrics.row import Event, Row, Status
from rlpipe.trajectory import SpaceSpec

_KEPT = ("total_iterations", "total_timesteps", "stages", "console_style", "action_dims", "num_actions")


@dataclass(frozen=True)
class RunInfo:
    """Facts about a run that a backend may need when it opens.

    Attributes:
        config_yaml: resolved configuration.
        total_iterations: length of the run.
        total_timesteps: length of the run, in environment steps.
        first_iteration: 1, or the iteration a resumed run continues with; the backend forgets what it holds from it on.
        stages: (name, last iteration) of each stage.
        console_style: how the terminal shows an iteration.
        action_dims: A, 1 for a discrete action.
        num_actions: number of discrete actions; None for a continuous action.
        console_metrics: names of the algorithm's metrics that the terminal shows.
        options: of the backend, an instance of its ``Config``.
        created: time at which the run began, ISO 8601.
        time_limit: environment steps after which every training episode ends; None for none.
        spaces: observations and actions that the policy is made for.
    """

    run_id: str
    experiment: str
    project: str
    directory: Path
    config_yaml: str
    total_iterations: int
    total_timesteps: int
    first_iteration: int
    stages: tuple[tuple[str, int], ...]
    console_style: str = "table"
    action_dims: int = 1
    num_actions: int | None = None
    console_metrics: tuple[str, ...] = ()
    options: Any = None
    created: str = ""
    time_limit: int | None = None
    spaces: SpaceSpec | None = None

    @property
    def config(self) -> dict[str, Any]:
        """Resolved configuration, nested."""
        return from_yaml(self.config_yaml)

    @property
    def log_path(self) -> Path:
        """Folder of all runs, for a store that runs share."""
        return self.directory.parents[1]

    def as_json(self) -> dict[str, Any]:
        """Fields kept in ``run.json``, so that a backend can be opened from the run directory alone."""
        return {name: getattr(self, name) for name in _KEPT}

    @staticmethod
    def kept(view: Mapping[str, Any]) -> dict[str, Any]:
        """Arguments restored from what ``as_json`` returned; fields of later versions are dropped."""
        arguments = {name: view[name] for name in _KEPT if name in view}
        return {**arguments, "stages": tuple(map(tuple, view["stages"]))}


@dataclass(frozen=True)
class NoOptions:
    """Options of a backend that has none."""


class Place(Enum):
    """Process in which a backend runs."""

    APART = "a process of its own, fed from the run directory, so that whatever it does cannot disturb the run"
    LOGGER = "beside the logger; for what needs the live objects and cannot fail"
    RAY = "beside the logger, where that is an actor on Ray; for what shows through Ray and cannot fail"
    TERMINAL = "the process the user started, where the terminal is"


_ESCAPED = re.compile(r"_x([0-9a-f]+)_")


def escaped(name: str, allowed: str) -> str:
    """Writes every character of a metric's name that a service does not allow as ``_x<code point>_``.

    Args:
        name: of the metric.
        allowed: regular expression's set of characters, such as ``a-z/``; must hold lower-case letters, digits and _.
    """
    # escapes an underscore, too, if it would look like the beginning of an escape
    return re.sub(f"[^{allowed}]|_(?=x[0-9a-f]+(?:_|[^{allowed}]))", lambda match: f"_x{ord(match[0]):x}_", name)


def unescaped(name: str) -> str:
    """Restores a name from what ``escaped`` returned."""
    return _ESCAPED.sub(lambda match: chr(int(match[1], 16)), name)


TEXT = r" -~\xa0-\u2027\u202a-\ud7ff\ue000-\U0010ffff"
"""Characters of one line of Unicode text: neither control characters nor halves of surrogate pairs."""
_END = 24
"""Bytes at the end of a shortened name, which often hold the statistic."""
_NAMED = 60


@dataclass(frozen=True)
class NameRules:
    """Names that a tracker accepts; every other name is fitted to them, and different names stay different.

    Attributes:
        allowed: characters, as for ``escaped``.
        longest: bytes in UTF-8; None for any number.
        reserved: names that the tracker, or the backend itself, uses for something else.
        paths: True if a name must be a path in its shortest form, which slashes at its ends and ``..`` are not.
    """

    allowed: str = TEXT
    longest: int | None = None
    reserved: tuple[str, ...] = ()
    paths: bool = False

    def fit(self, name: str) -> str:
        """Returns a name as the tracker accepts it: escaped, and with a digest for its middle where it is too long."""
        whole = self.spelled(name)
        if self.longest is None or len(whole.encode()) <= self.longest:
            return whole
        digest = hashlib.sha256(name.encode(errors="surrogatepass")).hexdigest()[:8]
        ends = whole.encode()[: self.longest - len(digest) - 2 - _END], whole.encode()[-_END:]
        return f"_{digest}_".join(end.decode(errors="ignore") for end in ends)

    def spelled(self, name: str) -> str:
        """Returns a name in the characters that the tracker accepts, however long; see ``unescaped``."""
        plain = not self.paths or (posixpath.normpath(name) == name and not name.startswith(("/", "..")))
        whole = escaped(name, self.allowed if plain else "a-zA-Z0-9_")
        return f"_x{ord(whole[0]):x}_{whole[1:]}" if whole in self.reserved else whole


class Backend(ABC):
    """A backend shows or stores the metrics. Made as ``Backend(run)``; receives every row once, in order.

    Its contents can always be rebuilt from the run directory, so a backend that fails is simply opened again.
    """

    Config: ClassVar[type[Any]] = NoOptions
    """Options, as a frozen dataclass; an instance comes as ``run.options``."""
    place: ClassVar[Place] = Place.APART
    forgets: ClassVar[bool] = True
    """True if the backend, when opened, forgets what it holds from ``run.first_iteration`` on, 1 included.

    A backend that cannot forget receives only rows that a checkpoint covers, because a resume cannot take those back.
    It reports in ``reached`` what it holds already."""
    names: NameRules = NameRules()
    """Names that the backend's store accepts, for ``fitted``."""

    @classmethod
    def check(cls) -> None:
        """Checks, before anything starts, that the backend can work.

        Raises:
            ConfigError: it cannot; the message says what to install.
        """

    @classmethod
    def can_forget(cls, options: Any) -> bool:  # noqa: ARG003 - for backends where it depends on the options
        """``forgets``, for backends where it depends on the options."""
        return cls.forgets

    @classmethod
    def view_command(cls, options: Any, run: Path, project: str) -> str:  # noqa: ARG003 - for backends that have one
        """Command that opens the curves, printed at the end of a run; empty if there is none.

        Args:
            options: an instance of ``Config``.
            run: directory of the run.
            project: of the run.
        """
        return ""

    @classmethod
    def server(cls, options: Any) -> str:  # noqa: ARG003 - for backends that have one
        """Address (http or https) of the server that these options send to; empty if there is none."""
        return ""

    @classmethod
    def reached(cls, run: RunInfo) -> int | None:  # noqa: ARG003 - for backends whose store can be asked
        """Last iteration that the backend's own store holds for certain; None if the store cannot be asked."""
        return None

    @property
    def remarks(self) -> dict[str, str]:
        """Sentences about metrics that are shown under a shortened name or not at all, by name; told once each."""
        return self.__dict__.setdefault("_remarks", {})  # type: ignore[no-any-return]

    def fitted(self, name: str) -> str:
        """Returns the name under which the store shows a metric, and remarks on one that is shortened."""
        label = self.names.fit(name)
        if label != self.names.spelled(name):
            self.remarks[name] = (
                f"{name[:_NAMED]}... has {len(name)} characters, more than fit, and is shown as {label}."
            )
        return label

    def refuse(self, name: str, why: str) -> None:
        """Remarks on a metric, or another value of the run, that the store does not accept and does not show."""
        short = name if len(name) <= _NAMED else f"{name[:_NAMED]}..."
        self.remarks[name] = f"{short} is not shown: {why}."

    @abstractmethod
    def __init__(self, run: RunInfo) -> None:
        """Opens the backend."""

    @abstractmethod
    def write(self, row: Row) -> None:
        """Shows an iteration."""

    def event(self, event: Event) -> None:
        """Shows an event; the default ignores it."""

    def evaluating(self, ended: int, episodes: int, seconds: float) -> None:
        """Shows how far an evaluation is, about once a second; only of backends on the terminal. Ignored by default.

        Args:
            ended: number of episodes that have ended.
            episodes: number of all.
            seconds: time since it began.
        """

    @abstractmethod
    def close(self, status: Status) -> None:
        """Closes the backend; ``status`` is completed, interrupted, stopped or failed."""
