"""Data that travel from collection to learning: spaces, observation trees, fragments and finished episodes."""

from rlpipe.trajectory.batch import TrajectoryBatch
from rlpipe.trajectory.episode import Episode
from rlpipe.trajectory.spaces import Bool, Float32, LeafSpec, Observations, SpaceSpec
from rlpipe.trajectory.tree import Tree

__all__ = ["Bool", "Episode", "Float32", "LeafSpec", "Observations", "SpaceSpec", "TrajectoryBatch", "Tree"]
