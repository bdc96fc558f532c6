"""Publishers that a queue owes a word: they wait until a consumer has acked their message, or it is lost.

A message that owes has its waiter with it (`Message.waiter`) while its body is in RAM; when the body is dropped the waiter
stays here, by seq_id, until the body is back. In the light form of the mode a message is forgotten when it is handed out:
its status is *light*, and comes back only to be told.

What must stay true: a waiter is here or at its message, and is told once; `waiting` counts those who have not been told.
"""

from __future__ import annotations

from mypy_extensions import i32, i64

from rabbitpy_broker.message import ConfirmWaiter, Message
from rabbitpy_broker.queues.msg_status import MsgStatus
from rabbitpy_broker.queues.queue_settings import CONSUMER_ACK_LIGHT, PERSIST


class PagedWaiter:
    """Who waits for a message whose body is on disk, and since when: see MsgStatus."""

    def __init__(self, waiter: ConfirmWaiter | None, since_s: i32) -> None:
        self.waiter = waiter
        self.since_s = since_s


class Owed:
    """Of one queue. `below`: messages of fewer bytes are promised to be acked, larger ones to be on disk."""

    def __init__(self, mode: i64, below: i64) -> None:
        self.mode = mode
        self.on_ack = mode != PERSIST  # acks are promised, for what is published now
        self.waiting: i64 = 0
        self.now_s: i32 = 0  # of the last tick
        self.began_s: i32 = 0  # of the first one; what came before it is taken to have come then
        self.paged: dict[int, PagedWaiter] = {}
        self._below = below
        self._was_light = False

    def set_mode(self, mode: i64) -> None:
        """For messages published from now on; what waits for an ack goes on waiting for it."""
        if self.mode == CONSUMER_ACK_LIGHT:
            self._was_light = True
        self.mode = mode
        self.on_ack = mode != PERSIST

    def is_promised(self, message: Message) -> bool:
        """True where a consumer's ack is promised: small, and not NO_RESEND. The waiter itself comes after the publish."""
        return self.on_ack and len(message.content) < self._below and message.waiter is None

    def may_be_light(self) -> bool:
        """True when some may have been handed out light."""
        return self.mode == CONSUMER_ACK_LIGHT or self._was_light

    def owe(self, status: MsgStatus) -> None:
        """The publisher waits for this message to be acked."""
        status.owes = True
        status.since_s = self.now_s
        self.waiting += 1

    def tell(self, status: MsgStatus, message: Message | None, ok: bool) -> None:
        """Tells who waits, if anybody does; `message` is the body if it is in RAM."""
        if not status.owes:
            return
        status.owes = False
        if message is None:
            self.tell_paged(status.seq_id, ok)
            return
        self.waiting -= 1
        if message.waiter is not None:
            message.waiter.decided(ok)

    def tell_paged(self, seq_id: i64, ok: bool) -> None:
        """As `tell`, for a message whose body is on disk."""
        self.waiting -= 1
        waiter = self.paged.pop(seq_id).waiter
        if waiter is not None:
            waiter.decided(ok)

    def forget(self, status: MsgStatus) -> None:
        """Somebody else keeps the promise."""
        if status.owes:
            status.owes = False
            self.waiting -= 1
            self.paged.pop(status.seq_id, None)

    def body_dropped(self, status: MsgStatus, message: Message) -> None:
        """The waiter stays here."""
        if status.owes:
            self.paged[status.seq_id] = PagedWaiter(message.waiter, status.since_s)

    def body_read(self, seq_id: i64, message: Message) -> None:
        """The waiter is at its message again."""
        if self.paged and seq_id in self.paged:
            message.waiter = self.paged.pop(seq_id).waiter

    def position_read(self, status: MsgStatus) -> None:
        """A status that was made anew, out of delta."""
        if self.paged and status.seq_id in self.paged:
            status.owes = True
            status.since_s = self.paged[status.seq_id].since_s

    def tick(self, now_s: i32, is_first: bool) -> None:
        """About once a second; seconds of the clock of `BackingQueue.tick`."""
        self.now_s = now_s
        if is_first:
            self.began_s = now_s
