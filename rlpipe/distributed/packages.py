"""Package of a Ray job: the files of the working directory that it gets."""

from __future__ import annotations

import contextlib
import zipfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from pathspec import GitIgnoreSpec

from rlpipe.errors import ConfigError

SECRETS = (
    ".env", ".env.*", ".envrc", ".netrc", ".pypirc", ".git-credentials", ".ssh", ".aws", ".kube", ".ray", ".config",
    "*.pem", "*.key", "id_rsa*", "id_ecdsa*", "id_ed25519*",
)  # fmt: skip
"""Names of files and folders that hold credentials."""
EXCLUDES = (
    ".git", ".hg", ".venv", "venv", "node_modules", "__pycache__", ".*_cache", ".cache", ".hypothesis", ".tox", ".nox",
    "*.pyc", "*.egg-info", ".ipynb_checkpoints", ".idea", ".vscode", ".DS_Store",
    "/runs", "wandb", "swanlog", "mlruns", "*.h5", *SECRETS,
)  # fmt: skip
"""Patterns as in a ``.gitignore`` of what a package leaves out: histories, environments, caches, results,
demonstrations, credentials."""
IGNORE_FILES = (".gitignore", ".rayignore")


@dataclass(frozen=True)
class Package:
    """Files of the working directory that a job gets.

    Attributes:
        folder: the working directory.
        files: size in bytes of each file, by its path in the folder.
        left_out: files and folders that are not sent.
    """

    folder: Path
    files: Mapping[str, int]
    left_out: tuple[str, ...]

    @property
    def size(self) -> int:
        """Bytes before compression."""
        return sum(self.files.values())

    def largest(self, depth: int = 2) -> list[tuple[str, int]]:
        """Returns files and folders down to a depth with their bytes, the largest first."""
        sizes: dict[str, int] = {}
        for name, size in self.files.items():
            top = "/".join(name.split("/")[:depth])
            sizes[top] = sizes.get(top, 0) + size
        return sorted(sizes.items(), key=lambda item: -item[1])

    def write(self, archive: Path) -> None:
        """Writes the files to a zip file.

        Raises:
            ConfigError: a file cannot be read.
        """
        with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED, strict_timestamps=False) as opened:
            for name in self.files:
                with _readable(name):
                    opened.write(self.folder / name, name)


def package(folder: Path, *, named: Sequence[str] = (), excludes: Sequence[str] = ()) -> Package:
    """Selects the files that a job gets.

    Left out are ``EXCLUDES``, links that lead out of the folder, and what ``.gitignore`` and ``.rayignore`` exclude.

    Args:
        folder: the working directory.
        named: files and folders that are always sent, relative to it.
        excludes: more patterns, as in a ``.gitignore``.
    Raises:
        ConfigError: a file cannot be read.
    """
    selection = _Selection(folder, excludes)
    with _readable(str(folder)):
        selection.walk(folder, [])
        for name in named:
            for found in [folder / name, *(folder / name).rglob("*")]:
                if found.is_file():
                    selection.files[found.relative_to(folder).as_posix()] = found.stat().st_size
    left_out = tuple(name for name in selection.left_out if name not in selection.files)
    return Package(folder, dict(sorted(selection.files.items())), left_out)


_Rules = list[tuple[Path, GitIgnoreSpec]]
"""Ignore patterns by the folder to which they are relative."""


class _Selection:
    """Files of a folder, sorted into those that are sent and those that are left out."""

    def __init__(self, folder: Path, excludes: Iterable[str]) -> None:
        self._folder = folder
        self._excludes = [*excludes]
        self.files: dict[str, int] = {}
        self.left_out: list[str] = []

    def walk(self, inside: Path, rules: _Rules) -> None:
        """Sorts the content of a folder, with the rules of the folders above."""
        rules = self._with_own(inside, rules)
        for found in sorted(inside.iterdir()):
            name = found.relative_to(self._folder).as_posix()
            demonstrations = found.with_suffix(".h5")
            describes_ignored = found.suffix == ".json" and demonstrations.exists() and _ignored(demonstrations, rules)
            if _ignored(found, rules) or describes_ignored:
                self.left_out.append(name)
            elif found.is_dir() and not found.is_symlink():
                self.walk(found, rules)
            elif found.is_file() and self._stays_inside(found):
                self.files[name] = found.stat().st_size
            else:
                self.left_out.append(name)  # a link to a folder, to nothing, or out of the working directory

    def _with_own(self, inside: Path, rules: _Rules) -> _Rules:
        lines = [line for name in IGNORE_FILES if (inside / name).is_file() for line in _lines(inside / name)]
        if inside == self._folder:
            lines = [*EXCLUDES, *lines, *self._excludes]
        return [*rules, (inside, GitIgnoreSpec.from_lines(lines))] if lines else rules

    def _stays_inside(self, found: Path) -> bool:
        return not found.is_symlink() or found.resolve().is_relative_to(self._folder.resolve())


def _ignored(found: Path, rules: _Rules) -> bool:
    slash = "/" if found.is_dir() else ""
    return any(spec.match_file(found.relative_to(base).as_posix() + slash) for base, spec in rules)


def _lines(file: Path) -> list[str]:
    return file.read_text(encoding="utf-8", errors="replace").splitlines()


@contextlib.contextmanager
def _readable(name: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        why = f"{error.filename or name} cannot be packed: {error.strerror or error}"
        raise ConfigError(f"{why}. Leave out what the job does not need, with --exclude.") from error
