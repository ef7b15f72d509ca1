"""Joining a Ray cluster, or starting one."""

from __future__ import annotations

import json
import logging
import os
import re
import secrets
import signal
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import ray
from ray.exceptions import AuthenticationError

from rlpipe.doctor.checks import check_address
from rlpipe.errors import ConfigError
from rlpipe.secrets import is_credential, redacted

log = logging.getLogger("rlpipe")

_OWN_TOKEN = secrets.token_hex(32)
"""Of the clusters that this process starts; the same for all, because Ray reads a process's token once."""


class Cluster:
    """A connection to Ray: to the address given, else to ``RAY_ADDRESS``, else to a cluster of our own.

    A Ray that was there before is never stopped. The address ``auto`` is never asked for: it may wait for minutes on
    the leftovers of a dead cluster, or join a stranger's.

    Attributes:
        started: whether it was started here; then it has no other nodes, and nobody else's work on it.
    """

    started = False

    def __init__(self, address: str | None = None) -> None:
        """Connects.

        Raises:
            ConfigError: nothing answers at the address, or it wants another token.
        """
        self._ours = not ray.is_initialized()
        if not self._ours:
            return
        heeded = signal.getsignal(signal.SIGTERM)
        self._connect(address)
        if heeded is not None and threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, heeded)  # ray.init puts its own handler there, which saves nothing

    def _connect(self, address: str | None) -> None:
        address = address or os.environ.get("RAY_ADDRESS")
        options: dict[str, Any] = {
            "namespace": "rlpipe",
            "log_to_driver": False,  # output of workers is in Ray's log folder; what matters comes back as an exception
            "logging_level": logging.ERROR,
            "configure_logging": True,
        }
        if address:
            if silent := check_address(address):  # Ray itself may take minutes to say so
                raise ConfigError(f"{silent.found} {silent.remedy}")
            log.info("Joining Ray at %s", address)
            try:
                ray.init(address=address, **options)
            except AuthenticationError as error:
                raise ConfigError(token_refused(address)) from error
            except (ConnectionError, ValueError, RuntimeError) as error:
                # without the right token Ray only says that it failed to connect
                about = isinstance(error, ConnectionError) or re.search("authenticat|token", str(error), re.IGNORECASE)
                more = f" If it wants a token: {token_refused(address)}" if about else ""
                raise ConfigError(f"Ray at {address} lets nobody in: {error}{more}") from error
            return
        log.info("Starting Ray on this machine")
        # Ray turns token authentication on by itself; a token of this run's own spares ~/.ray/auth_token, whose mere
        # existence would turn it on for every Ray that is started on this machine later.
        if not os.environ.get("RAY_AUTH_TOKEN"):
            os.environ["RAY_AUTH_TOKEN"] = _OWN_TOKEN
        # By default Ray runs actors at niceness 15. Whatever else runs would then stall a learner of several threads.
        os.environ.setdefault("RAY_worker_niceness", "0")
        ray.init(address="local", include_dashboard=False, **options)
        self.started = True

    def cpus(self) -> float:
        """CPUs of all nodes."""
        return float(ray.cluster_resources().get("CPU", 0.0))

    def describe(self) -> list[dict[str, Any]]:
        """Host, id, CPUs and GPUs of each living node."""
        return [
            {
                "host": node["NodeManagerHostname"],
                "node": node["NodeID"],
                "cpus": node["Resources"].get("CPU", 0.0),
                "gpus": node["Resources"].get("GPU", 0.0),
            }
            for node in ray.nodes()
            if node["Alive"]
        ]

    def job(self) -> dict[str, Any]:
        """Ray's id of this program, and its namespace; of a job that was submitted also its submission id and metadata,
        without credentials. Its runtime environment, which may hold some, is left out."""
        context = ray.get_runtime_context()
        found: dict[str, Any] = {"id": context.get_job_id(), "namespace": context.namespace}
        told = json.loads(os.environ.get("RAY_JOB_CONFIG_JSON_ENV_VAR", "{}")).get("metadata") or {}
        if "job_submission_id" in told:
            found["submission_id"] = told.pop("job_submission_id")
            found["metadata"] = {
                name: "***" if is_credential(name) else redacted(str(value), os.environ) for name, value in told.items()
            }
        return found

    def close(self) -> None:
        """Ends the connection, and the cluster if it is ours."""
        if self._ours and ray.is_initialized():
            ray.shutdown()
        if self.started and os.environ.get("RAY_AUTH_TOKEN") == _OWN_TOKEN:
            del os.environ["RAY_AUTH_TOKEN"]  # it is none of a cluster that is joined later


def token(environ: Mapping[str, str]) -> tuple[str, str]:
    """Ray's authentication token, and where it was found; empty without one."""
    if value := environ.get("RAY_AUTH_TOKEN", "").strip():
        return value, "RAY_AUTH_TOKEN"
    path = Path(environ.get("RAY_AUTH_TOKEN_PATH") or Path.home() / ".ray" / "auth_token")
    return (path.read_text(encoding="utf-8").strip(), str(path)) if path.is_file() else ("", "")


def token_refused(address: str, *, sent: bool | None = None) -> str:
    """What is wrong with the token for a cluster that let nobody in, and what to do.

    Args:
        address: of the cluster.
        sent: whether the token was sent; None as Ray does, to an address that is named only with RAY_AUTH_MODE=token.
    """
    value, source = token(os.environ)
    sent = os.environ.get("RAY_AUTH_MODE", "").lower() == "token" if sent is None else sent
    its = "On its head node, ray get-auth-token prints it."
    if not value:
        mode = "" if sent else "set RAY_AUTH_MODE=token and "
        return (
            f"the cluster at {address} asks for a token, and there is none here: {mode}put it into RAY_AUTH_TOKEN, or "
            f"into a file that RAY_AUTH_TOKEN_PATH names. {its}"
        )
    if not sent:
        return (
            f"the cluster at {address} asks for a token, and that in {source} was not sent, because RAY_AUTH_MODE is "
            "not set: set RAY_AUTH_MODE=token."
        )
    return f"the cluster at {address} does not take the token from {source}: it has another one. {its}"
