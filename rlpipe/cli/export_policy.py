"""``rlpipe export RUN --format onnx``: writes the policy of a run as a graph that needs neither torch nor rlpipe."""

from __future__ import annotations

import json
from pathlib import Path

from rich.console import Console
from rich.markup import escape

from rlpipe.errors import ConfigError


def export_onnx(path: Path, out: Path | None, *, best: bool, deterministic: bool | None) -> None:
    """Writes a folder with the graph, its card and its runner, and prints what it holds and how it was checked.

    Args:
        path: run directory, or checkpoint file.
        out: folder to make.
        best: take the checkpoint with the best evaluation instead of the newest.
        deterministic: take the most likely actions, or sampled ones; None for what the evaluations of the run did.
    Raises:
        ConfigError: there is no such policy, it cannot be written as a graph, or the folder exists.
    """
    from rlpipe.run.checkpoint import find_checkpoint
    from rlpipe.serving.card import checked_on
    from rlpipe.serving.export import export_policy
    from rlpipe.serving.loading import CARD

    if out is None:
        raise ConfigError("--format onnx needs --out: name a folder that does not exist yet, such as --out policy.")
    with Console(stderr=True).status("writing the graph and checking it"):
        folder, _ = export_policy(find_checkpoint(path, best)[0], out, deterministic=deterministic)
    card = json.loads((folder / CARD).read_text(encoding="utf-8"))
    kind = "most likely actions" if card["deterministic"] else "sampled actions"
    facts = {
        "policy": f"{card['policy']}, {kind}, iteration {card['iteration']} of {card['run_id']}",
        "written": ", ".join(f"{file.name} ({file.stat().st_size / 1e3:,.1f} kB)" for file in sorted(folder.iterdir())),
        "checked": checked_on(card),
        "in Python": f"import rlpipe; policy = rlpipe.load_policy({str(folder)!r})",
        "anywhere": f"python {folder / 'runner.py'}  # needs numpy and onnxruntime alone",
    }
    console = Console(highlight=False, soft_wrap=True)
    console.print(f"[bold]{escape(str(folder))}[/]")
    for label, fact in facts.items():
        console.print(f"[dim]{label:<11}[/]{escape(fact)}")
