"""Verifies the record of an evaluation: checks it by itself, and simulates some of its episodes again.

What is opened and run is what the reader of the record names, or what lies beside the record; never what it names.
"""

from __future__ import annotations

import secrets
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeAlias

from rlpipe.analysis import verification
from rlpipe.analysis.evaluation_report import EvaluationReport, sha256_of
from rlpipe.analysis.verification import Finding, Hint, Record, Verification
from rlpipe.collection.actions import ActionSource
from rlpipe.collection.seeds import EpisodeKey
from rlpipe.config.loading import load_config
from rlpipe.config.plan import Plan
from rlpipe.config.protocol import BASELINE_NAMES, protocol
from rlpipe.config.tree import from_yaml, to_yaml
from rlpipe.demonstrations.checks import check_replay
from rlpipe.errors import ConfigError, command_line
from rlpipe.run.checkpoint import file_name, find_checkpoint
from rlpipe.run.directory import RunDirectory, find_run
from rlpipe.training import evaluation
from rlpipe.training.engine import Engine
from rlpipe.training.evaluation import Progress
from rlpipe.trajectory import SpaceSpec

_IN_TURN = "two policies took turns in the same simulators, whose physics keeps something over a reset"
"""Why an evaluation until decided cannot be repeated to the bit where episodes are not independent."""
_ALONE = ("evaluation.replays=0", "evaluation.videos=0")
"""Changes of the configuration on which no episode depends."""
_NOT_OPENED = "and what a record names is opened only where you name it"
MakeEngine: TypeAlias = Callable[[Plan], Engine]
Simulate: TypeAlias = Callable[[Plan, MakeEngine, Progress, Collection[EpisodeKey] | None], EvaluationReport]
"""Runs episodes, all or some, of a configuration."""


@dataclass(frozen=True)
class Reader:
    """Choices of whoever verifies a record.

    Attributes:
        episodes: number of episodes to simulate again; all of a smaller record
        seed: seed of the draw; None takes one from the operating system
        policy: policy that acts: a checkpoint or its run, the recorded baseline, or a policy from elsewhere; None takes
            the checkpoint that is where the record's was, or the recorded baseline
        config: configuration with the simulator of a baseline or of a policy from elsewhere; None takes that of the run
            in which the record lies, or else what the record says of simulators that are shipped with this package
    """

    episodes: int
    seed: int | None = None
    policy: str | None = None
    config: Plan | None = None


@dataclass(frozen=True)
class Opener:
    """Opens policies of a kind: baselines, or those from elsewhere, which only ``rlpipe.serving`` knows.

    Attributes:
        make_source: makes the policy that ``--policy`` names, for the spaces of a simulator
        digests: SHA-256 of its files, by what they hold
    """

    make_source: Callable[[Plan, str], Callable[[SpaceSpec], ActionSource]]
    digests: Callable[[Plan, str], Mapping[str, str]]


@dataclass(frozen=True)
class _Subject:
    """Policy that acts in the episodes of a record, as far as it is the recorded one.

    Attributes:
        config: configuration under which it is evaluated
        findings: what differs from the record
        simulate: evaluates it
        checkpoint: its file; None for others
    """

    config: Plan
    findings: list[Finding]
    simulate: Simulate
    checkpoint: Path | None = None


def verify(
    record: Record, reader: Reader, elsewhere: Opener, make_engine: MakeEngine, progress: Progress
) -> Verification:
    """Verifies a record.

    Args:
        record: the record
        reader: what whoever verifies it has chosen
        elsewhere: opens policies from elsewhere, for those whose policy the reader names
        make_engine: makes an engine for a configuration, which is closed before this function returns
        progress: is told of the progress
    Raises:
        ConfigError: it cannot be simulated here, such as without its simulator, or the reader names another policy.
        RunError: the time for it was over before all episodes had ended, or the policy failed.
    """
    findings = verification.own_findings(record)
    if len(record.rows) != record.episodes or _without_use(findings):
        return verification.unchecked(record, findings)
    subject = _checkpoint(record, reader) if record.policy is None else _source(record, reader, elsewhere)
    if isinstance(subject, Hint):
        return verification.unchecked(record, findings, hint=subject)
    findings += [*subject.findings, *verification.protocol_findings(record, protocol(subject.config))]
    if _without_use(findings):
        return verification.unchecked(record, findings, checkpoint=subject.checkpoint)
    seed = secrets.randbits(32) if reader.seed is None else reader.seed
    numbers = verification.drawn_episodes(record, reader.episodes, seed)
    report = _simulated(record, subject, numbers, make_engine, progress)
    if not subject.config.eval_facts.independent and record.contents.get("against"):
        findings.append(Finding("simulator", _IN_TURN, rejects=False))
    return verification.judged(record, numbers, seed, report, findings)


def _simulated(
    record: Record, subject: _Subject, numbers: Sequence[int], make_engine: MakeEngine, progress: Progress
) -> EvaluationReport:
    """Simulates drawn rows of a record again; all of them, in as many slots, where episodes are not independent."""
    keys, config = record.keys(), subject.config
    only = {key for number in numbers if (key := keys[number]) is not None}
    independent = config.eval_facts.independent
    if independent:
        config = _with_slots(config, _most_needed(config, only))
    else:  # each slot runs what it ran before
        config = _with_slots(config, record.contents["protocol"]["eval_env"].get("total_num_envs"))
    count = len(only) if independent else config.evaluation.episodes

    def show(ended: int, _: int, seconds: float) -> None:
        progress(ended, count, seconds)

    return subject.simulate(config, make_engine, show, only if independent else None)


# --- what acts


def _checkpoint(record: Record, reader: Reader) -> _Subject | Hint:
    """Returns the checkpoint of a record: the reader's, or the one that it names where such files may lie.

    Raises:
        ConfigError: it is no checkpoint, or the record asks for what it does not have.
    """
    file = record.checkpoint_file() if reader.policy is None else _file_of(record, reader.policy)
    if file is None:
        return Hint(f"there is no checkpoint {record.contents.get('checkpoint')}", _command(record, "--policy", "FILE"))
    state, text = find_checkpoint(file)
    findings = verification.checkpoint_findings(record, state)
    config = _config(record, from_yaml(text))

    def simulate(
        config: Plan, make_engine: MakeEngine, progress: Progress, only: Collection[EpisodeKey] | None
    ) -> EvaluationReport:
        return evaluation.evaluate(config, state, make_engine(config.without_learner()), progress, only)

    return _Subject(config, findings, simulate, file)


def _file_of(record: Record, policy: str) -> Path:
    """Returns the checkpoint that the reader names: a file, or a run, of which it is that of the record's iteration.

    Raises:
        ConfigError: there is neither.
    """
    path = find_run(Path(policy))
    if not path.exists():
        raise ConfigError(f"--policy is {policy}, but {record.path} is of a checkpoint: name its file or its run.")
    return path / "checkpoints" / file_name(record.contents["iteration"]) if path.is_dir() else path


def _source(record: Record, reader: Reader, elsewhere: Opener) -> _Subject | Hint:
    """Returns the baseline of a record, or the policy from elsewhere that the reader names for it.

    Raises:
        ConfigError: the reader names another kind of policy, or it does not fit the task.
    """
    recorded = str(record.policy)
    is_baseline = recorded in BASELINE_NAMES
    policy = recorded if is_baseline and reader.policy is None else reader.policy
    if is_baseline and policy != recorded:
        raise ConfigError(f"--policy is {policy}, but {record.path} is of the baseline {recorded}: leave it out.")
    if not is_baseline and policy in BASELINE_NAMES:
        raise ConfigError(f"--policy is {policy}, but {record.path} is of a policy from elsewhere, {recorded!r:.200}.")
    if policy is None:
        reason = f"its policy is {recorded!r:.200}, {_NOT_OPENED}"
        return Hint(reason, _command(record, "--policy", recorded if recorded.isprintable() else "POLICY"))
    config = _config_of_source(record, reader, policy)
    if isinstance(config, Hint):
        return config
    baseline = Opener(evaluation.baseline_source, demonstrations_digest)
    opener = baseline if is_baseline else elsewhere
    make_source, digests = opener.make_source(config, policy), opener.digests(config, policy)
    findings = verification.policy_findings(record, policy, digests)

    def simulate(
        config: Plan, make_engine: MakeEngine, progress: Progress, only: Collection[EpisodeKey] | None
    ) -> EvaluationReport:
        return evaluation.evaluate_source(
            config, policy, make_source, lambda acting: make_engine(acting.without_learner()), progress, only
        )

    return _Subject(config, findings, simulate)


def demonstrations_digest(config: Plan, baseline: str) -> dict[str, str]:
    """Returns SHA-256 of the demonstrations that ``replay`` repeats, as hexadecimal digits; nothing for others."""
    digest = sha256_of(Path(config.demos)) if baseline == "replay" and config.demos is not None else None
    return {} if digest is None else {"demonstrations": digest}


def _config_of_source(record: Record, reader: Reader, policy: str) -> Plan | Hint:
    """Returns the configuration for a policy that is none of a checkpoint, changed to evaluate as a record says."""
    if reader.config is not None:
        settings = from_yaml(to_yaml(reader.config))
    elif (run := record.run()) is not None:
        settings = from_yaml(to_yaml(load_config(RunDirectory.existing(run).path / "config.yaml", _ALONE)))
    else:
        settings = verification.settings_of(record)
    demonstrations = policy == "replay" and settings.get("demos") is None
    if not settings or demonstrations:
        what = "demonstrations" if settings else "a simulator that is code, or needs some"
        words = ["--config", "CONFIG"] if reader.policy is None else ["--policy", policy, "--config", "CONFIG"]
        return Hint(f"it names {what}, {_NOT_OPENED}", _command(record, *words))
    normalizer = settings.get("evaluation", {}).get("external", {}).get("normalizer")
    config = _config(record, settings, verification.source_overrides(record, policy, normalizer))
    if policy == "replay":
        check_replay(config)
    return config


def _command(record: Record, *options: str) -> str:
    return command_line("verify", record.path, *options)


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


def _config(record: Record, settings: Mapping[str, Any], overrides: Sequence[str] = ()) -> Plan:
    """Returns a configuration, such as that of a checkpoint, changed to evaluate as a record says."""
    usual = protocol(load_config(settings, _ALONE))
    return load_config(settings, [*verification.overrides_of(record, usual), *overrides, *_ALONE])
