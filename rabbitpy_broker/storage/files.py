"""Every touch of the file system that the store makes, behind two classes that a test can replace.

`Disk` knows names, `DiskFile` is one open file. Both block; whoever must not wait calls them in a thread. Different
files may be used by different threads at the same time; one file belongs to one thread at a time.

What must stay true:
  - an `OSError` that leaves here carries the path (`filename`), whichever call it came from: the log names the file;
  - what `sync` returned from is on the disk. A new file's name, a rename and a removal are there after `sync_dir` of
    the folder, not before;
  - after a `sync` that failed, nothing written since the one before may be relied on, even if a later `sync` succeeds:
    the kernel drops pages that it could not write, and reports that once.

Beside the ordinary calls: `allocate` does nothing where the file system cannot, and a file system that cannot sync
folders is taken to keep their order itself. What is not there on an operating system (fdatasync, sync_file_range) is
replaced by what is, or done without (pwritev with RWF_DSYNC, too).
"""

from __future__ import annotations

import ctypes
import errno
import os
import shutil
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

_fdatasync: Final = os.fdatasync if hasattr(os, "fdatasync") else os.fsync
_posix_fallocate: Final = getattr(os, "posix_fallocate", None)
_sync_file_range: Final = getattr(ctypes.CDLL(None), "sync_file_range", None)
_SYNC_FILE_RANGE_WRITE: Final = 2
_RWF_DSYNC: Final = getattr(os, "RWF_DSYNC", None)

_SYNC_THREADS: Final = 8

_PARTS_MAX: Final = 1024  # IOV_MAX of Linux: a call with more buffers fails with EINVAL

# In place of a closed file's descriptor. None is so high, so every call raises EBADF, as on a descriptor that is closed.
_CLOSED: Final = 0x7FFFFFFF

_NOT_SUPPORTED: Final = (errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS, errno.ENODEV)


def _named(error: OSError, path: str) -> OSError:
    """The same error with the path in it; calls on a file descriptor do not know it."""
    return OSError(error.errno, error.strerror, path)


class DiskFile:
    """One open file, for reading and writing at offsets. Made by `Disk.open`."""

    def __init__(self, path: str, fd: int) -> None:
        self.path = path
        self._fd = fd

    def write_at(self, offset: int, data: bytes) -> None:
        """Writes all of `data`. When it raises, any part of it may have been written."""
        written = self._write_some(offset, data)
        while written < len(data):
            written += self._write_some(offset + written, memoryview(data)[written:])

    def write_parts(self, offset: int, parts: list[bytes]) -> None:
        """As `write_at` of the parts, one behind the other."""
        if len(parts) > _PARTS_MAX:
            self.write_at(offset, b"".join(parts))
            return
        try:
            written = os.pwritev(self._fd, parts, offset)
        except OSError as error:
            raise _named(error, self.path) from None
        if written < sum(map(len, parts)):
            self.write_at(offset + written, b"".join(parts)[written:])

    def write_synced(self, offset: int, parts: list[bytes]) -> None:
        """As `write_parts`; returns when these bytes are on the disk. Others that were written before may be, or not.

        One call does both where it can: a thread that waits for the disk then waits once for the interpreter too.
        """
        written = 0
        if _RWF_DSYNC is not None:
            try:
                written = os.pwritev(self._fd, parts, offset, _RWF_DSYNC)
            except OSError as error:
                if error.errno not in _NOT_SUPPORTED:
                    raise _named(error, self.path) from None
        if written < sum(map(len, parts)):
            self.write_at(offset + written, b"".join(parts)[written:])
            self.sync()

    def _write_some(self, offset: int, data: bytes | memoryview) -> int:
        try:
            written = os.pwrite(self._fd, data, offset)
        except OSError as error:
            raise _named(error, self.path) from None
        if not written and data:
            raise OSError(errno.EIO, "nothing was written", self.path)
        return written

    def read_at(self, offset: int, size: int) -> bytes:
        """`size` bytes; fewer only where the file ends."""
        try:
            data = os.pread(self._fd, size, offset)
            while len(data) < size:
                more = os.pread(self._fd, size - len(data), offset + len(data))
                if not more:
                    break
                data += more
        except OSError as error:
            raise _named(error, self.path) from None
        return data

    def size(self) -> int:
        try:
            return os.fstat(self._fd).st_size
        except OSError as error:
            raise _named(error, self.path) from None

    def allocate(self, size: int) -> None:
        """Has the disk hold space for `size` bytes in all; a shorter file becomes that long, with zeros."""
        if _posix_fallocate is None:
            return
        try:
            _posix_fallocate(self._fd, 0, size)
        except OSError as error:
            if error.errno not in _NOT_SUPPORTED:
                raise _named(error, self.path) from None

    def truncate(self, size: int) -> None:
        try:
            os.ftruncate(self._fd, size)
        except OSError as error:
            raise _named(error, self.path) from None

    def sync(self) -> None:
        """Returns when the content and the size are on the disk; see the top of this file for what a failure means."""
        try:
            _fdatasync(self._fd)
        except OSError as error:
            raise _named(error, self.path) from None

    def start_sync(self) -> None:
        """Has the content written out, and does not wait for it. Whether it got there only `sync` can say."""
        if _sync_file_range is not None:
            _sync_file_range(self._fd, ctypes.c_int64(0), ctypes.c_int64(0), _SYNC_FILE_RANGE_WRITE)

    def close(self) -> None:
        """A second call does nothing."""
        fd, self._fd = self._fd, _CLOSED
        if fd != _CLOSED:
            try:
                os.close(fd)
            except OSError as error:
                raise _named(error, self.path) from None


class Disk:
    """Names: folders, and the files in them.

    A start asks for fifty thousand folders; a Path would cost more than the kernel takes to answer.
    """

    def open(self, path: str, create: bool = False) -> DiskFile:
        """Opens for reading and writing; what is in the file stays. The name of a new file is safe after `sync_dir`."""
        flags = os.O_RDWR | os.O_CLOEXEC | (os.O_CREAT if create else 0)
        return self._opened(path, os.open(path, flags, 0o600))

    def _opened(self, path: str, fd: int) -> DiskFile:
        return DiskFile(path, fd)

    def exists(self, path: str) -> bool:
        return os.path.exists(path)

    def size(self, path: str) -> int:
        return os.stat(path).st_size  # no Path: a start asks for each queue

    def list_dir(self, path: str) -> list[str]:
        """The names in a folder, sorted; none when there is no such folder."""
        try:
            return sorted(os.listdir(path))
        except FileNotFoundError:
            return []

    def make_dir(self, path: str) -> None:
        """Makes the folder, and those above it, and returns when their names are safe.

        The lowest of those that were there already may be one that a killed broker made and did not sync, so its name
        is made safe too.
        """
        folder = Path(path).absolute()
        if not folder.is_dir():
            self.make_dir(str(folder.parent))
            folder.mkdir(0o700, exist_ok=True)
        self.sync_dir(str(folder.parent))

    def add_dir(self, path: str) -> None:
        """Makes a folder in one that is there; the name of a new one is safe after `sync_dir` of that."""
        Path(path).mkdir(0o700, exist_ok=True)

    def remove(self, path: str) -> None:
        """A file that is not there is as good as removed."""
        Path(path).unlink(missing_ok=True)

    def remove_tree(self, path: str) -> None:
        """Removes a folder with all that is in it; one that is not there is as good as removed."""
        try:
            shutil.rmtree(path)
        except FileNotFoundError:
            pass

    def rename(self, old: str, new: str) -> None:
        """In one step; a file that had the new name is gone."""
        Path(old).replace(new)

    def link(self, old: str, new: str) -> None:
        """Another name for a file, which stays when the first one goes."""
        os.link(old, new)

    def sync_dir(self, path: str) -> None:
        """Returns when every file's creation, renaming and removal in this folder is on the disk."""
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        except OSError as error:
            if error.errno != errno.EINVAL:
                raise _named(error, path) from None
        finally:
            os.close(fd)

    def sync_all(self, files: list[DiskFile], go_on: Callable[[], None] | None = None) -> None:
        """As `sync` of each. The first failure is raised; nothing is known of the files then.

        All are begun before the first is waited for, which is worth a factor of two with many small files. One syncfs would
        be worth a little more, but it waits for whatever anybody has written to the file system, and nothing can end it.
        `go_on` is called before each file, and may raise.
        """
        if len(files) > 1:
            for file in files:
                file.start_sync()
        for file in files:
            if go_on is not None:
                go_on()
            file.sync()

    def sync_names(self, files: list[str], folders: list[str]) -> None:
        """As opening and `sync` of each of these files, then `sync_dir` of each of these folders. The first failure is
        raised; nothing is known of any of them then.

        In a few threads: what waits for the disk at the same time it writes at once, and a start after a crash has a file
        and a folder for each of fifty thousand queues.
        """
        with ThreadPoolExecutor(_SYNC_THREADS, "sync") as threads:
            for names, sync in ((files, self._sync_name), (folders, self.sync_dir)):
                for _ in threads.map(sync, names):
                    pass

    def _sync_name(self, path: str) -> None:
        file = self.open(path)
        try:
            file.sync()
        finally:
            file.close()
