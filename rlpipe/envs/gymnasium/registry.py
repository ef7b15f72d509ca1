"""Tasks that are registered with Gymnasium, and what is said of one that is not."""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import io
import sys
from collections.abc import Collection, Sequence
from typing import Any

from rlpipe.envs.base import TaskEntry
from rlpipe.envs.gymnasium.info import SUCCESS_KEYS
from rlpipe.envs.shared.mujoco.pixels import choose_opengl_if_found
from rlpipe.plugins import closest

REGISTERING = ("gymnasium_robotics", "gym_pusht", "gym_xarm", "gym_hil")
"""Packages whose import registers tasks, if they are installed."""
DRAWING = ("gym_hil", "gym_xarm")
"""Those whose tasks open OpenGL as soon as they are made, even if they observe no pictures."""
ATTENDED = ("use_viewer", "use_inputs_control")
"""Arguments in the registration of a task that needs a screen, and a person at a keyboard or gamepad."""
MOST_SHOWN = 10
"""Ids in an error."""
NEEDED = {"gymnasium.envs.mujoco": "mujoco", "gymnasium.envs.box2d": "Box2D", "gymnasium_robotics": "mujoco"}
"""Package that a task needs, likewise."""


def register_tasks() -> None:
    """Imports the packages that register tasks, if they are installed."""
    choose_opengl_if_found()  # some settle how to draw when they are imported
    for package in REGISTERING:
        printed = io.StringIO()  # they print advice
        with contextlib.suppress(ImportError), contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed):
            importlib.import_module(package)


def unknown(name: str, tasks: Sequence[TaskEntry]) -> str:
    """End of the error on an id without a module, which nobody has registered."""
    ids = {entry.id.rpartition(":")[2]: entry.id for entry in tasks}
    similar = closest(name, ids, similarity=0.7)
    near = "." if similar is None else f"; did you mean {ids[similar]!r}?"
    return f"Gymnasium does not know it{near} If a module of yours registers it, write module:{name or 'Name-v0'}."


def unregistered(module: str, name: str, before: Collection[str]) -> str:
    """End of the error on an id that a module, which was imported, does not register.

    Args:
        module: as in ``module:name``.
        name: the id.
        before: what was registered before the import; what the module's own classes serve counts as well.
    """
    import gymnasium

    file = getattr(sys.modules.get(module), "__file__", None) or "built in"
    if module.partition(".")[0] in sys.stdlib_module_names:
        return f"{module} is the module of Python's standard library ({file}): give your file another name."
    served = {env_id for env_id in before if _serves(module, env_id)}
    registered = sorted({*gymnasium.registry} - {*before} | served)
    if not registered:
        return (
            f"{module} ({file}) registers no task: call gymnasium.register({name!r}, its class) there, or name the "
            "module that does, as in module:Name-v0."
        )
    if similar := closest(name, registered):
        return f"{module} ({file}) does not register it; did you mean '{module}:{similar}'?"
    more = f" and {len(registered) - MOST_SHOWN} more" if len(registered) > MOST_SHOWN else ""
    return f"{module} ({file}) does not register it. It registers {', '.join(registered[:MOST_SHOWN])}{more}."


def _serves(module: str, env_id: str) -> bool:
    """True if a registered environment is of a class in a module, or in one below it."""
    import gymnasium

    made_by = gymnasium.registry[env_id].entry_point
    place = made_by if isinstance(made_by, str) else str(getattr(made_by, "__module__", ""))
    return f"{place.partition(':')[0]}.".startswith(f"{module}.")


def entry_of(spec: Any) -> TaskEntry:
    """Returns what the registration of an environment says of it."""
    module = spec.entry_point.partition(":")[0]
    package = module.partition(".")[0]
    key = next((key for start, key in SUCCESS_KEYS.items() if module.startswith(start)), None)
    needed = next((needed for start, needed in NEEDED.items() if module.startswith(start)), None)
    missing = needed is not None and importlib.util.find_spec(needed) is None
    prefix = f"{package}:" if package in REGISTERING else ""
    settings, needs = f"success_key={key}" if key else "", f"the package {needed}" if missing else ""
    return TaskEntry(f"{prefix}{spec.id}", spec.max_episode_steps, settings, needs)
