"""Joins the trajectories of a file of demonstrations with the episodes of the JSON beside it, by their ids.

Nothing of a trajectory is read here but its name; ``dataset`` reads the rest.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NotRequired

from typing_extensions import TypedDict

from rlpipe import files
from rlpipe.demonstrations.layouts import check_file, check_layout
from rlpipe.errors import ConfigError
from rlpipe.files import whole_file

DAMAGE = (OSError, LookupError, ValueError, TypeError, AttributeError, RuntimeError, MemoryError)
"""Exceptions of h5py for a damaged file; which one depends on the bytes that are damaged."""


@whole_file
class RecordedOptions(TypedDict):
    """Options of the simulator that recorded the demonstrations."""

    control_mode: NotRequired[str | None]
    reward_mode: NotRequired[str | None]
    obs_mode: NotRequired[str | None]
    camera_size: NotRequired[int | None]
    mesh_triangles: NotRequired[int | None]
    show_goals: NotRequired[bool | None]
    frame_stack: NotRequired[int | None]
    pixels: NotRequired[int | None]
    pixels_with_state: NotRequired[bool | None]
    kwargs: NotRequired[dict[str, Any] | None]


@whole_file
class RecordedSimulator(TypedDict):
    """Simulator that recorded the demonstrations."""

    env_id: str
    env_kwargs: RecordedOptions


@whole_file
class Sidecar(TypedDict):
    """JSON that ManiSkill writes beside a file of demonstrations."""

    env_info: RecordedSimulator
    episodes: NotRequired[list[dict[str, Any]]]


def sidecar(path: str) -> Sidecar:
    """Reads the JSON beside a file of demonstrations."""
    return files.read(Path(path).with_suffix(".json"), Sidecar)


@dataclass(frozen=True)
class Contents:
    """Trajectories of a file, and what the JSON says of them.

    Attributes:
        names: of the trajectories, by their numbers; those without a number follow.
        passed_over: names of what else is in the file.
        seeds: of the trajectories whose episode says it, by name.
        without_trajectory: ids of episodes that the file does not hold.
        seeds_without_id: seeds of episodes that have no id, so that nobody knows which trajectory is theirs.
    """

    names: tuple[str, ...]
    passed_over: tuple[str, ...]
    seeds: Mapping[str, int]
    without_trajectory: tuple[str, ...]
    seeds_without_id: frozenset[int]

    def notes(self, path: str) -> tuple[str, ...]:
        """Returns what a user should know of the file, in sentences."""
        sentences = []
        if self.passed_over:
            sentences.append(f"{path}: passed over what holds no actions: {_some(self.passed_over)}.")
        if unknown := [name for name in self.names if name not in self.seeds]:
            sentences.append(f"{path}: the JSON beside it gives no seed for {_some(unknown)}; {MATCHED}.")
        if self.without_trajectory:
            sentences.append(
                f"{path}: the JSON beside it describes episodes that are not in the file: "
                f"{_some(self.without_trajectory)}."
            )
        return tuple(sentences)


MATCHED = "traj_7 has the episode_seed of episode_id 7"
"""How a trajectory and an episode belong together, for sentences."""


def _some(names: Sequence[str]) -> str:
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return f"{', '.join(names[:3])}{more}"


def contents(path: str, key: str = "demos") -> Contents:
    """Returns which trajectories a file holds, joined with the JSON beside it. ``key`` names the file in errors.

    Raises:
        ConfigError: the file is damaged or of another format, or an id is there twice.
    """
    check_file(Path(path), key)
    with opened(path, key) as file:
        check_layout(file, path, key)
        names = in_order(file)
        passed_over = tuple(sorted({*file} - {*names}))
        for name in names:
            if f"{name}/actions" not in file:
                raise ConfigError(f"{key}: {path}: {name} holds no actions: record it again, or delete it.")
    if not names:
        held = f"holds {_some(passed_over)}" if passed_over else "is empty"
        raise ConfigError(
            f"{key}: {path} has no trajectories, which are groups with actions such as traj_0; it {held}. "
            "Its format is described in docs/demonstrations.md#file-format."
        )
    beside = Path(path).with_suffix(".json")
    if files.kind_of(beside) != "file":
        raise ConfigError(
            f"{key} is {path}, but {beside.name}, which says how it was made, is not beside it. "
            "docs/demonstrations.md#file-format says what it holds."
        )
    return _joined(names, passed_over, sidecar(path).get("episodes", []), path, key)


def _joined(
    names: Sequence[str], passed_over: tuple[str, ...], episodes: Sequence[Mapping[str, Any]], path: str, key: str
) -> Contents:
    """Joins trajectories and episodes."""
    where = f"{key}: {Path(path).with_suffix('.json')}"
    by_id: dict[str, int | None] = {}
    loose = set()
    for episode in episodes:
        seed = _seed(episode, where)
        if (label := episode.get("episode_id")) is None:
            loose.add(seed)
        elif (id_ := _number(label)) in by_id:
            raise ConfigError(f"{where} has more than one episode with episode_id {label}: give each its own.")
        else:
            by_id[id_] = seed
    owners: dict[str, str] = {}
    for name in names:
        id_ = name if name in by_id else _number(name)
        if id_ in owners:
            raise ConfigError(f"{key}: {path} holds episode {id_} twice, as {owners[id_]} and {name}: rename one.")
        owners[id_] = name
    seeds = {name: seed for id_, name in owners.items() if (seed := by_id.get(id_)) is not None}
    absent = tuple(f"episode {id_}" for id_ in by_id if id_ not in owners)
    return Contents(tuple(names), passed_over, seeds, absent, frozenset(seed for seed in loose if seed is not None))


def _number(label: object) -> str:
    """Returns the number of an episode, as in traj_7, "07", 7 or 7.0; a label without one as it is."""
    match = re.fullmatch(r"(?:.*_)?0*(\d+)(?:\.0)?", str(label))
    return match[1] if match else str(label)


def _seed(episode: Mapping[str, Any], where: str) -> int | None:
    """Returns the seed of an episode; None if it has none. Two seeds, or none that is a whole number, are an error."""
    options = episode.get("reset_kwargs")
    values = [episode.get("episode_seed"), episode.get("seed")]
    again = options.get("seed") if isinstance(options, Mapping) else None
    seeds = {seed for value in (*values, again) if (seed := _whole(value)) is not None}
    what = f"{where}: episode {episode.get('episode_id', 'without episode_id')}"
    if unreadable := [value for value in values if value is not None and _whole(value) is None]:
        raise ConfigError(f"{what} has the seed {unreadable[0]!r}; it must be a whole number from 0.")
    if len(seeds) > 1:
        raise ConfigError(f"{what} has two seeds, {' and '.join(map(str, sorted(seeds)))}: keep the one it began with.")
    return seeds.pop() if seeds else None


def _whole(value: object) -> int | None:
    """Returns a seed in any spelling: 7, 7.0, [7], "7", and what str() makes of NumPy's or a tensor; else None."""
    if isinstance(value, list) and len(value) == 1:
        return _whole(value[0])
    if isinstance(value, bool):
        return None
    match = re.fullmatch(r"(?:[\w.]+\()?\[?(\d+)(?:\.0*)?\]?\)?", str(value).strip())
    return int(match[1]) if match else None


@contextmanager
def opened(path: str, key: str = "demos") -> Iterator[Any]:
    """Opens a file of demonstrations to read it; damage is a ``ConfigError``."""
    import h5py

    with readable(f"{key}: {path}"), h5py.File(path) as file:
        yield file


@contextmanager
def readable(what: str) -> Iterator[None]:
    """Turns what h5py raises into a ``ConfigError`` that begins with the key and what is being read."""
    try:
        yield
    except ConfigError:
        raise
    except BlockingIOError as error:
        raise ConfigError(f"{what} is still being written by another process: wait until it has ended.") from error
    except DAMAGE as error:
        raise ConfigError(f"{what} is damaged or cut off: copy or record it again.") from error


def in_order(file: Any) -> list[str]:
    """Returns the names of the trajectories in an open file: traj_N, and other groups that hold actions. They are
    sorted by their numbers; those without one follow."""

    def place(name: str) -> tuple[bool, int, str]:
        number = _number(name)
        return not number.isdigit(), int(number) if number.isdigit() else 0, name

    def is_one(name: str) -> bool:
        return re.fullmatch(r"traj_\d+", name) is not None or f"{name}/actions" in file

    return sorted(filter(is_one, file), key=place)
