"""A backing queue in memory: one ring of messages, nothing on disk.

A publish is CONFIRMED as soon as it is in the ring, unless the queue's promise is its consumers' acks (`confirm_on_ack`):
then every message that somebody waits for is WAITING until it is acked, or is gone.
"""

from __future__ import annotations

from mypy_extensions import i64

from rabbitpy_broker.message import Message
from rabbitpy_broker.queues.backing_queue import CONFIRMED, WAITING, BackingQueue
from rabbitpy_broker.queues.msg_ring import MsgRing
from rabbitpy_broker.queues.msg_status import MsgStatus


def _seq_id(status: MsgStatus) -> int:
    return status.seq_id


def _settle(status: MsgStatus, ok: bool) -> None:
    message = status.message
    if message is not None and message.waiter is not None:
        message.waiter.settled(ok)


class MemoryQueue(BackingQueue):
    """See BackingQueue for the contract of each method."""

    def __init__(self, confirm_on_ack: bool) -> None:
        super().__init__()
        self._confirm_on_ack = confirm_on_ack
        self._ring = MsgRing()
        self._next_seq_id: i64 = 0
        self._deleted = False

    def publish(self, message: Message) -> i64:
        seq_id = self._next_seq_id
        self._next_seq_id = seq_id + 1
        self._ring.append(MsgStatus(seq_id, message))
        self.len += 1
        self.ready_bytes += message.body_size()
        return WAITING if self._confirm_on_ack else CONFIRMED

    def publish_delivered(self, message: Message) -> MsgStatus:
        seq_id = self._next_seq_id
        self._next_seq_id = seq_id + 1
        self.unacked += 1
        self.unacked_bytes += message.body_size()
        return MsgStatus(seq_id, message)

    def delivered_outcome(self, message: Message) -> i64:
        return WAITING if self._confirm_on_ack else CONFIRMED

    def fetch(self) -> MsgStatus:
        status = self._ring.popleft()
        message = status.message
        assert message is not None
        size = message.body_size()
        self.len -= 1
        self.unacked += 1
        self.ready_bytes -= size
        self.unacked_bytes += size
        return status

    def ack(self, status: MsgStatus) -> None:
        self._forget(status, True)

    def drop(self, status: MsgStatus) -> None:
        self._forget(status, False)

    def _forget(self, status: MsgStatus, ok: bool) -> None:
        message = status.message
        assert message is not None
        self.unacked -= 1
        self.unacked_bytes -= message.body_size()
        if self._confirm_on_ack:
            _settle(status, ok)

    def requeue(self, statuses: list[MsgStatus]) -> None:
        if self._deleted:
            for status in statuses:
                self._forget(status, False)
            return
        for status in statuses:
            message = status.message
            assert message is not None
            status.redelivered = True
            size = message.body_size()
            self.unacked_bytes -= size
            self.ready_bytes += size
        statuses.sort(key=_seq_id)
        self._ring.merge(statuses)
        self.len += len(statuses)
        self.unacked -= len(statuses)

    def purge(self) -> i64:
        purged = self._ring.clear()
        count: i64 = len(purged)
        self.len = 0
        self.ready_bytes = 0
        if self._confirm_on_ack:
            for status in purged:
                _settle(status, False)
        return count

    def delete(self) -> None:
        self.purge()
        self._deleted = True
