"""Success, reward terms and numbers of the task, read from the info of a step."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

SUCCESS_KEYS = {
    "gymnasium_robotics.envs.fetch": "is_success",
    "gymnasium_robotics.envs.shadow_dexterous_hand": "is_success",
    "gymnasium_robotics.envs.adroit_hand": "success",
    "gymnasium_robotics.envs.maze": "success",
    "gym_pusht": "is_success",
    "gym_xarm": "is_success",
    "gym_hil": "succeed",
}
"""Entry of the info that tells success, by the beginning of the module of a task."""


def reward_terms(info: Mapping[str, Any]) -> dict[str, Any] | None:
    """Named terms of a reward: the info's ``reward_terms``, or else its ``reward_*``, as in Gymnasium's MuJoCo tasks.

    None if the info holds neither. What ``reward_terms`` holds is meant as numbers, whatever it is.
    """
    terms = info.get("reward_terms")
    if terms is not None and isinstance(terms, Mapping):
        return {str(name): value for name, value in terms.items()}
    return {
        name.removeprefix("reward_"): float(value)
        for name, value in info.items()
        if isinstance(name, str)
        and name.startswith("reward_")
        and name != "reward_terms"
        and isinstance(value, int | float | np.number)
        and not isinstance(value, bool)
    } or None


def own_metrics(info: Mapping[str, Any]) -> Any:
    """Numbers by name that the task measures in a step: the info's ``metrics``, whatever they are; None without any."""
    metrics = info.get("metrics")
    if metrics is None:  # as in nearly every step
        return None
    return {str(name): value for name, value in metrics.items()} if isinstance(metrics, Mapping) else metrics


def success_notes(info: Mapping[str, Any]) -> list[str]:
    """Sentences on the success in an info, where no ``success_key`` is set."""
    return [
        f"The info holds {key!r}: set env.train.success_key={key} to measure success."
        for key in dict.fromkeys(SUCCESS_KEYS.values())
        if key in info
    ][:1]
