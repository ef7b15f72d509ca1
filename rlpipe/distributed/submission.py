"""Everything a Ray job is made from: command, package, environment variables."""

from __future__ import annotations

import os
import re
import secrets
import shlex
import sys
import sysconfig
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path

from omegaconf import OmegaConf
from rich.filesize import decimal

from rlpipe.config.loading import load_config
from rlpipe.config.schema import Config
from rlpipe.config.shipped import configuration_file
from rlpipe.config.shipped import folder as shipped_folder
from rlpipe.config.tree import read_tree
from rlpipe.demonstrations.checks import check_demonstrations
from rlpipe.distributed.packages import Package, package
from rlpipe.errors import ConfigError
from rlpipe.secrets import check_no_secrets, dotted, leaves, redacted

FORWARDED = (
    "MLFLOW_TRACKING_URI", "SWANLAB_API_HOST", "SWANLAB_WEB_HOST", "WANDB_BASE_URL", "WANDB_ENTITY", "WANDB_MODE",
)  # fmt: skip
"""Environment variables that every job gets: where backends send to. None of them holds a credential."""
_COMMAND = ("python", "-m", "rlpipe", "train")
_LOG_PATH = "runner.logger.log_path"


@dataclass(frozen=True)
class Submission:
    """Everything a job is made from.

    Attributes:
        command: shell command.
        package: its working directory.
        variables: its environment variables.
        about: metadata that the dashboard shows; ``job_name`` becomes the beginning of the job's id.
        results: folder of its runs on the cluster, absolute or in the home folder of the user that runs Ray.
        held_back: variables of ``FORWARDED`` that are not sent, because they hold a password.
    """

    command: str
    package: Package
    variables: Mapping[str, str]
    about: Mapping[str, str]
    results: str
    held_back: tuple[str, ...] = ()


@dataclass(frozen=True)
class _Order:
    """Run to start or to resume on the cluster.

    Attributes:
        command: shell command.
        name: name of the experiment.
        results: folder of its runs on the cluster.
        source: configuration, as the command names it; empty for a run that is resumed.
        files: files and folders that it needs of the working directory.
        modules: key of the configuration by the module that it names.
    """

    command: str
    name: str
    results: str
    source: str = ""
    files: tuple[str, ...] = ()
    modules: Mapping[str, str] = field(default_factory=dict)


def prepare(
    source: str | None,
    overrides: Sequence[str],
    *,
    folder: Path,
    resume: str | None = None,
    env: Sequence[str] = (),
    excludes: Sequence[str] = (),
    max_megabytes: float = 100.0,
    stop_wait: int = 300,
) -> Submission:
    """Checks a configuration, and puts together what a job needs to run it. Nothing is sent.

    Args:
        source: YAML file in the folder, or name of a shipped configuration; None to resume.
        folder: the working directory, absolute, which the job gets.
        resume: run directory on the cluster to continue.
        env: more environment variables, ``NAME`` or ``NAME=value``.
        excludes: more patterns to leave out of the package.
        max_megabytes: size above which the package is refused.
        stop_wait: seconds that a stopped job has before it is killed; Ray's default of 3 saves nothing.
    Raises:
        ConfigError: the configuration cannot be run, or the package is too big or lacks a module that it needs.
    """
    variables = {**_environment(env, os.environ), "RAY_JOB_STOP_WAIT_TIME_S": str(stop_wait)}
    if resume is not None:
        order = _resumed(resume, overrides)
    else:
        assert source is not None
        order = _new(source, overrides, folder)
    sent = package(folder, named=order.files, excludes=excludes)
    if order.source:
        _check_modules(order, sent, variables)
    _check_size(sent, max_megabytes)
    held_back = tuple(name for name in FORWARDED if name in os.environ and name not in variables)
    about = {"rlpipe": metadata.version("rlpipe")} | ({"config": order.source} if order.source else {})
    return Submission(order.command, sent, variables, {**about, "job_name": order.name}, order.results, held_back)


def _new(source: str, overrides: Sequence[str], folder: Path) -> _Order:
    config = load_config(source, overrides)
    if config.demos is None or not Path(config.demos).is_absolute() or Path(config.demos).exists():
        check_demonstrations(config)
    # The cluster's rlpipe has the shipped ones as well.
    shipped = not Path(source).is_file() and configuration_file(source).parent == shipped_folder()
    files = _needed_files(config, None if shipped else source, folder)
    source = source if shipped else files[0]
    logger = config.runner.logger
    folder_of_runs = OmegaConf.select(read_tree(source, overrides), _LOG_PATH) or logger.log_path
    log_path, name = str(folder_of_runs).removeprefix("~/").removeprefix("$HOME/"), logger.experiment_name
    # Ray deletes the working directory with the job, so a relative folder of runs is moved to the home folder.
    others = [change for change in overrides if change.partition("=")[0] != _LOG_PATH]
    command = f"{shlex.join([*_COMMAND, source, *others])} {_LOG_PATH}={_cluster_path(log_path)}"
    return _Order(command, name, f"{log_path}/{name}", source, tuple(files), _named_modules(config))


def _resumed(run: str, overrides: Sequence[str]) -> _Order:
    run = run.removeprefix("~/")
    check_no_secrets({"overrides": dict(OmegaConf.from_dotlist(list(overrides)))}, os.environ)
    command = f"{shlex.join(_COMMAND)} --resume {_cluster_path(run)} {shlex.join(overrides)}".strip()
    return _Order(command, Path(run).parent.name, run)


def _named_modules(config: Config) -> dict[str, str]:
    """Returns the key that names each module: by itself, as in ``my_lab.tasks:Reach-v0``, or as a task of Gymnasium
    that is made in it."""
    registered = getattr(sys.modules.get("gymnasium"), "registry", {})
    keys: dict[str, str] = {}
    for path, value in leaves(asdict(config)):
        text = str(value)
        if named := re.match(r"([A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*):", text):
            keys.setdefault(named[1], dotted(path))
        task = registered.get(text.rpartition(":")[2])
        for made_by in (getattr(task, "entry_point", None), getattr(task, "vector_entry_point", None)):
            if isinstance(made_by, str):
                keys.setdefault(made_by.partition(":")[0], dotted(path))
    return keys


def _check_modules(order: _Order, sent: Package, variables: Mapping[str, str]) -> None:
    """Checks that the job can import what the checks here have imported: it gets the package, but no PYTHONPATH."""
    beside = (sent.folder, (sent.folder / order.source).parent)  # where rlpipe looks by itself
    needed = {**dict(_imported()), **_in_folders(order.modules, beside)}
    named_first = sorted(needed, key=lambda name: (name not in order.modules, name))
    missing: dict[str, str] = {}
    for name in named_first:
        file = needed[name]
        if file.is_relative_to(sent.folder) and (path := file.relative_to(sent.folder).as_posix()) not in sent.files:
            missing.setdefault(sent.why_left_out(path), f"{name}, {_reason(name, order.modules)}, is left out")
    if missing:
        more = f" {len(missing) - 3} more are left out." if len(missing) > 3 else ""
        raise ConfigError(" ".join(f"{what} {why}." for why, what in [*missing.items()][:3]) + more)
    if os.path.isabs(variables.get("PYTHONPATH", "")):
        return  # the cluster has what it leads to
    folders = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    python_path = [Path(os.path.abspath(folder)) for folder in folders if folder]
    for name in named_first:
        root = needed[name].parents[name.count(".") + (needed[name].stem == "__init__")]
        if root in python_path and root not in beside and (name in order.modules or root.is_relative_to(sent.folder)):
            raise ConfigError(
                f"{name}, {_reason(name, order.modules)}, is found here by PYTHONPATH in {root}, where a job does not "
                f"look: move {name.partition('.')[0]} to {sent.folder}, or name a folder of the cluster that holds it, "
                "with --env PYTHONPATH=/FOLDER."
            )


def _reason(module: str, named: Mapping[str, str]) -> str:
    for other, key in named.items():
        if f"{other}.".startswith(f"{module}."):
            return f"which {key} names"
    return (
        f"which was imported for {', '.join(dict.fromkeys(named.values()))}"
        if named
        else "which the checks here imported"
    )


def _imported() -> Iterator[tuple[str, Path]]:
    """Yields the modules that are imported here, and that neither Python nor its environment brings."""
    standard = {Path(sysconfig.get_path(name)) for name in ("stdlib", "platstdlib")}
    for name, module in list(sys.modules.items()):
        file = getattr(module, "__dict__", {}).get("__file__")
        if not isinstance(file, str) or name.startswith("__") or name.partition(".")[0] == "rlpipe":
            continue
        path = Path(os.path.abspath(file))
        installed = {"site-packages", "dist-packages"} & {*path.parts}
        if not installed and not any(path.is_relative_to(folder) for folder in standard) and path.is_file():
            yield name, path


def _in_folders(modules: Mapping[str, str], folders: Sequence[Path]) -> dict[str, Path]:
    """Returns the files in some folders of modules that are not imported here, such as those of another Python."""
    module_files: dict[str, Path] = {}
    for name in modules.keys() - sys.modules.keys():
        places = [folder.joinpath(*name.split(".")) for folder in folders]
        files = [file for place in places for file in (place.with_suffix(".py"), place / "__init__.py")]
        module_files.update((name, file) for file in files if file.is_file())
    return module_files


def _check_size(sent: Package, max_megabytes: float) -> None:
    if sent.size > max_megabytes * 1e6:
        largest = ", ".join(f"{name} ({decimal(size)})" for name, size in sent.largest()[:5])
        raise ConfigError(
            f"the package would have {decimal(sent.size)} in {len(sent.files):,} files, and --max-package is "
            f"{max_megabytes:g} MB. Largest are {largest}. Leave out what the job does not need, with --exclude or a "
            "line in .rayignore; data belongs on the cluster, with its absolute path in the configuration."
        )


def job_id(submission: Submission) -> str:
    """Returns a new id, which begins with the job's name."""
    name = "".join(letter if letter.isalnum() or letter in "-_" else "-" for letter in submission.about["job_name"])
    return f"{name}-{datetime.now(UTC):%Y%m%d-%H%M%S}-{secrets.token_hex(2)}"


def _cluster_path(path: str) -> str:
    """Returns a path as a word of a shell on the cluster; a relative one is in the home folder there."""
    return shlex.quote(path) if Path(path).is_absolute() else f'"$HOME"/{shlex.quote(path)}'


def _needed_files(config: Config, source: str | None, folder: Path) -> list[str]:
    """Returns the files of the folder that a configuration needs, its own file first if it has one there.

    Absolute paths in a configuration are paths on the cluster; all others must be in the folder.
    """
    needed: list[tuple[str, str]] = [] if source is None else [("CONFIG", str(Path(source).absolute()))]
    named = {"demos": config.demos, "policy.warm_start": config.policy.warm_start, "policy.base": config.policy.base}
    for key, path in named.items():
        if path is not None and not Path(path).is_absolute():
            needed.append((key, path))
            if key == "demos" and Path(path).with_suffix(".json").exists():
                needed.append((key, str(Path(path).with_suffix(".json"))))
    relative_paths = []
    for key, path in needed:
        whole = Path(os.path.abspath(folder / path))  # a link in the folder counts as in the folder
        if not whole.exists() or not whole.is_relative_to(folder):
            raise ConfigError(
                f"{key} is {path}, but a job only gets the folder it is sent from, {folder}, and that "
                f"{'does not hold it' if whole.exists() else 'holds no such file'}. Go to a folder that holds all it "
                "needs, or give an absolute path that exists on the cluster."
            )
        relative_paths.append(whole.relative_to(folder).as_posix())
    return relative_paths


def _environment(names: Sequence[str], environ: Mapping[str, str]) -> dict[str, str]:
    """Returns the variables of ``FORWARDED`` that are set, and those that were asked for, which must be set."""
    variables = {
        name: environ[name] for name in FORWARDED if name in environ and redacted(environ[name], {}) == environ[name]
    }
    for entry in names:
        name, separator, value = entry.partition("=")
        if not separator and name not in environ:
            raise ConfigError(f"--env {name}: this variable is not set here. Set it, or write --env {name}=value.")
        variables[name] = value if separator else environ[name]
    return variables
