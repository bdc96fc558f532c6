"""The memory and the disk alarm: when one is on, connections that publish are blocked until both are off.

The memory alarm is on while the process takes more than its limit, the disk alarm while the disk of the data directory
has less free than its own, or while a store cannot write to it. `Alarms` only compares: what it compares is read by
callables that are handed in, the real ones below, or told to it by the stores, and when to look is the caller's affair
(once a second, and after a limit was changed or a store has failed or recovered).

Memory is resident memory, what the kernel kills for. What is available is the smaller of the machine's and what a
control group (a container) allows, because 40 % of the machine may be more than a container ever gets.
"""

from __future__ import annotations

import ctypes
import os
import resource
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Final

MEMORY: Final = "memory"
DISK: Final = "disk"


class Alarms:
    """`active` holds the alarms that are on; `memory_used` and `disk_free` what was read at the last check, in bytes.

    A disk limit of 0 never alarms; a memory limit of 0 always does, which blocks all publishing, as in RabbitMQ.
    `store_failures` holds the stores that cannot write, and what the system said.
    """

    def __init__(
        self,
        memory_limit_bytes: int,
        disk_limit_bytes: int,
        read_memory: Callable[[], int],
        read_disk_free: Callable[[], int],
    ) -> None:
        self.memory_limit_bytes = memory_limit_bytes
        self.disk_limit_bytes = disk_limit_bytes
        self.memory_used = 0
        self.disk_free = 0
        self.active: set[str] = set()
        self.store_failures: dict[str, str] = {}
        self._read_memory = read_memory
        self._read_disk_free = read_disk_free

    def set_memory_limit(self, limit_bytes: int) -> None:
        """Takes effect with the next check."""
        self.memory_limit_bytes = limit_bytes

    def set_disk_limit(self, limit_bytes: int) -> None:
        """Takes effect with the next check."""
        self.disk_limit_bytes = limit_bytes

    def store_failed(self, reason: str, store: str = "") -> None:
        """A store (a vhost's) cannot write: the disk alarm is on until it can. Takes effect with the next check."""
        self.store_failures[store] = reason

    def store_recovered(self, store: str = "") -> None:
        """It can write again, or is gone. Takes effect with the next check."""
        self.store_failures.pop(store, None)

    def check(self) -> bool:
        """Looks, and says whether `active` has changed. Raises OSError when memory cannot be looked at."""
        try:
            self.memory_used = self._read_memory()
        except OSError:
            # With no file descriptor left neither can be read, nor perhaps can the store write, and that must block
            # publishers: then memory counts as it was.
            if not self.store_failures:
                raise
        try:
            self.disk_free = self._read_disk_free()
        except OSError:  # a disk that cannot be asked takes nothing either
            self.disk_free = 0
        before = frozenset(self.active)
        self._set(MEMORY, self.memory_used > self.memory_limit_bytes)
        self._set(DISK, self.disk_free < self.disk_limit_bytes or bool(self.store_failures))
        return before != self.active

    def reason(self) -> str:
        """What connection.blocked says, in RabbitMQ's words; "" when no alarm is on."""
        return f"low on {' & '.join(sorted(self.active))}" if self.active else ""

    def _set(self, alarm: str, on: bool) -> None:
        if on:
            self.active.add(alarm)
        else:
            self.active.discard(alarm)


def memory_used() -> int:
    """Bytes of resident memory of this process; where there is no /proc, the most that it ever had."""
    try:
        return int(Path("/proc/self/statm").read_bytes().split()[1]) * resource.getpagesize()
    except FileNotFoundError:
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return peak if sys.platform == "darwin" else peak * 1024  # getrusage(2): kilobytes, on macOS bytes


_LIBC: Final = ctypes.CDLL(None)
_malloc_trim: Final = getattr(_LIBC, "malloc_trim", None)  # glibc's
_mallopt: Final = getattr(_LIBC, "mallopt", None)
# mallopt(3)
M_TRIM_THRESHOLD: Final = -1
M_TOP_PAD: Final = -2
M_MMAP_THRESHOLD: Final = -3
KEPT_FREE: Final = 32 << 20  # bytes
HEAP_STEP: Final = 1 << 20  # bytes
LARGEST_IN_HEAP: Final = 32 << 20  # bytes; what glibc comes to by itself, at most


def keep_free_memory() -> None:
    """Has some memory that becomes free stay with this process, since the next messages need it at once.

    glibc gives back whatever is more than 128 KiB at the end of its heap. A broker whose queues run empty in each turn would
    return and fetch its pages all the time, which costs up to a fifth of the CPU time at 1,500 bytes. It tunes itself only
    after larger blocks than those were freed, and no more when one of these three was set.
    """
    if _mallopt is not None:
        _mallopt(M_TRIM_THRESHOLD, KEPT_FREE)
        _mallopt(M_TOP_PAD, HEAP_STEP)
        _mallopt(M_MMAP_THRESHOLD, LARGEST_IN_HEAP)


def give_back_memory() -> None:
    """Gives memory that is free inside this process back to the system: what was paged out counts as used until then."""
    if _malloc_trim is not None:
        _malloc_trim(0)


def memory_available(
    proc: Path = Path("/proc"), cgroup: Path = Path("/sys/fs/cgroup"), machine_bytes: int | None = None
) -> int:
    """Bytes that this process could ever have: the machine's memory, or less if a control group says so."""
    if machine_bytes is None:
        machine_bytes = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return min([machine_bytes, *_cgroup_limits(proc, cgroup)])


def _cgroup_limits(proc: Path, cgroup: Path) -> list[int]:
    """The limits of our control group and all above it (cgroups(7)); version 2 first, then the memory controller of 1."""
    try:
        lines = (proc / "self/cgroup").read_text().splitlines()
    except OSError:
        return []
    limits = []
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if not controllers:
            root, file = cgroup, "memory.max"
        elif "memory" in controllers.split(","):
            root, file = cgroup / "memory", "memory.limit_in_bytes"
        else:
            continue
        # In a container the path may be the host's, with nothing there; its own group then is the root.
        group = root / path.lstrip("/")
        for directory in (group, *group.parents):
            limit = _read_limit(directory / file)
            if limit is not None:
                limits.append(limit)
            if directory == root:
                break
    return limits


def _read_limit(file: Path) -> int | None:
    try:
        text = file.read_text().strip()
    except OSError:
        return None
    return int(text) if text.isdigit() else None  # "max" is no limit


def disk_free(path: str | os.PathLike[str]) -> int:
    """Bytes that an unprivileged process may still write to the disk that holds `path`."""
    status = os.statvfs(path)
    return status.f_bavail * status.f_frsize
