"""Makes the section of a page that plays the replays of a run, within a number of bytes."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rlpipe import files
from rlpipe.errors import ConfigError, command_line
from rlpipe.report.replays.geometry import Geometry
from rlpipe.report.replays.packing import packed, packed_poses
from rlpipe.report.web.page import Section, asset, render
from rlpipe.run.directory import RunDirectory
from rlpipe.run.replays import FOLDER, ReplayFolder, ReplaySet
from rlpipe.trajectory import Episode, Replay, Scene

BUDGET = 8_000_000
"""Bytes of data in a page of its own, beside about 0.6 MB of the viewer."""
MESH_TRIANGLES = (4000, 2000, 800, 300)
"""Triangles of each mesh, the first with which geometry takes no more than half of the budget."""
SPEEDS = (5, 10, 20, 40, 80)
SPEED = 20
"""Steps a second: what most manipulation tasks take in real time."""
_MOST_LEVELS = 3
"""Levels of variations that the name of an episode has room for."""
WHY_NONE = "This simulator tells nothing about its bodies, so the replay shows numbers alone."


class NoReplaysError(ConfigError):
    """There is nothing to show. The message says what to do."""


def section(run: Path, budget: int = BUDGET, *, name: str | None = None, episode: int | None = None) -> Section | None:
    """Makes the section; None if the run has no replays.

    Args:
        run: run directory, or folder of baselines
        budget: bytes that its data may take; replays that do not fit are left out, which the section says
        name: set to show, such as ``evaluation-1``; None for the one that was written last
        episode: number of the replay, from 1, that is shown first; None for a success beside a failure
    Raises:
        NoReplaysError: there is no such set, or no such replay in it.
        ConfigError: a file is damaged.
    """
    folder = ReplayFolder(run / FOLDER)
    file = find_set(folder, name)
    if file is None:
        return None
    replays = folder.read(file)
    if episode is not None and not 1 <= episode <= len(replays.replays):
        raise NoReplaysError(
            f"{file} holds {len(replays.replays)} replays, numbered from 1, and has no number {episode}."
        )
    scenes = {key: folder.read_scene(key) for key in {replay.scene for replay in replays.replays} - {""}}
    return _Builder(replays, scenes, budget, None if episode is None else episode - 1).section()


def find_set(folder: ReplayFolder, name: str | None) -> Path | None:
    """Returns the file of the set of that name, or of the one that was written last; None if there are no sets."""
    sets = folder.sets()
    if not sets:
        return None
    for file in sets:
        if name is None or file.stem == name:
            return file
    names = ", ".join(file.stem for file in sets)
    raise NoReplaysError(f"{folder.path} has no set of replays called {name}; it has {names}.")


def no_replays(run: Path) -> NoReplaysError:
    """Error for a folder without replays, which says how to record some."""
    if files.kind_of(run) == "file":
        return NoReplaysError(f"{run} is a file: name the run directory, as in {command_line('replay', run.parent)}.")
    if not files.kind_of(run) or any(run.glob("*/run.json")) or any(run.glob("*/*/run.json")):
        RunDirectory.existing(run)  # which says what is wrong with the path
    how = command_line("evaluate", run if (run / "run.json").is_file() else "RUN", "--replays", 4)
    return NoReplaysError(
        f"{run} has no replays. Record some with: {how}. Training records them too, unless evaluation.replays is 0."
    )


class _Builder:
    """Builds the section of one set."""

    def __init__(self, replays: ReplaySet, scenes: dict[str, Scene], budget: int, first: int | None) -> None:
        self._set = replays
        self._scenes = scenes
        self._first = first
        self._geometry, self._packed_scenes = self._within(budget // 2)
        left = budget - _size([self._packed_scenes, self._geometry.meshes])
        records: dict[int, dict[str, Any]] = {}
        for number in self._by_priority():
            record = _record(replays.replays[number], number)
            size = _size(record)
            if not records or size <= left:
                left -= size
                records[number] = record
        self._records = dict(sorted(records.items()))

    def _within(self, budget: int) -> tuple[Geometry, dict[str, Any]]:
        """Returns the finest geometry that fits."""
        for most in MESH_TRIANGLES:
            geometry = Geometry(most)
            scenes = {key: geometry.scene(scene) for key, scene in self._scenes.items()}
            if _size([scenes, geometry.meshes]) <= budget:
                break
        return geometry, scenes

    def _by_priority(self) -> list[int]:
        """Numbers of the replays: the one asked for, then failures and successes in turn."""
        outcomes = [_kind(replay.episode) for replay in self._set.replays]
        bad = [number for number, kind in enumerate(outcomes) if kind == "bad"]
        rest = [number for number, kind in enumerate(outcomes) if kind != "bad"]
        turns = [number for pair in zip(bad, rest, strict=False) for number in pair]
        turns += bad[len(rest) :] + rest[len(bad) :]
        first = [] if self._first is None else [self._first]
        return [*first, *(number for number in turns if number not in first)]

    def section(self) -> Section:
        """Returns the section."""
        records = [*self._records.values()]
        panels = min(2, len(records))
        data = {
            "episodes": records,
            "scenes": self._packed_scenes,
            "meshes": self._geometry.meshes,
            "speed": SPEED,
            "first": self._shown_first(records)[:panels],
        }
        html = render(
            "replays.html",
            note=self._note(),
            lists=self._lists(records),
            labels=[f"{record['label']} · {record['outcome']}" for record in records],
            panels=panels,
            speeds=SPEEDS,
            speed=SPEED,
        )
        return Section(
            "replays",
            "Replays",
            html,
            style=asset("vendor/uplot/uPlot.min.css") + asset("replays.css"),
            scripts=(asset("vendor/uplot/uPlot.iife.min.js"), asset("vendor/viewer/viewer.min.js")),
            data=data,
        )

    def _shown_first(self, records: Sequence[dict[str, Any]]) -> list[int]:
        """Places of the episodes that the views show first: a success beside a failure, where there are both."""
        places = range(len(records))
        bad = [place for place in places if records[place]["kind"] == "bad"]
        good = [place for place in places if place not in bad]
        pair = [*good[:1], *bad[:1]]
        if self._first is not None:
            first = [*self._records].index(self._first)
            pair = [first, *(bad if first in good else good)[:1]]
        return [*pair, *(place for place in places if place not in pair)][:2]

    def _lists(self, records: Sequence[dict[str, Any]]) -> list[tuple[str, list[dict[str, Any]]]]:
        """Episodes by outcome, for the buttons above the views."""
        kinds = (("Successes", "good"), ("Failures", "bad"), ("Episodes", ""))
        both = {record["kind"] for record in records} >= {"good", "bad"}
        return [
            (title, chips)
            for title, kind in kinds
            if (
                chips := [
                    {
                        "label": record["label"],
                        "kind": kind,
                        "facts": record["facts"],
                        "number": place,
                        "side": int(both and kind == "bad"),
                    }
                    for place, record in enumerate(records)
                    if record["kind"] == kind
                ]
            )
        ]

    def _note(self) -> str:
        """Says what the section shows, in one or a few sentences."""
        iteration, source, task = self._set.iteration, self._set.source, self._set.task
        when = f"after iteration {iteration}" if iteration else ""
        where = "the evaluation during training" if source == "training" else source
        count, of = len(self._records), f"{task}: " if task else ""
        words = [f"{of}{count} {'episode' if count == 1 else 'episodes'} of {where} {when}".rstrip() + "."]
        if left_out := len(self._set.replays) - count:
            words.append(f"{left_out} more would not fit into the page.")
        if self._geometry.missing:
            words.append(
                "Some meshes are not on this machine, so their collision shapes stand in; make the page where the "
                "simulator is installed."
            )
        return " ".join(words)


def words_of(episode: Episode) -> list[str]:
    """Returns what tells an episode from others of its set: its task, its seed, and how it varied."""
    seed = f"seed {episode.seed}" if episode.seed is not None else "no seed"
    levels = [f"{axis} {level:.3g}" for axis, level in episode.variations.items()]
    if len(levels) > _MOST_LEVELS:
        levels = [f"{len(levels)} axes vary"]
    return [*filter(None, (episode.task, seed)), *levels]


def _kind(episode: Episode) -> str:
    """Returns the style of an outcome: good, bad, or empty for a task without success."""
    return {True: "good", False: "bad", None: ""}[episode.success_once]


def _record(replay: Replay, number: int) -> dict[str, Any]:
    """Describes a replay for the page. ``number`` is its place in the set, from 0."""
    episode = replay.episode
    groups = [_group("actions", replay.actions, 1)]
    groups += [_group(name, values, 0) for name, values in replay.observations.items() if values.size]
    return {
        "label": f"{number + 1}. {', '.join(words_of(episode))}",
        "kind": _kind(episode),
        "outcome": _outcome(episode),
        "facts": _facts(episode),
        "why": WHY_NONE,
        "rewards": packed(np.nan_to_num(replay.rewards).astype(np.float64)),
        "groups": groups,
        "scene": replay.scene,
        "poses": None if replay.poses is None else packed_poses(replay.poses),
    }


def _group(name: str, values: NDArray[Any], first: int) -> dict[str, Any]:
    """Packs rows of numbers, the first of which belongs to a step."""
    rows = values.reshape(len(values), -1).astype(np.float32)
    return {"name": name, "width": rows.shape[1], "from": first, "values": packed(rows)}


def _outcome(episode: Episode) -> str:
    if episode.success_once is None:
        return "ended"
    if not episode.success_once:
        return "failure"
    return "success" if episode.success_at_end else "success, then lost"


def _facts(episode: Episode) -> str:
    total = f"return {episode.episode_return:.4g}" if np.isfinite(episode.episode_return) else "return not finite"
    steps = f"{episode.length} step{'' if episode.length == 1 else 's'}"
    first = f"success after step {episode.first_success}" if episode.first_success else ""
    end = "terminated" if episode.terminated else "time limit"
    return ", ".join(filter(None, (first, total, steps, end)))


def _size(data: Any) -> int:
    return len(json.dumps(data, separators=(",", ":")))
