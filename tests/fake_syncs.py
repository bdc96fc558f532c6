"""A SyncGroup without a disk: what waits for an epoch is told when the test says so."""

from __future__ import annotations

from collections.abc import Callable

from rabbitpy_broker.storage.sync import EpochWaiter, SyncGroup


class FakeSyncs(SyncGroup):
    """Epochs that begin and settle when the test says so. As many may be open as like."""

    def __init__(self) -> None:
        super().__init__()
        self.faulty = False
        self.on_begin: Callable[[], None] = lambda: None
        self.waiters: dict[int, list[EpochWaiter]] = {}
        self.begun: list[int] = []

    def wait(self, waiter: EpochWaiter) -> None:
        waiters = self.waiters.setdefault(self.epoch, [])
        assert waiter not in waiters, "one registration an epoch is enough"
        waiters.append(waiter)

    def begin_if_due(self) -> None:
        if self.faulty:
            raise OSError(5, "Input/output error")
        self.on_begin()
        self.begun.append(self.epoch)
        self.epoch += 1

    def settle(self, ok: bool) -> int:
        """Settles the oldest epoch that was begun, and returns its number."""
        epoch = self.begun.pop(0)
        for waiter in self.waiters.pop(epoch, []):
            waiter.epoch_settled(epoch, ok)
        return epoch
