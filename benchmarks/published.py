"""Publishes a row that anyone can check: the weights by which a run acts, and the record of their evaluation.

    rlpipe train ppo_cartpole --local
    python benchmarks/published.py runs/ppo_cartpole/RUN ppo_cartpole --episodes 20
    rlpipe verify docs/benchmarks

The checkpoint holds no critic, optimiser or replay buffer, so that nothing can be resumed from it.
"""

from __future__ import annotations

import argparse
import shutil
from dataclasses import replace
from pathlib import Path

import rlpipe
from rlpipe.errors import command_line
from rlpipe.run import checkpoint
from rlpipe.run.checkpoint import Checkpoint
from rlpipe.serving.loading import policy_of

ROOT = Path(__file__).parent.parent
ROWS = ROOT / "docs" / "benchmarks"


def acting_checkpoint(state: Checkpoint, folder: Path) -> Path:
    """Writes a checkpoint with nothing but what acting needs; returns its file."""
    weights = {f"policy/{name}": array for name, array in policy_of(state).acting_weights().items()}
    meta = {key: value for key, value in state.meta.items() if key not in ("format", "metrics")}
    return checkpoint.save(folder, {"version": state.arrays["version"], **weights}, meta | {"metrics": {}})


def publish(run: Path, folder: Path, episodes: int) -> Path:
    """Evaluates the newest checkpoint of a run, and keeps it with the record; returns the record.

    Args:
        run: run directory
        folder: folder of the row, which is replaced
        episodes: number of held-out episodes
    """
    shutil.rmtree(folder, ignore_errors=True)
    file = acting_checkpoint(checkpoint.newest(run), folder)
    report = rlpipe.evaluate(file, episodes=episodes, local=True)
    command = command_line("evaluate", file.relative_to(ROOT), f"evaluation.episodes={episodes}", "--local")
    published = replace(report, checkpoint=file.name, command=command).recorded(folder)
    assert published.record is not None
    return Path(published.record)


def main() -> None:
    """Publishes a row, and says where it is."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path)
    parser.add_argument("row", help="name of its folder in docs/benchmarks")
    parser.add_argument("--episodes", type=int, default=400)
    arguments = parser.parse_args()
    print(publish(arguments.run, ROWS / arguments.row, arguments.episodes).relative_to(ROOT))


if __name__ == "__main__":
    main()
