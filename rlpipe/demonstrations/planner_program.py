"""The program that runs ManiSkill's motion planner in another process, perhaps under another Python.

Its functions are sent as source text, so they use nothing from this file but what is sent with them. The other Python
needs ManiSkill and nothing of this package.
"""

from __future__ import annotations

import inspect
import json
import sys
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import Any

from rlpipe.envs.maniskill.loading import UnrenderedMaterial, load_maniskill, use_material

MARK = "\x1e"
"""Begins a message among whatever else the process prints (RFC 7464)."""


def send(**message: Any) -> None:
    """Sends a message to the process that started this one."""
    print(f"{MARK}{json.dumps(message)}", flush=True)


def describe_python() -> None:
    """Sends the versions and tasks of this Python. Imports none of the packages, because an import may crash."""
    import ast
    import importlib.util
    import platform

    versions: dict[str, str | None] = {}
    for name in ("numpy", "mani_skill", "mplib"):
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            versions[name] = None
    spec = importlib.util.find_spec("mani_skill")
    tasks: list[str] = []
    for folder in (spec.submodule_search_locations or []) if spec else []:
        file = Path(folder, "examples", "motionplanning", "panda", "run.py")
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8") if file.is_file() else "")):
            if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", None) == "MP_SOLUTIONS":
                tasks += [key.value for key in node.value.keys]  # type: ignore[attr-defined]
    send(python=platform.python_version(), system=platform.system(), versions=versions, tasks=tasks)


def report_tried(solutions: dict[str, Any], task: str, end_seed: int, patience: int) -> None:
    """Makes a task's solution send each seed that it tries, and end the process when it should give up.

    Args:
        solutions: ManiSkill's, by task; changed.
        task: ManiSkill's id.
        end_seed: seed before which planning stops.
        patience: failures in a row after which planning stops.
    """
    solve, failed = solutions[task], 0

    def solve_and_report(env: Any, seed: int, **options: Any) -> Any:
        nonlocal failed
        if failed == patience or seed == end_seed:
            send(gave_up_before=seed)
            sys.exit()  # passes through the `except Exception` around a solution
        send(tried=seed)
        failed += 1  # reset below after a success; the solution may also raise
        answer = solve(env, seed=seed, **options)
        if answer != -1 and bool(answer[-1]["success"]):
            failed = 0
        return answer

    solutions[task] = solve_and_report


def report_saved(recorder: Any) -> None:
    """Makes ManiSkill's recorder send the number of trajectories it has saved since this call."""
    import functools

    flush, saved = getattr(recorder.flush_trajectory, "__wrapped__", recorder.flush_trajectory), 0

    @functools.wraps(flush)
    def flush_and_report(self: Any, *args: Any, save: bool = True, **options: Any) -> None:
        nonlocal saved
        flush(self, *args, save=save, **options)
        saved += save
        send(made=saved)

    recorder.flush_trajectory = flush_and_report


def plan_and_convert(
    task: str, control_mode: str, folder: str, count: int, first_seed: int, end_seed: int, patience: int
) -> None:
    """Plans demonstrations and replays them under another control mode, with ManiSkill's own two commands.

    Writes ``folder/task/motionplanning/plan.state.*.h5``. Some demonstrations may no longer succeed under the control
    mode. ``count`` plans succeed; ``end_seed`` and ``patience`` are those of ``report_tried``."""
    import functools

    load_maniskill()
    import gymnasium

    gymnasium.make = functools.partial(gymnasium.make, render_backend="none")
    from mani_skill.examples.motionplanning.panda import run
    from mani_skill.trajectory import replay_trajectory
    from mani_skill.utils.wrappers import RecordEpisode

    report_saved(RecordEpisode)
    report_tried(run.MP_SOLUTIONS, task, end_seed, patience)
    sys.argv[1:] = [
        *("--env-id", task, "--num-traj", str(count), "--record-dir", folder, "--traj-name", "plan"),
        *("--sim-backend", "cpu", "--only-count-success"),
    ]
    file = run._main(run.parse_args(), start_seed=first_seed)  # `main` calls this, but takes no seed
    report_saved(RecordEpisode)
    send(doing="converting", made=0)
    replay_trajectory.main(
        replay_trajectory.Args(
            traj_path=file, sim_backend="physx_cpu", obs_mode="state", target_control_mode=control_mode,
            save_traj=True, reward_mode="sparse",
        )
    )  # fmt: skip


def program(function: Callable[..., None], arguments: dict[str, Any]) -> str:
    """Python source that calls a function of this file with keyword arguments that JSON can hold."""
    sent = (UnrenderedMaterial, use_material, load_maniskill, send, report_tried, report_saved, function)
    return "\n\n".join(
        [
            "from __future__ import annotations",
            "import json\nimport os\nimport sys",
            "from importlib import metadata\nfrom pathlib import Path\nfrom typing import Any",
            f"MARK = {MARK!r}",
            *(inspect.getsource(definition) for definition in sent),
            f"{function.__name__}(**json.loads({json.dumps(arguments)!r}))",
        ]
    )
