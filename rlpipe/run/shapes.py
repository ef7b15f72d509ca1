"""Records that stand in files, JSON or a JSON object a line: their shapes, and the one place where they are checked.

Whoever reads a file of a run directory reads it through here, so that behind this point every key is there and has its
type. A file that was torn, cut, merged by hand or written by something else is an error that names the place.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any, NotRequired

from pydantic import AfterValidator, Field
from typing_extensions import TypedDict

from rlpipe.errors import ConfigError
from rlpipe.files import line, parsed, whole_file
from rlpipe.metrics.row import Status


def _readable_time(text: str) -> str:
    datetime.fromisoformat(text)
    return text


def _finite(value: Any) -> Any:
    """A value in which no number is infinite or not a number, however deep."""
    inside = value.values() if isinstance(value, Mapping) else value if isinstance(value, Sequence) else ()
    for part in () if isinstance(value, str) else inside:
        _finite(part)
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError("a number must be finite")
    return value


Iteration = Annotated[int, Field(ge=1, lt=2**53)]
Count = Annotated[int, Field(ge=0, lt=2**53)]
Whole = Annotated[int, Field(ge=-(2**63), lt=2**63)]
Moment = Annotated[float, Field(ge=0, lt=2e11)]
"""Seconds since 1970, up to the year 8000 or so: what a date can be made of."""
Part = Annotated[str, Field(pattern=r"^[\w.-]+$", max_length=200)]
Time = Annotated[str, AfterValidator(_readable_time)]
"""ISO 8601."""
Anything = Annotated[Any, AfterValidator(_finite)]


@line
class HistogramRecord(TypedDict):
    """``HistogramView`` as it is written."""

    edges: list[float]
    counts: list[Count]
    percentiles: dict[str, float]


@line
class MetricsLine(TypedDict):
    """A line of ``metrics.jsonl``."""

    iteration: Iteration
    total_timesteps: Count
    time: Moment
    metrics: dict[str, float]
    nonfinite: NotRequired[dict[str, Count]]
    histograms: NotRequired[dict[str, HistogramRecord]]
    dialects: NotRequired[dict[str, dict[str, float]]]
    workers: NotRequired[dict[str, dict[str, float]]]


EpisodeLine = TypedDict(
    "EpisodeLine",
    {
        "iteration": Iteration,
        "worker": Count,
        "slot": Count,
        "seed": Whole | None,
        "policy_version": Count,
        "return": float | None,
        "length": Count,
        "success_once": bool | None,
        "success_at_end": bool | None,
        "success_at_reset": bool | None,
        "terminated": bool,
        "truncated": bool,
        "step": NotRequired[Count],
        "log_prob": NotRequired[float | None],
        "first_success": NotRequired[Count | None],
        "fail_once": NotRequired[bool | None],
        "fail_at_end": NotRequired[bool | None],
        "reward_terms": NotRequired[dict[str, float | None]],
    },
)
"""A line of ``episodes.jsonl`` or ``eval_episodes.jsonl``; ``return`` is no name that a class can hold."""
line(EpisodeLine)


@line
class EventLine(TypedDict):
    """A line of ``events.jsonl``."""

    kind: str
    message: str
    iteration: Count
    time: Moment
    data: NotRequired[dict[str, Anything]]


@line
class SpanRecord(TypedDict):
    """``Span`` as it is written."""

    part: Part
    name: str
    began: Moment
    ended: Moment


@line
class TimelineLine(TypedDict):
    """A line of ``timeline.jsonl``."""

    iteration: Iteration
    spans: list[SpanRecord]


@whole_file
class Node(TypedDict):
    """A machine, in ``run.json``."""

    host: str


@whole_file
class Place(TypedDict):
    """Where a part runs, in ``run.json``."""

    host: str
    node: str
    clock: NotRequired[float]


@whole_file
class Parts(TypedDict):
    """Where each part runs, in ``run.json``."""

    parts: NotRequired[dict[str, Place]]


@whole_file
class Cluster(Parts):
    """The machines, in ``run.json``."""

    nodes: Annotated[list[Node], Field(min_length=1)]


@whole_file
class Clustered(TypedDict):
    """What a timeline needs of ``run.json``."""

    cluster: Cluster


@whole_file
class Evaluated(TypedDict):
    """The simulator of an evaluation, in a protocol."""

    name: str
    total_num_envs: int


@whole_file
class Protocol(TypedDict):
    """What makes two success rates comparable, in ``run.json`` and in the records of ``rlpipe evaluate``."""

    eval_env: Evaluated
    evaluation_first_seed: Count
    evaluation_episodes: Count
    deterministic_actions: bool


@whole_file
class Stage(TypedDict):
    """What the health rules of a stage speak of, in ``run.json``."""

    variables: dict[str, float]
    tags: list[str]


@whole_file
class View(TypedDict):
    """What a backend must know of a run, in ``run.json``."""

    total_iterations: Iteration
    total_timesteps: Count
    stages: list[tuple[str, int]]
    console_style: NotRequired[str]
    action_dims: NotRequired[int]
    num_actions: NotRequired[int | None]


@whole_file
class Created(TypedDict):
    """When a run was made, in ``run.json``."""

    created: Time


@whole_file
class Length(TypedDict):
    """How long a run was to be, in the ``view`` of ``run.json``."""

    total_iterations: NotRequired[Iteration]


@whole_file
class Judged(TypedDict):
    """What the judgement of a run needs of ``run.json``."""

    health: NotRequired[list[Stage]]
    view: NotRequired[Length]


@whole_file
class RunRecord(Created):
    """``run.json``."""

    run_id: str
    experiment: str
    project: str
    status: Status
    incarnation: Count
    cluster: Parts
    protocol: Protocol
    resumed_after: NotRequired[list[Count]]
    health: NotRequired[list[Stage]]
    view: NotRequired[View]


@whole_file
class EvaluationRecord(TypedDict):
    """``evaluations/<n>.json``."""

    iteration: Iteration
    protocol: Protocol
    versions: NotRequired[dict[str, str]]
    changes: NotRequired[dict[str, Any]]
    episodes: Annotated[list[EpisodeLine], Field(min_length=1)]


@whole_file
class LoggerKeys(TypedDict):
    """``runner.logger`` of ``config.yaml``, as far as readers of a run directory need it."""

    experiment_name: str
    options: NotRequired[dict[str, dict[str, Any] | None]]


@whole_file
class RunnerKeys(TypedDict):
    """``runner`` of ``config.yaml``, as far as readers of a run directory need it."""

    seed: int
    logger: LoggerKeys


@whole_file
class PolicyKeys(TypedDict):
    """``policy`` of ``config.yaml``, as far as readers of a run directory need it."""

    warm_start: NotRequired[str | None]


@whole_file
class ConfigRecord(TypedDict):
    """``config.yaml``, as far as readers of a run directory need it."""

    policy: NotRequired[PolicyKeys]
    runner: RunnerKeys


SHAPES: dict[str, Any] = {
    "metrics.jsonl": MetricsLine,
    "episodes.jsonl": EpisodeLine,
    "eval_episodes.jsonl": EpisodeLine,
    "events.jsonl": EventLine,
    "timeline.jsonl": TimelineLine,
}
"""Of the lines of each file."""
_ONCE = ("metrics.jsonl", "timeline.jsonl")
"""Files that hold each iteration once."""
_IN_TURN = (*_ONCE, "episodes.jsonl", "eval_episodes.jsonl")
"""Files whose iterations follow one another."""


class Lines:
    """Turns the lines of one file into records, from the first on; knows how they must follow one another."""

    def __init__(self, path: Path, name: str = "") -> None:
        """Of a file of a run directory by its name, or by that which it would have there; of others, any objects."""
        self._path = path
        self._name = name or path.name
        self._shape: Any = SHAPES.get(self._name, dict[str, Any])
        self._number = self._last = 0

    def record(self, line: bytes) -> dict[str, Any]:
        """The record of the next line.

        Raises:
            ConfigError: it is damaged, or does not follow the one before.
        """
        self._number += 1
        where = f"{self._path}, line {self._number}"
        try:
            found: dict[str, Any] = parsed(line, self._shape, where)
        except ConfigError as error:
            raise ConfigError(f"{error} Put the line right, or take it out.") from error
        if self._name in _IN_TURN:
            iteration: int = found["iteration"]
            if iteration < self._last or (iteration == self._last and self._name in _ONCE):
                raise ConfigError(
                    f"{where} is of iteration {iteration}, but comes after iteration {self._last}: the lines are not "
                    "in the order in which they were written."
                )
            self._last = iteration
        return found
