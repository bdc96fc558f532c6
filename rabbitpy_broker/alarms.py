"""The memory and the disk alarm: when one is on, connections that publish are blocked until both are off.

The memory alarm is on while the process takes more than its limit, the disk alarm while the disk of the data directory
has less free than its own, or while a store cannot write to it. `Alarms` only compares: what it compares is read by
callables that are handed in (`process_memory.py` and below), or told to it by the stores, and when to look is the caller's
affair (once a second, and after a limit was changed or a store has failed or recovered).

What must stay true: the memory alarm does not begin for memory that is free inside the process.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Final

MEMORY: Final = "memory"
DISK: Final = "disk"


class Alarms:
    """`active` holds the alarms that are on; `memory_used` and `disk_free` what was read at the last check, in bytes.

    A disk limit of 0 never alarms; a memory limit of 0 always does, which blocks all publishing, as in RabbitMQ.
    `store_failures` holds the stores that cannot write, and what the system said; `held` the vhosts whose publishers alone are
    blocked, and why.
    """

    def __init__(
        self,
        memory_limit_bytes: int,
        disk_limit_bytes: int,
        read_memory: Callable[[], int],
        read_disk_free: Callable[[], int],
        give_back_memory: Callable[[], None],
    ) -> None:
        self.memory_limit_bytes = memory_limit_bytes
        self.disk_limit_bytes = disk_limit_bytes
        self.memory_used = 0
        self.disk_free = 0
        self.active: set[str] = set()
        self.store_failures: dict[str, str] = {}
        self.held: dict[str, str] = {}
        self._read_memory = read_memory
        self._read_disk_free = read_disk_free
        self._give_back_memory = give_back_memory

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
            if self.memory_used > self.memory_limit_bytes and MEMORY not in self.active:
                self._give_back_memory()
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


def disk_free(path: str | os.PathLike[str]) -> int:
    """Bytes that an unprivileged process may still write to the disk that holds `path`."""
    status = os.statvfs(path)
    return status.f_bavail * status.f_frsize
