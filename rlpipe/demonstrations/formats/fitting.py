"""Fits the episodes of a dataset to a task: which of its observations is which leaf."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from rlpipe.demonstrations.formats.episode import STATE, Array, Features, RecordedEpisode
from rlpipe.errors import ConfigError
from rlpipe.trajectory import Bool, LeafSpec, Observations, SpaceSpec, Tree


def succeeded(episode: RecordedEpisode) -> Bool:
    """Returns after which steps an episode had succeeded, [T] bool; with its last step where it does not say."""
    if episode.success is not None:
        return episode.success
    return np.asarray(np.arange(len(episode)) == len(episode) - 1)


def arranged(episode: RecordedEpisode, spec: SpaceSpec, names: Mapping[str, tuple[str, ...]]) -> Observations:
    """Returns what was observed in an episode, [T + 1, ...] or [T, ...], as the task observes it.

    Args:
        episode: of any format.
        spec: of the simulator.
        names: what makes up each leaf, as of ``fitted``.
    """
    leaves = {leaf: _rows(episode, names[leaf], shape) for leaf, shape in leaf_specs(spec).items()}
    return leaves[STATE] if spec.leaves is None else Tree(leaves)


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


def fitted(
    features: Features, spec: SpaceSpec, leaves: Mapping[str, str], where: str, advice: str = ""
) -> Mapping[str, tuple[str, ...]]:
    """Returns the names of the dataset's observations that make up each leaf of a task.

    Args:
        features: of the dataset.
        spec: of the simulator.
        leaves: names of the dataset's observations by those of the task's; several joined by `` + `` are one vector.
            The others are guessed.
        where: names the dataset in errors.
        advice: sentence that ends the error of observations that are not there.
    Raises:
        ConfigError: a leaf has none without doubt; the message names what is there and what to write.
    """
    held = {**features.observations, **features.cameras}
    there = ", ".join(f"{name} {shape.dtype} {list(shape.shape)}" for name, shape in held.items()) or "no observations"
    expected = leaf_specs(spec)
    if unknown := [leaf for leaf in leaves if leaf not in expected]:
        raise ConfigError(f"demo_leaves names {unknown[0]}, but the task observes {', '.join(expected)}.")
    names = {}
    for leaf, shape in expected.items():
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
                    f"has {there}. {_spelling(leaf, shape, held, sources)}{advice}".rstrip()
                )
        names[leaf] = sources
    return names


def _spelling(leaf: str, shape: LeafSpec, held: Mapping[str, LeafSpec], sources: Sequence[str]) -> str:
    """Returns how to say what makes up a leaf, as a sentence; nothing where nothing could."""
    vectors = sum(other.size for other in held.values() if len(other.shape) <= 1)
    if sources or (len(shape.shape) <= 1 and vectors >= shape.size):
        return f"Say which is which: demo_leaves={{{leaf}: NAME}}, or NAME + NAME for several in a row. "
    return ""


def _alike(held: LeafSpec, leaf: LeafSpec) -> bool:
    """True if one is of the shape of the other, and of its kind of number; a vector of floats may be one of others."""
    kind, of_leaf = np.dtype(held.dtype).kind, np.dtype(leaf.dtype).kind
    return held.shape == leaf.shape and (kind == of_leaf or (of_leaf == "f" and len(leaf.shape) <= 1))
