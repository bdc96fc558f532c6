"""A store's host for tests: what it is told goes to functions."""

from __future__ import annotations

from collections.abc import Callable

from rabbitpy_broker.storage.sync import StoreHost, SyncGroup


def _nothing(*_: object) -> None:
    """For what a test does not look at."""


class HostOf(StoreHost):
    def __init__(
        self,
        sync_due: Callable[[SyncGroup], object],
        disk_trouble: Callable[[str], object] = _nothing,
        before_epoch: Callable[[], object] = _nothing,
    ) -> None:
        self._sync_due = sync_due
        self._disk_trouble = disk_trouble
        self._before_epoch = before_epoch

    def sync_due(self, group: SyncGroup) -> None:
        self._sync_due(group)

    def before_epoch(self) -> None:
        self._before_epoch()

    def disk_trouble(self, reason: str) -> None:
        self._disk_trouble(reason)
