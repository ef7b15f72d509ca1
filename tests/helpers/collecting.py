"""Datasets that are collected in this process."""

from __future__ import annotations

import rlpipe

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
