"""The confirms that a queue owes: publishers wait until a consumer has acked their message, or it is lost.

A message that owes a confirm has its waiter with it (`Message.waiter`) while its body is in RAM. When the body is
dropped, the waiter stays here, by seq_id, until the body is back. In the light form of the mode a message is forgotten
when it is handed out: its status is *light*, and comes back only so that the publisher is told.

What must stay true: a waiter is here or at its message, and is told once; `waiting` counts those that have not been
told.
"""

from __future__ import annotations

from mypy_extensions import i32, i64

from rabbitpy_broker.message import ConfirmWaiter, Message
from rabbitpy_broker.queues.msg_status import MsgStatus
from rabbitpy_broker.queues.queue_settings import CONSUMER_ACK_LIGHT, PERSIST


class PagedWaiter:
    """The waiter of a message whose body is on disk, and the second since which it waits (see MsgStatus)."""

    def __init__(self, waiter: ConfirmWaiter | None, since_s: i32) -> None:
        self.waiter = waiter
        self.since_s = since_s


class Owed:
    """The confirms that one queue owes. `below`: a smaller message is confirmed by an ack, a larger one when it is on
    disk.
    """

    def __init__(self, mode: i64, below: i64) -> None:
        self.mode = mode
        self.on_ack = mode != PERSIST  # a message that is published now is confirmed by an ack
        self.waiting: i64 = 0
        self.now_s: i32 = 0  # the last tick
        self.began_s: i32 = 0  # the first tick; an earlier message counts as having come then
        self.paged: dict[int, PagedWaiter] = {}
        self._below = below
        self._was_light = False

    def set_mode(self, mode: i64) -> None:
        """Sets the mode for messages published from now on; the older ones keep the promise that they have."""
        if self.mode == CONSUMER_ACK_LIGHT:
            self._was_light = True
        self.mode = mode
        self.on_ack = mode != PERSIST

    def is_promised(self, message: Message) -> bool:
        """True when a publish of this message is confirmed by a consumer's ack: it is small, and its waiter is not
        NO_RESEND.

        Assumes: the confirms set its own waiter only after the publish.
        """
        return self.on_ack and len(message.content) < self._below and message.waiter is None

    def may_be_light(self) -> bool:
        """True when some messages may have been handed out light."""
        return self.mode == CONSUMER_ACK_LIGHT or self._was_light

    def owe(self, status: MsgStatus) -> None:
        """Notes that the publisher waits for a consumer to ack this message."""
        status.owes = True
        status.since_s = self.now_s
        self.waiting += 1

    def tell(self, status: MsgStatus, message: Message | None, ok: bool) -> None:
        """Tells the waiter of a message, if it has one; `message` is the body if it is in RAM."""
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
        """Forgets the waiter of a message: somebody else keeps the promise."""
        if status.owes:
            status.owes = False
            self.waiting -= 1
            self.paged.pop(status.seq_id, None)

    def body_dropped(self, status: MsgStatus, message: Message) -> None:
        """Keeps the waiter of a message whose body leaves RAM."""
        if status.owes:
            self.paged[status.seq_id] = PagedWaiter(message.waiter, status.since_s)

    def body_read(self, seq_id: i64, message: Message) -> None:
        """Gives the waiter back to a message whose body is in RAM again."""
        if self.paged and seq_id in self.paged:
            message.waiter = self.paged.pop(seq_id).waiter

    def position_read(self, status: MsgStatus) -> None:
        """Marks a status that was made anew, out of delta, if it owes a confirm."""
        if self.paged and status.seq_id in self.paged:
            status.owes = True
            status.since_s = self.paged[status.seq_id].since_s

    def tick(self, now_s: i32, is_first: bool) -> None:
        """Notes the time, about once a second; seconds of the clock of `BackingQueue.tick`."""
        self.now_s = now_s
        if is_first:
            self.began_s = now_s
