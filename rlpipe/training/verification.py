"""Verifies the record of an evaluation: checks it by itself, and simulates some of its episodes again."""

from __future__ import annotations

import secrets
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

from rlpipe.analysis import verification
from rlpipe.analysis.verification import Finding, Record, Verification
from rlpipe.collection.seeds import EpisodeKey
from rlpipe.config.loading import load_config
from rlpipe.config.plan import Plan
from rlpipe.config.protocol import protocol
from rlpipe.config.tree import from_yaml
from rlpipe.run.checkpoint import find_checkpoint
from rlpipe.training import evaluation
from rlpipe.training.engine import Engine
from rlpipe.training.evaluation import Progress

_IN_TURN = "two policies took turns in the same simulators, whose physics keeps something over a reset"
"""Why an evaluation until decided cannot be repeated to the bit where episodes are not independent."""
_ALONE = ("evaluation.replays=0", "evaluation.videos=0")
"""Changes of the configuration on which no episode depends."""


def verify(
    record: Record, episodes: int, seed: int | None, make_engine: Callable[[Plan], Engine], progress: Progress
) -> Verification:
    """Verifies a record.

    Args:
        record: the record
        episodes: number of episodes to simulate again; all of a smaller record
        seed: seed of the draw; None takes one from the operating system
        make_engine: makes an engine for a configuration, which is closed before this function returns
        progress: is told of the progress
    Raises:
        ConfigError: it cannot be simulated here, such as without its simulator.
        RunError: the time for it was over before all episodes had ended.
    """
    findings = verification.own_findings(record)
    file = None if record.contents.get("policy") is not None else record.checkpoint_file()
    if file is None or len(record.rows) != record.episodes or _without_use(findings):
        return verification.unchecked(record, None, findings)
    state, text = find_checkpoint(file)
    findings += verification.checkpoint_findings(record, state)
    config = _config(record, from_yaml(text))
    findings += verification.protocol_findings(record, protocol(config))
    if _without_use(findings):
        return verification.unchecked(record, file, findings)
    seed = secrets.randbits(32) if seed is None else seed
    numbers = verification.drawn_episodes(record, episodes, seed)
    keys = record.keys()
    only = {key for number in numbers if (key := keys[number]) is not None}

    independent = config.eval_facts.independent
    if independent:
        config = _with_slots(config, _most_needed(config, only))
    else:  # each slot runs what it ran before
        config = _with_slots(config, record.contents["protocol"]["eval_env"].get("total_num_envs"))
        findings += [Finding("simulator", _IN_TURN, rejects=False)] if record.contents.get("against") else []
    count = len(only) if independent else config.evaluation.episodes

    def show(ended: int, _: int, seconds: float) -> None:
        progress(ended, count, seconds)

    engine = make_engine(config.without_learner())
    report = evaluation.evaluate(config, state, engine, show, only if independent else None)
    return verification.judged(record, numbers, seed, report, findings)


def _without_use(findings: Sequence[Finding]) -> bool:
    """True if the record is of other episodes or weights, so that to simulate would tell nothing."""
    return any(finding.rejects and finding.part in ("seed", "weights", "protocol") for finding in findings)


def _most_needed(config: Plan, episodes: Collection[EpisodeKey]) -> int:
    """Returns a number of slots with no more of a task than any task has of these episodes: nothing depends on it, and
    simulators without an episode would be made for nothing."""
    most = max(Counter(task for task, _ in episodes).values())
    present: int = config.env.eval.total_num_envs
    return min(present, most * max(1, len(config.env.eval.tasks)))


def _with_slots(config: Plan, slots: Any) -> Plan:
    """Returns a configuration with so many slots, or as it is where a record names no number of them."""
    if type(slots) is not int or slots < max(1, len(config.env.eval.tasks)):
        return config
    return replace(config, env=replace(config.env, eval=replace(config.env.eval, total_num_envs=slots)))


def _config(record: Record, trained_with: Mapping[str, Any]) -> Plan:
    """Returns the configuration of a checkpoint, changed to evaluate as a record says."""
    usual = protocol(load_config(trained_with, _ALONE))
    return load_config(trained_with, [*verification.overrides_of(record, usual), *_ALONE])
