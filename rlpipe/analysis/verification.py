"""Judges the record of an evaluation: by itself, and against episodes of it that were simulated again.

Runs no episodes, and knows nothing of simulators or policies.
"""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from enum import StrEnum
from pathlib import Path
from typing import Any

import numpy as np

from rlpipe import files
from rlpipe.analysis.evaluation_report import (
    EVALUATIONS,
    EvaluationReport,
    committed,
    estimates,
    protocol_digest,
    root_of,
    sha256_of_file,
    weights_digest,
)
from rlpipe.collection.seeds import EpisodeKey, episode_keys
from rlpipe.config.protocol import WHERE_IT_RUNS, comparable
from rlpipe.config.tree import leaves, tasks_without
from rlpipe.envs.shared.tasks import label_of
from rlpipe.errors import ConfigError
from rlpipe.functional.commitments import canonical_json, chance_of_catching
from rlpipe.functional.paired import mcnemar_test
from rlpipe.plugins import shipped
from rlpipe.run import shapes
from rlpipe.run.checkpoint import Checkpoint
from rlpipe.trajectory import Episode

LEVEL = 0.01
"""Level of the exact test of outcomes on another machine: so often it rejects a true record, at most."""
FORGED = 0.05
"""Share of forged rows for which a verification tells its chance."""
_MOST_NAMED = 5
"""Episodes that a finding names."""
_OUTCOME = ("success_once", "success_at_end", "success_at_reset", "return", "length", "terminated", "truncated")
"""Fields of an episode that say how it went."""
_NOT_OF_NUMBERS = ("ray",)
"""Recorded packages on which no episode of an evaluation depends."""
_OF_ALL = ("python", "rlpipe", "torch", "numpy")
"""Recorded packages that are no simulator's."""


class Verdict(StrEnum):
    """Outcome of a verification."""

    VERIFIED = "verified"
    """Every drawn episode is the same to the bit."""
    STATISTICALLY = "verified statistically"
    """Bits differ, on another machine or with other versions, but outcomes no more than such a change explains."""
    REJECTED = "not verified"
    """The record contradicts itself, its checkpoint, or what was simulated again."""
    UNCHECKED = "not simulated"
    """The record agrees with itself, and nothing is known, or named by the reader, to simulate it with."""


@dataclass(frozen=True)
class Finding:
    """One thing that differs.

    Attributes:
        part: ``record``, ``seed``, ``weights``, ``checkpoint``, ``source``, ``server``, ``protocol``, ``simulator``,
            ``kernel``, ``code`` or ``outcome``
        message: what was recorded, and what is true
        rejects: True if the record cannot be true; False for a circumstance that explains other bits
    """

    part: str
    message: str
    rejects: bool = True


@dataclass(frozen=True)
class Hint:
    """Why no episode of a record was simulated again, and what to type for it.

    Attributes:
        reason: a clause
        command: command line
    """

    reason: str
    command: str


@dataclass(frozen=True)
class Verification:
    """Result of a verification.

    Attributes:
        record: the file
        checkpoint: file of the checkpoint that acted; None without one
        verdict: outcome
        findings: what differs
        episodes: episodes of the record
        drawn: episodes that were simulated again
        seed: seed of the draw
        identical: drawn episodes that are the same to the bit
        better: drawn episodes that went better in the record than here
        worse: likewise, worse
        p_value: of as many or more of one kind, if both are as likely; None if the outcomes were not tested
        chance: probability that a record with one forged row in twenty had been found out
        policy: baseline, or policy from elsewhere, that acted or is recorded; None for a checkpoint
        hint: why nothing was simulated, and what to type; None where it was, or where that would tell nothing
    """

    record: str
    checkpoint: str | None
    verdict: Verdict
    findings: list[Finding]
    episodes: int
    drawn: int = 0
    seed: int | None = None
    identical: int = 0
    better: int = 0
    worse: int = 0
    p_value: float | None = None
    chance: float = 0.0
    policy: str | None = None
    hint: Hint | None = None

    def as_json(self) -> dict[str, Any]:
        """Returns all fields."""
        return asdict(self)


@dataclass(frozen=True)
class Record:
    """Record of an evaluation, with what it needs to be simulated again.

    Attributes:
        path: the file
        contents: checked against ``shapes.EvaluationRecord``
    """

    path: Path
    contents: shapes.EvaluationRecord = field(repr=False)

    @classmethod
    def read(cls, path: Path) -> Record:
        """Reads a record.

        Raises:
            ConfigError: the file cannot be read, or is no record of an evaluation.
        """
        contents = files.read(path, shapes.EvaluationRecord)
        try:
            canonical_json(contents)
        except ValueError as error:
            raise ConfigError(f"{path} holds a number that is not finite, as no record does.") from error
        return cls(path, contents)

    @property
    def rows(self) -> list[dict[str, Any]]:
        """Rows of all episodes."""
        return self.contents["episodes"]

    @property
    def episodes(self) -> int:
        """Number of episodes that its protocol asks for, which its tasks share evenly."""
        return self.contents["protocol"]["evaluation_episodes"] // len(self.tasks) * len(self.tasks)

    @property
    def tasks(self) -> list[str | None]:
        """Labels of the tasks in the order of their slots; a single None for an evaluation of one task."""
        simulator: Mapping[str, Any] = self.contents["protocol"]["eval_env"]
        return [str(label_of(entry, simulator.get("id", ""))) for entry in simulator.get("tasks", [])] or [None]

    def keys(self) -> list[EpisodeKey | None]:
        """Task and seed of each row; None where its seed is unknown, or its task is none of the protocol's."""
        numbers = {label: number for number, label in enumerate(self.tasks)}
        pairs = [(numbers.get(row.get("task")), row["seed"]) for row in self.rows]
        return [None if task is None or seed is None else (task, seed) for task, seed in pairs]

    @property
    def policy(self) -> str | None:
        """Name of the baseline or of the policy from elsewhere that acted; None for a checkpoint."""
        return self.contents.get("policy")

    def run(self) -> Path | None:
        """Returns the run directory in which it lies; None if it lies elsewhere."""
        folder = self.path.absolute().parent
        is_run = folder.name == EVALUATIONS and files.kind_of(folder.parent / "run.json") == "file"
        return folder.parent if is_run else None

    def checkpoint_file(self) -> Path | None:
        """Returns the checkpoint that it names: beside the record, in the run's folder, or where it was; the first that
        is the recorded file, else the first that exists."""
        if (name := self.contents.get("checkpoint")) is None:
            return None
        folder = self.path.absolute().parent
        places = [folder / Path(name).name, folder.parent / "checkpoints" / Path(name).name, Path(name)]
        there = [place for place in places if files.kind_of(place) == "file"]
        digest = self.contents.get("checkpoint_sha256")
        same = [place for place in there if digest is not None and sha256_of_file(place) == digest]
        return next(iter([*same, *there]), None)


class Kind(StrEnum):
    """Kind of a JSON file in a folder of results."""

    RECORD = "record"
    """Record of an evaluation, or a file called like one that is no JSON."""
    ROWS = "rows"
    """Results of evaluations by name, each with its protocol, without episodes and checkpoint."""
    OTHER = "other"


def kind_of(path: Path) -> Kind:
    """Returns what a JSON file is."""
    try:
        contents = files.parsed(files.content(path), object, str(path))
    except ConfigError:
        return Kind.RECORD if path.stem.isdecimal() else Kind.OTHER
    if not isinstance(contents, dict):
        return Kind.OTHER
    if {"episodes", "protocol"} <= contents.keys():
        return Kind.RECORD
    entries = contents.values()
    return (
        Kind.ROWS
        if entries and all(isinstance(entry, dict) and "protocol" in entry for entry in entries)
        else Kind.OTHER
    )


# --- the record by itself


def own_findings(record: Record) -> list[Finding]:
    """Checks a record against itself: seeds, number of episodes, estimates, digest of the protocol, and the root."""
    contents = record.contents
    return [
        *_seed_findings(record),
        *_estimate_findings(contents),
        *(
            [Finding("protocol", "the protocol is not the one that was evaluated: its digest is another")]
            if contents.get("protocol_sha256", digest := protocol_digest(contents["protocol"])) != digest
            else []
        ),
        *(
            [Finding("record", "a row was changed, added or left out: the rows do not have the root of the record")]
            if contents.get("episodes_root", root := root_of(record.rows)) != root
            else []
        ),
    ]


def _seed_findings(record: Record) -> list[Finding]:
    tasks, count = len(record.tasks), record.episodes
    if len(record.rows) != count:  # no more is looked at: a damaged number may ask for any number of episodes
        return [Finding("record", f"it holds {len(record.rows):,} episodes, but its protocol has {count:,}")]
    if all(row["seed"] is None for row in record.rows):
        return []  # the simulator draws its own
    demanded = {*episode_keys(count, record.contents["protocol"]["evaluation_first_seed"], tasks)}
    keys = Counter(record.keys())
    strange = sorted(
        str(row["seed"]) for row, key in zip(record.rows, record.keys(), strict=True) if key not in demanded
    )
    repeated = sorted(str(key[1]) for key, times in keys.items() if key in demanded and key is not None and times > 1)
    missing = sorted(str(seed) for _, seed in demanded - keys.keys())
    if not missing:
        return []
    what = {"is no seed of its protocol": strange, "stands there more than once": repeated, "is missing": missing}
    sentence = "; ".join(f"{_some(seeds)} {verb}" for verb, seeds in what.items() if seeds)
    return [Finding("seed", f"a seed was changed: {sentence}")]


def _estimate_findings(contents: shapes.EvaluationRecord) -> list[Finding]:
    """Checks the estimates against the rows, to within the rounding of other versions of NumPy."""
    recorded: dict[str, Mapping[str, Any]] = {entry["metric"]: entry for entry in contents.get("estimates", [])}
    episodes = [Episode.from_row(row) for row in contents["episodes"]]
    of_rows = {estimate.metric: asdict(estimate) for estimate in estimates(episodes)}
    if not recorded:
        return []
    wrong = [
        f"{metric} is {recorded.get(metric, {}).get('value')}, but its rows give {of_rows.get(metric, {}).get('value')}"
        for metric in dict.fromkeys([*recorded, *of_rows])
        if not _close(recorded.get(metric), of_rows.get(metric))
    ]
    return [Finding("record", f"its estimates are not those of its rows: {'; '.join(wrong)}")] if wrong else []


def _close(first: Mapping[str, Any] | None, second: Mapping[str, Any] | None) -> bool:
    if first is None or second is None:
        return False
    pairs = [(first.get(key), second.get(key)) for key in ("value", "low", "high", "episodes")]
    return all(a == b or (a and b and math.isclose(a, b, rel_tol=1e-9)) for a, b in pairs)


# --- its checkpoint


def checkpoint_findings(record: Record, state: Checkpoint) -> list[Finding]:
    """Compares a checkpoint with the one that a record says was evaluated."""
    contents = record.contents
    weights, iteration = contents.get("weights_sha256"), state.meta["iteration"]
    if weights is not None and weights != (digest := weights_digest(state)):
        return [Finding("weights", f"the record is of weights {weights[:12]}, but {state.path} has {digest[:12]}")]
    if iteration != contents["iteration"]:
        message = f"the record is of iteration {contents['iteration']}, but {state.path} of iteration {iteration}"
        return [Finding("weights", message)]
    if contents.get("checkpoint_sha256", file := sha256_of_file(state.path)) != file:
        return [Finding("checkpoint", "the file is another one, of the same weights", rejects=False)]
    return []


# --- its policy, if that is none of a checkpoint


def policy_findings(record: Record, name: str, digests: Mapping[str, str]) -> list[Finding]:
    """Compares the files of a policy from elsewhere, or of demonstrations, with those that a record says were read.

    Args:
        name: policy that acts here
        digests: SHA-256 of its files by what they hold
    """
    findings = []
    recorded = record.contents.get("policy_sha256", digests)
    for part in dict.fromkeys([*recorded, *digests]):
        before, now = (each.get(part, "")[:12] or "none" for each in (recorded, digests))
        if before != now:
            place, rejects = ("source", False) if part == "source" else ("weights", True)  # other lines may do the same
            findings.append(Finding(place, f"the record is of {part} {before}, but {name} has {now}", rejects))
    if name.startswith(("ws://", "wss://")):
        message = f"{name} states no digest of its weights, and neither its machine nor its versions"
        findings.append(Finding("server", message, rejects=False))
    return findings


def settings_of(record: Record) -> dict[str, Any]:
    """Returns a configuration for the episodes of a record, made from its protocol alone; empty where that names code
    to run, or anything that is not shipped with this package: a record may come from anywhere."""
    simulator = record.contents["protocol"]["eval_env"]
    options = {key: value for key, value in simulator.items() if key not in WHERE_IT_RUNS}
    if isinstance(tasks := options.get("tasks"), list):
        options["tasks"] = tasks_without(tasks, WHERE_IT_RUNS)
    name = options["name"]
    plain = all(_is_plain(f"env.eval.{key}", value) for key, value in options.items() if key != "name")
    if not plain or name not in shipped("envs"):
        return {}
    return {"env": {"train": options, "eval": options}}


def source_overrides(record: Record, policy: str, normalizer: str | None) -> list[str]:
    """Returns what else to change in a configuration for a policy that is none of a checkpoint.

    Args:
        policy: what the reader names; a recorded VecNormalize is looked for beside it, not where it was
        normalizer: VecNormalize that the reader's configuration names; None for none
    Raises:
        ConfigError: how the policy is shown the task refers to the environment of this process.
    """
    protocol = record.contents["protocol"]
    changes: dict[str, Any] = {"num_demos": protocol.get("num_demos")} if policy == "replay" else {}
    if "seed" in protocol:
        changes["runner.seed"] = protocol["seed"]
    external = record.contents.get("external") or {}
    changes |= {f"evaluation.external.{key}": external[key] for key in _ASKED if key in external}
    file = external.get("normalizer")
    if isinstance(file, str) and Path(file).name and normalizer is None:
        changes["evaluation.external.normalizer"] = str(Path(policy).with_name(Path(file).name))
    if any("${" in text for value in changes.values() for text in _texts(value)):
        raise ConfigError(f"{record.path} refers to other values with ${{...}} in external: a record names values.")
    return [f"{key}={json.dumps(value)}" for key, value in changes.items()]


_ASKED = ("inputs", "image_layout", "image_size", "execute", "protocol")
"""Keys of ``evaluation.external`` that decide what a policy is asked; the others are times and a file."""


def overrides_of(record: Record, usual: Mapping[str, Any]) -> list[str]:
    """Returns what to change in a configuration, such as that of a checkpoint, to evaluate as a record says.

    Args:
        usual: protocol that it has by itself
    Raises:
        ConfigError: the record names code to run that the configuration does not: it may come from anywhere.
    """
    simulator = record.contents["protocol"]["eval_env"]["name"]
    if simulator not in (usual["eval_env"]["name"], usual["train_env"]["name"]):
        raise _choice(record, "env.eval.name", simulator)  # before its options are looked up, which imports it
    before, protocol = comparable(usual), comparable(record.contents["protocol"])
    changes = {key: value for key, value in protocol.items() if before.get(key) != value}
    changes |= record.contents.get("changes", {})
    for key, value in changes.items():
        if not _is_plain(key, value):
            raise _choice(record, key, value)
    return [f"{key}={json.dumps(value)}" for key, value in changes.items()]


def _choice(record: Record, key: str, value: Any) -> ConfigError:
    return ConfigError(
        f"{record.path} asks for {key:.80}={value!r:.80}, which {_where(record)} does not have: a record does not "
        f"choose what is run. {_INSTEAD[record.policy is None]}"
    )


def _where(record: Record) -> str:
    return "its checkpoint" if record.policy is None else "the configuration"


_INSTEAD = {
    True: "Evaluate the checkpoint again instead.",
    False: "Name a run or a configuration that has it: --config.",
}
"""Remedies for a record that names code, by whether it is of a checkpoint."""


def _is_plain(key: str, value: Any) -> bool:
    """True if a change of the configuration names no code, such as a plug-in, a module or an interpreter."""
    names = [name for name, _ in leaves(value, key)]
    clean = all(re.fullmatch(r"[\w.-]+", name) and name.rpartition(".")[2] not in _CODE for name in names)
    return clean and not any(":" in text or text in _CODE for text in _texts(value))


_CODE = ("name", "python")
"""Last parts of keys that name code to run."""


def _texts(value: Any) -> list[str]:
    """Lists the texts in a value of JSON, also the keys, however deep."""
    if isinstance(value, str):
        return [value]
    inside = [*value, *value.values()] if isinstance(value, Mapping) else value if isinstance(value, list) else []
    return [text for item in inside for text in _texts(item)]


def protocol_findings(record: Record, protocol: Mapping[str, Any]) -> list[Finding]:
    """Compares a record's protocol with the one that its checkpoint can be evaluated under."""
    recorded, here = comparable(record.contents["protocol"]), comparable(protocol)
    differ = [
        f"{key} is {recorded.get(key)!r} in the record and {here.get(key)!r} here"
        for key in dict.fromkeys([*recorded, *here])
        if json.dumps(recorded.get(key)) != json.dumps(here.get(key))
    ]
    return [Finding("protocol", "; ".join(differ))] if differ else []


# --- against what was simulated again


def drawn_episodes(record: Record, count: int, seed: int) -> list[int]:
    """Draws rows of a record without replacement, by a seed that the record cannot know.

    Raises:
        ConfigError: its episodes do not follow from seeds, so that none can be simulated again.
    """
    numbers = [number for number, key in enumerate(record.keys()) if key is not None]
    if not numbers:
        raise ConfigError(
            f"the episodes of {record.path} do not follow from seeds, so none can be simulated again: compare its mean "
            "with that of another evaluation, rlpipe compare."
        )
    drawn = np.random.default_rng(seed).choice(numbers, min(count, len(numbers)), replace=False)
    return sorted(int(number) for number in drawn)


def unchecked(
    record: Record, findings: Sequence[Finding], *, checkpoint: Path | None = None, hint: Hint | None = None
) -> Verification:
    """Returns the result of a record of which no episode was simulated again."""
    rejected = any(finding.rejects for finding in findings)
    verdict = Verdict.REJECTED if rejected else Verdict.UNCHECKED
    return Verification(
        str(record.path), None if checkpoint is None else str(checkpoint), verdict, list(findings), len(record.rows),
        policy=record.policy, hint=None if rejected else hint,
    )  # fmt: skip


def judged(
    record: Record, numbers: Sequence[int], seed: int, report: EvaluationReport, findings: Sequence[Finding] = ()
) -> Verification:
    """Compares drawn rows with the same episodes as they were simulated again.

    Args:
        record: the record
        numbers: drawn rows
        seed: seed of the draw
        report: evaluation of these episodes alone
        findings: what differs already
    """
    simulated = {_name(row): row for row in (episode.as_row(report.iteration) for episode in report.episodes)}
    pairs = [(record.rows[n], simulated[_name(record.rows[n])]) for n in numbers if _name(record.rows[n]) in simulated]
    if len(pairs) < len(numbers):
        raise ConfigError(
            f"{record.path}: the simulator does not repeat an episode of a seed here, so nothing can be compared: see "
            "what it notes when the checkpoint is evaluated, rlpipe evaluate."
        )
    circumstances = [
        *(finding for finding in findings if not finding.rejects),
        *_circumstances(record.contents, report),
    ]
    contradicted = [finding for finding in findings if finding.rejects]
    identical = sum(_is_identical(*pair) for pair in pairs)
    better, worse = (sum(_direction(*pair) == sign for pair in pairs) for sign in (1, -1))
    rows, forged = len(record.rows), max(1, round(FORGED * len(record.rows)))
    result = Verification(
        str(record.path), report.checkpoint, Verdict.VERIFIED, [*contradicted, *circumstances], rows, len(pairs), seed,
        identical, better, worse, chance=chance_of_catching(rows, forged, len(pairs)), policy=report.policy,
    )  # fmt: skip
    differences = _contradictions(pairs)
    if identical < len(pairs) and not differences:
        if _explain_other_bits(circumstances, identical, len(pairs)):
            p_value = mcnemar_test(better, worse)
            differences = _outcome_findings(pairs, p_value)
            result = replace(result, verdict=Verdict.STATISTICALLY, p_value=p_value)
        else:
            differences = _bit_findings(pairs)
    result = replace(result, findings=[*result.findings, *differences])
    rejected = any(finding.rejects for finding in result.findings)
    return replace(result, verdict=Verdict.REJECTED) if rejected else result


def _name(row: Mapping[str, Any]) -> tuple[str | None, int | None]:
    """Task and seed of an episode, which tell it from all others."""
    return row.get("task"), row["seed"]


Pair = tuple[Mapping[str, Any], Mapping[str, Any]]
"""Row of an episode in the record, and as it was simulated again."""


def _is_identical(recorded: Mapping[str, Any], simulated: Mapping[str, Any]) -> bool:
    """True if two rows are the same, and what they commit to; a record of an earlier version commits to nothing."""
    if "commitment" not in recorded:
        simulated = {key: value for key, value in simulated.items() if key not in ("start", "commitment")}
    return committed(recorded) == committed(simulated)


def _direction(recorded: Mapping[str, Any], simulated: Mapping[str, Any]) -> int:
    """1 if an episode went better in the record, -1 if worse, 0 if alike: by its success, or else by its return."""
    name = "return" if recorded["success_once"] is None or simulated["success_once"] is None else "success_once"
    ours, theirs = ((-math.inf if row[name] is None else row[name]) for row in (simulated, recorded))
    return (theirs > ours) - (theirs < ours)


def _circumstances(contents: shapes.EvaluationRecord, report: EvaluationReport) -> list[Finding]:
    """Says what is another here than where the record was made, so that bits may differ."""
    findings = []
    recorded, here = (
        {name: version for name, version in versions.items() if name not in _NOT_OF_NUMBERS}
        for versions in (contents.get("versions", {}), report.versions)
    )
    for part, names in (
        ("simulator", [name for name in recorded if name not in _OF_ALL]),
        ("kernel", [name for name in recorded if name in _OF_ALL and name != "rlpipe"]),
    ):
        changes = [
            f"{name} {recorded[name]} in the record and {here.get(name, 'missing')} here"
            for name in names
            if recorded[name] != here.get(name)
        ]
        if changes:
            findings.append(Finding(part, ", ".join(changes), rejects=False))
    machines = contents.get("machines")
    if not machines:
        findings.append(Finding("kernel", "the record does not say on which machine it was made", rejects=False))
    elif facts := _different_machines(machines, report.machines):
        findings.append(Finding("kernel", facts, rejects=False))
    if (code := contents.get("code_sha256")) is not None and code != report.code_sha256:
        message = f"rlpipe's files are {code[:12]} in the record and {report.code_sha256[:12]} here"
        findings.append(Finding("code", message, rejects=False))
    return findings


def _different_machines(recorded: Sequence[Mapping[str, Any]], here: Sequence[Mapping[str, Any]]) -> str:
    """Describes facts that are not the same on all machines of both; empty if they are."""
    facts: dict[str, list[set[str]]] = {}
    for side, machines in enumerate((recorded, here)):
        for machine in machines:
            for name, value in machine.items():
                facts.setdefault(name, [set(), set()])[side].add(str(value))
    changes = [
        f"{name} {', '.join(sorted(before)) or 'unknown'} in the record and {', '.join(sorted(now)) or 'unknown'} here"
        for name, (before, now) in facts.items()
        if len(before | now) > 1
    ]
    return ", ".join(changes)


def _explain_other_bits(circumstances: Sequence[Finding], identical: int, drawn: int) -> bool:
    """True if circumstances may be why some of the drawn episodes are not the same to the bit.

    Other code of this package alone changes either nothing or how every episode is computed, so it does not explain a
    few that differ among many that do not. Nor does another file that is said to hold the same policy.
    """
    parts = {finding.part for finding in circumstances} - {"checkpoint", "source"}
    return bool(parts - {"code"}) or ("code" in parts and identical * 2 < drawn)


def _contradictions(pairs: Sequence[Pair]) -> list[Finding]:
    """Finds episodes of the same steps to the bit whose rows nevertheless say something else: on any machine forged."""
    changes = [
        change
        for recorded, simulated in pairs
        if recorded.get("commitment") == simulated["commitment"] and (change := _change(recorded, simulated))
    ]
    return [Finding("outcome", f"flipped: {_some(changes)}")] if changes else []


def _change(recorded: Mapping[str, Any], simulated: Mapping[str, Any]) -> str:
    """Describes how an episode went in the record and here; empty if alike."""
    for name in _OUTCOME:
        if recorded.get(name) != simulated.get(name):
            return f"seed {recorded['seed']}, {name} {recorded.get(name)} in the record and {simulated.get(name)} here"
    return ""


def _outcome_findings(pairs: Sequence[Pair], p_value: float) -> list[Finding]:
    """Judges outcomes where bits may differ: as many must have become better as worse."""
    if p_value >= LEVEL:
        return []
    signs = [_direction(*pair) for pair in pairs]
    better, worse = signs.count(1), signs.count(-1)
    return [
        Finding(
            "outcome",
            f"{better} of {len(pairs)} went better in the record and {worse} worse: were both as likely, chance alone "
            f"would do so with probability {p_value:.2g}",
        )
    ]


def _bit_findings(pairs: Sequence[Pair]) -> list[Finding]:
    """Names what differs where every bit must be the same."""
    different = [pair for pair in pairs if not _is_identical(*pair)]
    started = [pair for pair in different if "start" in pair[0] and pair[0]["start"] != pair[1]["start"]]
    if started and len(started) == len(pairs):
        return [
            Finding("simulator", "no drawn episode starts as recorded: it was another simulator, or had other seeds")
        ]
    if started:
        seeds = _some([recorded["seed"] for recorded, _ in started])
        return [Finding("seed", f"changed: the episode of seed {seeds} starts elsewhere than in the record")]
    if len(different) == len(pairs) and all(_acted_differently(*pair) for pair in different):
        return [
            Finding(
                "weights", "every drawn episode starts as recorded, then differs: other weights acted, or other noise"
            )
        ]
    changes = [_change(*pair) or f"seed {pair[0]['seed']}, its steps" for pair in different]
    return [Finding("outcome", f"{len(different)} of {len(pairs)} are not as recorded: {_some(changes)}")]


def _acted_differently(recorded: Mapping[str, Any], simulated: Mapping[str, Any]) -> bool:
    return "commitment" in recorded and recorded["commitment"] != simulated["commitment"]


def _some(things: Sequence[Any]) -> str:
    """Lists the first few things, and how many more there are."""
    more = f" and {len(things) - _MOST_NAMED} more" if len(things) > _MOST_NAMED else ""
    return "; ".join(map(str, things[:_MOST_NAMED])) + more
