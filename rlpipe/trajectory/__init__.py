"""Data that travel from collection to learning: spaces, observation trees, starts, fragments, episodes."""

from rlpipe.trajectory.batch import TrajectoryBatch
from rlpipe.trajectory.episode import Episode
from rlpipe.trajectory.spaces import Bool, Float32, LeafSpec, Observations, SpaceSpec
from rlpipe.trajectory.starts import ChosenStart, Starts, State
from rlpipe.trajectory.tree import Tree

__all__ = [
    "Bool", "ChosenStart", "Episode", "Float32", "LeafSpec", "Observations", "SpaceSpec", "Starts", "State",
    "TrajectoryBatch", "Tree",
]  # fmt: skip
