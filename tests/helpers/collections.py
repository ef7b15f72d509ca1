"""Collects datasets in tests: a race, its files, and a collection that is killed."""

from __future__ import annotations

import rlpipe
from rlpipe.demonstrations.formats import maniskill
from rlpipe.training import collecting

RACE = "{name: tests.helpers.simulators:SeededRace, total_num_envs: 4}"
"""An even seed succeeds after 2 steps, an odd one fails after 20."""


def config_of(folder, train=RACE):
    """The file of a configuration."""
    file = folder / "task.yaml"
    file.write_text(
        f"env: {{train: {train}}}\npolicy: {{name: mlp}}\nalgorithm: {{name: ppo}}\n"
        f"runner: {{logger: {{log_path: {folder}}}}}\n"
    )
    return file


def collected(folder, *, into="out", count=10, train=RACE, workers=1, local=True, **options):
    """Collects from random actions; returns the folder and what was collected."""
    overrides = [f"rollout.num_workers={workers}", *options.pop("overrides", [])]
    out = folder / into
    collection = rlpipe.collect(
        config_of(folder, train), out, count=count, policy="random", overrides=overrides, local=local, **options
    )
    return out, collection


def files(folder):
    """Bytes of all files, by their places."""
    return {str(file.relative_to(folder)): file.read_bytes() for file in folder.rglob("*") if file.is_file()}


def episodes(folder):
    dataset = maniskill.open_dataset(folder, "demos")
    return [dataset.read(number) for number in range(len(dataset.episodes))]


class Killed(BaseException):
    """Ends a collection as a kill would."""


def killed_after(monkeypatch, stored):
    """Has the next collection end once so many episodes are stored."""
    add = collecting.DatasetWriter.add

    def add_and_die(writer, episode):
        add(writer, episode)
        if len(writer.episodes) == stored:
            raise Killed

    monkeypatch.setattr(collecting.DatasetWriter, "add", add_and_die)
