"""Names where two runs of one configuration and seed part: the first iteration, and the first thing in it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import zip_longest
from typing import Any

from rlpipe.analysis.evaluated_run import EvaluatedRun
from rlpipe.run.directory import FINGERPRINTS, read_jsonl
from rlpipe.trajectory.fingerprint import DIGITS, MOST_STEPS

_BY_STEP = {
    "observations": "the simulator: the same actions lead to other observations, at step {step} of {slots}",
    "actions": "the policy: the same weights, noise and observations give other actions, at step {step} of {slots}",
    "outcomes": "the simulator: the same actions lead to other rewards or ends, at step {step} of {slots}",
}
"""Meaning of the first digest of a step that differs, in the order in which a step comes about."""


def where_runs_part(runs: Sequence[EvaluatedRun]) -> list[str]:
    """Says, of runs with the same configuration and seed as one before them, where the two part.

    Runs without fingerprints, which an earlier version made, are left out.
    """
    fingerprints = [_fingerprints(run) for run in runs]
    sentences = []
    for index, run in enumerate(runs):
        alike = (n for n in range(index) if fingerprints[n] and _same(runs[n], run))
        first = next(alike, None) if fingerprints[index] else None
        if first is not None:
            names = f"{runs[first].path.name} and {run.path.name} have one configuration and seed"
            sentences.append(f"{names}, {_difference(fingerprints[first], fingerprints[index])}.")
    return sentences


def _same(first: EvaluatedRun, second: EvaluatedRun) -> bool:
    return (first.seed, first.kind) == (second.seed, second.kind)


def _fingerprints(run: EvaluatedRun) -> dict[int, Mapping[str, Any]]:
    """Returns the lines of a run by iteration."""
    file = run.path / FINGERPRINTS
    return {line["iteration"]: line for line in read_jsonl(file)} if file.is_file() else {}


def _difference(first: Mapping[int, Mapping[str, Any]], second: Mapping[int, Mapping[str, Any]]) -> str:
    """Describes the first difference of the iterations that both have."""
    both = sorted(first.keys() & second.keys())
    for iteration in both:
        if part := first_difference(first[iteration], second[iteration], iteration):
            return f"and part in iteration {iteration} by {part}"
    return f"and are equal to the bit in their first {len(both)} iterations, as far as fingerprints go"


def first_difference(first: Mapping[str, Any], second: Mapping[str, Any], iteration: int) -> str:
    """Describes the first thing that differs in an iteration of two runs; empty if nothing does.

    Args:
        first: line of ``fingerprints.jsonl``
        second: the same line of another run
        iteration: its number, from 1
    """
    updates, others = first["updates"], second["updates"]
    if [update["weights"] for update in updates] != [update["weights"] for update in others]:
        return "the weights at its start" + (": the first weights of the run" if iteration == 1 else "")
    fragments = list(zip_longest(first["fragments"], second["fragments"]))
    if any(None in pair or _slots(pair[0]) != _slots(pair[1]) for pair in fragments):
        return "who collected it: the numbers of workers or of their environments differ"
    for key, meaning in (
        ("start", "the simulator: the same seeds begin other episodes, in {slots}"),
        ("noise", "the noise of the actions, in {slots}"),
    ):
        for fragment, other in fragments:
            if fragment[key] != other[key]:
                return meaning.format(slots=_slots(fragment))
    steps = [
        (step, order, meaning.format(step=_step(step), slots=_slots(fragment)))
        for fragment, other in fragments
        for order, (key, meaning) in enumerate(_BY_STEP.items())
        if (step := _first_step(fragment[key], other[key])) is not None
    ]
    if steps:
        return min(steps)[2]
    return "the learner: the same weights and batch lead to other weights" if updates != others else ""


def _slots(fragment: Mapping[str, Any]) -> str:
    first = fragment["first_slot"]
    return f"environments {first} to {first + fragment['slots'] - 1}"


def _step(step: int) -> str:
    return f"{step} or later" if step == MOST_STEPS else str(step)


def _first_step(first: str, second: str) -> int | None:
    """Returns the first step, from 0, whose digests differ; None if none does."""
    if first == second:
        return None
    digits = next((n for n, pair in enumerate(zip(first, second, strict=False)) if len({*pair}) > 1), None)
    return min(len(first), len(second)) // DIGITS if digits is None else digits // DIGITS
