"""Errors that end or interrupt a run, worded so that a user can act on them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


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
        taken: seconds from the fault until the replacement had finished the task.
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
    taken: float | None = None
    successor: int | None = None

    @property
    def sentence(self) -> str:
        """Sentence about what happened, without its full stop."""
        process = f" (process {self.pid})" if self.pid is not None else ""
        where = f" on {self.host}{process}" if self.host else ""
        doing = f" while it was to {self.doing}" if self.doing else ""
        return f"{self.actor}{where} {self.what}{doing}"

    def as_json(self) -> dict[str, Any]:
        """Returns the known fields for ``events.jsonl`` and ``run.json``; the actor is stored under ``part``."""
        fields = {"part": self.actor, "what": self.what, "doing": self.doing, "host": self.host, "node": self.node,
                  "pid": self.pid, "log": list(self.log), "advice": self.advice, "planned": self.planned,
                  "seconds": self.taken, "successor": self.successor}  # fmt: skip
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
        """Builds the message from the fault and the lines after it."""
        super().__init__("\n".join([fault.story(), *after]))
        self.fault, self.after = fault, after


class ActorLostError(RunError):
    """A learner, metric logger or inference server is gone, and its state with it.

    The run continues from its last checkpoint once the actor has been restarted.
    """


class SimulatorError(RuntimeError):
    """A simulator raised. The message says during which call; the cause is the simulator's own exception."""

    @classmethod
    def of(cls, error: Exception, doing: str) -> SimulatorError:
        """Returns the error to raise for an exception of the simulator."""
        if isinstance(error, SimulatorProcessError):
            return cls(f"the simulator{error.what} while {doing}{error.output}")
        message = str(error).strip()
        return cls(f"the simulator raised {type(error).__name__}{f': {message}' if message else ''} while {doing}")

    def __reduce__(self) -> tuple[Any, ...]:
        """Keeps the cause when the error crosses to another process."""
        return _simulator_error, (self.args, self.__cause__)


def _simulator_error(args: tuple[Any, ...], cause: BaseException | None) -> SimulatorError:
    error = SimulatorError(*args)
    error.__cause__ = cause
    return error


class SimulatorProcessError(RuntimeError):
    """A simulator in a process of its own raised, or its process failed.

    Attributes:
        what: rest of the sentence "the simulator", with the space before it if there is one.
        output: the last lines of the process, as the end of the sentence; empty if they say nothing.
    """

    def __init__(self, what: str, output: str = "") -> None:
        """Builds the message from both."""
        super().__init__(what, output)
        self.what, self.output = what, output

    def __str__(self) -> str:
        return f"the simulator{self.what}{self.output}"


class ConfigError(ValueError):
    """A request of the user that cannot be carried out; raised before anything starts, exit code 2."""
