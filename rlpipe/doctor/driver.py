"""Checks of the machine that starts the run: run folder, and how it will reach or start Ray."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import urlsplit

from rlpipe.config.schema import Config, LoggerConfig
from rlpipe.doctor.facts import ScratchFolder, scratch_folder
from rlpipe.doctor.results import CheckResult, fail, ok, warn
from rlpipe.doctor.servers import unreachable
from rlpipe.errors import ConfigError
from rlpipe.foreign import SHORT_FOLDERS
from rlpipe.run.opengl import check_drawing
from rlpipe.run.provenance import installed_version
from rlpipe.secrets import redacted

_TIGHT_BYTES, _ROOMY_BYTES = 0.2e9, 2e9
"""Free space of the run's disk that is too little for a run, and that is enough for most."""


def check_driver(config: Config | None, address: str | None) -> list[CheckResult]:
    """Checks what concerns only the machine that starts the run."""
    scratch = scratch_folder()
    leftover = check_address_file(Path(scratch.path, "ray", "ray_current_cluster"))
    access = check_authentication(os.environ, Path(os.path.expanduser("~")), address)
    folder = check_scratch(scratch) if scratch.usable and not address else None  # else Ray's result says it
    results = [check_run_folder(config), folder, access, leftover, check_videos(config)]
    return [result for result in results if result is not None]


def check_videos(config: Config | None) -> CheckResult:
    """Checks whether replays can be drawn, which training needs for ``evaluation.videos`` alone."""
    required = config is not None and config.evaluation.videos > 0
    try:
        library = check_drawing("evaluation.videos")
    except ConfigError as error:
        what, _, remedy = str(error).rpartition(": ")
        return fail("videos", what, remedy) if required else ok("videos", f"not drawn here. {error}")
    return ok("videos", f"can be drawn without a display (MUJOCO_GL={library})")


def check_run_folder(config: Config | None) -> CheckResult:
    """Checks that the folder of runs can be written and has room."""
    path = Path((config.runner.logger if config else LoggerConfig()).log_path)
    existing = next(folder for folder in (path, *path.absolute().parents) if folder.exists())
    remedy = "runner.logger.log_path=FOLDER on another disk, or make room."
    try:
        with tempfile.TemporaryFile(dir=existing) as file:
            file.write(b"0" * 4096)
    except OSError as error:
        return fail("run folder", f"cannot write to {existing}: {error.strerror}.", remedy)
    free = shutil.disk_usage(existing).free
    message = f"{path} can be written, {free / 1e9:.1f} GB free"
    if free >= _ROOMY_BYTES:
        return ok("run folder", message)
    return fail("run folder", message, remedy) if free < _TIGHT_BYTES else warn("run folder", message, remedy)


def check_scratch(scratch: ScratchFolder) -> CheckResult | None:
    """Checks that a Ray that is started here can use the folder that the environment names for temporary files."""
    name, remedy = "temporary files", f"export RAY_TMPDIR={SHORT_FOLDERS[0]}, or another short path with room."
    if not scratch.problem:
        return None
    if not scratch.usable:
        return fail(name, f"{scratch.problem}.", remedy)
    return warn(name, f"{scratch.problem}; Ray uses {scratch.path} instead.", remedy)


def check_address(address: str) -> CheckResult | None:
    """Checks that a Ray cluster answers at an address; Ray itself may take minutes to notice that none does.

    Returns:
        What is wrong; None if something answers.
    """
    if "://" in address:
        return fail("Ray", *_wrong_kind_of_address(address))
    host, _, port = address.rpartition(":")
    if not host or not port.isdigit():
        remedy = "--ray-address HOST:6379, or unset RAY_ADDRESS; `auto` may wait for minutes on what a dead Ray left."
        return fail("Ray", f"the address {address} does not have the form HOST:PORT.", remedy)
    if trouble := unreachable(host.strip("[]"), int(port)):
        remedy = "give the address that `ray start --head` printed; without one, a run starts a Ray of its own."
        return fail("Ray", f"nothing answers at {address}: {trouble}.", remedy)
    return None


def _wrong_kind_of_address(address: str) -> tuple[str, str]:
    """Returns what is wrong with an address that has a scheme, and what to do."""
    try:
        parts = urlsplit(address)
    except ValueError as error:
        return f"the address {address} is invalid: {error}.", "--ray-address HOST:6379"
    whose = "for Ray Client" if parts.scheme == "ray" else "that of the job server, for `rlpipe submit`"
    message = f"the address {redacted(address, {})} is {whose}, and not that of a cluster to join."
    return message, f"--ray-address {parts.hostname}:6379, or unset RAY_ADDRESS."


def check_address_file(path: Path) -> CheckResult | None:
    """Checks whether a dead Ray left its address where other tools look for one."""
    address = path.read_text().strip() if path.is_file() else ""
    host, _, port = address.rpartition(":")
    if not port.isdigit() or not (trouble := unreachable(host, int(port))):
        return None
    remedy = f"rm {path}: rlpipe never reads it, but `ray status` and others hang on it."
    return warn("stale address", f"{path} names {address}, where nothing answers ({trouble}).", remedy)


def check_authentication(environ: Mapping[str, str], home: Path, address: str | None) -> CheckResult:
    """Checks that Ray will find the token it asks for: that of the cluster at an address, or of one that is started."""
    name = "Ray's token"
    mode, default = environ.get("RAY_AUTH_MODE", ""), home / ".ray" / "auth_token"
    path = Path(environ.get("RAY_AUTH_TOKEN_PATH") or default)
    get_one = "copy the token of the cluster's head node (~/.ray/auth_token) and set RAY_AUTH_TOKEN_PATH to the file."
    if "RAY_AUTH_TOKEN_PATH" in environ and not path.is_file():
        return fail(name, f"RAY_AUTH_TOKEN_PATH is {path}, which is not a file.", get_one)
    if mode == "token":
        if address and not environ.get("RAY_AUTH_TOKEN") and not path.is_file():
            return fail(name, "RAY_AUTH_MODE=token, but there is no token.", get_one)
        return ok(name, "RAY_AUTH_MODE=token, and there is one")
    if mode:
        return ok(name, f"RAY_AUTH_MODE={mode}")
    if default.is_file():
        why = f"{default} exists, so every `ray start` here asks for it, but joining by an address does not send it."
        return warn(name, why, "export RAY_AUTH_MODE=token, or remove the file if no token is wanted.")
    return ok(name, "not sent: RAY_AUTH_MODE is not set" if address else "a Ray that a run starts gets its own")


def check_ray_default(missing: str, *, joined: bool, config: Config | None) -> CheckResult:
    """Checks that Ray can do what needs its extra ``default``.

    Args:
        missing: package of the extra that is not installed; empty for none.
        joined: True for a cluster that somebody else started.
    """
    name = "ray[default]"
    if not missing:
        return ok(name, "installed")
    message, remedy = f"{missing} is missing", f"pip install 'ray[default]=={installed_version('ray')}'"
    if config is not None and "prometheus" in config.runner.logger.logger_backends:
        return fail(name, f"{message}, so Prometheus would see nothing.", remedy)
    if joined:
        return warn(name, f"{message}: no job can be submitted here, and there is no dashboard.", remedy)
    return ok(name, f"{message}; only `rlpipe submit`, Prometheus and Ray's dashboard need it")
