"""Package of a Ray job: the files of the working directory that it gets."""

from __future__ import annotations

import contextlib
import zipfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import NamedTuple

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
DEFAULT, OPTION = "default", "--exclude"


class ExclusionRule(NamedTuple):
    """Pattern that leaves a file out.

    Attributes:
        source: file with the pattern, relative to the working directory; or ``DEFAULT`` or ``OPTION``.
        pattern: as it stands there.
    """

    source: str
    pattern: str


@dataclass(frozen=True)
class Package:
    """Files of the working directory that a job gets.

    Attributes:
        folder: the working directory.
        files: size in bytes of each file, by its path in the folder.
        left_out: rule that leaves out a file or folder, by its path; None for a link.
    """

    folder: Path
    files: Mapping[str, int]
    left_out: Mapping[str, ExclusionRule | None]

    @property
    def size(self) -> int:
        """Bytes before compression."""
        return sum(self.files.values())

    def largest(self) -> list[tuple[str, int]]:
        """Returns files and folders down to the second level with their bytes, the largest first."""
        sizes: dict[str, int] = {}
        for name, size in self.files.items():
            top = "/".join(name.split("/")[:2])
            sizes[top] = sizes.get(top, 0) + size
        return sorted(sizes.items(), key=lambda item: -item[1])

    def why_left_out(self, name: str) -> str:
        """Returns the end of the sentence "the file is left out": the rule, and how to send the file nevertheless."""
        path = PurePosixPath(name)
        covered = next((str(ancestor) for ancestor in (path, *path.parents) if str(ancestor) in self.left_out), name)
        rule = self.left_out.get(covered)
        if rule is None:
            return f"because {covered} is a link to a folder or out of {self.folder}: put the files themselves there"
        why = f"by {rule.source} ({rule.pattern})"
        if rule.source == DEFAULT:
            return f"{why}: move it elsewhere"
        if rule.source == OPTION:
            return f"{why}: leave that option out"
        base = PurePosixPath(rule.source).parent
        slash = "/" if (self.folder / covered).is_dir() else ""
        line = f"!/{PurePosixPath(covered).relative_to(base)}{slash}"
        return f"{why}: add the line {line} to {base / '.rayignore'}"

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
        named: files and folders that are always sent, relative to the working directory.
        excludes: more patterns, as in a ``.gitignore``.
    Raises:
        ConfigError: a file cannot be read.
    """
    selection = _Selection(folder, excludes)
    with _readable(str(folder)):
        selection.walk(folder, [])
        for name in named:
            for path in [folder / name, *(folder / name).rglob("*")]:
                if path.is_file():
                    selection.files[path.relative_to(folder).as_posix()] = path.stat().st_size
    left_out = {name: rule for name, rule in selection.left_out.items() if name not in selection.files}
    return Package(folder, dict(sorted(selection.files.items())), left_out)


_Rules = list[tuple[Path, GitIgnoreSpec, list[ExclusionRule]]]
"""Ignore patterns by the folder to which they are relative."""


class _Selection:
    """Files of a folder, sorted into those that are sent and those that are left out."""

    def __init__(self, folder: Path, excludes: Iterable[str]) -> None:
        self._folder = folder
        self._excludes = [*excludes]
        self.files: dict[str, int] = {}
        self.left_out: dict[str, ExclusionRule | None] = {}

    def walk(self, inside: Path, rules: _Rules) -> None:
        """Sorts the content of a folder, with the rules of the folders above."""
        rules = self._with_own(inside, rules)
        for path in sorted(inside.iterdir()):
            name = path.relative_to(self._folder).as_posix()
            demonstrations = path.with_suffix(".h5")
            rule = _rule(path, rules)
            if rule is None and path.suffix == ".json" and demonstrations.exists():
                rule = _rule(demonstrations, rules)  # it describes them
            if rule is not None:
                self.left_out[name] = rule
            elif path.is_dir() and not path.is_symlink():
                self.walk(path, rules)
            elif path.is_file() and self._stays_inside(path):
                self.files[name] = path.stat().st_size
            else:
                self.left_out[name] = None  # a link to a folder, to nothing, or out of the working directory

    def _with_own(self, inside: Path, rules: _Rules) -> _Rules:
        where = inside.relative_to(self._folder)
        exclusions = [
            ExclusionRule((where / name).as_posix(), line)
            for name in IGNORE_FILES
            if (inside / name).is_file()
            for line in (inside / name).read_text(encoding="utf-8", errors="replace").splitlines()
        ]
        if inside == self._folder:
            exclusions = [
                *(ExclusionRule(DEFAULT, line) for line in EXCLUDES),
                *exclusions,
                *(ExclusionRule(OPTION, line) for line in self._excludes),
            ]
        exclusions = [rule for rule in exclusions if rule.pattern]  # as pathspec counts them
        spec = GitIgnoreSpec.from_lines(rule.pattern for rule in exclusions)
        return [*rules, (inside, spec, exclusions)] if exclusions else rules

    def _stays_inside(self, path: Path) -> bool:
        return not path.is_symlink() or path.resolve().is_relative_to(self._folder.resolve())


def _rule(path: Path, rules: _Rules) -> ExclusionRule | None:
    """Returns the rule that leaves a file or folder out; None if it is sent."""
    slash = "/" if path.is_dir() else ""
    for base, spec, lines in rules:
        decided = spec.check_file(path.relative_to(base).as_posix() + slash)
        if decided.include and decided.index is not None:
            return lines[decided.index]
    return None


@contextlib.contextmanager
def _readable(name: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        why = f"{error.filename or name} cannot be packed: {error.strerror or error}"
        raise ConfigError(f"{why}. Leave out what the job does not need, with --exclude.") from error
