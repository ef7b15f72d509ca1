"""What a backend is given: rows, events, and an end (stop 7 on the data's way)."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any, ClassVar

from rlpipe.config.tree import from_yaml
from rlpipe.metrics.row import Event, Row, Status
from rlpipe.plugins import accept_old_names

_KEPT = ("total_iterations", "total_timesteps", "stages", "console_style", "action_dims", "num_actions")


@dataclass(frozen=True)
class RunInfo:
    """What a backend may want to know when it opens.

    Attributes:
        run_id, experiment, project: names.  directory: of the run.
        config_yaml: resolved configuration.
        total_iterations, total_timesteps: length of the run.
        first_iteration: 1, or the one a resumed run goes on with; a backend forgets what it holds from there on.
        stages: (name, last iteration) of each.
        console_style: how the terminal shows an iteration.
        action_dims: A, 1 for a discrete action.  num_actions: number of discrete actions, or None.
        console_metrics: names of the metrics by which the algorithm is watched on the terminal.
        options: of the backend, an instance of its ``Config``.
        created: when the run began, ISO 8601.
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

    @property
    def config(self) -> dict[str, Any]:
        """Resolved configuration, nested."""
        return from_yaml(self.config_yaml)

    @property
    def log_path(self) -> Path:
        """Folder of all runs, where a backend keeps a store that runs share."""
        return self.directory.parents[1]

    def as_json(self) -> dict[str, Any]:
        """What ``run.json`` keeps, so that a view can be opened from the run directory alone."""
        return {name: getattr(self, name) for name in _KEPT}

    @staticmethod
    def kept(view: Mapping[str, Any]) -> dict[str, Any]:
        """Inverse of ``as_json``: arguments; those of later versions are left out."""
        found = {name: view[name] for name in _KEPT if name in view}
        return {**found, "stages": tuple(map(tuple, view["stages"]))}


@dataclass(frozen=True)
class NoOptions:
    """Options of a backend that has none."""


class Place(Enum):
    """Where a view lives."""

    APART = "a process of its own, fed from the run directory, so that whatever it does cannot disturb the run"
    LOGGER = "beside the logger; for what needs the live objects and cannot fail"
    RAY = "beside the logger, where that is an actor on Ray; for what shows through Ray and cannot fail"
    TERMINAL = "the process the user started, where the terminal is"


_ESCAPED = re.compile(r"_x([0-9a-f]+)_")


def escaped(name: str, allowed: str) -> str:
    """A metric's name as a service accepts it: every character it does not allow as ``_x<code point>_``.

    Args:
        name: of the metric.
        allowed: characters of a regular expression's set, such as ``a-z/``; must hold lower-case letters, digits and _.
    """
    # an underscore that would look like the beginning of an escape is escaped too
    return re.sub(f"[^{allowed}]|_(?=x[0-9a-f]+(?:_|[^{allowed}]))", lambda found: f"_x{ord(found[0]):x}_", name)


def unescaped(name: str) -> str:
    """Inverse of ``escaped``."""
    return _ESCAPED.sub(lambda found: chr(int(found[1], 16)), name)


class Backend(ABC):
    """A view of the metrics. Made as ``Backend(run)``; sees every row once, in order.

    What it shows can always be rebuilt from the run directory, so a view that fails is simply opened again.
    """

    Config: ClassVar[type[Any]] = NoOptions
    """Its options, as a frozen dataclass; an instance comes as ``run.options``."""
    place: ClassVar[Place] = Place.APART
    forgets: ClassVar[bool] = True
    """Whether it forgets, when opened, what it holds from ``run.first_iteration`` on, 1 included. A view that cannot
    forget is only given rows that a checkpoint covers, because those can no longer be taken back, and says in
    ``reached`` what it holds already."""

    def __init_subclass__(cls) -> None:
        """Accepts the earlier name of a hook."""
        super().__init_subclass__()
        accept_old_names(cls, {"how_to_look": "view_command"})

    @classmethod
    def check(cls) -> None:
        """Checks before anything starts that the backend can work.

        Raises:
            ConfigError: it cannot; the message says what to install.
        """

    @classmethod
    def can_forget(cls, options: Any) -> bool:  # noqa: ARG003 - for those where it depends
        """``forgets``, for those where it depends on the options."""
        return cls.forgets

    @classmethod
    def view_command(cls, options: Any, run: Path, project: str) -> str:  # noqa: ARG003 - for those that need one
        """Command that opens what it shows, for the end of a run; empty if there is none.

        Args:
            options: an instance of ``Config``.  run: directory of the run.  project: of the run.
        """
        return ""

    @classmethod
    def server(cls, options: Any) -> str:  # noqa: ARG003 - for those that have one
        """Address (http or https) of the server that it sends to with these options; empty if there is none."""
        return ""

    @classmethod
    def reached(cls, run: RunInfo) -> int | None:  # noqa: ARG003 - for those that can be asked
        """Last iteration that it holds for certain, asked of its own store; None if that cannot be asked."""
        return None

    @abstractmethod
    def __init__(self, run: RunInfo) -> None:
        """Opens the view."""

    @abstractmethod
    def write(self, row: Row) -> None:
        """Shows an iteration."""

    def event(self, event: Event) -> None:
        """Shows an event; the default ignores it."""

    @abstractmethod
    def close(self, status: Status) -> None:
        """Ends the view; ``status`` is completed, interrupted, stopped or failed."""
