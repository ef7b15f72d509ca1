"""Runs code outside this package, such as a simulator's, and sets back what it changes in the process.

Such code may change the working directory, torch's default dtype or the handler of Ctrl-C, on which the run relies
afterwards. What it raises is the subject of ``errors.how_it_failed``.
"""

from __future__ import annotations

import locale
import logging
import os
import signal
import stat
import sys
import tempfile
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from typing import Any, NoReturn

import numpy as np

_VARIABLES = ("CUDA_VISIBLE_DEVICES", "OMP_NUM_THREADS", "PYTHONPATH", "TMPDIR")
"""Environment variables on which the run's own code and its child processes depend."""
_LOGGERS = (logging.getLogger(), logging.getLogger("rlpipe"))
SHORT_FOLDERS = ("/tmp", "/var/tmp", "/dev/shm")
"""Folders for sockets where that of temporary files is unfit, the first that can be written."""
LONGEST_SOCKET = 107
"""Bytes of the longest path that Linux allows a socket."""
_LONGEST_IN_MULTIPROCESSING = "/pymp-01234567/listener-01234567"

State = tuple[Callable[[], Any], Callable[[Any], object]]
"""Reads a part of the process's state, and sets it to what was read before."""


def _set_handler(number: int) -> Callable[[Any], object]:
    return lambda handler: handler is not None and signal.signal(number, handler)


def _handlers(logger: logging.Logger) -> list[logging.Handler]:
    """Returns the handlers, without that of absl, which many libraries load; it is there only where no other is."""
    return [handler for handler in logger.handlers if not type(handler).__module__.startswith("absl.")]


def _read_loggers() -> Any:
    loggers = [(logger.level, logger.disabled, logger.propagate, *_handlers(logger)) for logger in _LOGGERS]
    return loggers, logging.root.manager.disable


def _set_loggers(before: Any) -> None:
    for logger, (level, disabled, propagate, *handlers) in zip(_LOGGERS, before[0], strict=True):
        logger.setLevel(level)
        logger.disabled, logger.propagate, logger.handlers[:] = disabled, propagate, handlers
    logging.disable(before[1])


def _raised_warnings() -> Any:
    return [rule for rule in warnings.filters if rule[0] == "error"]


def _set_raised_warnings(before: Any) -> None:
    warnings.filters[:] = [rule for rule in warnings.filters if rule[0] != "error" or rule in before]  # type: ignore[index]


def _read_variables() -> Any:
    return [os.environ.get(name) for name in _VARIABLES]


def _set_variables(before: Any) -> None:
    for name, value in zip(_VARIABLES, before, strict=True):
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value


def _folder() -> str | None:
    with suppress(OSError):  # it was removed
        return os.getcwd()
    return None


_PROCESS: dict[str, State] = {
    "the working directory": (_folder, os.chdir),
    "sys.stdout": (lambda: sys.stdout, lambda stream: setattr(sys, "stdout", stream)),
    "sys.stderr": (lambda: sys.stderr, lambda stream: setattr(sys, "stderr", stream)),
    "the handler of SIGINT": (lambda: signal.getsignal(signal.SIGINT), _set_handler(signal.SIGINT)),
    "the handler of SIGTERM": (lambda: signal.getsignal(signal.SIGTERM), _set_handler(signal.SIGTERM)),
    "the alarm of SIGALRM": (  # one that is left running would go off in the run's own code
        lambda: signal.getitimer(signal.ITIMER_REAL)[0] > 0,
        lambda runs: runs or signal.setitimer(signal.ITIMER_REAL, 0),
    ),
    "logging": (_read_loggers, _set_loggers),
    "which warnings are raised": (_raised_warnings, _set_raised_warnings),
    "the locale": (lambda: locale.setlocale(locale.LC_ALL), lambda name: locale.setlocale(locale.LC_ALL, name)),
    "environment variables": (_read_variables, _set_variables),
    "NumPy's treatment of floating-point errors": (np.geterr, lambda before: np.seterr(**before)),
}


def _torch_state(torch: Any) -> dict[str, State]:
    return {
        "torch's default dtype": (torch.get_default_dtype, torch.set_default_dtype),
        "torch's default device": (
            torch.get_default_device,
            lambda device: torch.set_default_device(None if device.type == "cpu" else device),  # a set one is slower
        ),
        "torch's number of threads": (torch.get_num_threads, torch.set_num_threads),
        "torch's recording of gradients": (torch.is_grad_enabled, torch.set_grad_enabled),
        "torch's deterministic algorithms": (torch.get_deterministic_debug_mode, torch.set_deterministic_debug_mode),
    }


def _fresh_torch(torch: Any) -> dict[str, Any]:
    """Returns the state with which torch is loaded; its number of threads depends on the machine."""
    return {
        "torch's default dtype": torch.float32,
        "torch's default device": torch.device("cpu"),
        "torch's recording of gradients": True,
        "torch's deterministic algorithms": 0,
    }


_KEPT = ("the working directory", "the locale", "environment variables", "torch's default dtype")
"""Parts that such code finds again as it left them the next time: it may rely on them, and its neighbours do not."""
_states = dict(_PROCESS)
_left: dict[str, dict[str, Any]] = {}
_reported: set[tuple[str, str]] = set()
_changed: dict[str, dict[str, None]] = {}
"""Parts still to be reported, by the code that changed them."""
_remarks: list[str] = []
"""Other sentences still to be reported."""


def _read() -> dict[str, Any]:
    """Returns the present state; that of torch once it is loaded."""
    if "torch's default dtype" not in _states and hasattr(sys.modules.get("torch"), "set_deterministic_debug_mode"):
        _states.update(_torch_state(sys.modules["torch"]))
    return {name: read() for name, (read, _) in _states.items()}


@contextmanager
def foreign_code(name: str) -> Iterator[None]:
    """Runs code outside this package; afterwards, the state of the process is as before, and ``take_notes`` says so.

    Args:
        name: what runs, such as ``the simulator CartPole-v1``.
    """
    keep_sockets_short()
    before, leave = _read(), os._exit
    _set({part: value for part, value in _left.get(name, {}).items() if part in _KEPT})
    os._exit = _Leave()  # which never returns either
    try:
        yield
    finally:
        os._exit = leave
        after = _read()
        if len(after) > len(before):  # such code was the first to load torch
            before = {**before, **_fresh_torch(sys.modules["torch"])}
        if after != before:
            changed = {part: value for part, value in before.items() if after[part] != value}
            _set(changed)
            _left.setdefault(name, {}).update({part: after[part] for part in changed})
            if new := {part: None for part in changed if (name, part) not in _reported}:
                _reported.update((name, part) for part in new)
                _changed.setdefault(name, {}).update(new)


def _set(values: dict[str, Any]) -> None:
    for part, value in values.items():
        with suppress(ValueError, OSError):  # a handler from another thread, a folder that is gone
            _states[part][1](value)


@cache
def keep_sockets_short() -> None:
    """Moves the sockets of ``multiprocessing`` to a short folder, if that of temporary files leaves them no room.

    A simulator that starts a manager or a fork server would fail there: Python 3.14 is the first to see to it itself.
    """
    folder = tempfile.gettempdir()
    size, most = len(os.fsencode(folder)), LONGEST_SOCKET - len(_LONGEST_IN_MULTIPROCESSING)
    if size <= most or (short := next(filter(None, map(_own_folder, SHORT_FOLDERS)), None)) is None:
        return
    from multiprocessing import current_process

    current_process()._config["tempdir"] = short  # type: ignore[attr-defined] # processes that it starts inherit it
    _remarks.append(
        f"The folder of temporary files, {folder}, has {size} bytes, while sockets of Python's multiprocessing leave "
        f"room for {most}; those of simulators are in {short} instead. A shorter TMPDIR avoids that."
    )


def _own_folder(parent: str) -> str:
    """Makes this user's folder of sockets, which stays; empty if that is impossible."""
    path = f"{parent}/rlpipe-sockets-{os.getuid()}"
    with suppress(OSError):
        with suppress(FileExistsError):
            os.mkdir(path, 0o700)
        status = os.lstat(path)  # another user may have made it, or a link
        if stat.S_ISDIR(status.st_mode) and status.st_uid == os.getuid() and os.access(path, os.W_OK):
            return path
    return ""


def take_notes() -> list[str]:
    """Returns one sentence on what each has changed since the last call; no change is reported twice in a run."""
    notes = [*_remarks] + [
        f"{name[0].upper()}{name[1:]} changed {' and '.join(parts)}; that was undone for the rest of the run."
        for name, parts in _changed.items()
    ]
    _changed.clear()
    _remarks.clear()
    return notes


def begin_notes() -> None:
    """Begins a run, to which every change is reported again."""
    _reported.clear()


class _ProcessExit(SystemExit):
    """Call of ``os._exit``, which would end the process without a word."""

    call = "os._exit"


class _Leave:
    """Raises in the thread that made it; other threads, and processes that were forked meanwhile, do end."""

    def __init__(self) -> None:
        self._maker = os.getpid(), threading.get_ident()
        self._leave: Any = os._exit

    def __call__(self, status: int) -> NoReturn:
        if self._maker == (os.getpid(), threading.get_ident()):
            raise _ProcessExit(status)
        self._leave(status)
        raise AssertionError("the process has ended")
