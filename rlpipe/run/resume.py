"""Which run a start goes on with: the one that is named, or the one that ``runner.auto_resume`` finds. That run is
held, so that two starts at once never go on with the same.
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
from rlpipe.run.directory import RunDirectory, locked

log = logging.getLogger("rlpipe")


@contextmanager
def claimed(config: Config, resume: Path | None, patience: float = 20.0) -> Iterator[Path | None]:
    """The directory of the run to go on with, held against other starts while inside; None for a new run.

    Args:
        config: of the start.  resume: directory that was named; None looks for one where ``runner.auto_resume`` is set.
        patience: seconds to wait for a start or a run that has just been killed.
    Raises:
        ConfigError: another start goes on with it, or the run still goes on.
    """
    with ExitStack() as held:
        if resume is not None:
            held.enter_context(RunDirectory.existing(resume).claimed(patience))
        elif config.runner.auto_resume:
            held.enter_context(_only_start(config, patience))
            resume = _found(config, held, patience)
        yield resume


def completed(config: Config) -> Path | None:
    """The newest run of the same experiment, seed and settings, if it completed."""
    runs = [run for run in _runs(config) if not _differences(run, config)]
    return runs[0] if runs and _status(runs[0]) == Status.COMPLETED else None


def _only_start(config: Config, patience: float) -> Any:
    """Held while a run of these settings goes on that was started with ``runner.auto_resume``, also a new one."""
    folder = _folder(config)
    name = hashlib.blake2b(json.dumps(_settings(to_yaml(config)), sort_keys=True).encode(), digest_size=6).hexdigest()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        return locked(
            folder / f".auto-resume-seed{config.runner.seed}-{name}.lock",
            patience,
            f"runner.auto_resume is true, and a run in {folder} with these settings and runner.seed="
            f"{config.runner.seed} goes on already: wait for its end, or stop it.",
        )
    except OSError as error:
        raise ConfigError(f"runner.logger.log_path: cannot write to {folder}: {error}.") from error


def _found(config: Config, held: ExitStack, patience: float) -> Path | None:
    """The run that ``runner.auto_resume`` means, held from now on; what was found is told."""
    runs = _runs(config)
    same = [run for run in runs if not _differences(run, config)]
    for run in same:
        if _status(run) == Status.COMPLETED:
            log.info("%s has completed; a new run begins (runner.auto_resume).", run)
            return None
        with ExitStack() as claim:
            directory = RunDirectory.existing(run)
            claim.enter_context(directory.claimed(patience))
            try:
                state = checkpoint.newest(directory.path)
            except checkpoint.NoCheckpointError as error:
                log.info("%s", error)
                continue
            held.push(claim.pop_all())
            log.info("Going on with %s after iteration %d (runner.auto_resume).", run, state.meta["iteration"])
            return run
    if same or not runs:
        log.info("There is no run to go on with in %s; a new one begins (runner.auto_resume).", _folder(config))
    else:
        told = "; ".join(_differences(runs[0], config)[:3])
        log.warning("%s has other settings, so a new run begins (runner.auto_resume): %s.", runs[0], told)
    return None


def _folder(config: Config) -> Path:
    return Path(config.runner.logger.log_path, config.runner.logger.experiment_name)


def _runs(config: Config) -> list[Path]:
    """Run directories of the experiment and seed, the newest first."""
    name = re.compile(rf"(\d{{8}}-\d{{6}})-seed{config.runner.seed}(?:-(\d+))?")
    found = [
        (match[1], int(match[2] or 1), file.parent.resolve())
        for file in _folder(config).glob("*/run.json")
        if (match := name.fullmatch(file.parent.name))
    ]
    return [path for _, _, path in sorted(found, reverse=True)]


def _status(run: Path) -> str:
    """Status in ``run.json``; empty where that cannot be read."""
    try:
        return str(RunDirectory(run).read_json().get("status"))
    except (OSError, ValueError, AttributeError):
        return ""


def _settings(text: str) -> dict[str, Any]:
    """Returns the leaves of a configuration (YAML) on which the results of a run depend."""
    return {key: value for key, value in leaves(from_yaml(text)) if Affects.RESULTS in affected_by(Config, key)}


def _differences(run: Path, config: Config) -> list[str]:
    """In which settings a run is not that of a configuration, as sentences. A new version may have added keys."""
    try:
        before = _settings((run / "config.yaml").read_text(encoding="utf-8"))
    except Exception as error:  # YAML's own errors have no common base that OmegaConf promises
        return [f"its config.yaml cannot be read ({type(error).__name__})"]
    now = _settings(to_yaml(config))
    changed = [key for key, value in before.items() if key not in now or now[key] != value]
    return [f"{key} was {before[key]} and is now {now.get(key, 'not given')}" for key in changed]
