"""Joining a Ray cluster, or starting one."""

from __future__ import annotations

import logging
import os
import secrets
import signal
import threading
from typing import Any

import ray

from rlpipe.plugins import ConfigError

log = logging.getLogger("rlpipe")


class Cluster:
    """A connection to Ray: to the address given, else to ``RAY_ADDRESS``, else to a cluster of our own.

    A Ray that was there before is never stopped. The address ``auto`` is never asked for: it may wait for minutes on
    the leftovers of a dead cluster, or join a stranger's.
    """

    def __init__(self, address: str | None = None) -> None:
        """Connects.

        Raises:
            ConfigError: nothing answers at the address.
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
            log.info("Joining Ray at %s", address)
            try:
                ray.init(address=address, **options)
            except (ConnectionError, ValueError, RuntimeError) as error:
                raise ConfigError(f"no Ray cluster answers at {address}: {error}") from error
            return
        log.info("Starting Ray on this machine")
        # Ray turns token authentication on by itself; a token of this run's own spares ~/.ray/auth_token, whose mere
        # existence would turn it on for every Ray that is started on this machine later.
        os.environ.setdefault("RAY_AUTH_TOKEN", secrets.token_hex(32))
        # By default Ray runs actors at niceness 15. Whatever else runs would then stall a learner of several threads.
        os.environ.setdefault("RAY_worker_niceness", "0")
        ray.init(address="local", include_dashboard=False, **options)

    def cpus(self) -> float:
        """CPUs of all nodes."""
        return float(ray.cluster_resources().get("CPU", 0.0))

    def describe(self) -> list[dict[str, Any]]:
        """Host, CPUs and GPUs of each living node."""
        return [
            {
                "host": node["NodeManagerHostname"],
                "cpus": node["Resources"].get("CPU", 0.0),
                "gpus": node["Resources"].get("GPU", 0.0),
            }
            for node in ray.nodes()
            if node["Alive"]
        ]

    def close(self) -> None:
        """Ends the connection, and the cluster if it is ours."""
        if self._ours and ray.is_initialized():
            ray.shutdown()
