"""The data directory, and the lock that keeps a second broker out of it.

The lock is an flock on the file `lock` in it: it ends with the process, however that ends, so there is no stale lock to
clean up. The file itself stays, and holds the process id of the owner for the error message of whoever comes second.
"""

from __future__ import annotations

import fcntl
import os
from pathlib import Path
from typing import Final

from rabbitpy_broker.errors import StartError

LOCK_NAME: Final = "lock"


class DataDirLock:
    """Ownership of `path`, until `release` or the end of the process. Made by `lock_data_dir`."""

    def __init__(self, path: Path, fd: int) -> None:
        self.path = path
        self._fd = fd

    def release(self) -> None:
        """Gives the directory up; a second call does nothing."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def lock_data_dir(path: str | os.PathLike[str]) -> DataDirLock:
    """Makes the directory if need be, for this user only, and locks it. Raises StartError."""
    directory = Path(path)
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        fd = os.open(directory / LOCK_NAME, os.O_RDWR | os.O_CREAT, 0o600)
    except OSError as error:
        raise StartError(f"cannot use the data directory {directory}: {error.strerror}") from None
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        owner = os.pread(fd, 32, 0).decode("ascii", "replace").strip()
        os.close(fd)
        by = f"process {owner}" if owner else "another process"  # it may not have written its id yet
        raise StartError(f"the data directory {directory} is in use by {by}") from None
    except OSError as error:
        os.close(fd)
        raise StartError(f"cannot lock the data directory {directory}: {error.strerror}") from None
    try:
        os.ftruncate(fd, 0)
        os.pwrite(fd, f"{os.getpid()}\n".encode("ascii"), 0)
    except OSError as error:
        os.close(fd)
        raise StartError(f"cannot write to the data directory {directory}: {error.strerror}") from None
    return DataDirLock(directory, fd)
