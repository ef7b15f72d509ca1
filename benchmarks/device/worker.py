"""A process that measures for another, which outlives it: a crash, a hang or a broken GPU costs one row."""

from __future__ import annotations

import gc
import multiprocessing
import sys
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

from benchmarks.device.plan import Skipped

OURS = ("rlpipe", "benchmarks")


def _serve(pipe: Connection) -> None:
    """Calls what comes through the pipe, and answers with its kind and its result."""
    while True:
        try:
            function, args = pipe.recv()
        except EOFError:
            return
        pipe.send(_answer(function, args))
        _release()


def _answer(function: Callable[..., Any], args: tuple[Any, ...]) -> tuple[str, Any]:
    try:
        return "measured", function(*args)
    except Skipped as reason:
        return "skipped", str(reason)
    except Exception as error:
        package = getattr(error, "name", None) if isinstance(error, ModuleNotFoundError) else None
        if package and package.partition(".")[0] not in OURS:
            return "skipped", f"not installed: {package}"
        last = traceback.extract_tb(error.__traceback__)[-1]
        return "failed", f"{type(error).__name__}: {error} ({last.filename}:{last.lineno})"[:1000]


def _release() -> None:
    """Frees what the last call held and undoes what it set, so that the next one finds what a new process would."""
    gc.collect()
    if (torch := sys.modules.get("torch")) is not None:
        torch.set_float32_matmul_precision("highest")
        torch.cuda.empty_cache()
    if "torch._inductor" in sys.modules:
        sys.modules["torch"].compiler.reset()


class Worker:
    """The process, which is replaced after a failure."""

    def __init__(self) -> None:
        """Starts the process: torch takes seconds to load."""
        self._start()

    def _start(self) -> None:
        context = multiprocessing.get_context("spawn")  # a fork would inherit a GPU that it cannot use
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(theirs,))
        self._process.start()
        theirs.close()

    def call(self, function: Callable[..., dict[str, Any]], *args: Any, timeout: float) -> dict[str, Any]:
        """Calls a function of a module there.

        Returns:
            Its result.

        Raises:
            Skipped: the function says that it cannot be measured here, or a package is not installed.
            RuntimeError: it failed, the process died, or it took more than ``timeout`` seconds.
        """
        try:
            self._pipe.send((function, args))
            kind, answer = self._pipe.recv() if self._pipe.poll(timeout) else ("failed", f"not done in {timeout:.0f} s")
        except (EOFError, OSError):
            self._process.join(timeout=10)
            kind, answer = "failed", f"its process ended with exit code {self._process.exitcode}"
        if kind == "skipped":
            raise Skipped(answer)
        if kind == "failed":  # the device may be unusable in that process
            self.close()
            self._start()
            raise RuntimeError(answer)
        return answer

    def close(self) -> None:
        """Ends the process."""
        self._pipe.close()
        self._process.kill()
        self._process.join()
