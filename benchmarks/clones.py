"""Collected demonstrations in every format and back: what comes back, and what clones of each are worth.

    rlpipe collect RUN -n 200 --out collected --only successes
    python -m benchmarks.clones collected sparse_pick_cube

Each format is written from the collected dataset, and converted back. What training reads of each, observations and
actions, is compared by a digest. A clone learns from the dataset in each format, all of them with the same seed, and is
evaluated on the same held-out seeds. If its weights are those of the clone of
the original to the last bit, so is everything that it does; otherwise the difference of the successes decides, with the
interval of paired episodes (Tango 1998).
"""

from __future__ import annotations

import argparse
import hashlib
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import rlpipe
from benchmarks import machine
from rlpipe.config.loading import load_pretraining
from rlpipe.config.plan import Plan
from rlpipe.demonstrations import dataset
from rlpipe.demonstrations.formats.episode import Dataset, Format, RecordedEpisode
from rlpipe.demonstrations.formats.registry import FORMATS, open_dataset
from rlpipe.demonstrations.formats.writing import DatasetWriter
from rlpipe.envs.shared.make import make_simulator
from rlpipe.functional.paired import tango_interval, wins_and_losses
from rlpipe.run.checkpoint import newest
from rlpipe.run.directory import read_jsonl
from rlpipe.trajectory import SpaceSpec
from rlpipe.trajectory.tree import leaves_of

RATE = 20.0
"""Steps a second of ManiSkill's tasks, which the format may need."""


def converted(source: Dataset, form: Format, folder: Path) -> Dataset:
    """Writes a dataset in a format, and opens it."""
    with DatasetWriter(folder, form, replace(source.info, rate=source.info.rate or RATE)) as writer:
        for number in range(len(source.episodes)):
            writer.add(source.read(number))
    return open_dataset(folder, "benchmark")


def columns(episode: RecordedEpisode) -> Mapping[str, NDArray[Any]]:
    """Everything of an episode, as arrays by name."""
    arrays = {"actions": episode.actions, **episode.columns, **episode.others}
    arrays |= {f"observation {name}": values for name, values in episode.observations.items()}
    arrays |= {f"camera {name}": frames.stacked() for name, frames in episode.cameras.items()}
    return arrays | {f"state {name}": values for name, values in (episode.states or {}).items()}


def differences(first: Dataset, second: Dataset) -> list[str]:
    """Names everything in which an episode of a dataset differs from that of another; empty where none does."""
    found: dict[str, None] = {}
    for number in range(len(first.episodes)):
        before, after = first.read(number), second.read(number)
        theirs = columns(after)
        for name, values in columns(before).items():
            kind, other = "states" if name.startswith("state ") else name, theirs.get(name)
            if other is None:
                found[f"no {kind}"] = None
            elif len(other) == len(values) - 1 and np.array_equal(values[:-1], other):
                found[f"no {kind} after the last step"] = None
            elif other.dtype != values.dtype or not np.array_equal(values, other):
                found[f"another {kind}"] = None
        for name in ("seed", "task"):
            if getattr(before, name) != getattr(after, name):
                found[f"another {name}"] = None
    return [*found]


@contextmanager
def folder_of(out: Path | None) -> Iterator[Path]:
    """Yields the folder of the results: one that stays, or one that does not."""
    if out is not None:
        out.mkdir(parents=True, exist_ok=True)
        yield out
        return
    with tempfile.TemporaryDirectory() as name:
        yield Path(name)


def read_by_training(plan: Plan, spec: SpaceSpec, demos: Path) -> str:
    """Returns the digest of the observations and actions that a clone learns from."""
    held, digest = dataset.load(str(demos), plan.env.train, spec), hashlib.sha256()
    for values in (*leaves_of(held.observations), held.actions):
        digest.update(np.ascontiguousarray(values).tobytes())
    return digest.hexdigest()


def clone(config: str, demos: Path, folder: Path, overrides: list[str]) -> tuple[str, NDArray[np.bool_]]:
    """Clones a dataset; returns the digest of the weights, and the success of each held-out seed in turn."""
    plan = load_pretraining(
        config, [f"demos={demos}", "num_demos=null", f"runner.logger.log_path={folder}", *overrides]
    )
    run = rlpipe.train(plan, local=True).directory
    digest = hashlib.sha256()
    for name, values in sorted(newest(run).arrays.items()):
        if name.startswith("policy/"):
            digest.update(name.encode() + np.ascontiguousarray(values).tobytes())
    rows = list(read_jsonl(run / "eval_episodes.jsonl"))
    last = max(row["iteration"] for row in rows)
    successes = {row["seed"]: row["success_once"] for row in rows if row["iteration"] == last}
    return digest.hexdigest(), np.array([successes[seed] for seed in sorted(successes)], bool)


def main() -> None:
    """Prints a row for each format."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("dataset", type=Path, help="collected episodes")
    parser.add_argument("config", help="configuration whose task and policy a clone takes")
    parser.add_argument("overrides", nargs="*", help="changes of the cloning, such as algorithm.epochs=20")
    parser.add_argument("--out", type=Path, help="folder of datasets and runs, which stays")
    options = parser.parse_args()
    print(machine.sentence(machine.describe("mani_skill", "h5py", "pyarrow", "torch")))
    with folder_of(options.out) as folder:
        original = open_dataset(options.dataset, "dataset")
        steps = sum(entry.length for entry in original.episodes)
        print(f"{len(original.episodes)} episodes of {original.info.task}, {steps:,} steps")
        plan = load_pretraining(options.config, [f"demos={options.dataset}"])
        with closing(make_simulator(plan.env.train, 1, lambda _: 0)) as simulator:
            spec = simulator.spec
        read = read_by_training(plan, spec, options.dataset)
        expected, reference = clone(options.config, options.dataset, folder / "runs", options.overrides)
        print(f"clone of the original: {reference.mean():.3f} of {len(reference)} held-out episodes succeed\n")
        print(f"{'format':<14}{'and back':<52}{'read':<8}{'weights':<10}{'success':>8}  difference")
        for name, form in FORMATS.items():
            there = converted(original, form, folder / name)
            back = converted(there, FORMATS["maniskill"], folder / f"{name}-back")
            lost = ", ".join(differences(original, back)) or "equal to the last bit"
            digest, successes = clone(options.config, folder / name, folder / "runs", options.overrides)
            wins, losses = wins_and_losses(successes, reference)
            low, high = tango_interval(len(reference), wins, losses)
            of_weights = "equal" if digest == expected else "other"
            of_steps = "equal" if read_by_training(plan, spec, folder / name) == read else "other"
            share = (wins - losses) / len(reference)
            labels = f"{name:<14}{lost:<52}{of_steps:<8}{of_weights:<10}"
            print(f"{labels}{successes.mean():>8.3f}  {share:+.3f} [{low:+.3f}, {high:+.3f}]")


if __name__ == "__main__":
    main()
