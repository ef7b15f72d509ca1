"""How an actor ended: read from Ray's error and from the log of its process."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ray.exceptions import GetTimeoutError, OutOfMemoryError, RayActorError, RayError, RayTaskError

from rlpipe.distributed.nodes import is_alive
from rlpipe.errors import ConfigError, ContractError, advice_on, how_it_failed

if TYPE_CHECKING:
    from rlpipe.distributed.actors import Location

_SHOWN_LINES = 12
_READ_LINES = 200
_CRASH = re.compile(r"Fatal Python error: ([^\n]+)|\*\*\* (SIG\w+) received")
_DUMP = re.compile(r"Fatal Python error|Timeout \(")
_THREAD = re.compile(r"(Thread|Current thread) 0x")
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
_EXIT = re.compile(r"exit code (-?\d+)")
_ACTOR = re.compile(r"ray::([\w-]+)\.")
_ACTOR_ID = re.compile(r"\bactor_id=(\w+)")
_CAUSED = "The above exception was the direct cause"
"""Line of a traceback between an exception and the one that was raised because of it."""
_ACTOR_CODE = str(Path(__file__).with_name("actors.py"))
"""File that is on the stack of every thread that serves a call."""
_MEMORY_ADVICE = (
    "If memory ran out: fewer environments per worker, or fewer workers on the node (cluster.cpus_per_worker)."
)


@dataclass(frozen=True)
class End:
    """How an actor ended.

    Attributes:
        what: what happened, as the rest of the sentence "rollout-3 on host ...".
        log: lines to show.
        advice: what to try.
    """

    what: str
    log: list[str]
    advice: str = ""


def describe_end(error: BaseException | None, where: Location | None, log: list[str], key: str, seconds: float) -> End:
    """Describes how an actor ended.

    Args:
        error: raised to whoever waited for the actor; None if it did not answer within ``seconds``.
        where: location of its process; None if it never started.
        log: last lines of its log.
        key: configuration key of the time limit.
        seconds: time limit.
    """
    if error is None:
        return _silent(where, log, key, seconds)
    if isinstance(error, OutOfMemoryError):
        return End("was killed by Ray because its node ran out of memory", _excerpt(log), _MEMORY_ADVICE)
    if isinstance(error, RayTaskError):
        cause = error.cause
        while isinstance(cause, RayTaskError):  # raised in another actor that this one had called
            cause = cause.cause
        message = [line for line in _COLOUR.sub("", str(error)).splitlines() if line.strip()]
        first = next((n for n, line in enumerate(message) if line.startswith(_CAUSED)), len(message))
        traceback = message[: first - 1]  # of what was raised first; its last line is the exception itself
        actors = list(dict.fromkeys(_ACTOR.findall(str(error))))  # each that was called by the one before it
        is_elsewhere = len(actors) > 1 and (where is None or where.actor != raised_in(error))
        where_else = f" in {actors[-1]}" if is_elsewhere else ""
        return End(f"{how_it_failed(cause)}{where_else}", _excerpt(traceback), advice_on(cause))
    if where is None:  # it never started, so it has no log
        message = [line.strip() for line in _COLOUR.sub("", str(error)).splitlines() if line.strip()]
        return End("could not be started", _excerpt(message), "The lines above are Ray's own explanation.")
    return _dead_process(error, where, log)


def _silent(where: Location | None, log: list[str], key: str, seconds: float) -> End:
    if where is None:
        advice = (
            "Check that the cluster has nodes that can hold it; otherwise raise cluster.start_timeout, or continue "
            "later with --resume."
        )
        return End("found no place on the cluster in time", _excerpt(log), advice)
    advice = f"The lines above show where it was. If it only needs longer, raise {key}."
    return End(f"gave no answer within {seconds:g} s ({key})", _excerpt(log), advice)


def _dead_process(error: BaseException, where: Location, log: list[str]) -> End:
    lines = _excerpt(log)
    if not is_alive(where.node):
        advice = "On machines that may be taken away, a small runner.save_interval loses the least."
        return End("was lost with its node", lines, advice)
    if crash := _CRASH.findall("\n".join(log)):
        advice = "A native library crashed, most often the simulator's or a driver's: see the lines above."
        return End(f"crashed ({next(filter(None, crash[-1]))})", lines, advice)
    if exited := _EXIT.search(str(error)):
        return End(f"ended with exit code {exited[1]}", lines)
    if isinstance(error, RayActorError):
        return End("died without a message, as after SIGKILL", lines, f"It was killed from outside. {_MEMORY_ADVICE}")
    return End(f"was lost: {type(error).__name__}", lines)


def _excerpt(log: list[str]) -> list[str]:
    """Returns the most telling lines of a log.

    These are the last ones; if the log holds a dump of all threads, made at a crash or a time-out, the first lines of
    the thread that was serving a call.
    """
    dumps = [index for index, line in enumerate(log) if _DUMP.match(line)]
    if not dumps:
        return log[-_SHOWN_LINES:]
    heading, *rest = log[dumps[-1] :]
    starts = [index for index, line in enumerate(rest) if _THREAD.match(line)]
    threads = [rest[start:end] for start, end in zip(starts, [*starts[1:], len(rest)], strict=True)]
    serving = [
        lines for lines in threads if lines[0].startswith("Current") or any(_ACTOR_CODE in line for line in lines)
    ]
    return [heading, *(serving[-1] if serving else rest)][:_SHOWN_LINES]


def log_lines(path: str) -> list[str]:
    """Returns the last lines of a log without Ray's own markers."""
    try:
        lines = Path(path).read_text(encoding="utf-8", errors="replace").splitlines()[-_READ_LINES:]
    except OSError:
        return []
    return [line.rstrip() for line in lines if line.strip() and not line.startswith((":actor_name:", ":job_id:"))]


def user_error(error: RayError) -> ConfigError | ContractError | None:
    """Returns what an actor raised, if that is complete and another actor would raise it too."""
    cause = error.cause if isinstance(error, RayTaskError) else None
    return cause if isinstance(cause, ConfigError | ContractError) else None


def raised_in(error: BaseException) -> str | None:
    """Returns Ray's id of the actor whose code raised; None for an error that is none of an actor's code.

    It may be another than the one that was called: an argument of the call, or a call inside it, failed there. The
    text of the error is all that has it, because the class that Ray derives from the cause's has no fields of its own.
    """
    ids = _ACTOR_ID.findall(str(error)) if isinstance(error, RayTaskError) else []
    return ids[-1] if ids else None


def means_loss(error: BaseException) -> bool:
    """True if the error means that a process or an object is gone, not that code in an actor raised."""
    if isinstance(error, RayTaskError):
        return isinstance(error.cause, RayError) and means_loss(error.cause)
    return isinstance(error, RayError) and not isinstance(error, GetTimeoutError)
