"""Evaluates two policies in the same episodes until it is decided which is better.

Both take turns in the same simulators, block by block. The data are looked at after every pair, in the order of the
seeds and never in that of completion: episodes that succeed end sooner.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from enum import StrEnum
from typing import Any

from rlpipe.analysis.evaluation_report import EvaluationReport
from rlpipe.collection.actions import ActionSource, CheckpointPolicy
from rlpipe.collection.baselines import acting_config
from rlpipe.collection.evaluator import Request, check_same_spaces
from rlpipe.collection.seeds import EpisodeKey
from rlpipe.collection.worker import Ready
from rlpipe.config.plan import Plan
from rlpipe.config.protocol import comparable, protocol
from rlpipe.errors import ConfigError
from rlpipe.foreign import begin_notes
from rlpipe.functional.paired import anytime_interval
from rlpipe.metrics import MetricWindow
from rlpipe.metrics.window import merged
from rlpipe.run.checkpoint import Checkpoint
from rlpipe.training.engine import Engine
from rlpipe.training.evaluation import BlockWatch, Progress, run_block, tell_notes
from rlpipe.trajectory import SpaceSpec

FEWEST_IN_A_BLOCK = 10
"""Episodes of a block, which is larger where more environments run side by side: fewer than eight pairs decide nothing,
and each block waits for its longest episode."""


class Verdict(StrEnum):
    """Verdict on the pairs so far, with the counts that it rests on."""

    FIRST = "first"
    """The first policy is better."""
    SECOND = "second"
    """The second one is."""
    EQUAL = "equal"
    """They differ by no more than the margin."""
    UNDECIDED = "undecided"
    """It cannot be told."""


@dataclass
class Tally:
    """Pairs so far.

    Attributes:
        margin: difference of the success rates within which policies count as equal; None if that is not asked
        pairs: number of episodes that both ran
        wins: pairs in which only the first succeeds
        losses: pairs in which only the second does
        low: lower bound of the difference of the success rates, which holds however often one looks
        high: upper bound of it
        verdict: what they show
    """

    margin: float | None = None
    pairs: int = 0
    wins: int = 0
    losses: int = 0
    low: float = -1.0
    high: float = 1.0
    verdict: Verdict = Verdict.UNDECIDED

    def add(self, first: bool, second: bool) -> Verdict:
        """Takes the outcomes of the next episode, and looks."""
        self.pairs += 1
        self.wins += first and not second
        self.losses += second and not first
        self.low, self.high = anytime_interval(self.pairs, self.wins, self.losses)
        if self.low > 0:
            self.verdict = Verdict.FIRST
        elif self.high < 0:
            self.verdict = Verdict.SECOND
        elif self.margin is not None and -self.margin <= self.low and self.high <= self.margin:
            self.verdict = Verdict.EQUAL
        return self.verdict


@dataclass(frozen=True)
class Side:
    """One of the two policies.

    Attributes:
        label: as the user named it
        config: configuration with which it is evaluated
        state: its checkpoint; None for a policy that has none
        make_source: makes the source of its actions for the spaces of the simulator; None for a checkpoint
    """

    label: str
    config: Plan
    state: Checkpoint | None = None
    make_source: Callable[[SpaceSpec], ActionSource] | None = None

    def acting(self, ready: Ready) -> CheckpointPolicy | ActionSource:
        """Returns what acts, for workers whose simulator is ready.

        Raises:
            ConfigError: it was made for other observations or actions.
        """
        if self.make_source is not None:
            return self.make_source(ready.spec)
        assert self.state is not None
        spec = self.state.spaces or ready.spec
        check_same_spaces(f"the simulator of {self.label}", ready.spec, spec)
        return CheckpointPolicy(str(self.state.path), self.config, spec, self.state.policy)

    def report(self, windows: Sequence[MetricWindow], against: str) -> EvaluationReport:
        """Builds the report of all episodes that were run."""
        window = merged(windows)
        evaluation = replace(self.config.evaluation, episodes=len(window.eval_episodes))
        config = replace(self.config, evaluation=evaluation)
        return replace(
            EvaluationReport.of(window, config, self.state, None if self.state else self.label), against=against
        )


@dataclass(frozen=True)
class Decision:
    """Verdict on two policies, with their evaluations.

    Attributes:
        first: label of the first policy
        second: label of the second
        tally: pairs up to the decision
        most: number of pairs after which it would have been given up
        reports: evaluation of each, with all episodes of the blocks that were begun
    """

    first: str
    second: str
    tally: Tally
    most: int
    reports: tuple[EvaluationReport, EvaluationReport] = field(repr=False)

    def as_json(self) -> dict[str, Any]:
        """Returns what ``rlpipe evaluate --until-decided --json`` prints: all but the episodes, which records hold."""
        tally = asdict(self.tally)
        records = [report.record for report in self.reports]
        estimates = [[asdict(estimate) for estimate in report.estimates] for report in self.reports]
        return {
            "first": self.first, "second": self.second, **tally, "most": self.most, "records": records,
            "estimates": estimates,
        }  # fmt: skip


def check_alike(first: Side, second: Side) -> None:
    """Checks that two policies are evaluated in the same episodes.

    Raises:
        ConfigError: their protocols differ.
    """
    ours, theirs = (comparable(protocol(side.config)) for side in (first, second))
    different = [key for key in dict.fromkeys([*ours, *theirs]) if ours.get(key) != theirs.get(key)]
    if different:
        each = "; ".join(f"{key} is {ours.get(key)!r} and {theirs.get(key)!r}" for key in different)
        example = f"{different[0]}={ours.get(different[0])}"
        raise ConfigError(
            f"{first.label} and {second.label} are not evaluated in the same episodes: {each}. Name a value for both, "
            f"such as {example}."
        )


def blocks(config: Plan) -> list[range]:
    """Returns the numbers of the episodes of each task that run together: with every environment busy, and at least
    ``FEWEST_IN_A_BLOCK``; the last block takes the rest."""
    tasks, episodes = max(1, len(config.env.eval.tasks)), config.evaluation.episodes
    slots = min(config.env.eval.total_num_envs, episodes)
    together = slots * -(-FEWEST_IN_A_BLOCK // slots)
    step, of_each = -(-together // tasks), episodes // tasks
    begins = list(range(0, max(1, of_each - step + 1), step))
    return [range(begin, end) for begin, end in zip(begins, [*begins[1:], of_each], strict=True)]


def _episodes_of(config: Plan, block: range) -> set[EpisodeKey]:
    """Returns the episodes of a block."""
    tasks, first_seed = max(1, len(config.env.eval.tasks)), config.evaluation.first_seed
    return {(task, first_seed + number) for task in range(tasks) for number in block}


def shared_workers(config: Plan) -> Plan:
    """Returns a configuration for workers that bring no policy of their own, with the simulators of another one."""
    return replace(acting_config(config), env=config.env)


def evaluate_until_decided(
    first: Side, second: Side, engine: Engine, progress: Progress, *, margin: float | None = None
) -> Decision:
    """Evaluates two policies until the interval of their difference in success lies on one side of 0, or within the
    margin. The interval holds at every number of pairs at once: Waudby-Smith and Ramdas 2024, JRSS B 86:1-27.

    Args:
        first: its configuration says how many episodes there are at most, in which simulator, and how many environments
            of it both policies have side by side
        second: the other one
        engine: made for ``shared_workers`` of the first; closed before this function returns
        progress: is told of the episodes of both
        margin: difference within which they count as equal; None never ends for that
    Raises:
        ConfigError: the simulator tells no success, its episodes do not follow from seeds, or a policy does not fit it.
        RunError: the time for a block was over before all its episodes had ended.
    """
    most = first.config.evaluation.episodes
    same = replace(second.config.env, eval=first.config.env.eval)
    second = replace(second, config=replace(second.config, env=same))  # what its record says
    begin_notes()
    windows: tuple[list[MetricWindow], list[MetricWindow]] = ([], [])
    tally = Tally(margin)
    try:
        ready = engine.start_workers(shared_workers(first.config).schedule, 0)
        if not ready.has_success:
            raise ConfigError(f"{first.config.env.eval.task_name} tells no success, so there is none to compare.")
        acting = [engine.put(side.acting(ready)) for side in (first, second)]
        watch = BlockWatch(progress, 2 * most)
        for block in blocks(first.config):
            request = Request(_episodes_of(first.config, block))
            new = [run_block(engine, policy, watch, request) for policy in acting]
            for of_side, window in zip(windows, new, strict=True):
                of_side.append(window)
            if _look(tally, *map(outcomes_of, new)) is not Verdict.UNDECIDED:
                break
        tell_notes(ready, [fault for each in windows for window in each for fault in window.faults])
    finally:
        engine.close()
    reports = first.report(windows[0], second.label), second.report(windows[1], first.label)
    return Decision(first.label, second.label, tally, most, reports)


def _look(tally: Tally, first: dict[tuple[int, str], bool], second: dict[tuple[int, str], bool]) -> Verdict:
    """Looks at the pairs of a block one after the other, in the order of their seeds, up to the one that decides."""
    for key in sorted(first):
        if tally.add(first[key], second[key]) is not Verdict.UNDECIDED:
            break
    return tally.verdict


def outcomes_of(window: MetricWindow) -> dict[tuple[int, str], bool]:
    """Returns the success of each episode by its seed and its task.

    Raises:
        ConfigError: an episode does not follow from a seed, or does not say whether it succeeded.
    """
    success = {}
    for episode in window.eval_episodes:
        if episode.seed is None:
            raise ConfigError("the simulator draws starts of its own, so no two policies can meet the same ones.")
        if episode.success_once is None:
            raise ConfigError(f"the episode of seed {episode.seed} does not say whether it succeeded.")
        success[episode.seed, episode.task or ""] = episode.success_once
    return success
