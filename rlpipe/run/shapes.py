"""Shapes of the records in a run directory, and the one place where its files are checked.

Every reader goes through here, so that behind this point every key is there and has its type. A file that was torn,
cut, merged by hand or written by something else is an error that names the place.

The shape of a line follows from the dataclass that is written as this line (``Row``, ``Episode``, ``Event``, ``Span``).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import MISSING, fields
from datetime import datetime
from functools import reduce
from operator import or_
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, NotRequired, get_args, get_origin, get_type_hints

from pydantic import AfterValidator, Field, GetPydanticSchema
from typing_extensions import TypedDict

from rlpipe.errors import ConfigError
from rlpipe.files import line, parsed, whole_file
from rlpipe.metrics.row import Event, HistogramView, Row, Status
from rlpipe.metrics.spans import Span
from rlpipe.trajectory import Episode
from rlpipe.trajectory.fingerprint import FragmentFingerprint, UpdateFingerprint


def _readable_time(text: str) -> str:
    datetime.fromisoformat(text)
    return text


def _finite(value: Any) -> Any:
    """Returns the value if no number in it is infinite or NaN, however deep."""
    inside = value.values() if isinstance(value, Mapping) else value if isinstance(value, Sequence) else ()
    for item in () if isinstance(value, str) else inside:
        _finite(item)
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError("a number must be finite")
    return value


Iteration = Annotated[int, Field(ge=1, lt=2**53)]
Count = Annotated[int, Field(ge=0, lt=2**53)]
Seed = Annotated[int, Field(ge=-(2**63), lt=2**63)]
UnixTime = Annotated[float, Field(ge=0, lt=2e11)]
"""Seconds since 1970, up to about the year 8000, so that it can be converted to a date."""
IsoTime = Annotated[str, AfterValidator(_readable_time)]
"""Time in ISO 8601."""
Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
"""SHA-256 as hexadecimal digits."""
ActorName = Annotated[str, Field(pattern=r"^[\w.-]+$", max_length=200)]
FiniteJson = Annotated[Any, AfterValidator(_finite)]


# --- lines


def _line_of(
    written: type,
    types: Mapping[str, Any],
    *,
    without: Iterable[str] = (),
    renamed: Mapping[str, str] | None = None,
) -> Any:
    """Derives the shape of a line from the dataclass that is written as this line.

    A field with a default may be missing from the line. Whole numbers are counts.

    Args:
        written: the dataclass
        types: types of single keys; keys that are no fields come first
        without: fields that are not written
        renamed: key of the line by field, where it is not the field's name
    """
    keys = {field.name: (renamed or {}).get(field.name, field.name) for field in fields(written)}
    hints = get_type_hints(written)
    shape = {key: kind for key, kind in types.items() if key not in keys.values()}
    for field in fields(written):
        if field.name not in without:
            key = keys[field.name]
            kind = types.get(key, _counted(hints[field.name]))
            optional = field.default is not MISSING or field.default_factory is not MISSING
            shape[key] = NotRequired[kind] if optional else kind
    return line(TypedDict(f"{written.__name__}Line", shape))  # type: ignore[operator]


def _inside(shape: Any) -> GetPydanticSchema:
    """Annotates a dictionary that has this shape, inside another record."""
    return GetPydanticSchema(lambda _, handler: handler(shape))


def _counted(hint: Any) -> Any:
    """Replaces ``int`` in a type by ``Count``, however deep."""
    if hint is int:
        return Count
    inside = tuple(map(_counted, get_args(hint)))
    if isinstance(hint, UnionType):
        return reduce(or_, inside)
    return get_origin(hint)[inside] if inside else hint


def _episode_line(iteration: Any) -> Any:
    """Shape of an episode, with the type of its iteration."""
    return _line_of(
        Episode,
        {
            "iteration": iteration,
            "seed": Seed | None,
            "return": float | None,
            "reward_terms": dict[str, float | None],
            "metrics": dict[str, float | None],
            "start": Sha256 | None,
            "commitment": Sha256 | None,
        },
        renamed={"episode_return": "return"},
    )


HistogramRecord = Annotated[dict[str, Any], _inside(_line_of(HistogramView, {}))]
SpanRecord = Annotated[
    dict[str, Any],
    _inside(_line_of(Span, {"part": ActorName, "began": UnixTime, "ended": UnixTime}, renamed={"actor": "part"})),
]
FragmentRecord = Annotated[dict[str, Any], _inside(_line_of(FragmentFingerprint, {}))]
UpdateRecord = Annotated[dict[str, Any], _inside(_line_of(UpdateFingerprint, {}))]
_METRICS_LINE = _line_of(
    Row,
    {"iteration": Iteration, "time": UnixTime, "histograms": dict[str, HistogramRecord]},
    without=["events"],
)
_EPISODE_LINE = _episode_line(Iteration)
_EVENT_LINE = _line_of(Event, {"time": UnixTime, "data": dict[str, FiniteJson]})


@line
class _TimelineLine(TypedDict):
    iteration: Iteration
    spans: list[SpanRecord]


@line
class _FingerprintLine(TypedDict):
    iteration: Iteration
    fragments: list[FragmentRecord]
    updates: list[UpdateRecord]


SHAPES: dict[str, Any] = {
    "metrics.jsonl": _METRICS_LINE,
    "episodes.jsonl": _EPISODE_LINE,
    "eval_episodes.jsonl": _EPISODE_LINE,
    "timeline.jsonl": _TimelineLine,
    "fingerprints.jsonl": _FingerprintLine,
    "events.jsonl": _EVENT_LINE,
}
"""Shape of the lines, by file."""


# --- whole files


@whole_file
class Machine(TypedDict):
    """Machine, in ``run.json``."""

    host: str


@whole_file
class ActorPlace(TypedDict):
    """Machine and clock of an actor, in ``run.json``."""

    host: str
    node: str
    clock: NotRequired[float]


@whole_file
class ClusterPlaces(TypedDict):
    """Machines, and the place of each actor, in ``run.json``."""

    nodes: NotRequired[Annotated[list[Machine], Field(min_length=1)]]
    parts: NotRequired[dict[str, ActorPlace]]


@whole_file
class ClusterRecord(TypedDict):
    """Part of ``run.json`` that a timeline needs."""

    cluster: ClusterPlaces


@whole_file
class EvalSimulator(TypedDict):
    """Simulator of an evaluation, in a protocol."""

    name: str
    total_num_envs: int
    tasks: NotRequired[list[str | dict[str, Any]]]


@whole_file
class Protocol(TypedDict):
    """Settings that make two success rates comparable, in ``run.json`` and in the records of ``rlpipe evaluate``."""

    eval_env: EvalSimulator
    evaluation_first_seed: Count
    evaluation_episodes: Count
    deterministic_actions: bool
    independent_episodes: NotRequired[bool]
    seed: NotRequired[int]
    demonstrations: NotRequired[str | None]
    num_demos: NotRequired[int | None]


@whole_file
class StageHealth(TypedDict):
    """Variables and tags that the health rules refer to, for one stage, in ``run.json``."""

    variables: dict[str, float]
    tags: list[str]


@whole_file
class BackendFacts(TypedDict):
    """Facts about a run that its configuration does not hold and a backend needs, in ``run.json``."""

    total_iterations: Iteration
    total_timesteps: Count
    stages: list[tuple[str, int]]
    console_style: NotRequired[str]
    action_dims: NotRequired[int]
    num_actions: NotRequired[int | None]


@whole_file
class HealthRecord(TypedDict):
    """Part of ``run.json`` that a diagnosis needs. A log may lie beside a ``run.json`` that holds nothing else."""

    health: NotRequired[list[StageHealth]]
    view: NotRequired[BackendFacts]


@whole_file
class RunRecord(ClusterRecord, HealthRecord):
    """``run.json``."""

    run_id: str
    experiment: str
    project: str
    created: IsoTime
    status: Status
    incarnation: Count
    protocol: Protocol
    versions: NotRequired[dict[str, str]]
    resumed_after: NotRequired[list[Count]]
    module_folders: NotRequired[list[str]]


@whole_file
class EstimateRecord(TypedDict):
    """Estimate of a metric, in the record of an evaluation."""

    metric: str
    value: float
    low: float | None
    high: float | None
    episodes: Count


@whole_file
class EvaluationRecord(TypedDict):
    """``evaluations/<n>.json``, and the record of a baseline, whose iteration is 0."""

    policy: NotRequired[str | None]
    checkpoint: NotRequired[str | None]
    against: NotRequired[str | None]
    iteration: Count
    protocol: Protocol
    versions: NotRequired[dict[str, str]]
    changes: NotRequired[dict[str, Any]]
    notes: NotRequired[list[str]]
    estimates: NotRequired[list[EstimateRecord]]
    checkpoint_sha256: NotRequired[Sha256 | None]
    weights_sha256: NotRequired[Sha256 | None]
    policy_sha256: NotRequired[dict[str, Sha256]]
    external: NotRequired[dict[str, Any] | None]
    protocol_sha256: NotRequired[Sha256]
    episodes_root: NotRequired[Sha256]
    code_sha256: NotRequired[Sha256]
    machines: NotRequired[list[dict[str, str | int]]]
    command: NotRequired[str]
    episodes: Annotated[list[Annotated[dict[str, Any], _inside(_episode_line(Count))]], Field(min_length=1)]


_Share = Annotated[float, Field(ge=0, le=1)]


@whole_file
class StressArmRecord(TypedDict):
    """Arm of a stress test, as far as readers need it."""

    label: str
    kind: str
    value: _Share
    low: _Share
    high: _Share


@whole_file
class StressAxisRecord(TypedDict):
    """Axis of a stress test, as far as readers need it."""

    name: str
    unit: str
    neutral: float
    is_log: bool
    levels: Annotated[list[float], Field(min_length=2)]
    values: list[_Share]
    lows: list[_Share]
    highs: list[_Share]
    mean: _Share


@whole_file
class StressMapRecord(TypedDict):
    """Map of two axes of a stress test."""

    axes: tuple[str, str]
    edges: tuple[list[float], list[float]]
    successes: list[list[Count]]
    episodes: list[list[Count]]


@whole_file
class StressRecord(TypedDict):
    """``stress/<n>.json``, as far as readers need it."""

    bound: _Share
    arms: Annotated[list[StressArmRecord], Field(min_length=2)]
    axes: Annotated[list[StressAxisRecord], Field(min_length=1)]
    map: StressMapRecord | None
    policy: str | None
    iteration: Count


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
    base: NotRequired[str | None]


@whole_file
class ConfigRecord(TypedDict):
    """``config.yaml``, as far as readers of a run directory need it."""

    policy: NotRequired[PolicyKeys]
    runner: RunnerKeys


# --- files of lines


_ONCE = ("metrics.jsonl", "timeline.jsonl", "fingerprints.jsonl")
"""Files that hold each iteration once."""
_IN_ORDER = (*_ONCE, "episodes.jsonl", "eval_episodes.jsonl")
"""Files whose iterations never go back."""


class Lines:
    """Parses the lines of one file from the first on, and checks their order."""

    def __init__(self, path: Path, name: str = "") -> None:
        """Picks the shape by file name; unknown files accept any JSON object.

        Args:
            name: name that the file would have in a run directory; empty for that of the path
        """
        self._path = path
        self._name = name or path.name
        self._shape: Any = SHAPES.get(self._name, dict[str, Any])
        self._number = self._last = 0

    def record(self, line: bytes) -> dict[str, Any]:
        """Parses the next line.

        Raises:
            ConfigError: it is damaged, or does not follow the one before.
        """
        self._number += 1
        where = f"{self._path}, line {self._number}"
        try:
            record: dict[str, Any] = parsed(line, self._shape, where)
        except ConfigError as error:
            raise ConfigError(f"{error} Correct the line, or remove it.") from error
        if self._name in _IN_ORDER:
            iteration: int = record["iteration"]
            if iteration < self._last or (iteration == self._last and self._name in _ONCE):
                raise ConfigError(
                    f"{where} belongs to iteration {iteration}, but comes after iteration {self._last}: the lines are "
                    "not in the order in which they were written."
                )
            self._last = iteration
        return record
