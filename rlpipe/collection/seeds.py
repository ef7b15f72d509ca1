"""Reset seeds of training and evaluation episodes."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TypeAlias

import numpy as np

from rlpipe.config.schema import FIRST_TRAINING_SEED

CURRICULUM = 1
"""Last part of the seed by which a slot draws one of the starts that a curriculum offers."""


EpisodeKey: TypeAlias = tuple[int, int]
"""Number of the task of an episode, 0 where there is only one, and its seed: together they tell it from all others."""


def training_seed(seed: int, incarnation: int, stage: int, slot: int, episode: int, life: Sequence[int] = ()) -> int:
    """Returns the reset seed of a training episode, in [2^30, 2^31).

    It depends on the slot and not on the worker, so the number of workers does not change what is trained on. It also
    depends on how often the run was resumed and the worker or its simulator replaced, so no episode is repeated.

    Args:
        seed: ``runner.seed``
        incarnation: number of times the run was resumed
        stage: index of the stage
        slot: number of the environment among those of all workers
        episode: number of the episode in its slot
        life: replacements of the worker and of its simulator; empty before the first one
    """
    drawn = np.random.SeedSequence([seed, incarnation, stage, slot, episode, *life]).generate_state(1)[0]
    return FIRST_TRAINING_SEED + int(drawn) % FIRST_TRAINING_SEED


def task_of_slot(slot: int, tasks: int) -> int:
    """Returns the number of the task that a slot of an evaluation runs: each has as many slots, or one more."""
    return slot % tasks


def episode_keys(episodes: int, first_seed: int, tasks: int) -> list[EpisodeKey]:
    """Lists the episodes of an evaluation: those of each task have the seeds from ``first_seed`` on, as if it were
    evaluated by itself.

    Args:
        episodes: number of all episodes, which the tasks share evenly.
        first_seed: seed of the first episode of each task.
        tasks: number of tasks.
    """
    return [(task, first_seed + number) for task in range(tasks) for number in range(episodes // tasks)]


def seeds_of_slots(episodes: Collection[EpisodeKey], slots: int, tasks: int) -> list[list[int]]:
    """Returns the seeds of each slot in turn: a task's episodes are dealt to its slots in the order of their seeds.

    Args:
        episodes: all that run; where a task has fewer than slots, some have none.
        slots: number of slots, at least one for each task.
        tasks: number of tasks.
    """
    of_tasks: list[list[int]] = [[] for _ in range(tasks)]
    for task, seed in sorted(episodes):
        of_tasks[task].append(seed)
    queues = []
    for slot in range(slots):
        task = task_of_slot(slot, tasks)
        count = len(range(task, slots, tasks))  # slots of the task
        queues.append(of_tasks[task][slot // tasks :: count])
    return queues
