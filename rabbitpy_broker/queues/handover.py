"""A promise handed over: the publisher of a dead letter waits for what becomes of its copy.

The copy may go to several queues; those that promise a consumer's ack tell when they have it, those that promise the
disk are settled with their epoch. When all are settled the publisher is told, as ever once.
"""

from __future__ import annotations

from mypy_extensions import i64

from rabbitpy_broker.message import ConfirmWaiter, Message
from rabbitpy_broker.storage.sync import EpochWaiter, SyncGroup


class HandedOver(ConfirmWaiter):
    """Passes on the outcome of several to the one who waits; the letter itself is one, until all have taken their copy."""

    def __init__(self, waiter: ConfirmWaiter) -> None:
        self._waiter = waiter
        self._owing: i64 = 1
        self._lost = False

    def wait_for(self, copy: Message, owing: i64, syncs: SyncGroup | None) -> None:
        """`owing` queues have answered WAITING for the copy; some SYNCING, when `syncs` is there."""
        self._owing += owing
        if owing > 0:
            copy.waiter = self
        if syncs is not None:
            self._owing += 1
            syncs.wait(EpochPart(self, syncs.epoch))

    def decided(self, ok: bool) -> None:
        self._owing -= 1
        if not ok:
            self._lost = True
        if self._owing == 0:
            self._waiter.decided(not self._lost)


class EpochPart(EpochWaiter):
    """The part of the epoch that was filling."""

    def __init__(self, handed: HandedOver, epoch: i64) -> None:
        self._handed = handed
        self._epoch = epoch

    def epoch_settled(self, epoch: i64, ok: bool) -> None:
        if epoch == self._epoch:
            self._handed.decided(ok)
