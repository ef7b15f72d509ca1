"""Serves a policy over a socket, to clients of openpi or of vla-eval.

A thread for each client, with memory, noise and planned actions of its own; one lock around the policy, and one row at
a time, so that an answer does not depend on who else is connected.
"""

from __future__ import annotations

import itertools
import logging
import socket
import threading
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from http import HTTPStatus
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from websockets.exceptions import ConnectionClosed
from websockets.http11 import Request, Response
from websockets.sync.server import ServerConnection, serve

from rlpipe.errors import ConfigError, how_it_failed
from rlpipe.plugins import nearest
from rlpipe.run.checkpoint import find_checkpoint
from rlpipe.run.provenance import versions
from rlpipe.serving.card import record_card
from rlpipe.serving.loading import CARD, acting_policy, load_policy
from rlpipe.serving.runner import ActingPolicy, flat_leaves, observed_leaves
from rlpipe.serving.wire import LARGEST_MESSAGE, PROTOCOL_VERSION, Frame, WireError, mapping, pack_openpi

log = logging.getLogger("rlpipe")

INTERNAL_ERROR = 1011
CLOSE_SECONDS = 2.0
"""Longest wait, when the server ends, for a client to say goodbye."""
LONGEST_REASON = 120
"""Bytes of the reason for closing a connection (RFC 6455, section 5.5, allows 123)."""


def recorded_policy(path: Path, *, best: bool = False) -> tuple[ActingPolicy, Mapping[str, Any]]:
    """Loads a policy and its record: ``digest`` of its checkpoint and ``estimates`` of its newest evaluation.

    Args:
        path: as of ``rlpipe.load_policy``.
        best: likewise.
    Raises:
        ConfigError: there is no such policy.
    """
    if (path / CARD).is_file():
        policy = load_policy(path, best=best, deterministic=None, seed=0)
        return policy, policy.card
    state = find_checkpoint(path, best)[0]
    return acting_policy(state), record_card(state)


def request_keys(card: Mapping[str, Any], renamed: Iterable[str] = ()) -> dict[str, tuple[str, ...]]:
    """Returns, by leaf of the observation, the keys of a request under which it is looked for, the first one first.

    A leaf has its own name, alone or below ``observation/`` or ``images/``; an observation that is one vector is also
    called ``state``.

    Args:
        card: that of the policy.
        renamed: ``REQUEST_KEY=LEAF`` each: keys of leaves that are called otherwise.
    Raises:
        ConfigError: there is no such leaf, or two keys for one.
    """
    names = list(observed_leaves(card))
    keys = {name: (name, f"observation/{name}", f"images/{name}") for name in names}
    if card["spaces"]["leaves"] is None:
        keys = {"observation": ("observation/state", "state", "observation")}
    key_of: dict[str, str] = {}
    for entry in renamed:
        key, equals, name = entry.rpartition("=")
        if not key or not equals:
            raise ConfigError(f"--map is {entry!r}; write REQUEST_KEY=LEAF, such as observation/state={names[0]}.")
        if name not in keys:
            raise ConfigError(
                f"--map {entry} names the leaf {name!r}, but the policy observes {', '.join(names)}"
                f"{nearest(name, names)}"
            )
        if name in key_of:
            raise ConfigError(f"--map gives the leaf {name} two keys, {key_of[name]} and {key}: leave one of them out.")
        key_of[name] = key
    return keys | {name: (key,) for name, key in key_of.items()}


def metadata_of(policy: ActingPolicy, record: Mapping[str, Any], keys: Mapping[str, tuple[str, ...]]) -> dict[str, Any]:
    """Returns what a client is told about the policy, as plain values."""
    card, spaces = policy.card, policy.card["spaces"]
    bounds = None
    if spaces["num_actions"] is None:
        bounds = {side: [float(x) for x in spaces[f"action_{side}"]] for side in ("low", "high")}
    return {
        "rlpipe": versions().get("rlpipe", "unknown"),
        **{name: card[name] for name in ("run_id", "iteration", "policy", "deterministic", "memory_width")},
        "digest": record["digest"],
        "task": record.get("task"),
        "leaves": {
            name: {"dtype": leaf["dtype"], "shape": list(leaf["shape"])} for name, leaf in observed_leaves(card).items()
        },
        "request_keys": {name: list(names) for name, names in keys.items()},
        "bounds": bounds,
        "num_actions": spaces["num_actions"],
        "action_dim": spaces["action_dim"],
        "chunk_size": card["chunk_size"],
        "execute": card["execute"],
        "estimates": record["estimates"],
    }


class PolicyServer:
    """Policy behind a socket.

    Attributes:
        metadata: what every client is told.
        url: where it listens.
    """

    def __init__(
        self,
        policy: ActingPolicy,
        metadata: Mapping[str, Any],
        *,
        protocol: str = "openpi",
        host: str = "127.0.0.1",
        port: int = 8000,
    ) -> None:
        """Listens at once; clients are answered by ``serve_forever``.

        Args:
            policy: the policy, of which each client gets one that is ``fresh``.
            metadata: as of ``metadata_of``.
            protocol: one of ``PROTOCOLS``.
            host: address to listen at.
            port: number of the port; 0 for any that is free.
        Raises:
            ConfigError: nothing can listen there.
        """
        self.metadata = dict(metadata)
        self._policy, self._keys = policy, metadata["request_keys"]
        self._is_openpi = protocol == "openpi"
        self._lock = threading.Lock()
        self._clients, self._episodes = itertools.count(1), itertools.count()
        quiet = logging.getLogger("rlpipe.websockets")
        quiet.setLevel(logging.CRITICAL)  # else a health check is an error with a traceback
        try:
            self._server = serve(
                self._serve_client,
                host,
                port,
                family=socket.AF_INET6 if ":" in host else socket.AF_INET,
                origins=[None],  # a page in a browser, which names its origin, is no client
                process_request=_health,
                compression=None,
                ping_interval=None,  # a policy that thinks for long answers no ping
                close_timeout=CLOSE_SECONDS,
                max_size=LARGEST_MESSAGE,
                logger=quiet,
            )
        except (OSError, OverflowError) as error:
            reason = str(getattr(error, "strerror", None) or error).partition(" (")[0]
            raise ConfigError(
                f"nothing can listen at --host {host} --port {port}: {reason}. Choose another port, 0 for any that is "
                "free, or an address of this machine."
            ) from error
        name = f"[{host}]" if ":" in host else host
        self.url = f"ws://{name}:{self._server.socket.getsockname()[1]}"

    def serve_forever(self) -> None:
        """Answers clients until ``close`` is called in another thread, or an exception such as Ctrl-C."""
        with self._server:
            self._server.serve_forever()

    def close(self) -> None:
        """Ends ``serve_forever``, and says goodbye to all clients."""
        self._server.shutdown()

    def _serve_client(self, connection: ServerConnection) -> None:
        """Answers one client until it leaves or something fails, which ends its connection alone.

        A connection begins an episode, and so does what says so in either protocol.
        """
        client = f"client {next(self._clients)} at {connection.remote_address[0]}"
        policy = self._policy.fresh(next(self._episodes))
        try:
            if self._is_openpi:
                connection.send(pack_openpi(self.metadata))
            answer = self._answer_openpi if self._is_openpi else self._answer_vla_eval
            for message in connection:
                if (reply := answer(policy, message)) is not None:
                    connection.send(reply)
        except ConnectionClosed:
            pass
        except BaseException as error:  # a policy's plug-in may raise anything
            reason = str(error)
            if not isinstance(error, ValueError):
                reason = f"the policy {how_it_failed(error)}"
                log.warning("%s", reason, exc_info=error)
            log.warning("%s was sent away: %s", client, reason)
            with suppress(ConnectionClosed):
                if self._is_openpi:
                    connection.send(reason)
            connection.close(INTERNAL_ERROR, reason.encode()[:LONGEST_REASON].decode(errors="ignore"))

    def _answer_openpi(self, policy: ActingPolicy, message: Any) -> bytes:
        """Answers a request with all actions of a decision.

        One with ``reset: true`` or a ``seed``, which only clients that know us have, begins an episode.
        """
        request = mapping(message)
        seed, begins = _seed(request.pop("seed", None)), request.pop("reset", False)
        if begins or seed is not None:
            policy.reset(seed=next(self._episodes) if seed is None else seed)
        before = time.perf_counter()
        with self._lock:
            actions = policy.act_chunk(self._observation(request))
        timing = {"infer_ms": 1e3 * (time.perf_counter() - before)}
        answer = {"actions": actions.reshape(len(actions), -1), "policy_timing": timing, "server_timing": timing}
        return pack_openpi(answer)

    def _answer_vla_eval(self, policy: ActingPolicy, message: Any) -> bytes | None:
        """Answers an observation with one action, because chunks are planned here; None where no answer is expected."""
        frame = Frame.read(message)
        if frame.type == "hello":
            ours = {"harness_version": f"rlpipe {self.metadata['rlpipe']}", "protocol_version": PROTOCOL_VERSION}
            hello = {**ours, "model_server": "rlpipe", "capabilities": {}, **self.metadata}
            return Frame("hello", hello, frame.seq).packed()
        if frame.type == "observation":
            try:
                return Frame("action", {"actions": self._action(policy, frame.payload)}, frame.seq).packed()
            except ValueError as error:
                log.warning("an observation was refused: %s", error)
                return Frame("error", {"error": f"observation_failed: {error}"}, frame.seq).packed()
        if frame.type == "episode_start":
            policy.reset(seed=self._seed_of_task(frame.payload.get("task")))
        elif frame.type == "error":
            log.warning("a client reports: %s", frame.payload.get("error"))
        elif frame.type != "episode_end":
            raise WireError(f"a frame has the type {frame.type!r}, which vla-eval's protocol does not have.")
        return None

    def _action(self, policy: ActingPolicy, request: Mapping[str, Any]) -> NDArray[Any]:
        """Returns the next action of a client, [A]."""
        with self._lock:
            action = np.asarray(policy.act(self._observation(request)))
        if action.ndim > 1:
            raise ValueError(f"a batch of {len(action)} observations came; one is expected.")
        return action.reshape(-1)

    def _seed_of_task(self, task: Any) -> int:
        """Returns the seed that a benchmark gives its episode, which may have any form; else the next one."""
        with suppress(AttributeError, WireError):
            if (seed := _seed(task.get("seed"))) is not None:
                return seed
        return next(self._episodes)

    def _observation(self, request: Mapping[str, Any]) -> Any:
        """Picks the leaves of the observation out of a request.

        Raises:
            ValueError: one is missing.
        """
        arrays = dict(flat_leaves(request))
        leaves = {}
        for leaf, names in self._keys.items():
            name = next((name for name in names if name in arrays), None)
            if name is None:
                raise ValueError(
                    f"the request lacks {' or '.join(names)}, the policy's {leaf}; it has "
                    f"{', '.join(map(str, arrays)) or 'nothing'}."
                )
            leaves[leaf] = arrays[name]
        return leaves["observation"] if self._policy.card["spaces"]["leaves"] is None else leaves


def _seed(value: Any) -> int | None:
    """Returns the seed of a request; None without one.

    Raises:
        WireError: it is no seed.
    """
    if value is None or (type(value) is int and value >= 0):
        return value
    raise WireError(f"the seed is {str(value)[:40]}; a whole number from 0 on is expected.")


def _health(connection: ServerConnection, request: Request) -> Response | None:
    """Answers the health checks of openpi's and of vla-eval's servers."""
    if request.path in ("/healthz", "/health"):
        return connection.respond(HTTPStatus.OK, "OK\n")
    return None
