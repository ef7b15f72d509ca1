"""What a backend is given: rows, events, and an end (stop 7 on the data's way)."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any, ClassVar

from rlpipe.config import from_yaml


@dataclass(frozen=True)
class HistogramView:
    """A distribution as it is shown: B bins of equal width, and percentiles right to 0.5 % (1e-9 to 1e9).

    Attributes:
        edges: B + 1 numbers, from the smallest to the largest observation.  counts: B.
        percentiles: p0, p1, p5, p25, p50, p75, p95, p99, p100.
    """

    edges: list[float]
    counts: list[int]
    percentiles: dict[str, float]


@dataclass(frozen=True)
class Row:
    """One iteration: a line of ``metrics.jsonl``.

    Attributes:
        iteration: from 1.  total_timesteps: environment steps so far.  time: seconds since 1970.
        metrics: number by name; a metric that has nothing to say is absent.
        nonfinite: how many observations of a metric were not finite and so are not in its number; usually empty.
        histograms: distributions by name.
        dialects: the same numbers under the names and with the signs of other systems, by dialect.
        workers: what each rollout worker saw by itself, by rank; only with ``runner.logger.per_worker``.
        events: what happened in the iteration, such as alerts; not part of the line.
    """

    iteration: int
    total_timesteps: int
    time: float
    metrics: dict[str, float]
    nonfinite: dict[str, int] = field(default_factory=dict)
    histograms: dict[str, HistogramView] = field(default_factory=dict)
    dialects: dict[str, dict[str, float]] = field(default_factory=dict)
    workers: dict[str, dict[str, float]] = field(default_factory=dict)
    events: tuple[Event, ...] = ()

    @property
    def series(self) -> dict[str, float]:
        """Every number of the row: the metrics, and those of single workers as ``workers/<rank>/<metric>``."""
        apart = {f"workers/{rank}/{name}": v for rank, found in self.workers.items() for name, v in found.items()}
        return {**self.metrics, **apart}

    def as_json(self) -> dict[str, Any]:
        """The line; what is empty is left out, but for the numbers. Cloning takes 0 steps, which is not empty."""
        fields = asdict(self)
        del fields["events"]
        return {name: value for name, value in fields.items() if value != {} or name == "metrics"}

    @classmethod
    def from_json(cls, line: Mapping[str, Any]) -> Row:
        """Inverse of ``as_json``."""
        histograms = {name: HistogramView(**view) for name, view in line.get("histograms", {}).items()}
        return cls(**{**line, "histograms": histograms})


@dataclass(frozen=True)
class Event:
    """Something that happened once: a stage change, a resume, a signal. A line of ``events.jsonl``.

    Attributes:
        kind: short name, for programs.  message: sentence, for people.  iteration: it happened in or after.
        time: seconds since 1970.  data: whatever else a program may want.
    """

    kind: str
    message: str
    iteration: int
    time: float
    data: dict[str, Any] = field(default_factory=dict)

    def as_json(self) -> dict[str, Any]:
        """The line."""
        return asdict(self)


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
        shown: names of the metrics by which the algorithm is watched on the terminal.
        options: of the backend, an instance of its ``Config``.
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
    shown: tuple[str, ...] = ()
    options: Any = None

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
    def how_to_look(cls, options: Any, run: Path, project: str) -> str:  # noqa: ARG003 - for those that need one
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
    def close(self, status: str) -> None:
        """Ends the view; ``status`` is completed, interrupted, stopped or failed."""
