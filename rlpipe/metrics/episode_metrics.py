"""Observes finished episodes under one namespace: ``env/`` for training, ``eval/`` for evaluation.

Episodes whose start a curriculum chose have a namespace of their own, ``env/curriculum/``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from rlpipe.metrics.declaration import Metric
from rlpipe.metrics.window import MetricWindow
from rlpipe.trajectory import Episode


class TaskMetrics(NamedTuple):
    """Metrics of several tasks under one namespace: families with a member for each task, and what sums them up."""

    success_once: Metric
    episode_return: Metric
    num_trajectories: Metric
    mean: Metric
    worst: Metric


@dataclass(frozen=True)
class EpisodeMetrics:
    """Metrics of finished episodes under one namespace; None where the namespace does not show a metric.

    ``observe`` is the only place where they are observed, from the rows of ``episodes.jsonl``, so that each metric can
    be recomputed from that file to the last digit.
    """

    success_once: Metric
    episode_return: Metric
    return_std: Metric
    episode_len: Metric
    num_trajectories: Metric
    of_chosen_starts: bool = False  # True for the episodes whose start a curriculum chose, and for those alone
    success_at_end: Metric | None = None
    success_at_reset: Metric | None = None
    fail_once: Metric | None = None
    reward: Metric | None = None
    truncated_fraction: Metric | None = None
    success_once_balanced: Metric | None = None
    fail_at_end: Metric | None = None
    return_dist: Metric | None = None
    return_ma100: Metric | None = None
    episode_len_ma100: Metric | None = None
    success_at_end_ma100: Metric | None = None
    episode_len_dist: Metric | None = None
    episode_len_terminated: Metric | None = None
    episode_len_success: Metric | None = None
    terminated_episodes: Metric | None = None
    reward_term: Metric | None = None
    metrics: Mapping[str, Metric] = field(default_factory=dict)  # families, by what they say of a number's course
    tasks: TaskMetrics | None = None
    edge_success: Metric | None = None  # family, by the edge at which a curriculum put a level

    def observe(self, window: MetricWindow, episodes: Sequence[Episode], incarnation: int = 0) -> None:
        """Observes the finished episodes of this namespace. Without any, only their number is observed, as 0.

        Args:
            window: window to observe in.
            episodes: rows of ``episodes.jsonl`` or ``eval_episodes.jsonl``.
            incarnation: number of resumes before the episodes ended; orders them in time.
        """
        episodes = [e for e in episodes if e.chosen == self.of_chosen_starts]
        window.observe(self.num_trajectories, len(episodes))
        if self.terminated_episodes:
            window.observe(self.terminated_episodes, sum(e.terminated for e in episodes))
        if not episodes:
            return
        places = [(incarnation, e.step, e.slot) for e in episodes]

        def observe(metric: Metric | None, values: Sequence[float | bool | None], **how: Any) -> None:
            """Observes the values that are not None."""
            present = [n for n, value in enumerate(values) if value is not None]
            if metric is not None and present:
                details = {key: [of_all[n] for n in present] for key, of_all in how.items()}
                window.observe(metric, [value for value in values if value is not None], **details)

        returns, lengths = [e.episode_return for e in episodes], [e.length for e in episodes]
        at_end = [e.success_at_end for e in episodes]
        observe(self.episode_return, returns)
        observe(self.return_dist, returns)
        observe(self.return_ma100, returns, places=places)
        observe(self.reward, [e.episode_return / e.length for e in episodes])
        observe(self.episode_len, lengths)
        observe(self.episode_len_dist, lengths)
        observe(self.episode_len_ma100, lengths, places=places)
        observe(self.episode_len_terminated, [e.length if e.terminated else None for e in episodes])
        observe(self.truncated_fraction, [e.truncated and not e.terminated for e in episodes])
        observe(self.success_once, [e.success_once for e in episodes])
        slots = [e.slot for e in episodes]
        observe(self.success_once_balanced, [e.success_once for e in episodes], groups=slots)
        observe(self.success_at_end, at_end)
        observe(self.success_at_end_ma100, at_end, places=places)
        observe(self.success_at_reset, [e.success_at_reset for e in episodes])
        observe(self.episode_len_success, [e.first_success for e in episodes])
        observe(self.fail_once, [e.fail_once for e in episodes])
        observe(self.fail_at_end, [e.fail_at_end for e in episodes])
        if self.reward_term is not None:
            for name in sorted({name for e in episodes for name in e.reward_terms}):
                observe(self.reward_term.member(name), [e.reward_terms.get(name) for e in episodes])
        for key in sorted({key for e in episodes for key in e.metrics}) if self.metrics else ():
            name, _, summary = key.rpartition("/")
            observe(self.metrics[summary].member(name), [e.metrics.get(key) for e in episodes])
        if self.edge_success is not None:
            for edge in sorted({e.edge for e in episodes if e.edge is not None}):
                observe(self.edge_success.member(edge), [e.success_once for e in episodes if e.edge == edge])
        if (tasks := self.tasks) is not None:
            for task in sorted({e.task for e in episodes if e.task is not None}):
                of_task = [e for e in episodes if e.task == task]
                observe(tasks.success_once.member(task), [e.success_once for e in of_task])
                observe(tasks.episode_return.member(task), [e.episode_return for e in of_task])
                observe(tasks.num_trajectories.member(task), [len(of_task)])


def forget_success(window: MetricWindow, namespaces: Sequence[EpisodeMetrics]) -> int:
    """Makes the success of all episodes of a window unknown, because the simulator has told it of none.

    Returns:
        Number of training and evaluation episodes whose success was taken for False.
    """
    untold = sum(episode.success_once is not None for episode in [*window.episodes, *window.eval_episodes])
    for namespace in namespaces:
        of_success = (
            namespace.success_once,
            namespace.success_at_end,
            namespace.success_once_balanced,
            namespace.success_at_end_ma100,
            namespace.episode_len_success,
            namespace.edge_success,
            None if namespace.tasks is None else namespace.tasks.success_once,
        )
        for metric in filter(None, of_success):
            for member in metric.members(window.states):
                window.states.pop(member.name, None)
    unknown: dict[str, Any] = {"success_once": None, "success_at_end": None, "first_success": None}
    window.episodes = [replace(episode, **unknown) for episode in window.episodes]
    window.eval_episodes = [replace(episode, **unknown) for episode in window.eval_episodes]
    return untold


def never_told(key: str, episodes: int) -> str:
    """Sentence on a success that no info of so many finished episodes has told, under the key that was to tell it."""
    return (
        f"{key!r} was never in the info of {episodes} finished episodes, so their success is unknown and no success is "
        "reported. If the task has it in the info only of a success, report it in every step, also where it is false. "
        "Else set success_key to an entry that a step's info holds, or to null for a task without success."
    )
