"""One message in one queue: its place, and who holds it unacked.

`seq_id` is the place in the queue: it is never reused, and a requeued message keeps it, which is how it finds its old
place. `held_by` is the consumer that has the message and has not acked it, None while it is ready; a message is held by
one consumer at most. `delivery_tag` counts on that consumer's channel and has a meaning only while it is held.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mypy_extensions import i64

from rabbitpy_broker.message import Message

if TYPE_CHECKING:
    from rabbitpy_broker.queues.consumers import Consumer


class MsgStatus:
    """`message` is None where only the place is in memory, and in a tombstone."""

    def __init__(self, seq_id: i64, message: Message | None) -> None:
        self.seq_id = seq_id
        self.message = message
        self.redelivered = False
        self.held_by: Consumer | None = None
        self.delivery_tag: i64 = 0
