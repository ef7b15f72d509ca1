"""Checks of the servers that backends send to."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

from rlpipe.config.schema import Config
from rlpipe.config.sections import options_of
from rlpipe.doctor.results import CheckResult, fail, ok, warn
from rlpipe.errors import ConfigError

CONNECT_SECONDS = 3.0
"""Time in which a server must accept a connection."""
REACH_SECONDS = 10.0
"""Time in which its name must be resolved and one of its addresses accept a connection."""


def check_backends(config: Config) -> Callable[[], list[CheckResult]]:
    """Starts to check that the configured backends can work here and that their servers answer.

    Returns:
        Function that waits for the results; all servers are asked at once.
    """
    logger = config.runner.logger
    refusals: list[CheckResult] = []
    pending: list[Future[CheckResult]] = []
    for name, backend in config.backend_classes.items():
        options = options_of(name, backend.Config, logger.options.get(name, {}))
        try:
            backend.check()
        except ConfigError as error:
            refusals.append(fail(f"tracker {name}", str(error)))
            continue
        if server := backend.server(options):
            pending.append(in_background(check_server, name, server))
    return lambda: [*refusals, *(future.result() for future in pending)]


def in_background(function: Callable[..., Any], *args: Any) -> Future[Any]:
    """Calls a function in a thread for which nothing waits, not even the end of the process."""
    future: Future[Any] = Future()

    def work() -> None:
        try:
            future.set_result(function(*args))
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=work, daemon=True).start()
    return future


def check_server(name: str, url: str) -> CheckResult:
    """Checks that the server of a backend accepts a connection, or the proxy on the way to it."""
    parts = urlsplit(url)
    host, way = parts.hostname or "", ""
    proxy = None if proxy_bypass(host) else getproxies().get(parts.scheme)
    if proxy:
        parts = urlsplit(proxy)
        way = f" through the proxy {parts.hostname}"
    trouble = unreachable(parts.hostname or "", parts.port or (443 if parts.scheme == "https" else 80))
    if trouble:
        remedy = f"the run continues without it, and `rlpipe sync RUN --to {name}` catches up; or leave {name} out."
        return warn(f"tracker {name}", f"{host} does not answer{way}: {trouble}.", remedy)
    return ok(f"tracker {name}", f"{host} answers{way}")


def unreachable(host: str, port: int) -> str:
    """Returns why no connection can be made; empty if one can."""
    connecting = in_background(socket.create_connection, (host, port), CONNECT_SECONDS)  # resolving has no limit
    try:
        connecting.result(timeout=REACH_SECONDS).close()
    except OSError as error:  # a TimeoutError is one
        return error.strerror or str(error) or f"no answer within {REACH_SECONDS:g} s"
    except (OverflowError, UnicodeError) as error:  # an invalid port or name
        return str(error)
    return ""
