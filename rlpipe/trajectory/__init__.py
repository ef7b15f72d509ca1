"""Data that travel between actors: spaces, observation trees, starts, fragments, episodes and their replays."""

from rlpipe.trajectory.episode import Episode
from rlpipe.trajectory.replay import Recording, Replay
from rlpipe.trajectory.scene import Body, Scene, Shape
from rlpipe.trajectory.spaces import Bool, Float32, LeafSpec, Observations, SpaceSpec
from rlpipe.trajectory.starts import ChosenStart, Starts, State
from rlpipe.trajectory.tree import Tree

__all__ = [
    "Body", "Bool", "ChosenStart", "Episode", "Float32", "LeafSpec", "Observations", "Recording", "Replay", "Scene",
    "Shape", "SpaceSpec", "Starts", "State", "Tree",
]  # fmt: skip
