"""The data directory: the lock that keeps a second broker out of it, and the format that keeps an older one out.

The lock is an flock on the file `lock` in it: it ends with the process, however that ends, so there is no stale lock to
clean up. The file itself stays, and holds the process id of the owner for the error message of whoever comes second.

The file `format` holds the number of the format that the directory has, as a line of text. What must stay true:
- nothing is read or written in the directory, beside these two files, before the number is known to be ours;
- the number is on disk before anything of that format is, and it is replaced as a whole: no crash leaves half of it.

A directory without the file is new, or from a version that kept no messages; both are brought to format 1 by the
number alone. To change the format, append to `_MIGRATIONS` the function that makes a directory of the last one ours.

Format 2 has, besides, what quorum queues write. A directory gets it when it gets its first quorum queue (`raise_format`), and
stays at 1 without one, so that an older broker can still use it. In the same way it gets format 3 with its first stream.
"""

from __future__ import annotations

import fcntl
import os
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from rabbitpy_broker.errors import StartError

LOCK_NAME: Final = "lock"
FORMAT_NAME: Final = "format"

Migration = Callable[[Path], None]

QUORUM_FORMAT: Final = 2
STREAM_FORMAT: Final = 3
KNOWN_FORMAT: Final = STREAM_FORMAT

# The first leads from format 1 to 2. After a crash one runs again, so it must bear that. Raises OSError or StartError.
_MIGRATIONS: Final[tuple[Migration, ...]] = ()


class DataDirLock:
    """Ownership of `path`, until `release` or the end of the process. Made by `lock_data_dir`."""

    def __init__(self, path: Path, fd: int) -> None:
        self.path = path
        self._fd = fd

    def fileno(self) -> int:
        """What holds it; a process that has it open holds it, too."""
        return self._fd

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


def check_format(path: str | os.PathLike[str], migrations: Sequence[Migration] = _MIGRATIONS) -> None:
    """Brings a locked data directory to the format of this version. Raises StartError for a newer or unknown one."""
    directory = Path(path)
    ours = 1 + len(migrations)
    known = max(ours, KNOWN_FORMAT)
    try:
        found = _read_format(directory, known)
        if found > known:
            raise StartError(
                f"the data directory {directory} was written by a newer rabbitpy-broker: it has format {found}, this one "
                f"knows formats up to {known}"
            )
        if not found:
            _write_format(directory, ours)
            return
        for number in range(found, ours):
            migrations[number - 1](directory)
            _write_format(directory, number + 1)
    except OSError as error:
        raise StartError(f"cannot use the data directory {directory}: {error.strerror}") from None


def raise_format(path: str | os.PathLike[str], number: int) -> None:
    """Gives a directory that has been checked this format, unless it has it or a higher one. Raises OSError, StartError."""
    folder = os.open(path, os.O_RDONLY)
    try:
        fcntl.flock(folder, fcntl.LOCK_EX)  # several workers may share the directory
        if _read_format(Path(path), KNOWN_FORMAT) < number:
            _write_format(Path(path), number)
    finally:
        os.close(folder)


def _read_format(directory: Path, known: int) -> int:
    """The directory's format; 0 when it has none yet."""
    try:
        text = (directory / FORMAT_NAME).read_bytes()
    except FileNotFoundError:
        return 0
    if not re.fullmatch(rb"[1-9][0-9]{0,8}\n?", text):
        raise StartError(
            f"the data directory {directory} has an unknown format: its file {FORMAT_NAME} should hold a number up to {known}, "
            f"it holds {text[:32]!r}"
        )
    return int(text)


def _write_format(directory: Path, number: int) -> None:
    file = directory / FORMAT_NAME
    new = directory / f"{FORMAT_NAME}.new"
    fd = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    try:
        os.write(fd, f"{number}\n".encode("ascii"))
        os.fsync(fd)
    finally:
        os.close(fd)
    new.rename(file)
    fd = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(fd)  # the name too must survive
    finally:
        os.close(fd)
