"""Columns of episodes whose steps an expert has labelled: ``actions`` are the expert's, whoever acted."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from rlpipe.demonstrations.formats.episode import Dataset, RecordedEpisode
from rlpipe.errors import ConfigError

INTERVENED = "intervene_flag"
"""Column [T] bool, as RLinf and others call it: True where the expert acted itself."""
EXECUTED = "executed_action"
"""Column [T, A]: the action that was taken, the expert's or the policy's."""


def as_corrected(episode: RecordedEpisode) -> RecordedEpisode:
    """Returns an episode with the columns of corrections; in one without them, the expert has acted throughout."""
    if INTERVENED in episode.others:
        return episode
    columns = {INTERVENED: np.ones(len(episode), bool), EXECUTED: episode.actions}
    return replace(episode, others={**episode.others, **columns})


def check_no_corrections(dataset: Dataset, why: str) -> None:
    """Checks that the actions of a dataset are those that led from one observation to the next.

    Args:
        dataset: is open.
        why: names who needs that, as the beginning of a sentence that goes on with a relative clause.
    Raises:
        ConfigError: they are corrections.
    """
    if INTERVENED in dataset.features.others:
        raise ConfigError(
            f"{why}, but {dataset.path} holds corrections: its actions are what an expert would have done, not what "
            "led to the next observation. Clone them (rlpipe pretrain), or set algorithm.cloning_coef of PPO or GRPO."
        )
