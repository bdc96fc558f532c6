"""The disk of a broker inside a test suite: in memory, or a directory that can be filled up and lose its power; and who does
the work on it.

`KeptDisk` is a directory with a `MemoryDisk` beside it that is told all that is done, and so knows what was synced: after a power
cut the directory is made what that one is. It costs as much memory as there is on disk, which in a test is little.

What must stay true: the directory and what is beside it have the same content between two calls; a job is done at once, and its
end is told in a later callback of the loop or by `crank`, in the order of the jobs; after `stop` nothing is told any more.
"""

from __future__ import annotations

import asyncio
import errno
import os
from collections import deque
from collections.abc import Callable

from rabbitpy_broker.net.threads import DiskJobs
from rabbitpy_broker.storage.files import Disk, DiskFile
from rabbitpy_broker.storage.memory_disk import MemoryDisk, SyncedInTurn

Done = Callable[[Exception | None], None]


class JobsInLoop(DiskJobs):
    """Jobs are done in the loop: what a test does is over when it is over, and no thread is left behind."""

    def __init__(self, loop: asyncio.AbstractEventLoop, fault: Callable[[Exception], None]) -> None:
        super().__init__(fault)
        self._loop = loop
        self._done: deque[tuple[Done, Exception | None]] = deque()
        self._is_over = False

    def begin(self, job: Callable[[], None], done: Done) -> None:
        if self._is_over:
            return
        error: Exception | None = None
        try:
            job()
        except Exception as raised:  # noqa: BLE001 -- handed to `done`, which knows what it means
            error = raised
        self._done.append((done, error))
        self._loop.call_soon(self.crank)

    def crank(self) -> bool:
        """Tells of one job that is done; False when there was none."""
        if not self._done:
            return False
        self.back(*self._done.popleft())
        return True

    def stop(self, within_s: float) -> bool:
        self._is_over = True
        self._done.clear()
        return True


class KeptDisk(SyncedInTurn):
    """The disk of a directory. While `is_full`, what would take more space fails with ENOSPC."""

    def __init__(self) -> None:
        self.is_full = False
        self._plain = Disk()
        self._folder = ""
        self._beside = MemoryDisk()

    def begin(self, folder: str) -> None:
        """A broker starts: what is in its folder is on the disk."""
        self._folder = folder
        self._beside = MemoryDisk()
        self._beside.copy_from(folder)

    def power_cut(self) -> None:
        """Takes away what was not synced."""
        self._beside.power_cut()
        self._beside.copy_to(self._folder)

    # -- as Disk -------------------------------------------------------------------------------------------------------

    def open(self, path: str, create: bool = False) -> DiskFile:
        if self.is_full and create and not os.path.exists(path):  # noqa: PTH110 -- paths are strings here
            raise _no_space(path)
        return super().open(path, create)

    def _opened(self, path: str, fd: int) -> DiskFile:
        return KeptFile(self, path, fd, self._beside.open(path, create=True))

    def make_dir(self, path: str) -> None:
        self._plain.make_dir(path)
        self._beside.make_dir(path)

    def add_dir(self, path: str) -> None:
        super().add_dir(path)
        self._beside.add_dir(path)

    def remove(self, path: str) -> None:
        super().remove(path)
        self._beside.remove(path)

    def remove_tree(self, path: str) -> None:
        super().remove_tree(path)
        self._beside.remove_tree(path)

    def rename(self, old: str, new: str) -> None:
        super().rename(old, new)
        self._beside.rename(old, new)

    def sync_dir(self, path: str) -> None:
        super().sync_dir(path)
        self._beside.sync_dir(path)


class KeptFile(DiskFile):
    """One open file of a KeptDisk."""

    def __init__(self, disk: KeptDisk, path: str, fd: int, beside: DiskFile) -> None:
        super().__init__(path, fd)
        self._disk = disk
        self._beside = beside

    def _check_space(self, size: int) -> None:
        if self._disk.is_full and size > self.size():
            raise _no_space(self.path)

    def write_at(self, offset: int, data: bytes) -> None:
        self._check_space(offset + len(data))
        super().write_at(offset, data)
        self._beside.write_at(offset, data)

    def write_parts(self, offset: int, parts: list[bytes]) -> None:
        self._check_space(offset + sum(map(len, parts)))
        super().write_parts(offset, parts)
        self._beside.write_parts(offset, parts)

    def write_synced(self, offset: int, parts: list[bytes]) -> None:
        self._check_space(offset + sum(map(len, parts)))
        super().write_synced(offset, parts)
        self._beside.write_synced(offset, parts)

    def allocate(self, size: int) -> None:
        self._check_space(size)
        super().allocate(size)
        self._beside.allocate(size)

    def truncate(self, size: int) -> None:
        super().truncate(size)
        self._beside.truncate(size)

    def sync(self) -> None:
        super().sync()
        self._beside.sync()

    def close(self) -> None:
        super().close()
        self._beside.close()


def _no_space(path: str) -> OSError:
    return OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)
