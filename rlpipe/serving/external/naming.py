"""Finds the policy from elsewhere that a name stands for."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from rlpipe.config.plan import Plan
from rlpipe.config.protocol import BASELINE_NAMES
from rlpipe.errors import ConfigError
from rlpipe.plugins import nearest, require
from rlpipe.serving.external import planner
from rlpipe.serving.external.base import ExternalPolicy
from rlpipe.trajectory import SpaceSpec

KINDS = (
    "planner, where the simulator has one, ws://HOST:PORT, model.onnx, model.zip of Stable-Baselines3, or "
    "package.module:function"
)


def is_external(name: str) -> bool:
    """True if a name has the form of a policy from elsewhere, and is not that of a file or a folder of ours."""
    return (
        name == planner.NAME
        or name.startswith(("ws://", "wss://"))
        or name.endswith((".onnx", ".zip"))
        or (":" in name and not Path(name).exists())
    )


def external_source(config: Plan, name: str, option: str = "--policy") -> Callable[[SpaceSpec], ExternalPolicy]:
    """Returns what makes the policy that an option names, for the spaces of a simulator.

    Raises:
        ConfigError: there is nothing of that name, or, as far as this is known before anything starts, it does not fit.
    """
    class_, external = _class_of(name, option), config.evaluation.external
    if name == planner.NAME and not config.eval_facts.expert:
        raise ConfigError(f"{option} is {name}, but {config.env.eval.task_name} {config.eval_facts.remedy('expert')}")
    if (spaces := config.eval_facts.find_spaces()) is not None:
        class_(name, spaces, external, option)
    return lambda spec: class_(name, spec, external, option)


def digests_of(config: Plan, name: str) -> dict[str, str]:
    """Returns SHA-256 of the files from which a policy is read (``ExternalPolicy.digests``).

    Raises:
        ConfigError: there is nothing of that name.
    """
    return _class_of(name, "--policy").digests(name, config.evaluation.external)


def _class_of(name: str, option: str) -> type[ExternalPolicy]:
    """Returns the class of the policy that an option names.

    Raises:
        ConfigError: there is nothing of that name, or a package is missing that asks it.
    """
    if name == planner.NAME:
        return planner.PlannerPolicy
    if name.startswith(("ws://", "wss://")):
        for module in ("msgpack", "websockets"):
            require(module, "serve", f"{option} {name}")
        from rlpipe.serving.external.sockets import SocketPolicy

        return SocketPolicy
    if name.endswith((".onnx", ".zip")):
        if not Path(name).is_file():
            raise ConfigError(f"{option} is {name}, but there is no such file.")
        if name.endswith(".onnx"):
            from rlpipe.serving.external.graphs import GraphPolicy

            return GraphPolicy
        from rlpipe.serving.external.stable_baselines import StableBaselinesPolicy

        return StableBaselinesPolicy
    if ":" in name:
        from rlpipe.serving.external.functions import FunctionPolicy

        return FunctionPolicy
    raise ConfigError(
        f"{option} is {name!r}{nearest(name, BASELINE_NAMES)} Allowed values: {', '.join(BASELINE_NAMES)}; or a policy "
        f"from elsewhere: {KINDS}."
    )
