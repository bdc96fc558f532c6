"""A promise handed over: the publisher of a dead letter waits for the fate of its copy.

The copy may go to several queues. A queue that promises a consumer's ack tells when it has the ack; a queue that
promises the disk is done when its epoch is settled. When all are done, the publisher is told, once as ever.
"""

from __future__ import annotations

from mypy_extensions import i64

from rabbitpy_broker.message import ConfirmWaiter, Message
from rabbitpy_broker.storage.sync import EpochWaiter, SyncGroup


class HandedOver(ConfirmWaiter):
    """Waits for several outcomes, and passes one on to the publisher's waiter. The letter itself is one of them, until all
    targets have taken their copy.
    """

    def __init__(self, waiter: ConfirmWaiter) -> None:
        self._waiter = waiter
        self._owing: i64 = 1
        self._lost = False

    def wait_for(self, copy: Message, owing: i64, syncs: SyncGroup | None) -> None:
        """Waits besides for `owing` queues, which answered WAITING for the copy, and for the epoch that is filling if
        `syncs` is given.
        """
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
    """The outcome of one epoch, as one of those that a HandedOver waits for."""

    def __init__(self, handed: HandedOver, epoch: i64) -> None:
        self._handed = handed
        self._epoch = epoch

    def epoch_settled(self, epoch: i64, ok: bool) -> None:
        if epoch == self._epoch:
            self._handed.decided(ok)
