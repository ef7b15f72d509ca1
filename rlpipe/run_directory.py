"""What a run leaves behind, and the promise that what was reported stays (``docs/run_directory.md``).

``metrics.jsonl`` and the episode ledgers are the truth; every backend is a view of them. Each line is written whole and
handed to the operating system at once, so killing the program loses no line that was reported.
"""

from __future__ import annotations

import json
import os
import platform
import subprocess
import time
from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from rlpipe.backends.base import Event, Row
from rlpipe.config import Config, protocol, to_yaml
from rlpipe.plugins import ConfigError
from rlpipe.trajectory import Episode

_CUT_BACK = ("metrics.jsonl", "episodes.jsonl", "eval_episodes.jsonl")


class RunDirectory:
    """The files of one run. One process writes them."""

    def __init__(self, path: Path) -> None:
        """Points at a directory; see ``create`` and ``existing``."""
        self.path = path
        self.checkpoints = path / "checkpoints"
        self.tensorboard = path / "tensorboard"

    @classmethod
    def create(cls, config: Config, cluster: Mapping[str, Any]) -> RunDirectory:
        """Makes the directory of a new run, with ``config.yaml`` and ``run.json``."""
        experiment = Path(config.runner.logger.log_path) / config.runner.logger.experiment_name
        stamp = datetime.now(UTC).strftime("%Y%m%d-%H%M%S")
        for suffix in ("", *(f"-{n}" for n in range(2, 1000))):
            path = experiment / f"{stamp}-seed{config.runner.seed}{suffix}"
            try:
                path.mkdir(parents=True)
                break
            except FileExistsError:
                continue
            except OSError as error:
                raise ConfigError(f"runner.logger.log_path: cannot make {path}: {error}.") from error
        run = cls(path.resolve())
        run.write_config(config)
        run.write_json(
            {
                "run_id": path.name,
                "experiment": config.runner.logger.experiment_name,
                "project": config.runner.logger.project_name,
                "status": "running",
                "created": datetime.now(UTC).isoformat(),
                "incarnation": 0,
                **_circumstances(config, cluster),
            }
        )
        return run

    def reopen(self, config: Config, cluster: Mapping[str, Any], incarnation: int, after: int) -> None:
        """Notes that the run goes on after an iteration, perhaps with another configuration or on another machine."""
        self.write_config(config)
        before = self.read_json()
        changes = {"status": "running", "incarnation": incarnation, **_circumstances(config, cluster)}
        resumed = [*before.get("resumed_after", []), after]
        self.write_json({**before, **changes, "resumed_after": resumed})

    @classmethod
    def existing(cls, path: Path) -> RunDirectory:
        """A directory that a run has made.

        Raises:
            ConfigError: it is none.
        """
        if not (path / "run.json").is_file() or not (path / "config.yaml").is_file():
            raise ConfigError(f"{path} is not a run directory: run.json or config.yaml is missing.")
        return cls(path.resolve())

    @property
    def run_id(self) -> str:
        """Name of the run: its folder's."""
        return self.path.name

    def read_json(self) -> dict[str, Any]:
        """Contents of ``run.json``."""
        contents: dict[str, Any] = json.loads((self.path / "run.json").read_text(encoding="utf-8"))
        return contents

    def write_json(self, contents: Mapping[str, Any]) -> None:
        """Replaces ``run.json``, whole or not at all."""
        partial = self.path / ".run.json.partial"
        partial.write_text(json.dumps(contents, indent=2) + "\n", encoding="utf-8")
        partial.replace(self.path / "run.json")

    def logger_options(self, backend: str) -> dict[str, Any]:
        """Options of a backend in the configuration of the run."""
        options = OmegaConf.load(self.path / "config.yaml").runner.logger.options
        found = OmegaConf.to_container(OmegaConf.create(options.get(backend) or {}))
        return {str(name): value for name, value in found.items()} if isinstance(found, dict) else {}

    def write_config(self, config: Config) -> None:
        """Writes ``config.yaml``: what the run, or the part that resumes it, is made from."""
        (self.path / "config.yaml").write_text(to_yaml(config), encoding="utf-8")

    def append(self, name: str, rows: Iterable[Mapping[str, Any]]) -> None:
        """Adds lines to a ``.jsonl`` file. Not-a-number cannot get in: ``json`` refuses it."""
        lines = "".join(json.dumps(row, allow_nan=False) + "\n" for row in rows)
        if lines:
            with (self.path / name).open("a", encoding="utf-8") as file:
                file.write(lines)

    def write_row(self, row: Row, episodes: Iterable[Episode], eval_episodes: Iterable[Episode]) -> None:
        """Writes one iteration. Its episodes go first: the line in ``metrics.jsonl`` says that all of it is there."""
        self.append("episodes.jsonl", (episode.as_row(row.iteration) for episode in episodes))
        self.append("eval_episodes.jsonl", (episode.as_row(row.iteration) for episode in eval_episodes))
        self.append("metrics.jsonl", [row.as_json()])

    def write_event(self, event: Event) -> None:
        """Writes a line of ``events.jsonl``."""
        self.append("events.jsonl", [event.as_json()])

    def cut_back(self, iteration: int) -> int:
        """Forgets everything after an iteration; what is cut off is kept in ``discarded-<n>-<file>``.

        Returns:
            Iterations that had been reported and are discarded.
        """
        discarded = 0
        number = len({file.name.split("-")[1] for file in self.path.glob("discarded-*")}) + 1
        for name in _CUT_BACK:
            file = self.path / name
            if not file.is_file():
                continue
            lines = file.read_bytes().splitlines(keepends=True)
            kept = [line for line in lines if _iteration_of(line) <= iteration]
            if len(kept) == len(lines):
                continue
            cut = [line for line in lines if _iteration_of(line) > iteration]
            discarded += len(cut) if name == "metrics.jsonl" else 0
            (self.path / f"discarded-{number}-{name}").write_bytes(b"".join(cut))
            partial = self.path / f".{name}.partial"
            with partial.open("wb") as out:
                out.writelines(kept)
                out.flush()
                os.fsync(out.fileno())
            partial.replace(file)
        return discarded


def _iteration_of(line: bytes) -> float:
    """Iteration a line belongs to; infinite for a line that a crash left incomplete."""
    try:
        return float(json.loads(line)["iteration"]) if line.endswith(b"\n") else float("inf")
    except (ValueError, KeyError, TypeError):
        return float("inf")


def read_jsonl(path: Path) -> Iterator[dict[str, Any]]:
    """Objects of a ``.jsonl`` file in turn."""
    with path.open(encoding="utf-8") as file:
        for line in file:
            yield json.loads(line)


def now() -> float:
    """Wall clock in seconds since 1970, for rows and events."""
    return time.time()


def _circumstances(config: Config, cluster: Mapping[str, Any]) -> dict[str, Any]:
    """What ``run.json`` says of how the newest part of a run was made."""
    return {
        "versions": _versions(),
        "git_commit": _git_commit(),
        "seeds": {"seed": config.runner.seed, "evaluation_first_seed": config.evaluation.first_seed},
        "cluster": dict(cluster),
        "protocol": protocol(config),
    }


def _versions() -> dict[str, str]:
    found = {"python": platform.python_version()}
    for package in ("rlpipe", "ray", "torch", "numpy", "gymnasium", "mani_skill", "sapien"):
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return found


def _git_commit() -> str | None:
    """Commit of the checkout this package runs from; None for an installed package."""
    checkout = Path(__file__).resolve().parent.parent
    if not (checkout / ".git").exists():
        return None
    try:
        answer = subprocess.run(["git", "rev-parse", "HEAD"], cwd=checkout, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    return answer.stdout.strip()
