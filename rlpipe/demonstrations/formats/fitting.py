"""Fits the episodes of a dataset to a task: which of its observations is which leaf."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from rlpipe.demonstrations.formats.episode import STATE, Array, Features, RecordedEpisode
from rlpipe.errors import ConfigError
from rlpipe.trajectory import LeafSpec, SpaceSpec


def steps_as_group(episode: RecordedEpisode) -> dict[str, Any]:
    """Returns the actions and their results as a group of ManiSkill's layout; see ``succeeded``."""
    return {"actions": episode.actions, "success": succeeded(episode)}


def succeeded(episode: RecordedEpisode) -> Array:
    """Returns after which steps an episode had succeeded, [T] bool; with its last step where it does not say."""
    if episode.success is not None:
        return episode.success
    return np.asarray(np.arange(len(episode)) == len(episode) - 1)


def as_group(
    episode: RecordedEpisode, spec: SpaceSpec, leaves: Mapping[str, str], where: str, *, keeps_last: bool
) -> Mapping[str, Any]:
    """Returns an episode as a group of ManiSkill's layout, with the leaves of a task.

    Args:
        episode: of any format.
        spec: of the simulator.
        leaves: names of the dataset's observations by those of the task's; several joined by `` + `` are one vector.
        where: the episode, for errors.
        keeps_last: True if nothing is learnt from what follows the last step. An episode without that observation then
            repeats the one before; otherwise it ends a step earlier.
    """
    names = fitted(episode.features, spec, leaves, where)
    group: dict[str, Any] = {**episode.others, **steps_as_group(episode), "obs": {}}
    if episode.rewards is not None:
        group["rewards"] = episode.rewards
    if episode.states is not None:
        group["env_states"] = episode.states
    for leaf, sources in names.items():
        shape = leaf_specs(spec)[leaf]
        values = _rows(episode, sources, shape)
        if not episode.has_last_observation and keeps_last:
            values = np.concatenate([values, values[-1:]])
        group["obs"][leaf] = values
    if not episode.has_last_observation and not keeps_last:
        success = group["success"]
        group["success"] = np.append(success[:-2], success[-2:].any())
        group |= {name: group[name][:-1] for name in ("actions", "rewards") if name in group}
    if spec.leaves is None:
        group["obs"] = group["obs"][STATE]
    return group


def _rows(episode: RecordedEpisode, sources: Sequence[str], shape: LeafSpec) -> Array:
    parts = [
        episode.cameras[name].stacked() if name in episode.cameras else episode.observations[name] for name in sources
    ]
    if len(parts) > 1:
        parts = [np.concatenate([part.reshape(len(part), -1) for part in parts], axis=1)]
    (values,) = parts
    return values if values.dtype == shape.dtype else values.astype(shape.dtype)


def leaf_specs(spec: SpaceSpec) -> Mapping[str, LeafSpec]:
    """Returns the leaves of a task; one vector is the leaf ``state``."""
    return {STATE: LeafSpec((spec.observation_dim,))} if spec.leaves is None else spec.leaves


def fitted(features: Features, spec: SpaceSpec, leaves: Mapping[str, str], where: str) -> Mapping[str, tuple[str, ...]]:
    """Returns the names of the dataset's observations that make up each leaf of a task.

    Raises:
        ConfigError: a leaf has none without doubt; the message names what is there and what to write.
    """
    held = {**features.observations, **features.cameras}
    there = ", ".join(f"{name} {shape.dtype} {list(shape.shape)}" for name, shape in held.items()) or "no observations"
    wanted_leaves = leaf_specs(spec)
    if unknown := [leaf for leaf in leaves if leaf not in wanted_leaves]:
        raise ConfigError(f"demo_leaves names {unknown[0]}, but the task observes {', '.join(wanted_leaves)}.")
    names = {}
    for leaf, shape in wanted_leaves.items():
        if leaf in leaves:
            sources = tuple(name.strip() for name in leaves[leaf].split(" + "))
            if missing := [name for name in sources if name not in held]:
                raise ConfigError(f"demo_leaves.{leaf} is {leaves[leaf]}, but {where} has no {missing[0]}: {there}.")
            size = sum(held[name].size for name in sources)
            if size != shape.size or (len(sources) == 1 and held[sources[0]].shape != shape.shape):
                raise ConfigError(
                    f"demo_leaves.{leaf} is {leaves[leaf]}, which has {size} numbers, but the task observes "
                    f"{shape.dtype} {list(shape.shape)}: {where} has {there}."
                )
        else:
            same = [name for name, other in held.items() if _alike(other, shape)]
            by_name = [name for name in same if name in (leaf, leaf.replace("/", "."))]
            sources = tuple(by_name or same)
            if len(sources) != 1:
                reason = "none of that shape" if not sources else f"several of that shape, {', '.join(sources)}"
                raise ConfigError(
                    f"demos: the task observes {leaf}, {shape.dtype} {list(shape.shape)}, but {where} has {reason}. It "
                    f"has {there}. Say which is which: demo_leaves={{{leaf}: NAME}}, or NAME + NAME for several in a "
                    "row."
                )
        names[leaf] = sources
    return names


def _alike(held: LeafSpec, leaf: LeafSpec) -> bool:
    """True if one is of the shape and the kind of number of the other."""
    return held.shape == leaf.shape and np.dtype(held.dtype).kind == np.dtype(leaf.dtype).kind
