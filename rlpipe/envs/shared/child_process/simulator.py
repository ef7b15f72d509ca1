"""Simulators in a process of their own, which another Python may run.

``ProcessSimulator`` takes the place of the simulator that a configuration names. The process is a child of the one that
makes it, and ends with it. Importing this file imports no simulator.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import weakref
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

from numpy.typing import NDArray

from rlpipe.config.variations import Variations
from rlpipe.envs.base import KEY, Beginning, Simulator, Step, TaskEntry, TaskFacts
from rlpipe.envs.shared.child_process.channel import METRIC, Channel, ClosedError, shared_file
from rlpipe.envs.shared.goals import GoalTask
from rlpipe.envs.shared.slots import NextSeed
from rlpipe.errors import ConfigError, ContractError, SimulatorProcessError
from rlpipe.metrics import CATALOGUE
from rlpipe.metrics.declaration import Metric
from rlpipe.plugins import own_folders, resolve
from rlpipe.trajectory import Bool, Float32, Observations, State

PACKAGE = Path(__file__).parents[3]
LAST_LINES = 12
"""Lines of output that an error holds."""
LINE_WIDTH = 160
"""Characters of each of them."""
START_TIMEOUT = 300.0
"""Seconds that a Python has to start and list its tasks, where no configuration says how many."""
_STARTING = ("questions", "make", "tasks")
"""Calls that load the simulator's modules, so that they belong to the start of the process."""
_GRACE = 5.0  # seconds for an orderly end
_DUMP = 0.5  # seconds for the stack of a process that hangs


def how_it_ended(code: int) -> str:
    """Describes an exit code: 1 -> ended with exit code 1; -11 -> was ended by signal 11 (SIGSEGV)."""
    if code >= 0:
        return f"ended with exit code {code}"
    try:
        name = signal.Signals(-code).name
    except ValueError:
        name = "unnamed"
    return f"was ended by signal {-code} ({name})"


class _Process:
    """A process that serves a simulator, from the parent's side.

    Attributes:
        reset_seconds: time that the simulator has spent in resets, as of its last answer.
    """

    def __init__(self, python: str, start_timeout: float, answer_timeout: float, key: str) -> None:
        """Starts the process; ``key`` names the interpreter.

        Raises:
            ConfigError: it is no Python that can run a simulator.
        """
        self._python, self._key = python, key
        # The longest silences until the simulator is made, and after that, in seconds.
        self._start_timeout, self._answer_timeout = start_timeout, answer_timeout
        self.reset_seconds: float | None = None
        self._last: deque[str] = deque(maxlen=LAST_LINES)
        ours, theirs = socket.socketpair()
        files = [shared_file(), shared_file()]  # written by this process, and by the other
        lifeline, self._lifeline = os.pipe()
        arguments = {
            "socket": theirs.fileno(), "files": files, "lifeline": lifeline, "package": str(PACKAGE),
            "path": own_folders(),
        }  # fmt: skip
        try:
            self._process = subprocess.Popen(
                [python, str(Path(__file__).with_name("start.py")), json.dumps(arguments)],
                env={**os.environ, "PYTHONHASHSEED": "0"},  # some tasks draw from sets of names (robosuite)
                stdin=subprocess.DEVNULL,  # a library that asks something gets no answer
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                pass_fds=[theirs.fileno(), lifeline, *files],
                start_new_session=True,  # a signal to the terminal's processes is for the driver
            )
        except OSError as error:
            for number in (lifeline, self._lifeline, *files):
                os.close(number)
            ours.close()
            raise ConfigError(f"{key}: it is {python!r}, which cannot be run: {error.strerror}.") from error
        finally:
            theirs.close()
        os.close(lifeline)
        self._channel = Channel(ours, *files)
        self._reader = threading.Thread(target=_pass_on, args=(self._process.stdout, self._last), daemon=True)
        self._reader.start()
        self._finalizer = weakref.finalize(
            self, _end, self._process, self._reader, self._channel, self._lifeline, os.getpid()
        )
        self._check_start()

    def _check_start(self) -> None:
        """Waits until the process serves."""
        try:
            text = self._channel.line(self._start_timeout)
        except TimeoutError as error:
            self.end()
            raise ConfigError(
                f"{self._key}: it is {self._python!r}, which did not start within {self._start_timeout:g} s "
                f"(start_timeout){self._output}."
            ) from error
        if not text:
            self._reader.join(_GRACE)
            self.end()
            raise ConfigError(
                f"{self._key}: it is {self._python!r}, which does not behave like a Python interpreter: the process "
                f"{how_it_ended(self._process.returncode)}{self._output}."
            )
        problem = json.loads(text)["problem"]
        if problem:
            self.end()
            raise ConfigError(f"{self._key}: {self._python} {problem}.")

    @property
    def _output(self) -> str:
        """Last lines of output, as the end of a sentence."""
        lines = [repr(line[:LINE_WIDTH]) for line in self._last]
        return f"; the last lines of its output: {', '.join(lines)}" if lines else "; it printed nothing"

    def call(self, name: str, *arguments: Any, questions: Mapping[str, Callable[[int], Any]] | None = None) -> Any:
        """Has the process do something, and returns its answer.

        Args:
            name: method of the process's server.
            arguments: of that.
            questions: functions that the process may call meanwhile, by name.
        Raises:
            ConfigError: the simulator raised it.
            ContractError: the simulator returned a wrong value.
            SimulatorProcessError: the simulator raised, or the process ended, or was silent for too long.
        """
        if not self._finalizer.alive:
            raise SimulatorProcessError("'s process has ended before")
        starting = name in _STARTING
        seconds = self._start_timeout if starting else self._answer_timeout
        try:
            self._channel.send((name, arguments))
            while True:
                kind, *values = self._channel.receive(seconds)
                if questions is None or kind not in questions:
                    break
                self._channel.send(questions[kind](*values))
        except TimeoutError as error:
            self._fail(self._end_a_silent_one(f"{seconds:g} s ({'start' if starting else 'answer'}_timeout)"), error)
        except ClosedError as error:
            self._fail("", error)
        except BaseException:  # Ctrl-C, or an error in what was asked: the next answer would be for this call
            self.end()
            raise
        if kind == "answer":
            value, self.reset_seconds = values
            return value
        raise failure(kind, values)

    def _end_a_silent_one(self, deadline: str) -> str:
        """Has the process print its stack, and ends it. Returns the rest of the sentence "the simulator"."""
        with suppress(ProcessLookupError):
            os.kill(self._process.pid, signal.SIGUSR1)
        self._reader.join(_DUMP)
        self._process.kill()
        return f"'s process ({self._process.pid}) did not answer for {deadline} and was ended"

    def _fail(self, what: str, error: Exception) -> NoReturn:
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(_GRACE)  # the channel is closed before the process has quite ended
        self._reader.join(_GRACE)  # until its last words are there
        self.end()
        ended = f"'s process ({self._process.pid}) {how_it_ended(self._process.returncode)}"
        raise SimulatorProcessError(what or ended, self._output) from error

    def close(self) -> None:
        """Frees the simulator's resources and ends the process."""
        if not self._finalizer.alive:
            return
        with suppress(ClosedError, TimeoutError, OSError):
            self._channel.send(("close", ()))
            self._channel.receive(_GRACE)
            self._process.wait(_GRACE)
        self.end()

    def end(self) -> None:
        """Ends the process and frees what was shared with it; the second call does nothing."""
        self._finalizer()


def _end(
    process: subprocess.Popen[bytes], reader: threading.Thread, channel: Channel, lifeline: int, owner: int
) -> None:
    if os.getpid() != owner:  # a fork of the process that it belongs to
        return
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)  # with processes of its own
    process.wait()
    channel.close()
    os.close(lifeline)
    if reader is not threading.current_thread():  # where Python happens to collect an abandoned simulator
        reader.join(_GRACE)  # until it has read the last line, and closed the pipe


def _pass_on(stream: Any, last: deque[str]) -> None:
    """Passes lines on to this process's own errors, and keeps the last."""
    with stream:
        for line in stream:
            text = line.decode(errors="replace")
            if text.strip():
                last.append(text.rstrip())
            with suppress(Exception):  # where this process cannot write, the other one must still not wait
                sys.stderr.write(text)


def failure(kind: str, values: list[Any]) -> Exception:
    """Returns the exception that an answer stands for."""
    if kind == "refused":
        return ConfigError(values[0])
    if kind == "wrong":
        return ContractError(values[0])
    how, trace = values
    error = SimulatorProcessError(f" {how}")
    error.add_note(f"In the simulator's process:\n{trace}")
    return error


def _start_configured(config: Any) -> _Process:
    """Starts the process of a configured simulator."""
    return _Process(config.python, config.start_timeout, config.answer_timeout, f"{KEY}.python")


_answers: dict[str, dict[str, Any]] = {}
"""Answers to all that is asked before a simulator is made, by its configuration, of which some values have no hash."""


def _answers_of(config: Any) -> dict[str, Any]:
    """Asks a simulator, in a process of its own that ends then, everything that is asked before it is made."""
    text = repr(config)
    if text not in _answers:
        process = _start_configured(config)
        try:
            _answers[text] = process.call("questions", config)
        except SimulatorProcessError as error:
            raise ConfigError(f"{KEY}.python is {config.python!r}, but {error}.") from error
        finally:
            process.end()
    return _answers[text]


def tasks(name: str, python: str) -> list[TaskEntry]:
    """Lists the tasks of a simulator that another Python has."""
    process = _Process(python, START_TIMEOUT, START_TIMEOUT, "--python")
    try:
        entries: list[TaskEntry] = process.call("tasks", name)
    except SimulatorProcessError as error:
        raise ConfigError(str(error)) from error
    finally:
        process.end()
    return entries


class ProcessSimulator(Simulator):
    """A simulator in a process of its own."""

    def __init__(self, config: Any, num_envs: int, next_seed: NextSeed) -> None:
        """Starts the process and makes the simulator there.

        Raises:
            ConfigError: the simulator cannot be made as configured.
            SimulatorProcessError: the simulator raised, or its process failed.
        """
        self._process = _start_configured(config)
        self._next_seed = next_seed
        self.metrics = resolve("envs", config.name, f"{KEY}.name").metrics  # type: ignore[misc] # the simulator's
        try:
            attributes = self._call("make", config, num_envs)
        except BaseException:
            self._process.end()
            raise
        vars(self).update(attributes)

    def _call(self, name: str, *arguments: Any) -> Any:
        questions: dict[str, Callable[[int], Any]] = {"next_seed": self._next_seed}
        if self.next_start is not None:
            questions["next_start"] = self.next_start
        return self._process.call(name, *arguments, questions=questions)

    @classmethod
    def make(cls, config: Any, num_envs: int, next_seed: NextSeed) -> ProcessSimulator:
        return cls(config, num_envs, next_seed)

    @property
    def reset_seconds(self) -> float | None:  # type: ignore[override] # known to the process
        return self._process.reset_seconds

    def vary(self, variations: Variations) -> None:
        self._call("vary", variations)

    def reset(self) -> tuple[Observations, dict[int, Beginning]]:
        began: tuple[Observations, dict[int, Beginning]]
        began = self._call("reset", self.next_start is not None)
        return began

    def step(self, actions: NDArray[Any], active: Bool | None = None) -> Step:
        waiting = () if active is None else (active,)
        step: Step = self._call("step", actions, *waiting)
        if not step.observed:
            return step
        return replace(step, observed={self._metric(str(name)): values for name, values in step.observed.items()})

    def _metric(self, name: str) -> str | Metric:
        """Metric that the simulator declares, or a member of a family of them; of other numbers, their name."""
        if not name.startswith(METRIC):
            return name
        name = name.removeprefix(METRIC)
        declared = {metric.name: metric for metric in (*self.metrics, *CATALOGUE.values())}
        if name in declared:
            return declared[name]
        return next(
            family.member(match[1])
            for family in declared.values()
            if family.is_family and (match := family.pattern.fullmatch(name))
        )

    def state(self, n: int) -> State:
        state: State = self._process.call("state", n)
        return state

    def expert_action(self, n: int) -> Float32:
        action: Float32 = self._process.call("expert_action", n)
        return action

    def close(self) -> None:
        self._process.close()

    @classmethod
    def _answer(cls, config: Any, question: str, key: str) -> Any:
        try:
            answers = _answers_of(config)
        except ConfigError as error:
            raise ConfigError(str(error).replace(KEY, key)) from error
        kind, *values = answers.get(question, answers["facts"])
        if kind == "answer":
            return values[0]
        message = str(failure(kind, values)).replace(KEY, key)
        raise ConfigError(f"{message} (in {config.python}, {key}.python)")

    @classmethod
    def describe(cls, config: Any, key: str) -> TaskFacts:
        facts: TaskFacts = cls._answer(config, "facts", key)
        return replace(
            facts,
            stops_after_success=False,
            why_not={name: why.replace(KEY, key) for name, why in facts.why_not.items()},
            find_spaces=lambda: cls._answer(config, "spaces", key),
            check_machine=lambda: cls._answer(config, "machine", key),
        )

    @classmethod
    def goal_task(cls, config: Any) -> GoalTask | None:
        raise ConfigError(
            f"goals are judged in the learner's process, but env.train.python is {config.python!r}, so that the "
            "simulator is in another one: leave env.train.python out, or set algorithm.hindsight=0."
        )
