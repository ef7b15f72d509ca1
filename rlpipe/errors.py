"""Errors that end or interrupt a run, worded so that a user can act on them."""

from __future__ import annotations

import shlex
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from threading import current_thread, main_thread
from typing import Any


class UserInterrupt(KeyboardInterrupt):
    """Ctrl-C or SIGTERM of the user, as against a KeyboardInterrupt that a simulator raises itself."""


def how_it_failed(error: BaseException) -> str:
    """Describes what code outside this package raised: ``called sys.exit(2)``, ``raised ValueError: too far``.

    Such code may raise anything, and none of it ends the process: catch BaseException around it, and call this.

    Raises:
        KeyboardInterrupt: the user interrupted that code, whatever it made of it.
    """
    raised: BaseException | None = error
    plain = signal.getsignal(signal.SIGINT) is signal.default_int_handler and current_thread() is main_thread()
    by_user = KeyboardInterrupt if plain else UserInterrupt
    seen: set[int] = set()
    while raised is not None and id(raised) not in seen:
        if isinstance(raised, by_user):
            raise raised
        seen.add(id(raised))
        raised = raised.__context__
    if isinstance(error, SystemExit):
        call = getattr(error, "call", "sys.exit")  # or os._exit, which ``foreign_code`` has raise it too
        return f"called {call}({'' if error.code is None else repr(error.code)})"
    try:
        message = str(error).strip()
    except Exception:  # an exception may not even be able to say what it is
        message = ""
    if isinstance(error, ForeignError):
        return message
    return f"raised {type(error).__name__}{f': {message}' if message else ''}"


def advice_on(error: BaseException | None) -> str:
    """Returns what to try where a GPU's memory is full or the GPU itself fails; empty for any other error."""
    name, message = type(error).__name__, str(error)
    if name == "OutOfMemoryError" and "CUDA" in message:
        return (
            "The memory of the GPU is full. rlpipe doctor CONFIG estimates what a learner needs. Resume with "
            "learner.micro_batch or policy.checkpoint_gradients=true, or with learner.device=cpu."
        )
    if name == "AcceleratorError" or message.startswith("CUDA error"):
        return (
            "The GPU failed, or its driver: nvidia-smi shows whether it is still there. Resume on another machine, or "
            "with learner.device=cpu."
        )
    return ""


class ForeignError(RuntimeError):
    """Stands in for what would end a process, or cannot be sent to another. The message is from ``how_it_failed``."""

    @classmethod
    def because_of(cls, error: BaseException) -> ForeignError:
        """Returns the exception that stands in for another, which is its cause."""
        substitute = cls(how_it_failed(error))
        substitute.__cause__ = error
        return substitute

    @classmethod
    def of(cls, error: BaseException) -> Exception:
        """Returns an exception as it is, and one for a SystemExit or the like."""
        return error if isinstance(error, Exception) else cls.because_of(error)


@contextmanager
def ignored() -> Iterator[None]:
    """Ignores whatever code outside this package raises, where nothing depends on it."""
    try:
        yield
    except BaseException as error:
        how_it_failed(error)


_MAIN = str(Path(__file__).with_name("__main__.py"))


def command_line(*words: object) -> str:
    """Returns a command of this program as a shell takes it, begun as this process was."""
    program = [sys.orig_argv[0], "-m", "rlpipe"] if sys.argv[:1] == [_MAIN] else ["rlpipe"]
    return shlex.join([*program, *map(str, words)])


@dataclass(frozen=True)
class Fault:
    """Record of an actor that ended, planned or not.

    Attributes:
        actor: its name, such as ``rollout-3``; the key ``part`` in the files of a run.
        what: signal or exception, as the rest of the sentence "rollout-3 on host ...".
        doing: task it was given, such as ``collect``; empty if none.
        host: machine it ran on.
        node: Ray's id of that node.
        pid: its process there.
        log: last lines of its log; empty if they are no longer available.
        advice: what to try.
        planned: True if the run itself ended the actor, which no budget is charged for.
        seconds: time from the fault until the replacement had finished the task.
        successor: process of the replacement.
    """

    actor: str
    what: str
    doing: str = ""
    host: str = ""
    node: str = ""
    pid: int | None = None
    log: tuple[str, ...] = ()
    advice: str = ""
    planned: bool = False
    seconds: float | None = None
    successor: int | None = None

    @property
    def sentence(self) -> str:
        """Sentence about what happened, without its full stop."""
        process = f" (process {self.pid})" if self.pid is not None else ""
        where = f" on {self.host}{process}" if self.host else ""
        says_when = " while " in self.what  # as an error of a simulator does
        doing = f" while it was to {self.doing}" if self.doing and not says_when else ""
        return f"{self.actor}{where} {self.what}{doing}"

    def as_json(self) -> dict[str, Any]:
        """Returns the known fields for ``events.jsonl`` and ``run.json``; the actor is stored under ``part``."""
        fields = {"part": self.actor, **vars(self), "log": list(self.log)}
        del fields["actor"]
        return {name: value for name, value in fields.items() if value not in ("", None, [], False)}

    def story(self) -> str:
        """Returns the sentence, the last lines of the log, and the advice, for a terminal."""
        lines = [f"{self.sentence}."]
        if self.log:
            lines += ["The last lines of its log:", *(f"    {line}" for line in self.log)]
        return "\n".join([*lines, *([self.advice] if self.advice else [])])


class RunError(RuntimeError):
    """A run cannot continue. The message is complete; a traceback would add nothing.

    Attributes:
        fault: cause of the end.
        after: lines printed after the fault.
    """

    def __init__(self, fault: Fault, *after: str) -> None:
        super().__init__("\n".join([fault.story(), *after]))
        self.fault, self.after = fault, after


class ActorLostError(RunError):
    """A learner, metric logger or inference server is gone, and its state with it.

    The run continues from its last checkpoint once the actor has been restarted.

    Attributes:
        others: faults of more such actors that were lost at the same time, as with a node.
    """

    def __init__(self, fault: Fault, *others: Fault) -> None:
        super().__init__(fault)
        self.others = others


class ContractError(RunError):
    """A simulator returned a value that its spaces or the step contract do not allow; to replace it would not help.

    Attributes:
        problem: value, and what is expected, without a full stop: "the reward is None; one number is expected".
    """

    def __init__(self, problem: str) -> None:
        super().__init__(Fault("the simulator", f"returned a wrong value: {problem}"))
        self.problem = problem

    def __reduce__(self) -> tuple[Any, ...]:
        """Crosses to another process by its problem alone."""
        return ContractError, (self.problem,)


class PolicyError(RunError):
    """A policy from elsewhere failed, or answered what is no action; none of its episodes count.

    Attributes:
        name: what ``--policy`` says.
        problem: what it did, without a full stop: "closed the connection".
    """

    def __init__(self, name: str, problem: str) -> None:
        """Takes the policy's name and the problem."""
        super().__init__(Fault(f"the policy {name}", problem))
        self.name, self.problem = name, problem

    def __reduce__(self) -> tuple[Any, ...]:
        """Crosses to another process by its name and its problem."""
        return PolicyError, (self.name, self.problem)


class SimulatorError(RuntimeError):
    """A simulator raised. The message says during which call; the cause is the simulator's own exception."""

    @classmethod
    def of(cls, error: BaseException, doing: str) -> SimulatorError:
        """Returns the error to raise for whatever the simulator raised.

        Raises:
            KeyboardInterrupt: as ``how_it_failed``.
        """
        if isinstance(error, SimulatorProcessError):
            return cls(f"the simulator{error.what} while {doing}{error.output}")
        return cls(f"the simulator {how_it_failed(error)} while {doing}")


class SimulatorProcessError(RuntimeError):
    """A simulator in a process of its own raised, or its process failed.

    Attributes:
        what: rest of the sentence "the simulator", with the space before it if there is one.
        output: the last lines of the process, as the end of the sentence; empty if they say nothing.
    """

    def __init__(self, what: str, output: str = "") -> None:
        super().__init__(what, output)
        self.what, self.output = what, output

    def __str__(self) -> str:
        return f"the simulator{self.what}{self.output}"


class LostRowsError(OSError):
    """The last rows, or the last checkpoint, of a run found no room on the disk. The message is complete, unlike that
    of another OSError.
    """


class ConfigError(ValueError):
    """A request of the user that cannot be carried out; raised before anything starts, exit code 2."""
