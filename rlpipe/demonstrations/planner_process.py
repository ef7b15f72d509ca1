"""Runs the motion planner's program in another Python, and checks that this Python can run it.

mplib, the planner, crashes without a message under numpy 2, so it gets a process and if need be an environment of its
own. Only source text, JSON and HDF5 files pass between the two.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections import deque
from collections.abc import Callable, Generator
from dataclasses import dataclass
from importlib import metadata
from typing import Any

from rlpipe.demonstrations.planner_program import MARK, describe_python, program
from rlpipe.envs.shared.child_process.simulator import how_it_ended
from rlpipe.errors import ConfigError
from rlpipe.plugins import nearest

LAST_LINES = 12
"""Lines of output that are shown when the process fails."""
LINE_WIDTH = 160
"""Characters shown of each line; Python lists all its modules in one line when a signal ends it."""


class PlannerError(RuntimeError):
    """The planner's process failed; the message holds its last lines. Nothing was written."""


def messages(python: str, function: Callable[..., None], **arguments: Any) -> Generator[dict[str, Any]]:
    """Runs a function of ``planner_program`` in another Python and yields its messages.

    Raises:
        ConfigError: the interpreter cannot be run.
        PlannerError: the process failed, or a signal ended it.
    """
    environment = os.environ | {"PYTHONFAULTHANDLER": "1", "TQDM_DISABLE": "1", "PYTHONIOENCODING": "utf-8"}
    try:
        process = subprocess.Popen(
            [python, "-c", program(function, arguments)],
            stdin=subprocess.DEVNULL,  # ManiSkill would ask on stdin whether to download missing assets
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            encoding="utf-8",
            errors="replace",
            env=environment,
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
        except BaseException:  # Ctrl-C, or the caller stopped reading
            process.kill()
            raise
    if process.returncode:
        output = "".join(last) or " none"
        raise PlannerError(f"the process of {python} {how_it_ended(process.returncode)}. Its last output:{output}")


@dataclass(frozen=True)
class PythonDescription:
    """Description of a Python that is to run the planner.

    Attributes:
        python: its version.
        system: Linux, Darwin or Windows.
        versions: of numpy, mani_skill and mplib; None for a package that is not installed.
        tasks: ids for which ManiSkill has a motion planner.
    """

    python: str
    system: str
    versions: dict[str, str | None]
    tasks: list[str]

    def __str__(self) -> str:
        parts = (f"{name} {version or 'missing'}" for name, version in self.versions.items())
        return f"Python {self.python}, {', '.join(parts)}"

    def problems(self) -> list[str]:
        """Reasons why the planner cannot run there; empty if it can."""
        numpy, mplib = self.versions["numpy"], self.versions["mplib"]
        problems = [f"{name} is not installed" for name, version in self.versions.items() if version is None]
        if mplib is None and self.system != "Linux":
            problems.append(f"mplib, the planner, is made for Linux, and this is {self.system}")
        if numpy and mplib and _release(numpy) >= (2,) and _release(mplib) < (0, 2):
            problems.append(f"mplib {mplib}, the planner, crashes without a message under numpy 2 and later")
        return problems


def _release(version: str) -> tuple[int, ...]:
    """``2.13.0+cpu`` -> (2, 13, 0)."""
    return tuple(int(part) for part in re.findall(r"\d+", version.partition("+")[0])[:3])


def describe(python: str) -> PythonDescription:
    """Asks another Python for its versions and tasks. Imports none of the packages there."""
    try:
        answers = list(messages(python, describe_python))
    except (PlannerError, json.JSONDecodeError) as error:
        raise ConfigError(
            f"--python is {python!r}, which does not behave like a Python interpreter: {error}"
        ) from error
    if len(answers) != 1:
        raise ConfigError(
            f"--python is {python!r}, which does not behave like a Python interpreter: it printed nothing."
        )
    return PythonDescription(**answers[0])


def check_planner(python: str, task: str, there: PythonDescription) -> None:
    """Checks that the planner can run in a Python, for a task. The error says which commands create an environment
    where it can."""
    if problems := there.problems():
        raise ConfigError(
            f"ManiSkill's motion planner cannot run in {python} ({there}): {'; '.join(problems)}. "
            "Create an environment for it beside this one, and pass its Python:\n"
            "    python3 -m venv planner\n"
            "    planner/bin/pip install torch --index-url https://download.pytorch.org/whl/cpu\n"
            f"    planner/bin/pip install 'numpy<2' 'mani_skill=={metadata.version('mani_skill')}'\n"
            f"    rlpipe demos {task} --python planner/bin/python"
        )
    if task not in there.tasks:
        raise ConfigError(
            f"ManiSkill {there.versions['mani_skill']} has no motion planner for {task!r}{nearest(task, there.tasks)} "
            f"It has one for {', '.join(sorted(there.tasks))}."
        )
