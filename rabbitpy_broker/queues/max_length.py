"""The maximum length of a queue: max-length in ready messages, max-length-bytes in bytes of their bodies.

With overflow drop-head, the default, the oldest messages make room; with reject-publish a publish that would go over a
limit is refused, and its publisher gets a basic.nack; with reject-publish-dlx the refused message is dead-lettered
besides. Unacked messages do not count.
"""

from __future__ import annotations

from mypy_extensions import i64

from rabbitpy_broker.queues.backing_queue import BackingQueue
from rabbitpy_broker.queues.queue_settings import QueueSettings


class MaxLength:
    """The maximum length of one queue; -1 is none."""

    def __init__(self, settings: QueueSettings) -> None:
        self.max_length = settings.max_length
        self.max_length_bytes = settings.max_length_bytes
        self.rejects = settings.overflow != "drop-head"
        self.dead_letters_rejected = settings.overflow == "reject-publish-dlx"
        self.any = self.max_length >= 0 or self.max_length_bytes >= 0

    def refuses(self, backing: BackingQueue, size: i64) -> bool:
        """True when a message of `size` bytes must be refused."""
        return self.rejects and self.would_exceed(backing, size)

    def would_exceed(self, backing: BackingQueue, size: i64) -> bool:
        """True when the queue would be too long with a message of `size` bytes more."""
        return self._over(backing.len + 1, backing.ready_bytes + size)

    def exceeded(self, backing: BackingQueue) -> bool:
        """True when the oldest message has to go. Never true where publishes are refused, although requeues may exceed the
        length.
        """
        return not self.rejects and backing.len > 0 and self._over(backing.len, backing.ready_bytes)

    def _over(self, length: i64, size: i64) -> bool:
        return (self.max_length >= 0 and length > self.max_length) or (
            self.max_length_bytes >= 0 and size > self.max_length_bytes
        )
