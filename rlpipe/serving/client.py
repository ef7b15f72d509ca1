"""Asks a policy behind a socket for its actions: a server of openpi, of vla-eval, or ``rlpipe serve``."""

from __future__ import annotations

import socket
import struct
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, NoReturn, TypeVar
from urllib.parse import urlsplit

import numpy as np
from numpy.typing import NDArray
from websockets.exceptions import ConnectionClosed, WebSocketException
from websockets.sync.client import ClientConnection, connect

from rlpipe.errors import PolicyError
from rlpipe.serving.wire import (
    LARGEST_MESSAGE,
    LOOPBACK,
    PROTOCOL_VERSION,
    Frame,
    WireError,
    mapping,
    pack_openpi,
    shortened,
)

T = TypeVar("T")

RETRY_SECONDS = 0.2
"""Wait before a server that is not there yet is tried again."""
CLOSE_SECONDS = 1.0
TOO_LARGE = 1009
"""Code with which a connection ends when a message is longer than is read (RFC 6455, section 7.4.1)."""
STATE_KEYS = {"openpi": "observation/state", "vla-eval": "state"}
"""Key of an observation that is one array, by protocol."""


class PolicyClient:
    """Policy of another process, for one environment.

    Attributes:
        url: its address.
        protocol: how it is asked.
        metadata: what it says about itself; ``rlpipe`` is in it where it is one of ours.
    """

    def __init__(
        self,
        url: str,
        protocol: str = "openpi",
        *,
        timeout: float = 60.0,
        connect_timeout: float = 10.0,
    ) -> None:
        """Connects.

        Args:
            url: ``ws://HOST:PORT``.
            protocol: ``openpi`` or ``vla-eval``.
            timeout: s, time that the server has for each answer; the first may take long, as it may compile.
            connect_timeout: s, time that it has to start listening.
        Raises:
            PolicyError: there is no such server.
        """
        self.url, self.protocol = url, protocol
        self.metadata: dict[str, Any] = {}
        self._connect_timeout, self._timeout = connect_timeout, timeout
        self._connection: ClientConnection | None = None
        self._seq = 0
        self._first: dict[str, Any] = {}  # keys of the next request that begin an episode
        self._steps, self._since = 0, 0.0  # of the running episode
        self._is_running = False
        self._open()

    def begin(self, seed: int | None = None) -> None:
        """Begins an episode.

        Openpi's protocol has no message for it: servers of others see a new connection.

        Args:
            seed: of the policy's noise; only ``rlpipe serve`` is told, which then draws that of the evaluation.
        Raises:
            PolicyError: the server failed.
        """
        seeded = {"seed": seed} if seed is not None and self._is_ours else {}
        if self.protocol == "vla-eval":
            self._end_episode()
            self._send_frame("episode_start", {"task": {"name": "rlpipe", **seeded}})
        elif self._is_ours:
            self._first = {"reset": True, **seeded}
        elif self._steps:
            self._shut()
            self._open()
        self._steps, self._since, self._is_running = 0, time.monotonic(), True

    def ask(self, observation: Any) -> NDArray[Any]:
        """Returns the actions that the policy decides on.

        Args:
            observation: arrays, numbers and text by the keys that the server expects; an array alone is the state.
        Returns:
            [H, A] actions, to be taken one after the other; the server says how many of them, if at all.
        Raises:
            PolicyError: the server failed, or its answer is none.
        """
        request = observation if isinstance(observation, Mapping) else {STATE_KEYS[self.protocol]: observation}
        if self.protocol == "vla-eval":
            answer = self._exchange("observation", dict(request), "action")
        else:
            self._send(lambda: pack_openpi({**request, **self._first}))
            self._first = {}
            answer = self._receive(mapping, self._deadline())
        self._steps += 1
        return self._actions(answer)

    def close(self) -> None:
        """Ends the episode and the connection."""
        with suppress(PolicyError):
            if self._connection is not None:
                self._end_episode()
        self._shut()

    def __enter__(self) -> PolicyClient:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def _is_ours(self) -> bool:
        return "rlpipe" in self.metadata

    # --- the connection

    def _open(self) -> None:
        """Connects, trying again until the server listens, and reads what it says about itself."""
        deadline = time.monotonic() + self._connect_timeout
        while self._connection is None:
            left = deadline - time.monotonic()
            try:
                self._connection = connect(
                    self.url,
                    open_timeout=max(left, RETRY_SECONDS),
                    close_timeout=CLOSE_SECONDS,
                    compression=None,
                    max_size=LARGEST_MESSAGE,
                    ping_interval=None,  # a server that computes may answer no ping
                    proxy=None if urlsplit(self.url).hostname in LOOPBACK else True,
                )
            except (OSError, EOFError) as error:
                if left <= RETRY_SECONDS:
                    self._fail(f"could not be reached within {self._connect_timeout:g} s: {error}", error)
                time.sleep(RETRY_SECONDS)
            except (WebSocketException, ValueError) as error:
                self._fail(f"is no server of a policy: {error}", error)
        _limit_sending(self._connection, self._timeout)
        if self.protocol == "vla-eval":
            hello = {"harness_version": "rlpipe", "protocol_version": PROTOCOL_VERSION}
            self.metadata = self._exchange("hello", hello, "hello")
        else:
            self.metadata = self._receive(mapping, self._deadline())

    def _shut(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def _deadline(self) -> float:
        return time.monotonic() + self._timeout

    def _connected(self) -> ClientConnection:
        if self._connection is None:
            raise PolicyError(self.url, "has failed before, so the connection is closed")
        return self._connection

    def _send_frame(self, kind: str, payload: dict[str, Any]) -> None:
        self._seq += 1
        self._send(Frame(kind, payload, self._seq).packed)

    def _send(self, pack: Callable[[], bytes]) -> None:
        """Sends what is packed."""
        try:
            self._connected().send(pack())
        except WireError as error:
            self._fail(f"was not asked, because {error}", error)
        except ConnectionClosed as error:
            if isinstance(error.__cause__, BlockingIOError):  # of ``_limit_sending``
                self._fail(f"read nothing for {self._timeout:g} s", error)
            self._fail_closed(error)

    def _receive(self, read: Callable[[bytes], T], deadline: float) -> T:
        """Returns what is read out of the next message."""
        try:
            message = self._connected().recv(timeout=deadline - time.monotonic())
        except TimeoutError as error:
            self._fail(
                f"sent nothing within {self._timeout:g} s. Give it more time if it is slow; if it never does, "
                f"its protocol may be another than {self.protocol}",
                error,
            )
        except ConnectionClosed as error:
            self._fail_closed(error)
        if isinstance(message, str):
            self._fail(f"answered with a text: {shortened(message)!r}")
        try:
            return read(message)
        except WireError as error:
            self._fail(f"answered what cannot be read: {error}", error)

    # --- messages

    def _exchange(self, kind: str, payload: dict[str, Any], expected: str) -> dict[str, Any]:
        """Sends a frame and returns the payload of its answer; answers to other frames are dropped."""
        self._send_frame(kind, payload)
        deadline = self._deadline()
        while (frame := self._receive(Frame.read, deadline)).seq != self._seq:
            pass
        if frame.type == "error":
            self._fail(f"reports an error: {shortened(str(frame.payload.get('error')))}")
        if frame.type != expected:
            self._fail(f"answered {kind} with {frame.type!r} instead of {expected}")
        return frame.payload

    def _end_episode(self) -> None:
        if self._is_running and self.protocol == "vla-eval":
            self._is_running = False
            seconds = round(time.monotonic() - self._since, 3)
            self._send_frame("episode_end", {"metrics": {}, "steps": self._steps, "elapsed_sec": seconds})

    def _actions(self, answer: Mapping[str, Any]) -> NDArray[Any]:
        """Returns the actions of an answer, [H, A]; whether they suit the task is for others to say."""
        if "actions" not in answer:
            self._fail(f"answered without actions: its answer has {', '.join(map(str, answer)) or 'nothing'}")
        try:
            actions = np.atleast_2d(answer["actions"])
        except ValueError as error:  # a ragged list
            self._fail(f"answered actions that are no array: {error}", error)
        if actions.ndim != 2:
            self._fail(f"answered actions of the shape {actions.shape}; [A] or [H, A] is expected")
        return actions

    # --- failures

    def _fail(self, what: str, cause: BaseException | None = None) -> NoReturn:
        self._shut()
        raise PolicyError(self.url, what.rstrip(".")) from cause

    def _fail_closed(self, error: ConnectionClosed) -> NoReturn:
        """Fails because of a connection that is closed."""
        if error.sent is not None and error.sent.code == TOO_LARGE and error.rcvd_then_sent is not True:
            self._fail(f"answered more than {LARGEST_MESSAGE // 2**20} MiB", error)
        why = "" if error.rcvd is None else f" with the code {error.rcvd.code} {error.rcvd.reason}".rstrip(" .")
        self._fail(f"closed the connection{why}", error)


def _limit_sending(connection: ClientConnection, seconds: float) -> None:
    """Ends a connection whose server has stopped reading, for which ``send`` would wait forever."""
    limit = struct.pack("ll", int(seconds), int(seconds % 1 * 1e6))
    with suppress(OSError):  # a connection that has ended says so when it is read
        connection.socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, limit)
