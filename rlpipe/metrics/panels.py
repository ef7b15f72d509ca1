"""Order in which curves are shown, health first: in TensorBoard, SwanLab, Grafana, reports and ``rlpipe watch``.

A panel is one picture with one or several curves of the same kind. A metric that no panel names is still stored and can
still be chosen; a panel without any value is left out where that can be known.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass


@dataclass(frozen=True)
class Panel:
    """One picture.

    Attributes:
        title: shown above it.
        metrics: names of its curves.
        band: names of a lower and an upper bound of the first curve; empty for none.
    """

    title: str
    metrics: tuple[str, ...]
    band: tuple[str, ...] = ()


@dataclass(frozen=True)
class PanelGroup:
    """Panels that are shown together, in their order."""

    title: str
    panels: tuple[Panel, ...]


GROUPS = (
    PanelGroup(
        "Health",
        (
            Panel("How far an update moves the policy (KL)", ("train/actor/approx_kl", "train/actor/approx_kl_max")),
            Panel("Clipped decisions", ("train/actor/clip_fraction", "train/actor/ratio_outside_fraction")),
            Panel("Variance of returns that the critic explains", ("train/critic/explained_variance",)),
            Panel("Entropy", ("train/entropy_loss", "train/actor/entropy")),
            Panel("Values of the critics", ("train/critic/q_data", "train/critic/q_target", "train/actor/q_pi")),
            Panel("Temperature", ("train/sac/alpha",)),
            Panel("Gradient norm before clipping", ("train/actor/grad_norm", "train/critic/grad_norm")),
            Panel("Workers", ("time/workers_reporting", "time/workers_expected")),
            Panel("Restarts of workers", ("time/worker_restarts",)),
        ),
    ),
    PanelGroup(
        "Success",
        (
            Panel(
                "Success on held-out seeds, with its 95 % interval",
                ("eval/success_once",),
                ("eval/success_once_ci_low", "eval/success_once_ci_high"),
            ),
            Panel("Success while training", ("env/success_once", "env/success_at_end")),
            Panel("Success of several tasks", ("env/tasks/success_once_mean", "env/tasks/success_once_worst")),
            Panel("Success of the curriculum's episodes", ("env/curriculum/success_once",)),
            Panel(
                "Way of the starts back to the task's own",
                ("env/curriculum/start", "env/curriculum/blend_demonstrations", "env/curriculum/blend"),
            ),
            Panel("Share of the widest variations that the curriculum has reached", ("env/curriculum/width",)),
        ),
    ),
    PanelGroup(
        "Episodes",
        (
            Panel("Return", ("env/return", "eval/return")),
            Panel("Length", ("env/episode_len", "eval/episode_len")),
            Panel("Episodes that a time limit ended", ("env/truncated_fraction",)),
            Panel("Number of episodes", ("env/num_trajectories",)),
        ),
    ),
    PanelGroup(
        "Learning",
        (
            Panel("Loss of the policy", ("train/actor/policy_loss", "train/sac/actor_loss")),
            Panel("Loss of the critic", ("train/critic/value_loss", "train/sac/critic_loss")),
            Panel("Squared error to demonstrated actions", ("train/actor/cloning_loss",)),
            Panel("Learning rate", ("train/actor/lr", "train/critic/lr")),
            Panel("Gradient steps for each environment step", ("train/sac/update_to_data",)),
        ),
    ),
    PanelGroup(
        "Speed",
        (
            Panel("Environment steps per second", ("time/fps", "time/fps_interval")),
            Panel(
                "Where the time of an iteration goes",
                ("time/generate_rollouts", "time/update", "time/eval", "time/checkpoint", "time/log", "time/other"),
            ),
            Panel(
                "Share of its time that a part works",
                ("time/utilization/env", "time/utilization/rollout", "time/utilization/actor"),
            ),
            Panel("Seconds that the logger is behind", ("time/logger_lag",)),
        ),
    ),
)
"""Every group, in the order in which it is shown."""


def shown(names: Collection[str]) -> Iterator[PanelGroup]:
    """Yields the groups with those panels, and in them those curves, that have a value."""
    for group in GROUPS:
        panels = (
            Panel(panel.title, metrics, panel.band if set(panel.band) <= set(names) else ())
            for panel in group.panels
            if (metrics := tuple(name for name in panel.metrics if name in names))
        )
        if with_values := tuple(panels):
            yield PanelGroup(group.title, with_values)


def ranked(names: Collection[str]) -> list[str]:
    """Sorts metrics: those of the panels first, in their order, then the others in the order they are given."""
    order = [name for group in GROUPS for panel in group.panels for name in (*panel.metrics, *panel.band)]
    place = {name: number for number, name in enumerate(order)}
    return sorted(names, key=lambda name: place.get(name, len(place)))
