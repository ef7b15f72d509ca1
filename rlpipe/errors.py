"""What went wrong with a part of a run, said so that a user can act on it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Fault:
    """The end of a part that was not meant to end.

    Attributes:
        part: its name, such as ``rollout-3``.
        what: signal or exception, as the rest of the sentence "rollout-3 on host ...".
        doing: what it was asked to do, such as ``collect``.
        host: where it ran.  node: Ray's id of that node.  pid: its process there.
        log: last lines of its log; empty where they cannot be had any more.
        advice: what to try.
        planned: whether it was ended on purpose, so that no budget pays for it.
        taken: seconds from the fault until the part that replaced it had done what was asked of it.
        successor: process of that part.
    """

    part: str
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
        """What happened, in a sentence without its end."""
        process = f" (process {self.pid})" if self.pid is not None else ""
        where = f" on {self.host}{process}" if self.host else ""
        doing = f" while it was to {self.doing}" if self.doing else ""
        return f"{self.part}{where} {self.what}{doing}"

    def as_json(self) -> dict[str, Any]:
        """For ``events.jsonl`` and ``run.json``; what is not known is left out."""
        fields = {"part": self.part, "what": self.what, "doing": self.doing, "host": self.host, "node": self.node,
                  "pid": self.pid, "log": list(self.log), "advice": self.advice, "planned": self.planned,
                  "seconds": self.taken, "successor": self.successor}  # fmt: skip
        return {name: value for name, value in fields.items() if value not in ("", None, [], False)}

    def story(self) -> str:
        """The sentence, the last lines of the log, and the advice, for a terminal."""
        lines = [f"{self.sentence}."]
        if self.log:
            lines += ["The last lines of its log:", *(f"    {line}" for line in self.log)]
        return "\n".join([*lines, *([self.advice] if self.advice else [])])


class RunError(RuntimeError):
    """A run cannot go on. Its text is all that a user needs; a traceback would add nothing.

    Attributes:
        fault: that ended it.  after: what to say after it, a line each.
    """

    def __init__(self, fault: Fault, *after: str) -> None:
        """Takes the fault, and what to say after it."""
        super().__init__("\n".join([fault.story(), *after]))
        self.fault, self.after = fault, after


class ActorLostError(RunError):
    """A part is gone without which nothing goes on, and with which its state: learner, logger, inference server.

    The run goes on from its last checkpoint once the part is there again.
    """


class SimulatorError(RuntimeError):
    """A simulator raised. The message says what it was doing; the cause is the simulator's own exception."""

    @classmethod
    def of(cls, error: Exception, doing: str) -> SimulatorError:
        """What to raise from an error of the simulator."""
        said = str(error).strip()
        return cls(f"the simulator raised {type(error).__name__}{f': {said}' if said else ''} while {doing}")

    def __reduce__(self) -> tuple[Any, ...]:
        """Keeps the cause when it crosses to another process."""
        return _simulator_error, (self.args, self.__cause__)


def _simulator_error(args: tuple[Any, ...], cause: BaseException | None) -> SimulatorError:
    error = SimulatorError(*args)
    error.__cause__ = cause
    return error


class ConfigError(ValueError):
    """What the user asked for cannot be done; raised before anything starts, exit code 2."""
