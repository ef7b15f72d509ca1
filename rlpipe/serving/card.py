"""The card of an exported policy: its task, how it was evaluated, and how well it did."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from rlpipe.analysis.evaluation_report import estimates, folder_of, results_of
from rlpipe.config.defaults import completed
from rlpipe.config.protocol import comparable
from rlpipe.run.checkpoint import Checkpoint
from rlpipe.run.directory import RunDirectory, read_jsonl
from rlpipe.run.provenance import versions
from rlpipe.serving.runner import observed_leaves
from rlpipe.trajectory import Episode


def record_card(state: Checkpoint) -> dict[str, Any]:
    """Returns where a policy comes from and its newest evaluation, as far as the checkpoint lies in its run.

    Returns:
        ``digest`` of the checkpoint's file, ``versions``, and of the run ``experiment``, ``task``, ``protocol`` and
        ``estimates`` of success, return and length with their 95 % intervals.
    """
    facts: dict[str, Any] = {
        "digest": hashlib.sha256(state.path.read_bytes()).hexdigest(),
        "versions": versions(),
        "estimates": [],
    }
    folder = folder_of(state.path)
    if folder is None:
        return facts
    directory = RunDirectory.existing(folder.parent)
    run, iteration = directory.read_json(), state.meta["iteration"]
    while_training: Mapping[str, Any] = {"protocol": run["protocol"], "episodes": []}
    records = (record for _, record in results_of(folder.parent, iteration))
    evaluation: Mapping[str, Any] = next(records, while_training)
    rows, ledger = evaluation["episodes"], folder.parent / "eval_episodes.jsonl"
    if not rows and ledger.is_file():
        rows = [row for row in read_jsonl(ledger) if row["iteration"] == iteration]
    config = completed(directory.read_config())
    return facts | {
        "experiment": run["experiment"],
        "task": config.get("env.eval.id") or config["env.eval.name"],
        "protocol": comparable(evaluation["protocol"]),
        "estimates": [asdict(estimate) for estimate in estimates([Episode.from_row(row) for row in rows])],
    }


def card_text(card: Mapping[str, Any]) -> str:
    """Returns the card as a page in Markdown."""
    spaces, leaves = card["spaces"], observed_leaves(card)
    observed = [f"| `{name}` | {leaf['dtype']} | {leaf['shape']} |" for name, leaf in leaves.items()]
    chunk = f", {card['chunk_size']} at a time, of which {card['execute']} are taken" if card["chunk_size"] > 1 else ""
    memory = f" It has a memory of {card['memory_width']} numbers within an episode." if card["memory_width"] else ""
    measured = [
        f"| {estimate['metric'].partition('/')[2]} | {estimate['value']:.3f} | {_interval(estimate)} | "
        f"{estimate['episodes']} |"
        for estimate in card["estimates"]
    ]
    results = (
        ["| | mean | 95 % interval | episodes |", "|---|---|---|---|", *measured]
        if measured
        else ["This checkpoint was not evaluated: `rlpipe evaluate` does it."]
    )
    protocol: Mapping[str, Any] = card.get("protocol", {})
    if measured and protocol.get("evaluation.deterministic") == (not card["deterministic"]):
        results += ["", f"Its evaluation took {_kind_of_actions(not card['deterministic'])}, unlike this export."]
    settings = [f"- `{key}`: {value}" for key, value in sorted(protocol.items()) if value not in (None, False, [], {})]
    return "\n".join([
        f"# {card.get('experiment') or card['run_id']}",
        "",
        f"A policy for {card.get('task', 'an unnamed task')} (`{card['policy']}`, "
        f"{_kind_of_actions(card['deterministic'])}), from iteration {card['iteration']} of the run {card['run_id']}."
        f"{memory}",
        "",
        *results,
        "",
        "## Use",
        "",
        "```python",
        "from runner import load  # needs numpy and onnxruntime",
        "",
        'policy = load(".")',
        "policy.reset()  # where an episode begins",
        "action = policy.act(observation)",
        "```",
        "",
        "| observation | type | shape |",
        "|---|---|---|",
        *observed,
        "",
        f"An action is {_action(spaces)}{chunk}. Observations go in as the environment gives them: normalising is part "
        "of the graph.",
        "",
        f"The graph was compared with the policy: {checked_on(card)}.",
        "",
        *(["## Protocol of the evaluation", "", *settings, ""] if settings else []),
        f"SHA-256 of the checkpoint: `{card['digest']}`",
        "",
    ])  # fmt: skip


def _kind_of_actions(deterministic: bool) -> str:
    return "most likely actions" if deterministic else "sampled actions"


def _action(spaces: Mapping[str, Any]) -> str:
    """Describes an action: how many numbers within which bounds, or of how many choices."""
    if isinstance(parts := spaces["num_actions"], int):
        return f"a whole number from 0 to {parts - 1}"
    if parts is not None:
        return f"{len(parts)} whole numbers, of {', '.join(map(str, parts))} choices"
    bounds = [f"{low} to {high}" for low, high in zip(spaces["action_low"], spaces["action_high"], strict=True)]
    if len(bounds) == 1:
        return f"a number from {bounds[0]}"
    each = f"each from {bounds[0]}" if len(set(bounds)) == 1 else f"from {'; '.join(bounds)}"
    return f"{len(bounds)} numbers, {each}"


def checked_on(card: Mapping[str, Any]) -> str:
    """Returns how an export was compared with its policy, in words."""
    check = card["check"]
    visited = f" and {check['visited']} visited" if check["visited"] else ""
    observations = f"{check['random']} random{visited} observations"
    if check["other"]:
        return f"{observations}, of whose actions {check['other']} lie on a tie and differ"
    if card["spaces"]["num_actions"] is not None:
        return f"{observations}, equal actions"
    return f"{observations}, largest difference {check['difference']:.0e} of half the range"


def _interval(estimate: Mapping[str, Any]) -> str:
    return "" if estimate["low"] is None else f"[{estimate['low']:.3f}, {estimate['high']:.3f}]"
