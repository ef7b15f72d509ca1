"""Demonstrations made by ManiSkill's motion planner, in a process of its own and if need be in another Python: mplib,
the planner, dies without a message under numpy 2. Only source text, JSON and HDF5 files pass between the two, so the
other Python needs ManiSkill and nothing of this package.
"""

from __future__ import annotations

import contextlib
import inspect
import json
import math
import os
import re
import signal
import subprocess
import tempfile
from collections import deque
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np

from rlpipe.config.schema import EvaluationConfig
from rlpipe.demonstrations import dataset
from rlpipe.envs.maniskill import ManiSkill, ManiSkillConfig, UnrenderedMaterial, load_maniskill
from rlpipe.errors import ConfigError
from rlpipe.plugins import nearest, require
from rlpipe.trajectory import SpaceSpec

FIRST_EVALUATION_SEED = EvaluationConfig.first_seed
"""Demonstrations have smaller seeds, so that no evaluation begins where one of them began."""
PATIENCE = 50
"""Seeds in a row that the planner may fail before it gives up."""
TRIAL = 10
"""Demonstrations that are planned and converted first; if the control mode loses all of them, no more are planned."""
MARK = "\x1e"
"""Begins a message of the other process among whatever else it prints (RFC 7464)."""
LAST_LINES = 12
"""Lines of output that are shown of a process that failed."""
LINE_WIDTH = 160
"""Characters that are shown of each; Python names all its modules in one line when a signal ends it."""

Progress = Callable[[str, int, int], None]
"""Told what is being done, how many demonstrations that has so far, and of how many."""


class PlannerError(RuntimeError):
    """The planner's process failed; the message holds its last words. Nothing was written."""


# --- what runs in the other process: its source is sent, so it uses nothing of this file but what is sent with it


def _tell(**message: Any) -> None:
    """A message to the process that waits."""
    print(f"{MARK}{json.dumps(message)}", flush=True)


def _look() -> None:
    """Tells what there is, without importing any of it: imports are what may die."""
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
    _tell(python=platform.python_version(), system=platform.system(), versions=versions, tasks=tasks)


def _make(task: str, control_mode: str, folder: str, count: int, first_seed: int, end_seed: int, patience: int) -> None:
    """Plans demonstrations and replays them under another control mode, with ManiSkill's own two commands.

    They end up in ``folder/task/motionplanning/plan.state.*.h5``; the control mode may lose some.
    """
    import functools
    import sys

    load_maniskill()
    import gymnasium

    gymnasium.make = functools.partial(gymnasium.make, render_backend="none")
    from mani_skill.examples.motionplanning.panda import run
    from mani_skill.trajectory import replay_trajectory
    from mani_skill.utils.wrappers import RecordEpisode

    solve, failed, made = run.MP_SOLUTIONS[task], 0, 0

    def watched(env: Any, seed: int, **options: Any) -> Any:
        nonlocal failed
        if failed == patience or seed == end_seed:
            _tell(gave_up_before=seed)
            sys.exit()  # passes through the `except Exception` around a solution
        _tell(tried=seed)
        failed += 1  # unless it returns with a success; it may raise as well
        answer = solve(env, seed=seed, **options)
        if answer != -1 and bool(answer[-1]["success"]):
            failed = 0
        return answer

    flush = RecordEpisode.flush_trajectory

    def counted(self: Any, *args: Any, save: bool = True, **options: Any) -> None:
        nonlocal made
        flush(self, *args, save=save, **options)
        made += save
        _tell(made=made)

    RecordEpisode.flush_trajectory = counted
    run.MP_SOLUTIONS[task] = watched
    sys.argv[1:] = [
        *("--env-id", task, "--num-traj", str(count), "--record-dir", folder, "--traj-name", "plan"),
        *("--sim-backend", "cpu", "--only-count-success"),
    ]
    file = run._main(run.parse_args(), start_seed=first_seed)  # what `main` calls; only here a seed can be given
    made = 0
    _tell(doing="converting", made=0)
    replay_trajectory.main(
        replay_trajectory.Args(
            traj_path=file, sim_backend="physx_cpu", obs_mode="state", target_control_mode=control_mode,
            save_traj=True, reward_mode="sparse",
        )
    )  # fmt: skip


def _program(function: Callable[..., None], arguments: dict[str, Any]) -> str:
    """Python source that calls a function of this file in another process."""
    sent = (UnrenderedMaterial, load_maniskill, _tell, function)
    return "\n\n".join(
        [
            "from __future__ import annotations",
            "import json\nfrom importlib import metadata\nfrom pathlib import Path\nfrom typing import Any",
            f"MARK = {MARK!r}",
            *(inspect.getsource(part) for part in sent),
            f"{function.__name__}(**json.loads({json.dumps(arguments)!r}))",
        ]
    )


# --- this process


def _ask(python: str, function: Callable[..., None], **arguments: Any) -> Generator[dict[str, Any]]:
    """Runs a function in another Python and yields its messages.

    Raises:
        ConfigError: there is no such program.  PlannerError: it failed, or a signal ended it.
    """
    surroundings = os.environ | {"PYTHONFAULTHANDLER": "1", "TQDM_DISABLE": "1", "PYTHONIOENCODING": "utf-8"}
    try:
        process = subprocess.Popen(
            [python, "-c", _program(function, arguments)],
            stdin=subprocess.DEVNULL,  # ManiSkill asks there whether to download what is missing
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            encoding="utf-8",
            errors="replace",
            env=surroundings,
        )
    except OSError as error:
        raise ConfigError(f"--python is {python!r}, which cannot be run: {error.strerror}.") from error
    last: deque[str] = deque(maxlen=LAST_LINES)
    with process:
        assert process.stdout is not None
        try:
            for line in process.stdout:
                printed, mark, message = line.partition(MARK)
                if printed.strip():
                    last.append(f"\n    {printed.rstrip()[:LINE_WIDTH]}")
                if mark:
                    yield json.loads(message)
        except BaseException:  # Ctrl-C, or nobody listens any more
            process.kill()
            raise
    if process.returncode:
        words = "".join(last) or " nothing"
        raise PlannerError(f"the process of {python} {_ended(process.returncode)}. The last it said:{words}")


def _ended(code: int) -> str:
    """How a process ended: 1 -> ended with exit code 1; -11 -> was ended by signal 11 (SIGSEGV)."""
    if code >= 0:
        return f"ended with exit code {code}"
    try:
        name = signal.Signals(-code).name
    except ValueError:
        name = "unnamed"
    return f"was ended by signal {-code} ({name})"


@dataclass(frozen=True)
class Found:
    """What another Python has.

    Attributes:
        python: its version.  system: Linux, Darwin or Windows.
        versions: of numpy, mani_skill and mplib; None for what is not installed.  tasks: for which ManiSkill can plan.
    """

    python: str
    system: str
    versions: dict[str, str | None]
    tasks: list[str]

    def __str__(self) -> str:
        parts = (f"{name} {version or 'missing'}" for name, version in self.versions.items())
        return f"Python {self.python}, {', '.join(parts)}"

    def lacks(self) -> list[str]:
        """Why the planner cannot run there; nothing if it can."""
        numpy, mplib = self.versions["numpy"], self.versions["mplib"]
        reasons = [f"{name} is not installed" for name, version in self.versions.items() if version is None]
        if mplib is None and self.system != "Linux":
            reasons.append(f"mplib, the planner, is made for Linux, and this is {self.system}")
        if numpy and mplib and _release(numpy) >= (2,) and _release(mplib) < (0, 2):
            reasons.append(f"mplib {mplib}, the planner, dies without a message under numpy 2 and later")
        return reasons


def _release(version: str) -> tuple[int, ...]:
    """``2.13.0+cpu`` -> (2, 13, 0)."""
    return tuple(int(part) for part in re.findall(r"\d+", version.partition("+")[0])[:3])


def look(python: str) -> Found:
    """Asks another Python what it has; imports nothing there.

    Raises:
        ConfigError: it is none, or dies of the question.
    """
    try:
        answers = list(_ask(python, _look))
    except (PlannerError, json.JSONDecodeError) as error:
        raise ConfigError(f"--python is {python!r}, which does not answer as a Python does: {error}") from error
    if len(answers) != 1:
        raise ConfigError(f"--python is {python!r}, which does not answer as a Python does: it says nothing.")
    return Found(**answers[0])


def check(python: str, task: str, found: Found) -> None:
    """Checks that the planner can run there, for this task.

    Raises:
        ConfigError: it cannot; the message says what was found and which commands make a place where it can.
    """
    if reasons := found.lacks():
        raise ConfigError(
            f"ManiSkill's motion planner cannot run in {python} ({found}): {'; '.join(reasons)}. "
            "Make an environment for it beside this one, and name it:\n"
            "    python3 -m venv planner\n"
            "    planner/bin/pip install torch --index-url https://download.pytorch.org/whl/cpu\n"
            f"    planner/bin/pip install 'numpy<2' 'mani_skill=={metadata.version('mani_skill')}'\n"
            f"    rlpipe demos {task} --python planner/bin/python"
        )
    if task not in found.tasks:
        raise ConfigError(
            f"ManiSkill {found.versions['mani_skill']} has no motion planner for {task!r}{nearest(task, found.tasks)} "
            f"It has one for {', '.join(sorted(found.tasks))}."
        )


@dataclass(frozen=True)
class Made:
    """Demonstrations that were made and read back.

    Attributes:
        file: HDF5; its JSON is beside it.  trajectories, steps: how many, each up to its first success.
        longest: steps of the longest trajectory.
        seeds: of the trajectories, in their order.
    """

    file: Path
    trajectories: int
    steps: int
    longest: int
    seeds: list[int]


def make(
    task: str, count: int, control_mode: str, folder: Path, *, python: str, first_seed: int, progress: Progress
) -> Made:
    """Makes ``folder/task.h5`` and ``.json``, both or neither, and reads them back as training would.

    Args:
        task: ManiSkill's id.  count: successful demonstrations.  control_mode: of their actions.
        python: the interpreter the planner runs in.  first_seed: of the first episode tried; the others follow by one.
    Raises:
        ConfigError: it cannot be done as asked.  PlannerError: the planner failed.
    """
    file = folder / f"{task}.h5"
    config = ManiSkillConfig(name="maniskill", id=task, control_mode=control_mode)
    for package in ("h5py", "mani_skill"):
        require(package, "maniskill", "rlpipe demos")
    if count < 1 or first_seed < 0 or first_seed + count > FIRST_EVALUATION_SEED:
        raise ConfigError(
            f"{count} demonstrations from seed {first_seed} on were asked for; there must be at least 1, and their "
            f"seeds must lie from 0 to {FIRST_EVALUATION_SEED - 1}, because evaluation begins at the next."
        )
    if file.exists():
        raise ConfigError(f"{file} exists. Name another folder with --out, or remove it.")
    found = look(python)
    check(python, task, found)
    ManiSkill.check(config, "task")
    simulator = ManiSkill.make(config, 1, lambda _: None)  # also tells a control mode that the task does not know
    spec = simulator.spec
    simulator.close()
    new = not folder.exists()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        work = tempfile.TemporaryDirectory(dir=folder, prefix=".demos-")
    except OSError as error:
        raise ConfigError(f"--out: cannot write to {folder}: {error}.") from error
    try:
        with work:
            sources = _plan(task, count, control_mode, Path(work.name), python, first_seed, progress)
            partial = Path(work.name, file.name)
            compact(sources, partial, count, f"ManiSkill's motion planner, with {found}")
            made = _read_back(partial, config, spec)
            for ending in (".json", ".h5"):  # the HDF5 file last: where it is, both are
                os.replace(partial.with_suffix(ending), file.with_suffix(ending))
    finally:
        if new and not any(folder.iterdir()):
            folder.rmdir()
    return Made(file, *made)


def _plan(
    task: str, count: int, control_mode: str, folder: Path, python: str, first_seed: int, progress: Progress
) -> list[Path]:
    """Plans and converts until there are enough; ManiSkill's files.

    Raises:
        PlannerError: the planner failed, gave up, or none of what it made keeps its success under the control mode.
    """
    sources: list[Path] = []
    planned = converted = 0
    seed = first_seed
    while converted < count:
        missing = count - converted
        wanted = math.ceil(missing * planned / converted) if converted else min(missing, TRIAL)
        here = folder / str(len(sources))
        doing, done = "planning", 0
        asked = _ask(
            python, _make, task=task, control_mode=control_mode, folder=str(here), count=wanted, first_seed=seed,
            end_seed=FIRST_EVALUATION_SEED, patience=PATIENCE,
        )  # fmt: skip
        gave_up_before = None
        with contextlib.closing(asked) as messages:
            for message in messages:
                seed = message.get("tried", seed - 1) + 1
                doing, done = message.get("doing", doing), message.get("made", done)
                gave_up_before = message.get("gave_up_before")
                progress(f"planning, seed {seed - 1}" if doing == "planning" else doing, done, wanted)
        if gave_up_before is not None:
            why = (
                "evaluation begins there" if gave_up_before == FIRST_EVALUATION_SEED else f"{PATIENCE} in a row failed"
            )
            raise PlannerError(
                f"the planner made {planned + done} demonstrations of {task} and gave up before seed {gave_up_before}: "
                f"{why}."
            )
        planned, converted = planned + wanted, converted + done
        sources += here.rglob("plan.state.*.h5")
        if not converted and planned >= TRIAL:
            raise PlannerError(
                f"the planner made {planned} demonstrations, but none of them succeeds when replayed under "
                f"--control-mode {control_mode}. Try pd_ee_delta_pose, which can turn the hand, or pd_joint_delta_pos."
            )
    return sources


def compact(sources: Sequence[Path], file: Path, count: int, description: str) -> None:
    """Writes the first trajectories of ManiSkill's files as one file with only what is learnt from.

    Args:
        sources: HDF5 files, each with its JSON beside it.  file: to write, likewise.  count: trajectories.
        description: how they were made, for the JSON.
    """
    import h5py

    episodes: list[dict[str, Any]] = []
    with h5py.File(file, "w", libver="latest") as out:  # the older layout spends 7 kB on each group
        for source in sources:
            sidecar = json.loads(source.with_suffix(".json").read_text(encoding="utf-8"))
            with h5py.File(source) as raw:
                for episode in sidecar["episodes"][: count - len(episodes)]:
                    columns = raw[f"traj_{episode['episode_id']}"]
                    success, terminated = columns["success"][:], columns["terminated"][:]
                    first = dataset.last_attempt(success, terminated, columns["fail"][:] if "fail" in columns else None)
                    group = out.create_group(f"traj_{len(episodes)}")
                    for name in ("obs", "actions"):
                        kept = columns[name][first:].astype(np.float32)
                        group.create_dataset(
                            name, data=kept, compression="gzip", compression_opts=9, shuffle=True, chunks=kept.shape
                        )
                    group["success"], group["terminated"] = success[first:], terminated[first:]
                    episodes.append(episode | {"episode_id": len(episodes), "elapsed_steps": len(success) - first})
    made = {name: sidecar.get(name) for name in ("env_info", "commit_info")}
    made |= {"source_type": "motionplanning", "source_desc": description}
    text = json.dumps({"episodes": episodes, **made}, separators=(",", ":"))
    file.with_suffix(".json").write_text(text, encoding="utf-8")


def _read_back(file: Path, config: Any, spec: SpaceSpec) -> tuple[int, int, int, list[int]]:
    """Trajectories, steps, steps of the longest, and seeds of a file, read as training would.

    Raises:
        ConfigError: training would refuse it.  PlannerError: its seeds are not what they should be.
    """
    shown = dataset.load(str(file), config, spec)
    episodes = json.loads(file.with_suffix(".json").read_text(encoding="utf-8"))["episodes"]
    seeds = [episode["episode_seed"] for episode in episodes]
    if len({*seeds}) != shown.num_trajectories or max(seeds) >= FIRST_EVALUATION_SEED:
        raise PlannerError(f"{shown.num_trajectories} demonstrations were made, but their seeds are {seeds}.")
    return shown.num_trajectories, len(shown), int(np.bincount(shown.trajectory).max()), seeds
