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
    protocol, rows = run["protocol"], []
    for _, record in results_of(folder.parent, iteration):
        protocol, rows = record["protocol"], record["episodes"]
        break
    ledger = folder.parent / "eval_episodes.jsonl"
    if not rows and ledger.is_file():
        rows = [row for row in read_jsonl(ledger) if row["iteration"] == iteration]
    config = completed(directory.read_config())
    return facts | {
        "experiment": run["experiment"],
        "task": config.get("env.eval.id") or config["env.eval.name"],
        "protocol": comparable(protocol),
        "estimates": [asdict(estimate) for estimate in estimates([Episode.from_row(row) for row in rows])],
    }


def card_text(card: Mapping[str, Any]) -> str:
    """Returns the card as a page in Markdown."""
    spaces = card["spaces"]
    leaves = spaces["leaves"] or {"observation": {"shape": [spaces["observation_dim"]], "dtype": "float32"}}
    observed = [f"| `{name}` | {leaf['dtype']} | {leaf['shape']} |" for name, leaf in leaves.items()]
    if spaces["num_actions"] is None:
        bounds = [f"{low} to {high}" for low, high in zip(spaces["action_low"], spaces["action_high"], strict=True)]
        same = bounds[0] if len(set(bounds)) == 1 else "; ".join(bounds)
        acted = f"{spaces['action_dim']} numbers, each {same}" if len(set(bounds)) == 1 else f"numbers: {same}"
    else:
        acted = f"discrete, {spaces['num_actions']} choices"
    chunk = f", {card['chunk_size']} at a time, of which {card['execute']} are taken" if card["chunk_size"] > 1 else ""
    kind = "most likely actions" if card["deterministic"] else "sampled actions"
    memory = f" It remembers {card['memory_width']} numbers." if card["memory_width"] else ""
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
    protocol = [f"- `{key}`: {value}" for key, value in card.get("protocol", {}).items()]
    return "\n".join([
        f"# {card.get('experiment') or card['run_id']}",
        "",
        f"A policy for {card.get('task', 'an unnamed task')} (`{card['policy']}`, {kind}), from iteration "
        f"{card['iteration']} of the run {card['run_id']}.{memory}",
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
        f"Actions: {acted}{chunk}. Observations go in as the environment gives them: normalising is part of the graph.",
        "",
        *(["## Protocol", "", *protocol, ""] if protocol else []),
        f"SHA-256 of the checkpoint: `{card['digest']}`",
        "",
    ])  # fmt: skip


def _interval(estimate: Mapping[str, Any]) -> str:
    return "" if estimate["low"] is None else f"[{estimate['low']:.3f}, {estimate['high']:.3f}]"
