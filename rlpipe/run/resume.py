"""Chooses the run that a start resumes: the one that is named, or the one that ``runner.auto_resume`` finds.

The run is locked, so that two starts at the same time never resume the same one.
"""

from __future__ import annotations

import hashlib
import json
import logging
import re
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from rlpipe.config.fields import Affects, affected_by
from rlpipe.config.schema import Config
from rlpipe.config.tree import from_yaml, leaves, to_yaml
from rlpipe.errors import ConfigError
from rlpipe.metrics.row import Status
from rlpipe.run import checkpoint
from rlpipe.run.directory import RunDirectory
from rlpipe.run.locks import TemporaryLock

log = logging.getLogger("rlpipe")


@contextmanager
def locked_run(config: Config, resume: Path | None, patience: float = 20.0) -> Iterator[Path | None]:
    """Directory of the run to resume, locked against other starts inside the context; None for a new run.

    Args:
        config: configuration of the start
        resume: run directory that was named; None looks for one if ``runner.auto_resume`` is set
        patience: seconds to wait for a start or a run that has just been killed
    Raises:
        ConfigError: another start resumes the run, the run is in progress, or it has another seed.
    """
    with ExitStack() as locks:
        if resume is not None:
            directory = RunDirectory.existing(resume)
            _check_seed(directory, config)
            locks.enter_context(directory.lock_for_resuming(patience))
        elif config.runner.auto_resume:
            locks.enter_context(_settings_lock(config, patience))
            resume = _auto_resumed(config, locks, patience)
        yield resume


def _check_seed(directory: RunDirectory, config: Config) -> None:
    """Refuses another ``runner.seed``: the run has the old one in its name and in all that it has done."""
    seed = directory.read_config()["runner"]["seed"]
    if config.runner.seed != seed:
        raise ConfigError(
            f"runner.seed is {config.runner.seed}, but {directory.path} has the seed {seed}, which a run keeps when it "
            "is resumed: leave runner.seed out, or begin a new run."
        )


def completed(config: Config) -> Path | None:
    """Returns the newest run of the same experiment, seed and settings if it completed."""
    runs = [run for run in _runs(config) if not _differences(run, config)]
    return runs[0] if runs and _status(runs[0]) == Status.COMPLETED else None


def _settings_lock(config: Config, patience: float) -> TemporaryLock:
    """Locks these settings and this seed for one start with ``runner.auto_resume``, whether its run is new or not."""
    folder = _folder(config)
    name = hashlib.blake2b(json.dumps(_settings(to_yaml(config)), sort_keys=True).encode(), digest_size=6).hexdigest()
    refusal = (
        f"runner.auto_resume is true, and a run in {folder} with these settings and runner.seed={config.runner.seed} "
        "is in progress already: wait for its end, or stop it."
    )
    try:
        return TemporaryLock(folder / f".auto-resume-seed{config.runner.seed}-{name}.lock", patience, refusal)
    except OSError as error:
        raise ConfigError(f"runner.logger.log_path: cannot write to {folder}: {error}.") from error


def _auto_resumed(config: Config, locks: ExitStack, patience: float) -> Path | None:
    """Finds and locks the run that ``runner.auto_resume`` means, and logs the choice."""
    runs = _runs(config)
    same = [run for run in runs if not _differences(run, config)]
    for run in same:
        if _status(run) == Status.COMPLETED:
            log.info("%s has completed; a new run begins (runner.auto_resume).", run)
            return None
        with ExitStack() as lock:
            directory = RunDirectory.existing(run)
            lock.enter_context(directory.lock_for_resuming(patience))
            try:
                state = checkpoint.newest(directory.path)
            except checkpoint.NoCheckpointError as error:
                log.info("%s", error)
                continue
            locks.push(lock.pop_all())
            log.info("Resuming %s after iteration %d (runner.auto_resume).", run, state.meta["iteration"])
            return run
    if same or not runs:
        log.info("There is no run to resume in %s; a new one begins (runner.auto_resume).", _folder(config))
    else:
        differences = "; ".join(_differences(runs[0], config)[:3])
        log.warning("%s has other settings, so a new run begins (runner.auto_resume): %s.", runs[0], differences)
    return None


def _folder(config: Config) -> Path:
    return Path(config.runner.logger.log_path, config.runner.logger.experiment_name)


def _runs(config: Config) -> list[Path]:
    """Lists the run directories of the experiment and seed, the newest first."""
    name = re.compile(rf"(\d{{8}}-\d{{6}})-seed{config.runner.seed}(?:-(\d+))?")
    runs = [
        (match[1], int(match[2] or 1), file.parent.resolve())
        for file in _folder(config).glob("*/run.json")
        if (match := name.fullmatch(file.parent.name))
    ]
    return [path for _, _, path in sorted(runs, reverse=True)]


def _status(run: Path) -> str:
    """Returns the status in ``run.json``; empty if it cannot be read."""
    try:
        return str(RunDirectory(run).read_json().get("status"))
    except (OSError, ValueError, AttributeError):
        return ""


def _settings(text: str) -> dict[str, Any]:
    """Returns the leaves of a configuration (YAML) on which the results of a run depend."""
    return {key: value for key, value in leaves(from_yaml(text)) if Affects.RESULTS in affected_by(Config, key)}


def _differences(run: Path, config: Config) -> list[str]:
    """Lists the settings in which a run differs from a configuration, one phrase each.

    Keys that the run lacks do not count: a newer version may have added them.
    """
    try:
        before = _settings((run / "config.yaml").read_text(encoding="utf-8"))
    except Exception as error:  # YAML's own errors have no common base that OmegaConf promises
        return [f"its config.yaml cannot be read ({type(error).__name__})"]
    now = _settings(to_yaml(config))
    changed = [key for key, value in before.items() if key not in now or now[key] != value]
    return [f"{key} was {before[key]} and is now {now.get(key, 'not given')}" for key in changed]
