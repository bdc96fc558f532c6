"""A tap: a consumer that shows what goes through an exchange to whoever watches, on a hidden queue of its own.

Its queue has the bindings of the exchange's other destinations, so that a message comes here if it comes to any of these: what
is unroutable stays unroutable, and nothing is different for whoever publishes. A tap takes whatever comes and keeps little.
"""

from __future__ import annotations

from typing import Final

from mypy_extensions import i64

from rabbitpy_broker.message import Message
from rabbitpy_broker.queues.consumers import Consumer
from rabbitpy_broker.queues.msg_status import MsgStatus

KEPT_BYTES: Final[i64] = 4_194_304


class Tap(Consumer):
    """Keeps up to `limit` messages until they are taken, and counts the others."""

    def __init__(self, limit: i64) -> None:
        super().__init__("tap", True, False, 0)
        self.closed = False
        self._limit = limit
        self._kept: list[Message] = []
        self._bytes: i64 = 0
        self._unseen: i64 = 0

    def ready(self) -> bool:
        return True

    def deliver(self, message: Message, redelivered: bool, status: MsgStatus | None) -> None:
        size: i64 = len(message.content)
        if len(self._kept) < self._limit and self._bytes + size <= KEPT_BYTES:
            self._kept.append(message)
            self._bytes += size
        else:
            self._unseen += 1

    def cancelled(self) -> None:
        self.closed = True

    def take(self) -> tuple[list[Message], int]:
        """What has come since the last call: the messages that were kept, and how many were not."""
        taken, unseen = self._kept, self._unseen
        self._kept, self._bytes, self._unseen = [], 0, 0
        return taken, int(unseen)
