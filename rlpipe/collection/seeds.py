"""Reset seeds of training and evaluation episodes."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from rlpipe.config.schema import FIRST_TRAINING_SEED


def training_seed(seed: int, incarnation: int, stage: int, slot: int, episode: int, life: Sequence[int] = ()) -> int:
    """Reset seed of an episode, in [2^30, 2^31).

    It depends on the slot and not on the worker, so that the number of workers does not change what is trained on; and
    on how often the run was resumed, and the worker or its simulator replaced, so that no episode is played twice.
    """
    drawn = np.random.SeedSequence([seed, incarnation, stage, slot, episode, *life]).generate_state(1)[0]
    return FIRST_TRAINING_SEED + int(drawn) % FIRST_TRAINING_SEED


def episode_seeds(episodes: int, first_seed: int, slots: int) -> list[list[int]]:
    """Seeds of the episodes that each slot runs in turn: episode i has seed ``first_seed + i`` and runs on slot
    ``i % slots``."""
    return [list(range(first_seed + slot, first_seed + episodes, slots)) for slot in range(slots)]
