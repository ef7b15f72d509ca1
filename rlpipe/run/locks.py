"""Locks on files: one holder at a time, also across machines that share a file system."""

from __future__ import annotations

import fcntl
import os
import time
from contextlib import suppress
from pathlib import Path
from typing import IO

from rlpipe.errors import ConfigError

_POLL_SECONDS = 0.1
_MAX_ATTEMPTS = 100
"""Attempts to open a file whose folder others keep removing."""


class Lock:
    """Exclusive lock on a file, which stays behind. It ends with ``release``, or when the process ends."""

    def __init__(self, file: Path, patience: float, refusal: str) -> None:
        """Takes the lock.

        Args:
            patience: seconds to wait for another holder
            refusal: error message if another process still holds it then
        Raises:
            ConfigError: another process holds it.
            OSError: the file cannot be opened.
        """
        self._path = file
        deadline = time.monotonic() + patience
        while not self._take(deadline, refusal):
            pass

    def __enter__(self) -> Lock:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()

    def release(self) -> None:
        """Gives the lock up."""
        self._file.close()

    def _take(self, deadline: float, refusal: str) -> bool:
        """Locks the file; returns False if its last holder removed it meanwhile, so that the lock means nothing."""
        self._file = self._open()
        while not _locked(self._file):
            if time.monotonic() > deadline:
                self._file.close()
                raise ConfigError(refusal)
            time.sleep(_POLL_SECONDS)
        if self._is_in_place():
            return True
        self._file.close()
        return False

    def _open(self) -> IO[str]:
        return self._path.open("a")

    def _is_in_place(self) -> bool:
        """True if the path still names the open file."""
        try:
            return os.path.samestat(os.fstat(self._file.fileno()), os.stat(self._path))
        except FileNotFoundError:
            return False


class TemporaryLock(Lock):
    """Lock that leaves nothing behind: its file is removed on release, and so are the folders created for it, if empty.

    The file is removed while the lock is still held, and a process that waited for it locks the file that is there
    afterwards. So nobody holds a lock on a file that others cannot see.
    """

    def __init__(self, file: Path, patience: float, refusal: str) -> None:
        """Creates missing folders and takes the lock; see ``Lock``."""
        self._created: set[Path] = set()
        try:
            super().__init__(file, patience, refusal)
        except BaseException:
            self._remove_folders()
            raise

    def release(self) -> None:
        """Removes the file and gives the lock up."""
        with suppress(OSError):  # a file that stays behind harms nobody
            if self._is_in_place():
                self._path.unlink()
        super().release()
        self._remove_folders()

    def _open(self) -> IO[str]:
        folder, attempts = self._path.parent, 0
        while True:
            self._created |= {path for path in (folder, *folder.parents) if not path.exists()}
            try:
                folder.mkdir(parents=True, exist_ok=True)
                return super()._open()
            except (FileExistsError, FileNotFoundError):  # another start may have just removed the folder
                attempts += 1
                if attempts == _MAX_ATTEMPTS:
                    raise

    def _remove_folders(self) -> None:
        for folder in sorted(self._created, key=lambda path: len(path.parts), reverse=True):
            with suppress(OSError):  # not empty: something else uses it
                folder.rmdir()


def _locked(file: IO[str]) -> bool:
    """Locks an open file; returns False if another process holds it."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
