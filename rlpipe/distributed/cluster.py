"""Connection to a Ray cluster: one that exists, or one that the run starts."""

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

from rlpipe.distributed import worker_entry
from rlpipe.distributed.own_ray import start_ray, worker_program
from rlpipe.distributed.process_template import ProcessTemplate
from rlpipe.distributed.worker_output import WorkerOutput
from rlpipe.doctor.driver import check_address, check_scratch
from rlpipe.doctor.facts import scratch_folder
from rlpipe.errors import ConfigError, UserInterrupt
from rlpipe.secrets import is_credential, redacted

log = logging.getLogger("rlpipe")

OWN_TOKEN = secrets.token_hex(32)
"""Token of the clusters that this process starts; one for all, because Ray reads a process's token only once."""


class Cluster:
    """Connection to Ray at the given address, else at ``RAY_ADDRESS``, else to a cluster started here.

    A Ray that was running before is never stopped. The address ``auto`` is never used: it may wait for minutes on the
    leftovers of a dead cluster, or join somebody else's.

    Attributes:
        started: True if the cluster was started here; then it has no other nodes and no other work.
    """

    started = False

    def __init__(self, address: str | None = None, template: ProcessTemplate | None = None) -> None:
        """Connects.

        Args:
            template: process from which a cluster that is started here forks its workers; it ends with the cluster.
        Raises:
            ConfigError: nothing answers at the address, or the cluster has another token.
        """
        self._template = template
        self._output: WorkerOutput | None = None
        self._connected_here = not ray.is_initialized()
        if not self._connected_here:
            return
        handler = signal.getsignal(signal.SIGTERM)
        try:
            self._connect(address or os.environ.get("RAY_ADDRESS"))
        except SystemExit as error:  # from the handler of SIGTERM that ray.init installs before it connects
            self.close()
            raise UserInterrupt from error
        except BaseException:  # including Ctrl-C
            self.close()
            raise
        if handler is not None and threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, handler)  # ray.init installs its own handler, which saves nothing

    def _connect(self, address: str | None) -> None:
        os.environ["RAY_IGNORE_UNHANDLED_ERRORS"] = "1"  # Ray would print a traceback for each answer nobody fetched
        options: dict[str, Any] = {
            "namespace": "rlpipe",
            "log_to_driver": False,  # WorkerOutput shows what matters of a Ray that is started here
            "logging_level": logging.ERROR,
            "configure_logging": True,
        }
        if address:
            _join(address, options)
        else:
            self._output = WorkerOutput(_start(options, self._template))
            self.started = True

    def describe(self) -> list[dict[str, Any]]:
        """Returns host, id, CPUs and GPUs of each living node."""
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
        """Returns Ray's id and namespace of this program, and submission id and metadata of a submitted job.

        The metadata is stripped of credentials. The runtime environment, which may hold some, is left out.
        """
        context = ray.get_runtime_context()
        job: dict[str, Any] = {"id": context.get_job_id(), "namespace": context.namespace}
        metadata = json.loads(os.environ.get("RAY_JOB_CONFIG_JSON_ENV_VAR", "{}")).get("metadata") or {}
        if "job_submission_id" in metadata:
            job["submission_id"] = metadata.pop("job_submission_id")
            job["metadata"] = {
                name: "***" if is_credential(name) else redacted(str(value), os.environ)
                for name, value in metadata.items()
            }
        return job

    def close(self) -> None:
        """Disconnects, and stops the cluster if it was started here."""
        if self._output is not None:
            self._output.end()
        if self._connected_here and ray.is_initialized():
            ray.shutdown()
        if self._template is not None:
            self._template.end()
        if self.started and os.environ.get("RAY_AUTH_TOKEN") == OWN_TOKEN:
            del os.environ["RAY_AUTH_TOKEN"]  # a cluster that is joined later has another one


def _join(address: str, options: dict[str, Any]) -> None:
    if problem := check_address(address):  # Ray itself may take minutes to notice
        raise ConfigError(f"{problem.message} {problem.remedy}")
    log.info("Joining Ray at %s", address)
    try:
        ray.init(address=address, **options)
    except AuthenticationError as error:
        raise ConfigError(token_refused(address)) from error
    except (ConnectionError, ValueError, RuntimeError) as error:
        # Ray says only that it failed to connect when the token is wrong.
        may_be_token = isinstance(error, ConnectionError) or re.search("authenticat|token", str(error), re.IGNORECASE)
        hint = f" If the cluster asks for a token: {token_refused(address)}" if may_be_token else ""
        raise ConfigError(f"cannot join Ray at {address}: {error}{hint}") from error


def _start(options: dict[str, Any], template: ProcessTemplate | None) -> Path:
    """Starts Ray on this machine; returns the folder of its session."""
    scratch = scratch_folder()
    if (unfit := check_scratch(scratch)) is not None:
        if not scratch.usable:
            raise ConfigError(f"Ray cannot start: {unfit.message} {unfit.remedy}")
        log.warning("%s RAY_TMPDIR=FOLDER chooses another.", unfit.message)
    options["_temp_dir"] = f"{scratch.path}/ray"
    log.info("Starting Ray on this machine")
    # Ray turns token authentication on by itself. A token of this run's own avoids ~/.ray/auth_token, whose mere
    # existence would turn it on for every Ray that is started on this machine later.
    if not os.environ.get("RAY_AUTH_TOKEN"):
        os.environ["RAY_AUTH_TOKEN"] = OWN_TOKEN
    # By default Ray runs actors at niceness 15, so any other work would stall a learner of several threads.
    os.environ.setdefault("RAY_worker_niceness", "0")
    # By default Ray starts an idle process per CPU, which would compete with the actors that are starting.
    os.environ.setdefault("RAY_prestart_worker_first_driver", "false")
    os.environ.setdefault("RAY_enable_worker_prestart", "false")
    # By default Ray remembers the last 100,000 tasks, two kB each, which nobody can ask for without a dashboard.
    os.environ.setdefault("RAY_task_events_max_num_task_in_gcs", "1000")
    if template is not None:
        os.environ[worker_entry.SOCKET], os.environ[worker_entry.PROGRAM] = template.socket, worker_program()
    try:
        return start_ray(options, with_entry=template is not None)
    except Exception as error:  # Ray has no exception of its own for a failed start
        raise ConfigError(
            f"Ray does not start on this machine: {' '.join(str(error).split()).rstrip('.')}. Its logs are in "
            f"{scratch.path}/ray/session_latest/logs; `rlpipe doctor` says what this machine lacks, and --local trains "
            "without Ray."
        ) from error
    finally:
        for name in (worker_entry.SOCKET, worker_entry.PROGRAM):
            os.environ.pop(name, None)  # Ray's processes have them now


def token(environ: Mapping[str, str]) -> tuple[str, str]:
    """Returns Ray's authentication token and where it was found; two empty texts without one."""
    if value := environ.get("RAY_AUTH_TOKEN", "").strip():
        return value, "RAY_AUTH_TOKEN"
    path = Path(environ.get("RAY_AUTH_TOKEN_PATH") or os.path.expanduser("~/.ray/auth_token"))
    return (path.read_text(encoding="utf-8").strip(), str(path)) if path.is_file() else ("", "")


def token_refused(address: str, *, sent: bool | None = None) -> str:
    """Returns what is wrong with the token for a cluster that refused the connection, and what to do.

    Args:
        sent: True if the token was sent; None to follow Ray, which sends it to a named address only with
            RAY_AUTH_MODE=token.
    """
    value, source = token(os.environ)
    sent = os.environ.get("RAY_AUTH_MODE", "").lower() == "token" if sent is None else sent
    where_to_get = "On its head node, ray get-auth-token prints it."
    if not value:
        mode = "" if sent else "set RAY_AUTH_MODE=token and "
        return (
            f"the cluster at {address} asks for a token, and there is none here: {mode}put it into RAY_AUTH_TOKEN, or "
            f"into a file that RAY_AUTH_TOKEN_PATH names. {where_to_get}"
        )
    if not sent:
        return (
            f"the cluster at {address} asks for a token, and the one in {source} was not sent, because RAY_AUTH_MODE "
            "is not set: set RAY_AUTH_MODE=token."
        )
    return f"the cluster at {address} does not accept the token from {source}: it uses another one. {where_to_get}"
