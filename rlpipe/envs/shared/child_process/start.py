"""First program of a simulator's process: checks the Python it runs in, finds this package, and serves.

It is run as a script by a Python of the user's choice, so it must be understood by old ones too, and import nothing of
this package before it has checked what that needs.
"""

import importlib.util
import json
import os
import signal
import sys

PYTHON = (3, 10)
"""Oldest Python in which the step contract and the plug-ins run."""
PACKAGES = ("numpy",)
"""Packages that the step contract needs; a plug-in says itself what it needs besides."""


def problem() -> str:
    """Returns what this Python lacks, as the rest of a sentence that begins with its path; empty for nothing."""
    if sys.version_info < PYTHON:
        return "is Python {}.{}, but must be {}.{} or newer".format(*sys.version_info[:2], *PYTHON)
    missing = [name for name in PACKAGES if importlib.util.find_spec(name) is None]
    return "lacks {}: install it there, with its pip".format(" and ".join(missing)) if missing else ""


def find_package(folder: str) -> None:
    """Lets ``import`` find the package in a folder, and nothing else that lies beside it, such as another NumPy."""
    name = os.path.basename(folder)
    file = os.path.join(folder, "__init__.py")
    spec = importlib.util.spec_from_file_location(name, file, submodule_search_locations=[folder])
    assert spec is not None and spec.loader is not None  # noqa: PT018 - for the type checker alone
    sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(sys.modules[name])


def end_with(lifeline: int) -> None:
    """Ends this process when the other end of a pipe is closed, as it is when the worker ends, however it ends.

    The kernel sends a signal that ends the process, so nothing has to be waited for, whatever the simulator is doing.
    """
    import fcntl

    signal.signal(signal.SIGIO, signal.SIG_DFL)
    fcntl.fcntl(lifeline, fcntl.F_SETOWN, os.getpid())
    fcntl.fcntl(lifeline, fcntl.F_SETFL, fcntl.fcntl(lifeline, fcntl.F_GETFL) | os.O_ASYNC | os.O_NONBLOCK)
    try:
        closed = os.read(lifeline, 1) == b""
    except BlockingIOError:
        closed = False
    if closed:  # before the signal was asked for
        os._exit(0)


def main() -> None:
    """Says what is wrong here, or serves."""
    arguments = json.loads(sys.argv[1])
    del sys.argv[1:]
    here = os.path.dirname(os.path.abspath(__file__))  # where plug-ins have the names of libraries
    sys.path[:] = [folder for folder in sys.path if os.path.abspath(folder) != here]
    for number in (arguments["lifeline"], arguments["socket"], *arguments["files"]):
        os.set_inheritable(number, False)
    end_with(arguments["lifeline"])
    sys.path += [folder for folder in arguments["path"] if folder not in sys.path]
    lack = problem()
    os.write(arguments["socket"], json.dumps({"problem": lack}).encode() + b"\n")
    if not lack:
        find_package(arguments["package"])
        from rlpipe.envs.shared.child_process.program import serve

        serve(arguments["socket"], *arguments["files"])


if __name__ == "__main__":
    main()
